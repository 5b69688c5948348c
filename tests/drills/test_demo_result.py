from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from fleet.drills.demo.result import Result, Round
from fleet.drills.workload.audit import Audit

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "schemas" / "demo.schema.json").read_text())
AUDIT = Audit(100, 101, 2, 0, 0, 0)
ROUND = Round("p1", True, 12.34567, 20.0, None, 300.06, 310.0)


def test_the_json_is_the_object_that_its_schema_describes() -> None:
    printed = Result(AUDIT, (ROUND,)).to_json()
    assert "\n" not in printed
    document = json.loads(printed)
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(document, SCHEMA)
    assert document == {
        "acknowledged": 100,
        "received": 101,
        "redelivered": 2,
        "lost": 0,
        "duplicated": 0,
        "out_of_order": 0,
        "rounds": [
            {
                "killed": "p1",
                "was_leader": True,
                "detected_ms": 12.3,
                "advertised_ms": 20.0,
                "committed_ms": None,
                "producer_stall_ms": 300.1,
                "consumer_stall_ms": 310.0,
            }
        ],
    }


def test_schema_rejects_missing_and_additional_fields() -> None:
    document = json.loads(Result(AUDIT, (ROUND,)).to_json())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**document, "extra": 1}, SCHEMA)
    for key in document:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({name: value for name, value in document.items() if name != key}, SCHEMA)


@pytest.mark.parametrize("fault", ["lost", "duplicated", "out_of_order"])
def test_any_violation_fails_the_demo(fault: str) -> None:
    assert not Result(replace(AUDIT, **{fault: 1}), ()).passed


def test_demo_with_an_unfinished_step_fails() -> None:
    assert Result(AUDIT, ()).passed
    assert not Result(AUDIT, (), ("round 1: not every survivor bypassed p1",)).passed
