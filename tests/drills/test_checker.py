"""The checker finds each kind of violation in wrong histories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest

from fleet.drills.workload.checker import (
    PROGRESS_LIMIT_S,
    History,
    Outage,
    Promise,
    Sighting,
    Stream,
    View,
    check,
    takeover_s,
)
from fleet.drills.workload.history import Event, Record

PARTITIONS = 2
WHOLE_S = 50.0
STRICT = Promise("always", exact=True)


def event(partition: int, sequence: int, at_s: float | None = None, offset: int | None = None) -> Event:
    at_s = sequence * 10.0 if at_s is None else at_s
    return Event(at_s, partition, Record(7, sequence), sequence if offset is None else offset)


def clean() -> list[Event]:
    """Sequence n is at offset n, in the n-th ten seconds. The last records come after the last fault."""
    return [event(partition, sequence) for sequence in range(7) for partition in range(PARTITIONS)]


def without(sequence: int) -> list[Event]:
    return [each for each in clean() if (each.partition, each.record.sequence) != (1, sequence)]


STREAM = Stream("idempotent", STRICT, PARTITIONS, clean(), clean(), clean())
OUTAGE = Outage("kill_member", ("p1",), ("p2", "p3"), 10.0, 20.0, 2.5)
AROUND = {1: "p2", 2: "p3"}
BEFORE = {1: "p1", 2: "p3"}


def views(around_s: float) -> dict[str, list[View]]:
    return {
        "p1": [View(0.0, BEFORE)],
        "p2": [View(0.0, BEFORE), View(10.2, AROUND)],
        "p3": [View(0.0, BEFORE), View(around_s, AROUND)],
    }


HISTORY = History(
    broker_ids={1, 2},
    streams=[STREAM],
    sightings=[
        Sighting(0.0, "p1", 4, {1: ("p1",), 2: ("p3",)}),
        Sighting(0.1, "p2", 4, {1: ("p1",), 2: ("p3",)}),
        Sighting(11.0, "p2", 5, {1: ("p2",), 2: ("p3",)}),
        Sighting(11.1, "p3", 5, {1: ("p2",), 2: ("p3",)}),
        # An older generation at another member is not a violation.
        Sighting(30.0, "p1", 4, {1: ("p1",), 2: ("p3",)}),
    ],
    views=views(11.0),
    outages=[OUTAGE],
    whole_since_s=WHOLE_S,
    brokers_failed=False,
)


def rules(history: History) -> list[str]:
    return [violation.rule for violation in check(history)]


def with_stream(brokers_failed: bool = False, /, **changes: Any) -> History:
    return replace(HISTORY, streams=[replace(STREAM, **changes)], brokers_failed=brokers_failed)


def test_a_clean_history_breaks_nothing() -> None:
    assert check(HISTORY) == []


@pytest.mark.parametrize(
    ("durable", "brokers_failed", "expected"),
    [
        ("always", False, ["lost"]),
        ("always", True, ["lost"]),
        ("proxies", False, ["lost"]),
        ("proxies", True, []),
        ("never", False, []),
    ],
)
def test_lost_record_is_a_violation_only_where_promised(
    durable: Literal["always", "proxies", "never"], brokers_failed: bool, expected: list[str]
) -> None:
    promise = replace(STRICT, durable=durable)
    assert rules(with_stream(brokers_failed, promise=promise, log=without(3))) == expected


def test_acknowledged_record_not_delivered_is_lost() -> None:
    assert rules(with_stream(received=without(3))) == ["lost"]


@pytest.mark.parametrize(("exact", "expected"), [(True, ["duplicated"]), (False, [])])
def test_duplicate_is_a_violation_only_where_promised(exact: bool, expected: list[str]) -> None:
    again = [*clean(), event(0, 3, offset=7)]
    assert rules(with_stream(promise=replace(STRICT, exact=exact), log=again)) == expected


@pytest.mark.parametrize(("exact", "expected"), [(True, ["reordered"]), (False, [])])
def test_order_is_checked_only_where_promised(exact: bool, expected: list[str]) -> None:
    swapped = [*clean()[2:4], *clean()[:2], *clean()[4:]]
    assert rules(with_stream(promise=replace(STRICT, exact=exact), received=swapped)) == expected


def test_order_is_checked_only_in_the_log_for_unordered_groups() -> None:
    promise = replace(STRICT, ordered=False)
    swapped = [*clean()[2:4], *clean()[:2], *clean()[4:]]
    assert rules(with_stream(promise=promise, received=swapped)) == []
    assert rules(with_stream(promise=promise, received=swapped, log=swapped)) == ["reordered"]
    assert rules(with_stream(promise=promise, received=without(3))) == ["lost"]


def compacted() -> list[Event]:
    """The compacted log: the last two records of each partition, which has two keys."""
    return [each for each in clean() if each.record.sequence in (5, 6)]


def test_a_compacted_topic_holds_the_last_write_of_each_key() -> None:
    assert rules(with_stream(keys=2, log=compacted())) == []
    assert rules(with_stream(keys=2, log=compacted(), received=compacted())) == []


@pytest.mark.parametrize("where", ["log", "received"])
def test_key_without_its_last_acknowledged_write_is_found(where: str) -> None:
    older = [each for each in clean() if each.record.sequence in (3, 4, 6)]  # key 1 ends at 3, not at 5
    missing = [each for each in clean() if each.record.sequence in (2, 6)]  # key 1 is missing
    for events in (older, missing):
        histories = {"log": compacted(), "received": compacted(), where: events}
        assert rules(with_stream(keys=2, **histories)) == ["stale_key"]
        unpromised = replace(STRICT, durable="never")
        assert rules(with_stream(keys=2, promise=unpromised, **histories)) == []


def test_key_may_hold_a_later_unacknowledged_write() -> None:
    log = [*compacted(), event(0, 7), event(1, 7), event(0, 9), event(1, 9)]
    assert rules(with_stream(keys=2, log=log, received=[*clean(), *log[4:]])) == []


def test_older_write_after_the_last_one_makes_a_key_stale() -> None:
    log = [*compacted(), event(1, 3, offset=7)]
    assert rules(with_stream(keys=2, log=log)) == ["stale_key", "reordered"]


def test_group_may_receive_older_records_again() -> None:
    assert rules(with_stream(keys=2, log=compacted(), received=[*clean(), *clean()[4:8]])) == []


def test_topic_that_was_not_compacted_is_found() -> None:
    assert rules(with_stream(keys=2)) == ["no_effect"]


@pytest.mark.parametrize("where", ["received", "log"])
def test_record_of_an_aborted_transaction_is_found(where: str) -> None:
    aborted = [event(0, 90)]
    assert rules(with_stream(aborted=aborted)) == []
    assert rules(with_stream(aborted=aborted, **{where: [*clean(), event(0, 90)]})) == ["aborted_seen"]


def late(events: Sequence[Event]) -> list[Event]:
    """Delay the last record of partition 1 too long."""
    after_s = WHOLE_S + PROGRESS_LIMIT_S + 1.0
    return [*events[:-1], replace(events[-1], at_s=after_s)]


@pytest.mark.parametrize("which", ["acknowledged", "received"])
def test_every_partition_must_move_within_the_bound(which: str) -> None:
    assert rules(with_stream(**{which: late(clean())})) == ["no_progress"]


def test_records_before_the_last_fault_are_no_progress() -> None:
    assert rules(replace(HISTORY, whole_since_s=61.0)) == ["no_progress", "no_progress"]


def test_producer_that_gave_up_is_excused_after_a_broker_failure() -> None:
    stopped = [each for each in clean() if each.at_s < WHOLE_S]
    histories = {"acknowledged": stopped, "received": stopped, "log": stopped}
    assert rules(with_stream(**histories)) == ["no_progress", "no_progress"]
    assert rules(with_stream(False, gave_up=True, **histories)) == ["no_progress", "no_progress"]
    assert rules(with_stream(True, gave_up=True, **histories)) == []
    assert rules(with_stream(True, gave_up=True, **{**histories, "log": stopped[:-1]})) == ["lost"]


def test_clients_repetition_is_excused_after_a_broker_failure() -> None:
    twice = [*clean(), event(1, 3, offset=7), event(1, 4, offset=8)]
    assert rules(with_stream(True, log=twice, sent_again=frozenset({(1, 7), (1, 8)}))) == []
    assert rules(with_stream(True, log=twice, sent_again=frozenset({(1, 7)}))) == ["duplicated"]
    assert rules(with_stream(True, log=twice)) == ["duplicated"]
    # Without a leader change a producer has no reason to send records again.
    assert rules(with_stream(False, log=twice, sent_again=frozenset({(1, 7), (1, 8)}))) == ["duplicated"]


def test_one_generation_has_one_owner_set_of_an_identity() -> None:
    other = Sighting(12.0, "p3", 5, {1: ("p3",), 2: ("p3",)})
    assert rules(replace(HISTORY, sightings=[*HISTORY.sightings, other])) == ["two_owner_sets"]


def test_order_of_owners_is_part_of_an_owner_set() -> None:
    sightings = [Sighting(1.0, "p1", 9, {1: ("p1", "p2")}), Sighting(1.0, "p2", 9, {1: ("p2", "p1")})]
    assert rules(replace(HISTORY, sightings=sightings)) == ["two_owner_sets"]


def test_the_generation_of_a_member_must_not_fall() -> None:
    fallen = Sighting(12.0, "p2", 4, {1: ("p1",), 2: ("p3",)})
    assert rules(replace(HISTORY, sightings=[*HISTORY.sightings, fallen])) == ["generation_fell"]


def test_dead_member_advertised_beyond_the_bound_is_found() -> None:
    assert rules(replace(HISTORY, views=views(12.4))) == []
    assert rules(replace(HISTORY, views=views(12.6))) == ["advertised_dead"]


def test_dead_member_advertised_until_its_return_is_found() -> None:
    assert rules(replace(HISTORY, views=views(20.5))) == ["advertised_dead"]


def test_a_dead_member_that_is_advertised_again_is_found() -> None:
    flapped = views(11.0)
    flapped["p2"] += [View(15.0, BEFORE), View(15.5, AROUND)]
    assert rules(replace(HISTORY, views=flapped)) == ["advertised_dead"]


def test_identity_without_an_owner_is_found() -> None:
    missing = {**views(11.0), "p2": [View(0.0, BEFORE), View(10.5, {2: "p3"})]}
    assert rules(replace(HISTORY, views=missing)) == ["advertised_dead"]


def test_survivor_without_metadata_is_found() -> None:
    assert rules(replace(HISTORY, views={"p2": views(11.0)["p2"]})) == ["advertised_dead"]


def test_an_outage_shorter_than_its_bound_is_measured_only() -> None:
    short = replace(OUTAGE, until_s=12.0)
    assert rules(replace(HISTORY, outages=[short], views=views(12.4))) == []
    assert takeover_s(short, {1, 2}, views(11.0)) == 1.0
    assert takeover_s(short, {1, 2}, views(12.4)) is None
