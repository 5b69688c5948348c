"""A game day in time: who stood for what, where clients stalled, what they were told. Pure.

Times are of the machine's monotonic clock as long as they are collected, and of the timeline in what is made
of them: seconds from its beginning.
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
"""An interval without a record, on one partition, is shown from here on."""
_UNSEEN: Final = ""
"""The owner before anything was seen: no member has that name."""

Owners: TypeAlias = Mapping[BrokerId, ProxyId | None]


@dataclass(frozen=True, slots=True)
class Span:
    """From one moment to another."""

    from_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class Stand:
    """Who stood for an identity for a while; nobody, where what was advertised led nowhere."""

    broker_id: BrokerId
    owner: ProxyId | None
    span: Span


@dataclass(frozen=True, slots=True)
class Stall:
    """An interval in which one partition saw nothing."""

    partition: int
    what: Literal["acknowledged", "delivered"]
    span: Span


@dataclass(frozen=True, slots=True)
class Timeline:
    """All that the picture shows.

    Args:
        fault: while a member was broken; None where nothing was done.
        whole_s: when the fleet was at rest again.
        errors: when clients reported one to their application.
    """

    title: str
    lasted_s: float
    members: Sequence[ProxyId]
    broker_ids: Sequence[BrokerId]
    partitions: int
    fault: Span | None
    whole_s: float | None
    advertised: Sequence[Stand]
    committed: Sequence[Stand]
    stalls: Sequence[Stall]
    errors: Sequence[float]


def committed_stands(
    sightings: Iterable[Sighting], broker_ids: Iterable[BrokerId], within: Span
) -> list[Stand]:
    """Who owned what, by the newest generation that any member had told of."""
    newest = -1
    changes: list[tuple[float, Owners]] = []
    for sighting in sorted(sightings, key=lambda each: each.at_s):
        if sighting.generation > newest:
            newest = sighting.generation
            changes.append(
                (sighting.at_s, {each: next(iter(owners), None) for each, owners in sighting.owners.items()})
            )
    return _stands(changes, broker_ids, within)


def advertised_stands(
    views: Mapping[ProxyId, Sequence[View]], broker_ids: Iterable[BrokerId], within: Span
) -> list[Stand]:
    """Who was advertised for what, by most members."""
    said: dict[ProxyId, Owners] = {}
    changes: list[tuple[float, Owners]] = []
    told = sorted(
        ((view.at_s, proxy_id, view.owners) for proxy_id, seen in views.items() for view in seen),
        key=lambda each: each[0],
    )
    identities = tuple(broker_ids)
    for at_s, proxy_id, owners in told:
        # Counter keeps the order of what it has seen: of as many, the newest is taken.
        said = {proxy_id: owners, **{each: said[each] for each in said if each != proxy_id}}
        changes.append((at_s, {each: _most(each, said.values()) for each in identities}))
    return _stands(changes, identities, within)


def _most(broker_id: BrokerId, said: Iterable[Owners]) -> ProxyId | None:
    counted = Counter(owners.get(broker_id) for owners in said)
    return counted.most_common(1)[0][0]


def _stands(
    changes: Sequence[tuple[float, Owners]], broker_ids: Iterable[BrokerId], within: Span
) -> list[Stand]:
    """From owners at each change to one stand for each time that an owner kept an identity."""
    stands = []
    for broker_id in broker_ids:
        mine = [(at_s, owners.get(broker_id)) for at_s, owners in changes]
        turns = [turn for before, turn in pairwise([(0.0, _UNSEEN), *mine]) if turn[1] != before[1]]
        for (at_s, owner), (end_s, _) in pairwise([*turns, (within.until_s, None)]):
            span = _cut(Span(at_s, end_s), within)
            if span is not None:
                stands.append(Stand(broker_id, owner, span))
    return stands


def stalls(
    events: Iterable[Event], what: Literal["acknowledged", "delivered"], partitions: int, within: Span
) -> list[Stall]:
    """The intervals of `STALL_S` and more in which a partition saw nothing."""
    moments: dict[int, list[float]] = {partition: [within.from_s] for partition in range(partitions)}
    for event in events:
        if within.from_s < event.at_s < within.until_s:
            moments[event.partition].append(event.at_s)
    found = []
    for partition, seen in moments.items():
        for from_s, until_s in pairwise([*seen, within.until_s]):
            span = _cut(Span(from_s, until_s), within)
            if span is not None and until_s - from_s >= STALL_S:
                found.append(Stall(partition, what, span))
    return found


def _cut(span: Span, within: Span) -> Span | None:
    """A span as seconds of a timeline; None where it is outside."""
    from_s, until_s = max(span.from_s, within.from_s), min(span.until_s, within.until_s)
    return Span(from_s - within.from_s, until_s - within.from_s) if from_s < until_s else None
