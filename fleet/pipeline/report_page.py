"""Writes the page of a report: one self-contained HTML file, and its charts as PNG files next to it."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime
from pathlib import Path

import jinja2

from fleet.core.errors import PipelineError
from fleet.pipeline.documents import (
    MAX_STALLS_SHOWN,
    STALL_KINDS,
    TAKEOVER_COLUMNS,
    ReportDocument,
    elapsed_times,
    is_faulty,
)
from fleet.pipeline.report_charts import CHARTS


def write(report: ReportDocument, path: Path) -> list[Path]:
    """Write the page, and each chart as a PNG file next to it, with the page's name as prefix.

    Returns: the paths of all files.
    Raises: PipelineError: a file cannot be written.
    """
    charts = {name: draw(report) for name, draw in CHARTS.items()}
    files = {path: render(report, charts).encode()}
    files |= {path.with_name(f"{path.stem}.{name}.png"): chart for name, chart in charts.items()}
    try:
        for place, content in files.items():
            place.write_bytes(content)
    except OSError as error:
        raise PipelineError(f"{error.filename}: cannot write the report: {error.strerror}") from error
    return list(files)


def render(report: ReportDocument, charts: dict[str, bytes]) -> str:
    """Return the page as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fleet.pipeline", "."), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["moment"] = _moment
    environment.filters["times"] = elapsed_times
    environment.tests["faulty"] = is_faulty
    fleets = report.availability.fleets
    known_ms = sum(each.known_ms for each in fleets)
    unavailable_ms = sum(each.unavailable_ms for each in fleets)
    return environment.get_template("page.html").render(
        availability=report.availability,
        anomalies=report.anomalies,
        hot_brokers=report.hot_brokers,
        audit=report.audit,
        max_stalls_shown=MAX_STALLS_SHOWN,
        stall_kinds=STALL_KINDS,
        takeover_columns=TAKEOVER_COLUMNS,
        brokers=len({(each.fleet, each.broker_id) for each in report.intervals}),
        available=1 - unavailable_ms / known_ms if known_ms else 1.0,
        missed=sum(each.left_ms < 0 for each in fleets),
        charts={name: b64encode(chart).decode() for name, chart in charts.items()},
    )


def _moment(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
