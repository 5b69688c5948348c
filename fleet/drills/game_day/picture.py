"""Draws the timeline of a game day as SVG or PNG, by the suffix of the file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fleet.core.errors import GameDayError
from fleet.core.model import ProxyId
from fleet.drills.game_day.timeline import OwnershipSpan, Timeline

_COLOURS: Final = [
    mpl.color_sequences["tab20"][each] for each in (0, 2, 4, 8, 10, 16, 18, 1, 3, 5, 9, 11, 17, 19)
]
"""Without reds and greys, which mark stalls, errors and the fault."""
_NO_OWNER_COLOUR: Final = "black"
_BARS: Final = {"advertised": (0.02, 0.46), "committed": (0.52, 0.46)}
"""Position of a bar in an identity's row: distance from the upper edge, height."""
_STALL_BARS: Final = {"acknowledged": ("crimson", 0.05, 0.45), "delivered": ("lightcoral", 0.5, 0.45)}
_INCHES_PER_ROW = 0.3


def draw(timeline: Timeline, path: Path) -> None:
    """Write the picture.

    In an SVG each mark has an id, such as `advertised-1-p2` or `fault`.

    Raises: GameDayError: the file cannot be written.
    """
    rows = (len(timeline.broker_ids), max(1, timeline.partitions), 1)
    figure = Figure(figsize=(12.0, 2.0 + _INCHES_PER_ROW * sum(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(3, 1, sharex=True, height_ratios=rows)
    colours = {member: _COLOURS[number % len(_COLOURS)] for number, member in enumerate(timeline.members)}
    _identities(axes[0], timeline, colours)
    _stalls(axes[1], timeline)
    _errors(axes[2], timeline)
    for ax in axes:
        _moments(ax, timeline)
        ax.set_xlim(0.0, timeline.lasted_s)
    axes[0].set_title(timeline.title, loc="left")
    axes[-1].set_xlabel("seconds")
    figure.legend(handles=_legend(colours), loc="outside right upper", frameon=False)
    try:
        with mpl.rc_context({"svg.fonttype": "none"}):
            figure.savefig(path)
    except OSError as error:
        raise GameDayError(f"{path}: cannot write the picture: {error.strerror}") from error


def _identities(ax: Any, timeline: Timeline, colours: Mapping[ProxyId, Any]) -> None:
    rows = {broker_id: row for row, broker_id in enumerate(timeline.broker_ids)}
    for kind, spans in (("advertised", timeline.advertised), ("committed", timeline.committed)):
        offset, height = _BARS[kind]
        for each in spans:
            _bar(ax, kind, each, rows[each.broker_id] + offset, height, colours)
    ax.set_yticks([row + 0.5 for row in rows.values()], [f"broker {each}" for each in rows])
    ax.set_ylim(len(rows), 0)
    ax.set_ylabel("advertised above,\ncommitted below")


def _bar(
    ax: Any, kind: str, owned: OwnershipSpan, top: float, height: float, colours: Mapping[ProxyId, Any]
) -> None:
    owner = owned.owner or "nobody"
    ax.broken_barh(
        [(owned.span.from_s, owned.span.until_s - owned.span.from_s)],
        (top, height),
        facecolor=colours.get(owner, _NO_OWNER_COLOUR),
        alpha=1.0 if kind == "advertised" else 0.55,
        gid=f"{kind}-{owned.broker_id}-{owner}",
    )


def _stalls(ax: Any, timeline: Timeline) -> None:
    for stall in timeline.stalls:
        colour, offset, height = _STALL_BARS[stall.what]
        ax.broken_barh(
            [(stall.span.from_s, stall.span.until_s - stall.span.from_s)],
            (stall.partition + offset, height),
            facecolor=colour,
            gid=f"stall-{stall.what}-{stall.partition}",
        )
    step = max(1, timeline.partitions // 20)
    numbers = range(0, timeline.partitions, step)
    ax.set_yticks([number + 0.5 for number in numbers], [str(number) for number in numbers])
    ax.set_ylim(timeline.partitions, 0)
    ax.set_ylabel("stalls by\npartition")


def _errors(ax: Any, timeline: Timeline) -> None:
    for at_s in timeline.errors:
        ax.plot([at_s], [0.5], "x", color="crimson", gid="error")
    ax.set_yticks([])
    ax.set_ylim(0, 1)
    ax.set_ylabel("errors")


def _moments(ax: Any, timeline: Timeline) -> None:
    if timeline.fault is not None:
        ax.axvspan(timeline.fault.from_s, timeline.fault.until_s, color="whitesmoke", zorder=0, gid="fault")
        for at_s in (timeline.fault.from_s, timeline.fault.until_s):
            ax.axvline(at_s, color="black", linestyle=":")
    if timeline.whole_s is not None:
        ax.axvline(timeline.whole_s, color="black", linestyle="--", gid="whole")


def _legend(colours: Mapping[ProxyId, Any]) -> list[Artist]:
    entries = {
        **colours,
        "no live owner": _NO_OWNER_COLOUR,
        "nothing acknowledged": _STALL_BARS["acknowledged"][0],
        "nothing delivered": _STALL_BARS["delivered"][0],
    }
    lines = {"fault injected, healed": ":", "whole and at rest again": "--"}
    return [
        *(Patch(facecolor=colour, label=label) for label, colour in entries.items()),
        *(Line2D([], [], color="black", linestyle=style, label=label) for label, style in lines.items()),
        Line2D([], [], color="crimson", linestyle="", marker="x", label="reported to an application"),
    ]
