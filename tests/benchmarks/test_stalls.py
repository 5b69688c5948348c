"""What the takeover benchmark tells of clients that are not librdkafka."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from benchmarks import control
from benchmarks.stalls import CLIENTS, MEASURES, SOON, Stall, choose, line
from benchmarks.takeover import MEASURES as OF_LIBRDKAFKA
from fleet.config import Timing
from fleet.core.errors import DemoError
from fleet.drills.cluster.fleet import LocalFleet
from tests.chaos.seeded.workloads import KINDS

KILL = {"java": Stall("p2", True, 217.0, 466.2), "aiokafka": Stall("p2", True, 204.9, 207.1)}


def test_a_line_tells_who_was_killed_and_what_each_client_waited() -> None:
    assert line(KILL) == (
        "killed p2, the Raft leader; longest stall: java 217 ms, its group 466 ms, "
        "aiokafka 205 ms, its group 207 ms"
    )


def test_stalls_are_measured_that_are_measured_of_librdkafka() -> None:
    assert set(MEASURES) < set(OF_LIBRDKAFKA)
    assert [KILL["java"].value(each) for each in MEASURES] == [217.0, 466.2]


def test_the_clients_are_ones_that_the_chaos_runs_know_and_exact() -> None:
    assert all(KINDS[each.workload].promise.exact for each in CLIENTS.values())


def test_a_member_that_is_back_waits_less_than_by_default() -> None:
    assert all(0 < value < getattr(Timing(), name) for name, value in SOON.items())


class Members:
    """What `choose` asks of a fleet: p1 leads."""

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
        ("follower", "p1 p2 p3", "p2", "p3"),  # aiokafka had not moved back to it yet, and lost nothing
        ("follower", "p1 p2", "p2", "p2"),
    ],
)
def test_kill_chooses_a_follower_that_clients_know(
    wish: str, owners: str, back: str, victim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "owns", lambda _fleet, each, _ids: each in owners.split())
    fleet = cast("LocalFleet", Members())
    assert choose(fleet, frozenset({1, 2, 3}), wish, set(back.split())) == victim


def test_a_follower_that_owns_nothing_is_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "owns", lambda *_: False)
    with pytest.raises(DemoError, match="no follower"):
        choose(cast("LocalFleet", Members()), frozenset({1}), "follower", set())
