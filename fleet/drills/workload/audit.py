"""Audits records: each acknowledged record is in the log once, in order, and reached the consumer group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fleet.drills.workload.history import NO_OFFSET, Event, Record

Place: TypeAlias = tuple[int, int]  # partition, offset
Identity: TypeAlias = tuple[int, Record]  # partition, record


@dataclass(frozen=True, slots=True)
class Audit:
    """The verdict on one workload.

    Args:
        acknowledged: distinct records that the brokers acknowledged.
        received: distinct records that the consumer group received.
        redelivered: repeated deliveries of a log entry to the group.
        lost: acknowledged records that are not in the log, are not at the acknowledged offset, or never
            reached the group.
        duplicated: log entries that repeat an earlier record.
        out_of_order: records that follow a later record of the same producer on the same partition, in the
            log or in the group's first deliveries.
    """

    acknowledged: int
    received: int
    redelivered: int
    lost: int
    duplicated: int
    out_of_order: int

    @property
    def passed(self) -> bool:
        return self.acknowledged > 0 and self.lost == self.duplicated == self.out_of_order == 0


def audit(acknowledged: Iterable[Event], received: Iterable[Event], log: Iterable[Event]) -> Audit:
    """Compare a producer's acknowledgements, a group's deliveries, and the log.

    Args:
        acknowledged: the producer's successful delivery reports.
        received: the group's deliveries, in the order of their arrival.
        log: all entries of all partitions, each partition in the order of its offsets.
    """
    entries = list(log)
    deliveries = list(received)
    held: dict[Place, Record] = {(entry.partition, entry.offset): entry.record for entry in entries}
    in_log = {(entry.partition, entry.record) for entry in entries}
    firsts = _first_deliveries(deliveries)
    delivered = {(event.partition, event.record) for event in firsts}
    promised: dict[Identity, int] = {}
    for event in acknowledged:
        promised[event.partition, event.record] = event.offset
    lost = sum(
        1
        for (partition, record), offset in promised.items()
        if (partition, record) not in in_log
        or (partition, record) not in delivered
        or (offset != NO_OFFSET and held.get((partition, offset)) != record)
    )
    return Audit(
        acknowledged=len(promised),
        received=len(delivered),
        redelivered=len(deliveries) - len(firsts),
        lost=lost,
        duplicated=len(entries) - len(in_log),
        out_of_order=max(_count_inversions(entries), _count_inversions(firsts)),
    )


def _first_deliveries(deliveries: Sequence[Event]) -> list[Event]:
    seen: set[Place] = set()
    firsts = []
    for event in deliveries:
        place = (event.partition, event.offset)
        if place not in seen:
            seen.add(place)
            firsts.append(event)
    return firsts


def _count_inversions(events: Iterable[Event]) -> int:
    """Count records that first come after a later record of the same producer on the same partition."""
    newest: dict[tuple[int, int], int] = {}
    seen: set[Identity] = set()
    inversions = 0
    for event in events:
        identity = (event.partition, event.record)
        if identity in seen:
            continue
        seen.add(identity)
        line = (event.partition, event.record.producer_id)
        if event.record.sequence < newest.get(line, -1):
            inversions += 1
        else:
            newest[line] = event.record.sequence
    return inversions


def longest_stall_ms(events: Iterable[Event], partitions: int, since_s: float, until_s: float) -> float:
    """The longest interval, over all partitions, in which one partition has no event; in milliseconds.

    Args:
        events: acknowledgements or deliveries, in the order of their arrival.
        partitions: number of partitions. A partition without any event counts, too.
        since_s, until_s: the window. An interval that begins before the window counts whole; an interval that
            ends after the window counts up to its end.
    """
    last_s = [since_s] * partitions
    worst_s = 0.0
    for event in events:
        if event.at_s > until_s:
            break
        if event.at_s > since_s:
            worst_s = max(worst_s, event.at_s - last_s[event.partition])
        last_s[event.partition] = event.at_s
    worst_s = max([worst_s, *(until_s - last for last in last_s)])
    return worst_s * 1000.0
