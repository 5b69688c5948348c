"""Periods in which identities were missing, by events and by observation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet.core.event_schema import ConnectionEvent, OwnershipEvent
from fleet.drills.workload.checker import History, Outage, View
from tests.chaos.seeded.availability_windows import Margin, SeenMissing, from_events, margin, seen_missing

UNTIL_MS = 100_000
TAKEN = OwnershipEvent(
    id="f/ownership/7/1",
    fleet="f",
    told_by="p2",
    generation=7,
    broker_id=1,
    before=("p1",),
    owners=("p2",),
    reason="takeover",
    proposed_at_ms=10_100,
    committed_at_ms=10_120,
    detected_at_ms=10_050,
    advertised_at_ms=10_060,
    alive_at_ms=9_970,
)
OTHER = replace(
    TAKEN,
    told_by="p3",
    committed_at_ms=10_110,
    detected_at_ms=10_040,
    advertised_at_ms=10_090,
    alive_at_ms=9_990,
)
OPENED = ConnectionEvent(
    id="c",
    fleet="f",
    told_by="p2",
    connection="c",
    what="opened",
    why=None,
    listener="inside",
    broker_id=1,
    owned=True,
    client="192.0.2.1:5",
    client_id="c",
    open_ms=0,
    at_ms=10_200,
)


def cut(number: int, at_ms: int) -> list[ConnectionEvent]:
    opened = replace(OPENED, id=f"x{number}", connection=f"x{number}", at_ms=at_ms - 1)
    return [opened, replace(opened, id=f"x{number}/end", what="cut", why="unreachable", at_ms=at_ms)]


def test_takeover_lasts_from_last_alive_to_last_advertised() -> None:
    later = replace(OPENED, id="d", connection="d", at_ms=10_300)
    elsewhere = replace(OPENED, id="e", connection="e", told_by="p3", at_ms=10_150)
    found = from_events([TAKEN, OTHER, TAKEN, OPENED, later, elsewhere], UNTIL_MS)
    assert found.takeovers == {(1, 7): (9_990, 10_040, 10_090, 10_110, 10_200)}
    assert found.windows(UNTIL_MS) == {1: [(9_990, 10_090)]}
    assert found.missing_ms == {1: 100}


def test_takeover_without_alive_time_begins_at_first_sign() -> None:
    assert from_events([replace(TAKEN, alive_at_ms=None)], UNTIL_MS).windows(UNTIL_MS) == {
        1: [(10_050, 10_060)]
    }
    assert from_events([replace(TAKEN, advertised_at_ms=None)], UNTIL_MS).windows(UNTIL_MS) == {
        1: [(9_970, 10_120)]
    }
    late = replace(TAKEN, alive_at_ms=10_055)
    assert from_events([late], UNTIL_MS).windows(UNTIL_MS) == {1: [(10_050, 10_060)]}


@pytest.mark.parametrize("other", [replace(TAKEN, reason="drain"), replace(TAKEN, detected_at_ms=None)])
def test_event_that_is_no_takeover_delays_nothing(other: OwnershipEvent) -> None:
    found = from_events([other], UNTIL_MS)
    assert (found.takeovers, found.missing_ms) == ({}, {1: 0})


def test_request_counts_for_owners_of_its_time() -> None:
    back = replace(TAKEN, generation=9, owners=("p1",), reason="rebalance", proposed_at_ms=10_150)
    found = from_events([TAKEN, replace(back, detected_at_ms=None), OPENED], UNTIL_MS)
    assert found.takeovers[1, 7][-1] is None


def test_outage_lasts_until_service_and_overlaps_count_once() -> None:
    found = from_events([TAKEN, *cut(1, 10_000), *cut(2, 10_030), OPENED, *cut(3, 20_000)], UNTIL_MS)
    assert found.outages == {(1, 10_000, 10_200, 2), (1, 20_000, None, 1)}
    assert found.windows(UNTIL_MS) == {1: [(9_970, 10_200), (20_000, UNTIL_MS)]}
    assert found.missing_ms == {1: 230 + 80_000}
    astray = [replace(each, owned=False) for each in cut(4, 30_000)]
    assert from_events(astray, UNTIL_MS).outages == frozenset()


OUTAGE = Outage("kill_member", ("p1",), ("p2", "p3"), 10.0, 12.0, 2.5, there_s=10.01)


def history(**views: list[View]) -> History:
    return History({1, 2}, (), (), views, [OUTAGE], 20.0, brokers_failed=False)


def dead(at_s: float, asked_s: float) -> View:
    return View(at_s, {1: "p1", 2: "p3"}, asked_s)


def well(at_s: float, asked_s: float = 99.0) -> View:
    return View(at_s, {1: "p2", 2: "p3"}, asked_s)


def test_identity_is_missing_until_the_last_survivor_changes() -> None:
    seen = history(
        p2=[dead(0.0, 10.05), well(10.06)], p3=[dead(0.0, 10.2), well(10.25)], p1=[dead(0.0, 11.0)]
    )
    assert seen_missing(seen) == [SeenMissing(1, 10.0, 10.01, 10.2, 10.25)]


def test_answers_before_the_fault_prove_nothing() -> None:
    assert seen_missing(history(p2=[dead(0.0, 9.995), well(10.02)], p3=[well(0.0)])) == []


def test_member_that_names_the_dead_again_has_not_finished() -> None:
    seen = history(p2=[dead(0.0, 10.05), well(10.06, 10.5), dead(10.6, 10.7), well(10.8)], p3=[well(0.0)])
    assert seen_missing(seen) == [SeenMissing(1, 10.0, 10.01, 10.7, 10.8)]


def test_member_that_names_the_dead_to_the_end_never_finishes() -> None:
    seen = history(p2=[dead(0.0, 15.0), well(15.1)], p3=[dead(0.0, 10.2), well(10.25)])
    assert seen_missing(seen) == [SeenMissing(1, 10.0, 10.01, 12.0, None)]


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        ((10_970, 11_260), Margin(30, 10)),
        ((11_011, 11_200), Margin(-11, -50)),
        ((11_013, 11_200), None),
        ((10_970, 11_197), None),
    ],
    ids=["longer", "as long as it was seen", "begins later", "ends earlier"],
)
def test_reported_interval_contains_the_observed_one(span: tuple[int, int], expected: Margin | None) -> None:
    missed = SeenMissing(1, 10.0, 10.01, 10.2, 10.25)
    windows = {1: [(1, 2), span], 2: [(0, 99_999)]}
    assert margin(missed, windows, wall_ms=1_000.0, drift_ms=0.5) == expected


def test_margin_without_correct_answer_has_no_end() -> None:
    missed = SeenMissing(1, 10.0, 10.01, 10.2, None)
    assert margin(missed, {1: [(9_000, 99_000)]}, wall_ms=0.0, drift_ms=0.0) == Margin(1_000, None)
