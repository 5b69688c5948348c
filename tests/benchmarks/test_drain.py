"""The figures, goals and exit code of the drain benchmark."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.drain import CLIENTS, DrainResult, Move, describe_moves
from benchmarks.takeover import Figures
from fleet.drills.workload.audit import Audit
from tests.chaos.seeded.workloads import KINDS

CLEAN = Audit(9, 9, 0, 0, 0, 0)


def moves(*stalls_ms: float) -> tuple[Move, ...]:
    return tuple(
        Move(when, "p1", {"java": stall_ms / 2, "java group": stall_ms})
        for stall_ms in stalls_ms
        for when in ("calm", "drain", "undrain")
    )


MEASURED = DrainResult(0.5, moves(100.0, 140.0, 900.0), {"java": CLEAN}, 0)


def test_each_client_and_group_has_figures_for_each_kind_of_time() -> None:
    figures = MEASURED.figures()
    assert set(figures) == {
        f"java{who}, {when}" for who in ("", " group") for when in ("calm", "drain", "undrain")
    }
    assert figures["java, drain"] == Figures(70.0, 450.0)
    assert figures["java group, calm"] == Figures(140.0, 900.0)
    assert MEASURED.missed() == []


def test_median_above_the_goal_misses_unless_nothing_moved() -> None:
    slower = replace(MEASURED, moves=moves(160.0))
    assert slower.missed() == [
        "java group, drain: median 160 ms, goal 150 ms",
        "java group, undrain: median 160 ms, goal 150 ms",
    ]
    assert slower.document()["missed"] == slower.missed()


@pytest.mark.parametrize(
    ("changes", "failed"),
    [({}, False), ({"cut": 1}, True), ({"audits": {"java": replace(CLEAN, duplicated=1)}}, True)],
)
def test_cut_request_and_repeated_record_are_failures(changes: dict[str, Any], failed: bool) -> None:
    assert replace(MEASURED, **changes).failed is failed


def test_line_names_the_client_with_the_longest_stall() -> None:
    assert describe_moves(moves(160.0)[1:]) == "drain 160 ms (java group), undrain 160 ms (java group)"


def test_clients_exist_in_chaos_runs() -> None:
    assert all(KINDS[each.workload].promise.exact for each in CLIENTS.values())
