"""Whether a history keeps what the fleet promises."""

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
"""From the end of the last fault until every partition acknowledges and delivers: above a session's 45 s."""


@dataclass(frozen=True, slots=True)
class Promise:
    """What clients of one kind are promised.

    Args:
        durable: "always", "proxies" (as long as no broker fails) or "never".
        exact: nothing twice, and all in order.
        in_turn: the group gets the records of a partition in order, too.
    """

    durable: Literal["always", "proxies", "never"]
    exact: bool
    in_turn: bool = True

    def holds(self, *, brokers_failed: bool) -> bool:
        """Whether acknowledged records must be there in the end."""
        return self.durable == "always" or (self.durable == "proxies" and not brokers_failed)


@dataclass(frozen=True, slots=True)
class Stream:
    """What one workload has seen.

    Args:
        log: what the brokers hold in the end, each partition in the order of its offsets.
        aborted: what was produced in transactions that were aborted.
        gave_up: its producer has ended by a fault of its own, so that nothing more can come.
        keys: how many keys each partition of a compacted topic has, which its records take in turn; else 0.
        sent_again: entries of the log that repeat a record which their producer has sent again under another
            epoch, so that no broker could know it: where a broker fails that is the client's doing.
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
    """What a member's /ownership said at a moment; `owners` are the committed ones."""

    at_s: float
    proxy_id: ProxyId
    generation: int
    owners: Mapping[BrokerId, tuple[ProxyId, ...]]


@dataclass(frozen=True, slots=True)
class View:
    """Who stands for each identity in a member's Metadata, from a moment on.

    Args:
        asked_s: when the last answer that said so was asked for.
    """

    at_s: float
    owners: Mapping[BrokerId, ProxyId | None]
    asked_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Outage:
    """Members that cannot be reached for a while.

    Args:
        survivors: the members that can.
        until_s: when the fault began to be healed.
        bound_s: by when the survivors must advertise one another alone.
        there_s: when the fault was there for certain; `at_s` is right before.
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
    """Everything that was seen of one run; times are of the machine's monotonic clock.

    Args:
        views: of each member, in the order in which they came.
        whole_since_s: when the last fault had been healed.
        brokers_failed: whether a broker did.
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
    """Every promise that a history breaks."""
    return [
        *(found for stream in history.streams for found in _records(stream, history)),
        *_owner_sets(history.sightings),
        *_generations(history.sightings),
        *(found for outage in history.outages for found in _advertised(outage, history)),
    ]


def audit_of(stream: Stream) -> Audit:
    """The verdict on a workload; of a compacted topic, what is lost are last writes of keys."""
    received = stream.received
    if not stream.promise.in_turn:
        received = sorted(received, key=lambda event: (event.partition, event.offset))
    verdict = audit(stream.acknowledged, received, stream.log)
    return replace(verdict, lost=len(stale_keys(stream))) if stream.keys else verdict


def stale_keys(stream: Stream) -> list[Key]:
    """The keys of which a reader has an older record in the end than the last one that was acknowledged."""
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


def _records(stream: Stream, history: History) -> Iterator[Violation]:
    verdict, promise = audit_of(stream), stream.promise
    if promise.holds(brokers_failed=history.brokers_failed) and verdict.lost:
        yield _lost(stream, verdict)
    if stream.keys and len(stream.log) >= verdict.acknowledged:
        yield Violation(
            "no_effect",
            f"{stream.name}: nothing was compacted: {verdict.acknowledged} records were acknowledged, and "
            f"{len(stream.log)} are in the log",
        )
    duplicated = verdict.duplicated - (len(stream.sent_again) if history.brokers_failed else 0)
    if promise.exact and duplicated:
        yield Violation("duplicated", f"{stream.name}: {duplicated} records are in the log again")
    if promise.exact and verdict.out_of_order:
        yield Violation("reordered", f"{stream.name}: {verdict.out_of_order} records come after later ones")
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
                f"{stream.name}: partitions {sorted(stuck)} have {what} nothing within "
                f"{PROGRESS_LIMIT_S:.0f} s after the last fault",
            )


def _lost(stream: Stream, verdict: Audit) -> Violation:
    if stream.keys:
        stale = stale_keys(stream)
        return Violation(
            "stale_key",
            f"{stream.name}: {len(stale)} keys without their last acknowledged write, the first of them "
            f"{stale[0][1]} of partition {stale[0][0]}",
        )
    return Violation("lost", f"{stream.name}: {verdict.lost} of {verdict.acknowledged} acknowledged records")


def _records_of(events: Iterable[Event]) -> set[tuple[int, Record]]:
    return {(event.partition, event.record) for event in events}


def _owner_sets(sightings: Iterable[Sighting]) -> Iterator[Violation]:
    """Two members, or one at two times, that name different owners of one identity in one generation."""
    told: dict[tuple[int, BrokerId], Sighting] = {}
    for sighting in sightings:
        for broker_id, owners in sighting.owners.items():
            first = told.setdefault((sighting.generation, broker_id), sighting)
            if first.owners[broker_id] != owners:
                yield Violation(
                    "two_owner_sets",
                    f"generation {sighting.generation}, identity {broker_id}: {first.owners[broker_id]} "
                    f"as {first.proxy_id} said, {owners} as {sighting.proxy_id} said",
                )


def _generations(sightings: Iterable[Sighting]) -> Iterator[Violation]:
    newest: dict[ProxyId, int] = {}
    for sighting in sightings:
        before = newest.get(sighting.proxy_id, sighting.generation)
        if sighting.generation < before:
            yield Violation(
                "generation_fell", f"at {sighting.proxy_id} from {before} to {sighting.generation}"
            )
        newest[sighting.proxy_id] = sighting.generation


def _advertised(outage: Outage, history: History) -> Iterator[Violation]:
    took_s = takeover_s(outage, history.broker_ids, history.views)
    lasted_s = outage.until_s - outage.at_s
    if lasted_s > outage.bound_s and (took_s is None or took_s > outage.bound_s):
        took = f"only after {took_s:.2f} s" if took_s is not None else f"not within {lasted_s:.1f} s"
        yield Violation(
            "advertised_dead",
            f"{outage.kind}: every identity at one of {', '.join(outage.survivors)} {took}, not "
            f"{outage.bound_s:.1f} s, after {', '.join(outage.victims)} went",
        )


def takeover_s(
    outage: Outage, broker_ids: AbstractSet[BrokerId], views: Mapping[ProxyId, Sequence[View]]
) -> float | None:
    """From the beginning of an outage until every survivor's Metadata has survivors alone, and keeps them.

    Returns: seconds; None where it was not so when the outage ended.
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
