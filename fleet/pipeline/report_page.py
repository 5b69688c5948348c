"""The page of a report: one HTML file that needs nothing else, and its pictures beside it."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime
from pathlib import Path

import jinja2

from fleet.core.errors import PipelineError
from fleet.pipeline.documents import (
    STALLS_SHOWN,
    TAKEOVER_HEADS,
    ReportDocument,
    is_faulty,
    times_of,
)
from fleet.pipeline.report_charts import PICTURES


def write(report: ReportDocument, path: Path) -> list[Path]:
    """Write the page, and each of its pictures as a PNG file beside it, whose name begins with the page's.

    Returns: all files. Raises: PipelineError: one cannot be written.
    """
    pictures = {name: draw(report) for name, draw in PICTURES.items()}
    files = {path: render(report, pictures).encode()}
    files |= {path.with_name(f"{path.stem}.{name}.png"): picture for name, picture in pictures.items()}
    try:
        for place, content in files.items():
            place.write_bytes(content)
    except OSError as error:
        raise PipelineError(f"{error.filename}: the report cannot be written: {error.strerror}") from error
    return list(files)


def render(report: ReportDocument, pictures: dict[str, bytes]) -> str:
    """The page."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fleet.pipeline", "."), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["moment"] = _moment
    environment.filters["times"] = times_of
    environment.tests["faulty"] = is_faulty
    fleets = report.availability.fleets
    known_ms = sum(each.known_ms for each in fleets)
    missing_ms = sum(each.unavailable_ms for each in fleets)
    return environment.get_template("page.html").render(
        availability=report.availability,
        anomalies=report.anomalies,
        hot_brokers=report.hot_brokers,
        audit=report.audit,
        stalls_shown=STALLS_SHOWN,
        takeover_heads=TAKEOVER_HEADS,
        brokers=len({(each.fleet, each.broker_id) for each in report.intervals}),
        available=1 - missing_ms / known_ms if known_ms else 1.0,
        missed=sum(each.left_ms < 0 for each in fleets),
        pictures={name: b64encode(picture).decode() for name, picture in pictures.items()},
    )


def _moment(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
