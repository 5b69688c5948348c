"""The rounds of a demo with a fleet whose ports are bound but whose members never start."""

from __future__ import annotations

from pathlib import Path

from fleet.core.model import Endpoint
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.demo.result import Result, Round
from fleet.drills.demo.run import unfinished
from fleet.drills.demo.view import audit_lines, round_line
from fleet.drills.workload.audit import Audit

COMPLETE_ROUND = Round("p1", True, 1.0, 2.0, 3.0, 4.0, 5.0)


NEVER_ENDING_ROUND = Round("p1", True, None, None, None, 4.0, 5.0)


def test_missing_takeover_step_is_reported_and_fails_the_demo(tmp_path: Path) -> None:
    three = LocalFleet(tmp_path / "3", (Endpoint("h", 1),), 3)
    assert unfinished(three, [COMPLETE_ROUND]) == []
    complaint = unfinished(three, [COMPLETE_ROUND, NEVER_ENDING_ROUND])
    assert len(complaint) == 3
    assert all(each.startswith("round 2: ") and "p1" in each for each in complaint)
    result = Result(Audit(1, 1, 0, 0, 0, 0), (NEVER_ENDING_ROUND,), tuple(complaint))
    assert audit_lines(result)[-1] == "the audit FAILED"
    assert "committed after never" in round_line(NEVER_ENDING_ROUND)


def test_no_commit_is_expected_without_a_majority(tmp_path: Path) -> None:
    two = LocalFleet(tmp_path / "2", (Endpoint("h", 1),), 2)
    assert unfinished(two, [Round("p1", True, 1.0, 2.0, None, 4.0, 5.0)]) == []
    assert len(unfinished(two, [Round("p1", True, 1.0, None, None, 4.0, 5.0)])) == 1
