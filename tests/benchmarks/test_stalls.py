"""The takeover benchmark's figures of clients other than librdkafka."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from benchmarks import control
from benchmarks.stalls import CLIENTS, FAST_RETURN_TIMING, MEASURES, Stall, choose_victim, describe_kill
from benchmarks.takeover import MEASURES as LIBRDKAFKA_MEASURES
from fleet.config import Timing
from fleet.core.errors import DemoError
from fleet.drills.cluster.fleet import LocalFleet
from tests.chaos.seeded.workloads import KINDS

KILL = {"java": Stall("p2", True, 217.0, 466.2), "aiokafka": Stall("p2", True, 204.9, 207.1)}


def test_line_names_the_victim_and_each_stall() -> None:
    assert describe_kill(KILL) == (
        "killed p2, the Raft leader; longest stall: java 217 ms, its group 466 ms, "
        "aiokafka 205 ms, its group 207 ms"
    )


def test_stall_measures_are_also_measured_for_librdkafka() -> None:
    assert set(MEASURES) < set(LIBRDKAFKA_MEASURES)
    assert [KILL["java"].value(each) for each in MEASURES] == [217.0, 466.2]


def test_clients_exist_in_chaos_runs() -> None:
    assert all(KINDS[each.workload].promise.exact for each in CLIENTS.values())


def test_returned_member_waits_less_than_by_default() -> None:
    assert all(0 < value < getattr(Timing(), name) for name, value in FAST_RETURN_TIMING.items())


class Members:
    """The methods of a fleet that `choose_victim` calls; p1 leads."""

    members = ("p1", "p2", "p3")

    def leader(self) -> str:
        return "p1"

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        assert condition(), what


@pytest.mark.parametrize(
    ("wish", "owners", "back", "victim"),
    [
        ("leader", "p1 p2 p3", "p1", "p1"),
        ("follower", "p1 p2 p3", "", "p2"),
        ("follower", "p1 p2 p3", "p2", "p3"),  # aiokafka had not moved back to p2 yet, and lost nothing
        ("follower", "p1 p2", "p2", "p2"),
    ],
)
def test_kill_chooses_a_follower_that_clients_know(
    wish: str, owners: str, back: str, victim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "owns", lambda _fleet, each, _ids: each in owners.split())
    fleet = cast("LocalFleet", Members())
    assert choose_victim(fleet, frozenset({1, 2, 3}), wish, set(back.split())) == victim


def test_a_follower_that_owns_nothing_is_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "owns", lambda *_: False)
    with pytest.raises(DemoError, match="no follower"):
        choose_victim(cast("LocalFleet", Members()), frozenset({1}), "follower", set())
