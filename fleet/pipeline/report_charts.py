"""Draws the charts of a report, as PNG."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import AutoDateFormatter, AutoDateLocator
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from fleet.pipeline.documents import TAKEOVER_COLUMNS, ReportDocument, elapsed_times

_COLOURS: Final = mpl.color_sequences["tab10"]
_INCHES_PER_ROW: Final = 0.3
_MAX_ROWS: Final = 200
_DAY_S: Final = 24 * 3600.0


def ownership(report: ReportDocument) -> bytes:
    """Draw the owners of each broker over time (a Gantt chart), with marks for takeovers."""
    rows = sorted({(each.fleet, each.broker_id) for each in report.intervals})[:_MAX_ROWS]
    place = {identity: row for row, identity in enumerate(rows)}
    owners = sorted({", ".join(each.owners) for each in report.intervals})
    colours = {owner: _COLOURS[number % len(_COLOURS)] for number, owner in enumerate(owners)}
    figure, axes = _axes(1.2 + _INCHES_PER_ROW * max(1, len(rows)))
    for each in report.intervals:
        row = place.get((each.fleet, each.broker_id))
        if row is None:
            continue
        begins = max(each.from_ms, report.availability.from_ms)
        ends = report.availability.to_ms if each.to_ms is None else min(each.to_ms, report.availability.to_ms)
        bar = [(_date_number(begins), (ends - begins) / 1000 / _DAY_S)]
        axes.broken_barh(bar, (row + 0.1, 0.8), facecolor=colours[", ".join(each.owners)])
    for takeover in report.availability.takeovers:
        row = place.get((takeover.fleet, takeover.broker_id))
        if row is not None:
            axes.plot([_date_number(takeover.began_ms)], [row + 0.5], "k|", markersize=14)
    axes.set_yticks([row + 0.5 for row in place.values()], [f"broker {broker_id}" for _, broker_id in rows])
    axes.set_ylim(max(1, len(rows)), 0)
    handles = [Patch(facecolor=colour, label=owner) for owner, colour in colours.items()]
    return _png(figure, axes, report, handles)


def takeovers(report: ReportDocument) -> bytes:
    """Draw the times of each takeover, measured from the time at which the owner was last alive."""
    figure, axes = _axes()
    for place, label in enumerate(TAKEOVER_COLUMNS[1:]):
        times = [(each.began_ms, elapsed_times(each)[place]) for each in report.availability.takeovers]
        shown = [(_date_number(at_ms), after_ms) for at_ms, after_ms in times if after_ms is not None]
        axes.plot([day for day, _ in shown], [after_ms for _, after_ms in shown], "o", label=label)
    axes.set_ylabel("ms after owner was last alive")
    axes.set_ylim(bottom=0)
    return _png(figure, axes, report)


def attainment(report: ReportDocument) -> bytes:
    """Draw the unavailability in each period, and the error budget next to it."""
    figure, axes = _axes()
    for number, each in enumerate(report.availability.fleets):
        begins = datetime.fromisoformat(each.period).replace(tzinfo=UTC).timestamp() / _DAY_S
        first = number == 0
        for offset, time_ms, colour, label in (
            (0.25, each.unavailable_ms, "crimson", "unavailable"),
            (0.6, each.budget_ms, "lightgrey", "error budget"),
        ):
            axes.bar(begins + offset, time_ms / 1000, 0.3, color=colour, label=label if first else None)
    axes.set_ylabel("seconds, sum over all brokers")
    return _png(figure, axes, report)


def stalls(report: ReportDocument) -> bytes:
    """Draw the stalls of producers and groups."""
    figure, axes = _axes()
    for what, label in (("acknowledged", "producers"), ("received", "groups")):
        points = [
            (_date_number(each.from_ms), each.took_ms) for each in report.audit.stalls if each.what == what
        ]
        axes.plot([day for day, _ in points], [took_ms for _, took_ms in points], "o", label=label)
    axes.set_ylabel("stall, ms")
    axes.set_ylim(bottom=0)
    return _png(figure, axes, report)


def hot_brokers(report: ReportDocument) -> bytes:
    """Draw the processor time that the hottest brokers use at the proxies."""
    figure, axes = _axes()
    for each in report.hot_brokers:
        axes.plot(
            [_date_number(at_ms) for at_ms in each.at_ms], each.cpu_us_per_s, label=f"broker {each.broker_id}"
        )
    axes.set_ylabel("processor time, µs per s")
    axes.set_ylim(bottom=0)
    return _png(figure, axes, report)


CHARTS: Final[Mapping[str, Callable[[ReportDocument], bytes]]] = MappingProxyType(
    {
        "ownership": ownership,
        "takeovers": takeovers,
        "attainment": attainment,
        "stalls": stalls,
        "hot-brokers": hot_brokers,
    }
)


def _axes(height: float = 3.0) -> tuple[Figure, Any]:
    figure = Figure(figsize=(11.0, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def _date_number(at_ms: int) -> float:
    """Convert Unix milliseconds to a date number of matplotlib."""
    return at_ms / 1000 / _DAY_S


def _png(figure: Figure, axes: Any, report: ReportDocument, handles: Sequence[Artist] = ()) -> bytes:
    handles = handles or axes.get_legend_handles_labels()[0]
    if handles:
        figure.legend(handles=handles, loc="outside right upper", frameon=False)
    axes.set_xlim(_date_number(report.availability.from_ms), _date_number(report.availability.to_ms))
    locator = AutoDateLocator(tz=UTC)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(AutoDateFormatter(locator, tz=UTC))
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=100)
    return out.getvalue()
