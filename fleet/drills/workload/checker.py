"""Checks the history of a run against the promises of the fleet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from fleet.core.model import BrokerId, ProxyId
from fleet.drills.workload.audit import Audit, Place, audit
from fleet.drills.workload.history import Event, Record

Key: TypeAlias = tuple[int, int]
"""A partition, and the number of one of its keys."""
Rule = Literal[
    "lost",
    "stale_key",
    "duplicated",
    "reordered",
    "aborted_seen",
    "no_progress",
    "two_owner_sets",
    "generation_fell",
    "advertised_dead",
    "no_effect",
    "broke",
]
PROGRESS_LIMIT_S = 60.0
"""Time limit for every partition to acknowledge and deliver after the last fault: above a session's 45 s."""


@dataclass(frozen=True, slots=True)
class Promise:
    """The promises to clients of one kind.

    Args:
        durable: whether acknowledged records stay: "always", "proxies" (unless a broker fails) or "never".
        exact: whether no record is duplicated, and all are in order.
        ordered: whether the group receives the records of a partition in order.
    """

    durable: Literal["always", "proxies", "never"]
    exact: bool
    ordered: bool = True

    def holds(self, *, brokers_failed: bool) -> bool:
        """Whether all acknowledged records must be in the log at the end."""
        return self.durable == "always" or (self.durable == "proxies" and not brokers_failed)


@dataclass(frozen=True, slots=True)
class Stream:
    """The history of one workload.

    Args:
        log: the log at the end, each partition in the order of its offsets.
        aborted: records of aborted transactions.
        gave_up: whether the producer ended because of its own fault, so that no more records come.
        keys: number of keys of each partition of a compacted topic, which its records use cyclically; else 0.
        sent_again: log entries that the producer sent again under another epoch. No broker can detect such a
            repetition. After a broker's failure the client is responsible for them.
    """

    name: str
    promise: Promise
    partitions: int
    acknowledged: Sequence[Event]
    received: Sequence[Event]
    log: Sequence[Event]
    aborted: Sequence[Event] = ()
    gave_up: bool = False
    keys: int = 0
    sent_again: AbstractSet[Place] = frozenset()


@dataclass(frozen=True, slots=True)
class Sighting:
    """A member's /ownership at a moment; `owners` are the committed owners."""

    at_s: float
    proxy_id: ProxyId
    generation: int
    owners: Mapping[BrokerId, tuple[ProxyId, ...]]


@dataclass(frozen=True, slots=True)
class View:
    """The owner of each identity in a member's Metadata, from a moment on.

    Args:
        asked_s: when the newest of the equal answers was requested.
    """

    at_s: float
    owners: Mapping[BrokerId, ProxyId | None]
    asked_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Outage:
    """An interval in which some members are unreachable.

    Args:
        victims: the unreachable members.
        survivors: the reachable members.
        at_s: right before the fault.
        until_s: when healing began.
        bound_s: seconds until the survivors must advertise only survivors.
        there_s: when the fault was in place for certain.
    """

    kind: str
    victims: tuple[ProxyId, ...]
    survivors: tuple[ProxyId, ...]
    at_s: float
    until_s: float
    bound_s: float
    there_s: float | None = None


@dataclass(frozen=True, slots=True)
class History:
    """All observations of one run. Times are on the machine's monotonic clock, in seconds.

    Args:
        views: by member, in the order of their arrival.
        whole_since_s: when the last fault was healed.
        brokers_failed: whether a broker failed.
    """

    broker_ids: AbstractSet[BrokerId]
    streams: Sequence[Stream]
    sightings: Sequence[Sighting]
    views: Mapping[ProxyId, Sequence[View]]
    outages: Sequence[Outage]
    whole_since_s: float
    brokers_failed: bool


@dataclass(frozen=True, slots=True)
class Violation:
    rule: Rule
    detail: str


def check(history: History) -> list[Violation]:
    """Find every broken promise in a history."""
    return [
        *(found for stream in history.streams for found in _check_records(stream, history)),
        *_check_owner_sets(history.sightings),
        *_check_generations(history.sightings),
        *(found for outage in history.outages for found in _check_takeover(outage, history)),
    ]


def audit_of(stream: Stream) -> Audit:
    """The audit of one workload. For a compacted topic, `lost` counts keys without their last write."""
    received = stream.received
    if not stream.promise.ordered:
        received = sorted(received, key=lambda event: (event.partition, event.offset))
    verdict = audit(stream.acknowledged, received, stream.log)
    return replace(verdict, lost=len(stale_keys(stream))) if stream.keys else verdict


def stale_keys(stream: Stream) -> list[Key]:
    """The keys whose newest record, in the log or at the group, is older than their last acknowledged one."""
    promised = {
        key: max(event.record.sequence for event in events)
        for key, events in _by_key(stream.acknowledged, stream.keys).items()
    }
    stale = set()
    for events in (stream.log, stream.received):
        held = _by_key(events, stream.keys)
        for key, sequence in promised.items():
            newest = max(held.get(key, ()), key=lambda event: event.offset, default=None)
            if newest is None or newest.record.sequence < sequence:
                stale.add(key)
    return sorted(stale)


def _by_key(events: Iterable[Event], keys: int) -> dict[Key, list[Event]]:
    found: dict[Key, list[Event]] = {}
    for event in events:
        found.setdefault((event.partition, event.record.sequence % keys), []).append(event)
    return found


def _check_records(stream: Stream, history: History) -> Iterator[Violation]:
    verdict, promise = audit_of(stream), stream.promise
    if promise.holds(brokers_failed=history.brokers_failed) and verdict.lost:
        yield _lost_records(stream, verdict)
    if stream.keys and len(stream.log) >= verdict.acknowledged:
        yield Violation(
            "no_effect",
            f"{stream.name}: no record was compacted: {verdict.acknowledged} records were acknowledged, "
            f"{len(stream.log)} are in the log",
        )
    duplicated = verdict.duplicated - (len(stream.sent_again) if history.brokers_failed else 0)
    if promise.exact and duplicated:
        yield Violation("duplicated", f"{stream.name}: {duplicated} records are in the log more than once")
    if promise.exact and verdict.out_of_order:
        yield Violation("reordered", f"{stream.name}: {verdict.out_of_order} records follow later records")
    aborted = _records_of(stream.aborted)
    seen = (_records_of(stream.received) | _records_of(stream.log)) & aborted
    if seen:
        yield Violation(
            "aborted_seen", f"{stream.name}: {len(seen)} records of aborted transactions were read"
        )
    if stream.gave_up and history.brokers_failed:
        return
    for what, events in (("acknowledged", stream.acknowledged), ("delivered", stream.received)):
        since_s = history.whole_since_s
        moved = {event.partition for event in events if 0.0 < event.at_s - since_s <= PROGRESS_LIMIT_S}
        stuck = set(range(stream.partitions)) - moved
        if stuck:
            yield Violation(
                "no_progress",
                f"{stream.name}: no record was {what} on partitions {sorted(stuck)} within "
                f"{PROGRESS_LIMIT_S:.0f} s after the last fault",
            )


def _lost_records(stream: Stream, verdict: Audit) -> Violation:
    if stream.keys:
        stale = stale_keys(stream)
        return Violation(
            "stale_key",
            f"{stream.name}: {len(stale)} keys lack their last acknowledged write; the first is key "
            f"{stale[0][1]} of partition {stale[0][0]}",
        )
    return Violation(
        "lost", f"{stream.name}: {verdict.lost} of {verdict.acknowledged} acknowledged records are lost"
    )


def _records_of(events: Iterable[Event]) -> set[tuple[int, Record]]:
    return {(event.partition, event.record) for event in events}


def _check_owner_sets(sightings: Iterable[Sighting]) -> Iterator[Violation]:
    """Find reports that name different owners of one identity in one generation."""
    first_sightings: dict[tuple[int, BrokerId], Sighting] = {}
    for sighting in sightings:
        for broker_id, owners in sighting.owners.items():
            first = first_sightings.setdefault((sighting.generation, broker_id), sighting)
            if first.owners[broker_id] != owners:
                yield Violation(
                    "two_owner_sets",
                    f"generation {sighting.generation}, identity {broker_id}: {first.proxy_id} reported "
                    f"{first.owners[broker_id]}, {sighting.proxy_id} reported {owners}",
                )


def _check_generations(sightings: Iterable[Sighting]) -> Iterator[Violation]:
    newest: dict[ProxyId, int] = {}
    for sighting in sightings:
        before = newest.get(sighting.proxy_id, sighting.generation)
        if sighting.generation < before:
            yield Violation("generation_fell", f"{sighting.proxy_id}: from {before} to {sighting.generation}")
        newest[sighting.proxy_id] = sighting.generation


def _check_takeover(outage: Outage, history: History) -> Iterator[Violation]:
    took_s = takeover_s(outage, history.broker_ids, history.views)
    lasted_s = outage.until_s - outage.at_s
    if lasted_s > outage.bound_s and (took_s is None or took_s > outage.bound_s):
        took = f"{took_s:.2f} s" if took_s is not None else f"more than {lasted_s:.1f} s"
        yield Violation(
            "advertised_dead",
            f"{outage.kind} of {', '.join(outage.victims)}: it took {took} until "
            f"{', '.join(outage.survivors)} advertised every identity; the limit is {outage.bound_s:.1f} s",
        )


def takeover_s(
    outage: Outage, broker_ids: AbstractSet[BrokerId], views: Mapping[ProxyId, Sequence[View]]
) -> float | None:
    """Seconds from an outage until every survivor's Metadata names only survivors, and continues to.

    Returns: seconds; None if some Metadata still named another owner when the outage ended.
    """
    latest_s = outage.at_s
    for proxy_id in outage.survivors:
        since_s: float | None = None
        for view in views.get(proxy_id, ()):
            if view.at_s >= outage.until_s:
                break
            alive = all(view.owners.get(broker_id) in outage.survivors for broker_id in broker_ids)
            since_s = None if not alive else view.at_s if since_s is None else since_s
        if since_s is None:
            return None
        latest_s = max(latest_s, since_s)
    return latest_s - outage.at_s
