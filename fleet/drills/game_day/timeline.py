"""Timeline of a game day: owners of identities, stalls, and reported errors. Pure.

Inputs have times of the machine's monotonic clock. A timeline has seconds since its beginning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, TypeAlias

from fleet.core.model import BrokerId, ProxyId
from fleet.drills.workload.checker import Sighting, View
from fleet.drills.workload.history import Event

STALL_S: Final = 0.2
"""Minimum interval without a record on one partition that counts as a stall."""
_UNKNOWN_OWNER: Final = ""
"""The owner before the first observation. No member has this id."""

Owners: TypeAlias = Mapping[BrokerId, ProxyId | None]


@dataclass(frozen=True, slots=True)
class Span:
    """An interval, in seconds."""

    from_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class OwnershipSpan:
    """The owner of an identity in an interval; None if the advertised address belongs to no member."""

    broker_id: BrokerId
    owner: ProxyId | None
    span: Span


@dataclass(frozen=True, slots=True)
class Stall:
    """An interval in which one partition has no event."""

    partition: int
    what: Literal["acknowledged", "delivered"]
    span: Span


@dataclass(frozen=True, slots=True)
class Timeline:
    """The content of the picture.

    Args:
        lasted_s: length of the timeline.
        fault: interval of the fault; None without a fault.
        whole_s: when the fleet was at rest again; None without a fault.
        errors: times of the errors that clients reported to their applications.
    """

    title: str
    lasted_s: float
    members: Sequence[ProxyId]
    broker_ids: Sequence[BrokerId]
    partitions: int
    fault: Span | None
    whole_s: float | None
    advertised: Sequence[OwnershipSpan]
    committed: Sequence[OwnershipSpan]
    stalls: Sequence[Stall]
    errors: Sequence[float]


def committed_spans(
    sightings: Iterable[Sighting], broker_ids: Iterable[BrokerId], within: Span
) -> list[OwnershipSpan]:
    """The owners by the newest generation that any member had reported."""
    newest = -1
    changes: list[tuple[float, Owners]] = []
    for sighting in sorted(sightings, key=lambda each: each.at_s):
        if sighting.generation > newest:
            newest = sighting.generation
            changes.append(
                (sighting.at_s, {each: next(iter(owners), None) for each, owners in sighting.owners.items()})
            )
    return _to_spans(changes, broker_ids, within)


def advertised_spans(
    views: Mapping[ProxyId, Sequence[View]], broker_ids: Iterable[BrokerId], within: Span
) -> list[OwnershipSpan]:
    """The owners that most members advertised."""
    newest: dict[ProxyId, Owners] = {}
    changes: list[tuple[float, Owners]] = []
    ordered = sorted(
        ((view.at_s, proxy_id, view.owners) for proxy_id, changed in views.items() for view in changed),
        key=lambda each: each[0],
    )
    identities = tuple(broker_ids)
    for at_s, proxy_id, owners in ordered:
        # Counter keeps the order of insertion: among equal counts, the newest view wins.
        newest = {proxy_id: owners, **{each: newest[each] for each in newest if each != proxy_id}}
        changes.append((at_s, {each: _most_common_owner(each, newest.values()) for each in identities}))
    return _to_spans(changes, identities, within)


def _most_common_owner(broker_id: BrokerId, views: Iterable[Owners]) -> ProxyId | None:
    counted = Counter(owners.get(broker_id) for owners in views)
    return counted.most_common(1)[0][0]


def _to_spans(
    changes: Sequence[tuple[float, Owners]], broker_ids: Iterable[BrokerId], within: Span
) -> list[OwnershipSpan]:
    """Convert the owners at each change to one span for each time that an owner kept an identity."""
    spans = []
    for broker_id in broker_ids:
        history = [(0.0, _UNKNOWN_OWNER), *((at_s, owners.get(broker_id)) for at_s, owners in changes)]
        turns = [turn for before, turn in pairwise(history) if turn[1] != before[1]]
        for (at_s, owner), (end_s, _) in pairwise([*turns, (within.until_s, None)]):
            span = _cut(Span(at_s, end_s), within)
            if span is not None:
                spans.append(OwnershipSpan(broker_id, owner, span))
    return spans


def find_stalls(
    events: Iterable[Event], what: Literal["acknowledged", "delivered"], partitions: int, within: Span
) -> list[Stall]:
    """The intervals of at least `STALL_S` in which a partition has no event."""
    moments: dict[int, list[float]] = {partition: [within.from_s] for partition in range(partitions)}
    for event in events:
        if within.from_s < event.at_s < within.until_s:
            moments[event.partition].append(event.at_s)
    found = []
    for partition, at_s in moments.items():
        for from_s, until_s in pairwise([*at_s, within.until_s]):
            span = _cut(Span(from_s, until_s), within)
            if span is not None and until_s - from_s >= STALL_S:
                found.append(Stall(partition, what, span))
    return found


def _cut(span: Span, within: Span) -> Span | None:
    """A span in seconds of a timeline; None if the span is outside of the timeline."""
    from_s, until_s = max(span.from_s, within.from_s), min(span.until_s, within.until_s)
    return Span(from_s - within.from_s, until_s - within.from_s) if from_s < until_s else None
