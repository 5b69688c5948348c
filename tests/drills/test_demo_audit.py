"""The audit, with histories that are deliberately wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet.drills.workload.audit import Audit, audit, longest_stall_ms
from fleet.drills.workload.history import NO_OFFSET, Event, Record

PRODUCER = 7
PARTITIONS = 3
PER_PARTITION = 5


def event(partition: int, sequence: int, offset: int | None = None, at_s: float = 0.0) -> Event:
    return Event(at_s, partition, Record(PRODUCER, sequence), sequence if offset is None else offset)


def clean() -> list[Event]:
    """A clean history: each partition has sequence n at offset n. All three histories are equal."""
    return [
        event(partition, sequence) for sequence in range(PER_PARTITION) for partition in range(PARTITIONS)
    ]


def without(events: list[Event], partition: int, sequence: int) -> list[Event]:
    return [each for each in events if (each.partition, each.record.sequence) != (partition, sequence)]


def test_a_clean_history_passes() -> None:
    found = audit(clean(), clean(), clean())
    assert found == Audit(15, 15, 0, 0, 0, 0)
    assert found.passed


def test_audit_without_acknowledgements_fails() -> None:
    assert not audit([], [], []).passed


def test_an_acknowledged_record_that_the_log_lacks_is_lost() -> None:
    found = audit(clean(), clean(), without(clean(), 1, 2))
    assert (found.lost, found.passed) == (1, False)


def test_acknowledged_record_not_delivered_is_lost() -> None:
    found = audit(clean(), without(clean(), 0, 4), clean())
    assert (found.lost, found.received, found.passed) == (1, 14, False)


def test_record_missing_in_log_and_group_is_lost_once() -> None:
    assert audit(clean(), without(clean(), 0, 4), without(clean(), 0, 4)).lost == 1


def test_acknowledgement_at_another_records_offset_is_a_loss() -> None:
    wrong = [replace(each, offset=each.offset + 1) if each == event(2, 1) else each for each in clean()]
    assert audit(wrong, clean(), clean()).lost == 1


def test_acknowledgement_without_an_offset_passes() -> None:
    unknown = [replace(each, offset=NO_OFFSET) for each in clean()]
    assert audit(unknown, clean(), clean()).passed


def test_equal_record_on_another_partition_does_not_count() -> None:
    moved = [replace(each, partition=2, offset=9) if each == event(1, 0) else each for each in clean()]
    found = audit(clean(), clean(), moved)
    assert (found.lost, found.passed) == (1, False)


def test_record_twice_in_the_log_is_a_duplicate() -> None:
    twice = [*clean(), event(1, 2, offset=PER_PARTITION)]
    found = audit(clean(), twice, twice)
    assert (found.duplicated, found.redelivered, found.out_of_order, found.lost) == (1, 0, 0, 0)
    assert not found.passed


def test_redelivery_of_an_offset_passes() -> None:
    again = [*clean(), event(0, 3), event(0, 4), event(0, 4)]
    found = audit(clean(), again, clean())
    assert (found.redelivered, found.received, found.passed) == (3, 15, True)


def test_unacknowledged_records_in_the_log_pass() -> None:
    found = audit(without(clean(), 2, 4), clean(), clean())
    assert (found.acknowledged, found.received, found.passed) == (14, 15, True)


def test_swapped_records_in_the_log_are_out_of_order() -> None:
    swapped = [
        *without(without(clean(), 1, 2), 1, 3),
        event(1, 3, offset=5),
        event(1, 2, offset=6),
    ]
    unknown = [replace(each, offset=NO_OFFSET) for each in clean()]
    found = audit(unknown, swapped, swapped)
    assert (found.lost, found.duplicated) == (0, 0)
    assert found.out_of_order > 0
    assert not found.passed


def test_group_order_that_differs_from_the_log_is_found() -> None:
    received = clean()
    received[0], received[3] = received[3], received[0]
    assert audit(clean(), received, clean()).out_of_order == 1


def test_producers_are_distinguished() -> None:
    other = [
        replace(each, record=Record(8, each.record.sequence), offset=each.offset + 5) for each in clean()
    ]
    both = [*clean(), *other]
    found = audit(both, both, both)
    assert found == Audit(30, 30, 0, 0, 0, 0)


def test_stall_is_the_longest_pause_of_the_worst_partition() -> None:
    steady = [event(0, number, at_s=number / 10) for number in range(100)]
    paused = [event(1, number, at_s=number / 10) for number in range(100) if not 42 < number < 57]
    events = sorted([*steady, *paused], key=lambda each: each.at_s)
    assert longest_stall_ms(events, 2, 4.0, 9.0) == pytest.approx(1500)
    assert longest_stall_ms(events, 2, 6.0, 9.0) == pytest.approx(100)


def test_pause_that_begins_before_the_window_counts_whole() -> None:
    assert longest_stall_ms([event(0, 0, at_s=1.0), event(0, 1, at_s=3.0)], 1, 2.9, 3.1) == pytest.approx(
        2000
    )


def test_open_pause_counts_up_to_the_end_of_the_window() -> None:
    assert longest_stall_ms([event(0, 0, at_s=1.0)], 1, 1.0, 4.0) == pytest.approx(3000)


def test_partition_without_events_stalls_for_the_whole_window() -> None:
    events = [event(0, number, at_s=number / 100) for number in range(1000)]
    assert longest_stall_ms(events, 2, 2.0, 6.0) == pytest.approx(4000)


def test_events_after_the_window_do_not_count() -> None:
    events = [event(0, 0, at_s=1.0), event(0, 1, at_s=1.5), event(0, 2, at_s=9.0)]
    assert longest_stall_ms(events, 1, 1.0, 2.0) == pytest.approx(500)
