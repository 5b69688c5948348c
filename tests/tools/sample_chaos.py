"""A chaos run with an example of every kind of event."""

from __future__ import annotations

from typing import Any

from fleet.drills.workload.checker import Violation
from tests.chaos.seeded.report import Noticed, RunResult


def chaos_run(**changes: Any) -> RunResult:
    values: dict[str, Any] = {
        "plan": "7",
        "replay": 'make chaos ARGS="--runs 1 --seed 7"',
        "folder": "run-1",
        "violations": (Violation("lost", "idempotent: 2 of 90 acknowledged records are lost"),),
        "faults": ("kill_member", "kill_member", "kill_all"),
        "takeovers_ms": (30.0, 10.0),
        "stalls_ms": {"idempotent": 300.0, "acks0": 100.0},
        "noticed": {"idempotent": Noticed(90, 2, 0, 0, 0, 0, 0), "acks0": Noticed(50, 9, 3, 1, 2, 4, 0)},
        "exact": frozenset({"idempotent"}),
        "durable": frozenset({"idempotent"}),
        **changes,
    }
    return RunResult(**values)
