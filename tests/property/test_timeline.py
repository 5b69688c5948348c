"""The owner of an identity at each time, from events in any order and number, against a naive twin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fleet.pipeline.timeline import Change, OwnershipHistory, Row

OWNERS = (("p1",), ("p2",), ("p1", "p3"), ())
FAR_PAST = -1


@st.composite
def histories(draw: st.DrawFn) -> list[Change]:
    """The changes that Raft may have committed for one identity; the leaders' clocks differ."""
    generations = draw(st.lists(st.integers(1, 60), unique=True, min_size=1, max_size=12))
    changes, before, now_ms = [], None, 1_000_000
    for generation in sorted(generations):
        owners = draw(st.sampled_from(OWNERS))
        now_ms += draw(st.integers(-50, 500))
        reported_before = draw(st.sampled_from((before, before, before, None, ("p9",))))
        changes.append(Change(generation, owners, reported_before, "takeover", now_ms, now_ms + 5))
        if draw(st.integers(0, 9)) == 0:
            other = draw(st.sampled_from([each for each in OWNERS if each != owners]))
            changes.append(Change(generation, other, reported_before, "takeover", now_ms, now_ms + 5))
        before = owners
    return changes


@st.composite
def tellings(draw: st.DrawFn) -> tuple[list[Change], list[list[Change]]]:
    """A history, and the batches in which it is reported: repeated, with other times, and reordered."""
    history = draw(histories())
    reported = [
        Change(
            each.generation,
            each.owners,
            each.before,
            each.reason,
            each.proposed_at_ms,
            each.committed_at_ms + draw(st.integers(0, 30)),
            draw(st.none() | st.integers(1, 9)),
            draw(st.none() | st.integers(1, 9)),
            draw(st.none() | st.integers(1, 9)),
        )
        for each in history
        for _ in range(draw(st.integers(1, 3)))
    ]
    reported = draw(st.permutations(reported))
    batches: list[list[Change]] = [[]]
    for each in reported:
        batches[-1].append(each)
        if draw(st.booleans()):
            batches.append([])
    return reported, batches


@given(tellings())
def test_final_timeline_equals_that_of_the_naive_twin(
    reported: tuple[list[Change], list[list[Change]]],
) -> None:
    all_reports, batches = reported
    known, table = OwnershipHistory(), dict[Any, Row]()
    for batch in batches:
        known, rows = known.learn(batch, FAR_PAST)
        table.update((row.key, row) for row in rows)
    holds = [row for row in table.values() if not row.withdrawn]
    assert sorted(map(plain, holds)) == sorted(naive(all_reports))


@given(histories())
def test_settled_change_is_forgotten_and_repeats_are_ignored(history: Sequence[Change]) -> None:
    whole, table = OwnershipHistory(), dict[Any, Row]()
    for each in history:
        whole, rows = whole.learn([each], FAR_PAST)
        table.update((row.key, row) for row in rows)
    brief, short = OwnershipHistory(), dict[Any, Row]()
    for each in history:
        # Everything before is settled: no further report of it will come.
        brief, rows = brief.learn([each], each.proposed_at_ms + 10_000)
        short.update((row.key, row) for row in rows)
        assert len({kept.generation for kept in brief.changes}) == 1
    assert {key: row for key, row in short.items() if not row.withdrawn} == {
        key: row for key, row in table.items() if not row.withdrawn
    }


@given(tellings())
def test_repeated_reports_change_nothing(reported: tuple[list[Change], list[list[Change]]]) -> None:
    all_reports, _ = reported
    known, _ = OwnershipHistory().learn(all_reports, FAR_PAST)
    again, rows = known.learn(all_reports, FAR_PAST)
    assert (again, rows) == (known, [])


def test_change_after_settling_is_late() -> None:
    first = Change(3, ("p1",), None, "join", 3_000, 3_005)
    second = Change(7, ("p2",), ("p1",), "takeover", 7_000, 7_005)
    between = Change(5, ("p3",), ("p1",), "takeover", 5_000, 5_005)
    known, _ = OwnershipHistory().learn([first, second], 10_000)
    assert known.changes == (second,)
    known, rows = known.learn([between], 10_000)
    assert [(row.what, row.generation, row.owners) for row in rows] == [("late", 5, ("p3",))]
    assert known.changes == (second,)


def test_late_change_fills_a_gap() -> None:
    first = Change(3, ("p1",), None, "join", 3_000, 3_005)
    third = Change(7, ("p2",), ("p3",), "takeover", 7_000, 7_005)
    second = Change(5, ("p3",), ("p1",), "takeover", 5_000, 5_005)
    known, rows = OwnershipHistory().learn([first, third], 0)
    assert [(row.what, row.generation, row.from_ms, row.to_ms) for row in rows] == [
        ("interval", 3, 3_000, 7_000),
        ("gap", 7, 3_000, 7_000),
        ("interval", 7, 7_000, None),
    ]
    _, rows = known.learn([second], 0)
    assert [(row.what, row.generation, row.to_ms, row.withdrawn) for row in rows] == [
        ("interval", 3, 5_000, False),
        ("interval", 5, 7_000, False),
        ("gap", 7, 7_000, True),
    ]


Plain = tuple[Any, ...]


def plain(row: Row) -> Plain:
    end = -1 if row.to_ms is None else row.to_ms
    times = (row.committed_at_ms, row.alive_at_ms, row.detected_at_ms, row.advertised_at_ms)
    return (row.what, row.generation, row.owners, row.from_ms, end, *(each or 0 for each in times))


def naive(reported: Sequence[Change]) -> list[Plain]:
    """The result of all reported changes, by repeated simple passes."""
    found: list[Plain] = []
    generations = sorted({each.generation for each in reported})
    last_ms = 0
    starts: dict[int, int] = {}
    for generation in generations:
        last_ms = max(last_ms, min(each.proposed_at_ms for each in reported if each.generation == generation))
        starts[generation] = last_ms
    for place, generation in enumerate(generations):
        sets = sorted({each.owners for each in reported if each.generation == generation})
        of_first = [each for each in reported if (each.generation, each.owners) == (generation, sets[0])]
        end = starts[generations[place + 1]] if place + 1 < len(generations) else -1
        committed = min(each.committed_at_ms for each in of_first)
        alive = max(each.alive_at_ms or 0 for each in of_first)
        detected = min(each.detected_at_ms or 99 for each in of_first) % 99
        advertised = max(each.advertised_at_ms or 0 for each in of_first)
        times = (committed, alive, detected, advertised)
        found.append(("interval", generation, sets[0], starts[generation], end, *times))
        for owners in sets[1:]:
            at = min(
                each.proposed_at_ms
                for each in reported
                if (each.generation, each.owners) == (generation, owners)
            )
            found.append(("overlap", generation, owners, at, -1, 0, 0, 0, 0))
        if place:
            previous = min(each.owners for each in reported if each.generation == generations[place - 1])
            former_owners = [each.before for each in of_first if each.before is not None]
            if former_owners and former_owners[0] != previous:
                since = starts[generations[place - 1]]
                found.append(("gap", generation, former_owners[0], since, starts[generation], 0, 0, 0, 0))
    return found
