"""Whether all that was acknowledged is in the log once and in order, and reached the consumer group."""

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
        acknowledged: different records whose producer was told that they are safe.
        received: different records that the consumer group was given.
        redelivered: deliveries to the group of a log entry that it had been given before.
        lost: acknowledged records that are not in the log, not where the acknowledgement put them, or never
            reached the group.
        duplicated: entries of the log that repeat an earlier record.
        out_of_order: records that come after a later one of the same producer on their partition, in the log
            or in what the group was first given.
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
    """Compare what a producer was told, what a group was given, and what the log holds.

    Args:
        acknowledged: the producer's successful delivery reports.
        received: the group's deliveries, in the order in which they came.
        log: all entries of all partitions, each partition in the order of its offsets.
    """
    entries = list(log)
    deliveries = list(received)
    held: dict[Place, Record] = {(entry.partition, entry.offset): entry.record for entry in entries}
    in_log = {(entry.partition, entry.record) for entry in entries}
    firsts = _first_of_each_place(deliveries)
    given = {(event.partition, event.record) for event in firsts}
    promised: dict[Identity, int] = {}
    for event in acknowledged:
        promised[event.partition, event.record] = event.offset
    lost = sum(
        1
        for (partition, record), offset in promised.items()
        if (partition, record) not in in_log
        or (partition, record) not in given
        or (offset != NO_OFFSET and held.get((partition, offset)) != record)
    )
    return Audit(
        acknowledged=len(promised),
        received=len(given),
        redelivered=len(deliveries) - len(firsts),
        lost=lost,
        duplicated=len(entries) - len(in_log),
        out_of_order=max(_inversions(entries), _inversions(firsts)),
    )


def _first_of_each_place(deliveries: Sequence[Event]) -> list[Event]:
    seen: set[Place] = set()
    firsts = []
    for event in deliveries:
        place = (event.partition, event.offset)
        if place not in seen:
            seen.add(place)
            firsts.append(event)
    return firsts


def _inversions(events: Iterable[Event]) -> int:
    """How many records first come after a later one of the same producer on the same partition."""
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
    """The longest interval, over all partitions, in which one of them saw nothing.

    Args:
        events: acknowledgements or deliveries, in the order in which they came.
        partitions: how many there are, so that one on which nothing comes at all is seen too.
        since_s, until_s: the window to look at. An interval that begins before it counts whole, one that has
            not ended with it counts up to there.
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
