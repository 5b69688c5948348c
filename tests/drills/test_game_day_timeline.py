"""The timeline of a game day: owners of identities, and stalls."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.drills.game_day.timeline import (
    OwnershipSpan,
    Span,
    Stall,
    advertised_spans,
    committed_spans,
    find_stalls,
)
from fleet.drills.workload.checker import Sighting, View
from fleet.drills.workload.history import Event, Record

WITHIN = Span(100.0, 110.0)


def about(moment_s: float) -> Any:
    return pytest.approx(moment_s)


def told(at_s: float, proxy_id: str, generation: int, owner: str) -> Sighting:
    return Sighting(at_s, proxy_id, generation, {1: (owner,)})


def test_newest_generation_names_the_owner_of_an_identity() -> None:
    sightings = [
        told(99.0, "p1", 1, "p1"),
        told(104.0, "p2", 2, "p2"),
        told(105.0, "p3", 1, "p1"),  # an older generation
        told(106.0, "p3", 2, "p2"),
        told(107.0, "p1", 3, "p2"),  # a change of another identity
    ]
    assert committed_spans(sightings, (1,), WITHIN) == [
        OwnershipSpan(1, "p1", Span(0.0, 4.0)),
        OwnershipSpan(1, "p2", Span(4.0, 10.0)),
    ]


def test_majority_of_members_names_the_advertised_owner() -> None:
    views = {
        "p1": [View(90.0, {1: "p1"})],  # dead since 103: no further change
        "p2": [View(90.0, {1: "p1"}), View(103.2, {1: "p2"})],
        "p3": [View(90.0, {1: "p1"}), View(103.4, {1: "p2"})],
    }
    found = advertised_spans(views, (1,), WITHIN)
    assert [(each.owner, each.span) for each in found] == [
        ("p1", Span(0.0, about(3.4))),
        ("p2", Span(about(3.4), 10.0)),
    ]


def test_newest_of_two_differing_views_counts() -> None:
    views = {"p1": [View(90.0, {1: "p1"})], "p2": [View(91.0, {1: "p1"}), View(105.0, {1: None})]}
    assert [each.owner for each in advertised_spans(views, (1,), WITHIN)] == ["p1", None]


def test_timeline_omits_earlier_spans_and_unknown_owners() -> None:
    views = {"p1": [View(90.0, {1: "p1"}), View(95.0, {1: "p2"})]}
    assert [each.owner for each in advertised_spans(views, (1,), WITHIN)] == ["p2"]
    assert advertised_spans(views, (9,), WITHIN) == [OwnershipSpan(9, None, Span(0.0, 10.0))]
    assert committed_spans([], (1,), WITHIN) == []


def test_long_intervals_of_a_partition_are_stalls() -> None:
    moments = {0: [*(100.0 + tick / 10 for tick in range(41)), *(104.5 + tick / 10 for tick in range(60))]}
    events = [Event(at_s, 0, Record(1, number), number) for number, at_s in enumerate(moments[0])]
    first, second = find_stalls(events, "delivered", 2, WITHIN)
    assert first == Stall(0, "delivered", Span(about(4.0), about(4.5)))
    assert second == Stall(1, "delivered", Span(0.0, 10.0))
