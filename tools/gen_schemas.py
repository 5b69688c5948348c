"""Writes docs/schemas/*.schema.json, the JSON Schemas of members' documents and of commands with --json.

python -m tools.gen_schemas           write all schemas
python -m tools.gen_schemas --check   exit with 1 if a schema differs
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from fleet.admin import documents
from fleet.cli import journal_files
from fleet.core import event_schema as events
from fleet.core.codec import Codec
from fleet.drills.game_day.report import GAME_DAY
from fleet.pipeline import observations
from fleet.pipeline.documents import ANOMALIES, AUDIT, AVAILABILITY, PIPELINE, REPORT
from tests.chaos.seeded import report
from tests.chaos.seeded.spark_crosscheck import CROSSCHECK

FOLDER: Final = Path(__file__).resolve().parent.parent / "docs" / "schemas"

SCHEMAS: Final[dict[str, Codec[Any]]] = {
    "anomalies": ANOMALIES,
    "audit": AUDIT,
    "availability": AVAILABILITY,
    "certs": documents.CERTS,
    "chaos": report.CHAOS,
    "check": documents.CHECK,
    "client-config": documents.CLIENT_CONFIG,
    "doctor": documents.DOCTOR,
    "drain": documents.DRAIN,
    "error": documents.ERROR,
    "events": events.EVENTS,
    "game-day": GAME_DAY,
    "journal": journal_files.JOURNAL,
    "live": documents.LIVE,
    "node": documents.NODE,
    "observations": observations.EVENTS,
    "ownership": documents.OWNERSHIP,
    "pin": documents.PIN,
    "pipeline": PIPELINE,
    "plan": documents.PLAN,
    "ready": documents.READY,
    "report": REPORT,
    "rolling-restart": documents.ROLLING_RESTART,
    "spark-crosscheck": CROSSCHECK,
    "status": documents.STATUS,
    "traffic": documents.TRAFFIC,
}


def render() -> dict[Path, str]:
    """Path of each schema file → its current text."""
    return {
        FOLDER / f"{name}.schema.json": json.dumps(_schema(codec), indent=2) + "\n"
        for name, codec in SCHEMAS.items()
    }


def _schema(codec: Codec[Any]) -> dict[str, object]:
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_tidy(codec.schema())}


def _tidy(node: Any) -> Any:
    """The schema without pydantic's titles of fields, and with docstrings on one line."""
    if isinstance(node, list):
        return [_tidy(each) for each in node]
    if not isinstance(node, dict):
        return node
    tidy: dict[str, Any] = {}
    for key, value in node.items():
        if key == "title" and isinstance(value, str) and "properties" not in node:
            continue
        if key == "description" and isinstance(value, str):
            value = " ".join(value.partition("\n\n")[0].split())
        if key == "properties":
            tidy[key] = {name: _tidy(inner) for name, inner in value.items()}
        else:
            tidy[key] = _tidy(value)
    return tidy


def main(arguments: list[str]) -> int:
    differing = [
        path
        for path, text in render().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if "--check" in arguments:
        for path in differing:
            print(f"{path.name} differs; run: python -m tools.gen_schemas", file=sys.stderr)
        return 1 if differing else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path, text in render().items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
