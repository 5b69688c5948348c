"""Periods in which identities were missing: by the fleet's events, without Spark, and by observation.

The first is the naive twin of `fleet.pipeline.slo`, from the same events: both must agree to the millisecond.
The second differs: an external observer sees responses, not when a member dies or when a directory is in use.
So the reported period must contain the observed period. It must begin no later than the time at which the
fault was certain, and end no earlier than the last request that was answered with the address of a dead
member. The margin, by which the reported period is longer, is measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from confluent_kafka import Consumer, TopicPartition

from fleet.core.errors import DemoError
from fleet.core.event_schema import EVENTS, ConnectionEvent, Event, OwnershipEvent
from fleet.core.model import BrokerId
from fleet.drills.workload.checker import History, Outage
from fleet.pipeline.documents import AvailabilityDocument

_QUERY_LIMIT_S: Final = 30.0

Span: TypeAlias = tuple[int, int]
"""Start and end, in milliseconds of Unix time."""


@dataclass(frozen=True, slots=True)
class ReportedAvailability:
    """The availability of identities, as operators see it.

    Args:
        takeovers: broker id and generation → alive_ms, began_ms, advertised_ms, committed_ms and
            first_request_ms.
        outages: broker id, began_ms, ended_ms and cuts of each outage.
        missing_ms: broker id → total time for which the identity was missing.
    """

    takeovers: Mapping[tuple[BrokerId, int], tuple[int | None, ...]]
    outages: frozenset[tuple[BrokerId, int, int | None, int]]
    missing_ms: Mapping[BrokerId, int]

    def windows(self, until_ms: int) -> dict[BrokerId, list[Span]]:
        """Return the spans in which identities were missing; no two spans of an identity overlap.

        Args:
            until_ms: end of outages that still last.
        """
        spans: dict[BrokerId, list[Span]] = defaultdict(list)
        for (broker_id, _), (alive_ms, began_ms, advertised_ms, *_) in self.takeovers.items():
            since_ms = began_ms if alive_ms is None else alive_ms
            assert since_ms is not None
            assert advertised_ms is not None
            spans[broker_id].append((since_ms, advertised_ms))
        for broker_id, began_ms, ended_ms, _ in self.outages:
            spans[broker_id].append((began_ms, until_ms if ended_ms is None else ended_ms))
        return {broker_id: list(_without_overlaps(each)) for broker_id, each in spans.items()}


def from_events(events: Iterable[Event], until_ms: int) -> ReportedAvailability:
    """Return the availability that follows from events, in any order and with repetitions."""
    ownership: dict[BrokerId, dict[int, list[OwnershipEvent]]] = defaultdict(lambda: defaultdict(list))
    connections: dict[str, ConnectionEvent] = {}
    for event in events:
        if isinstance(event, OwnershipEvent):
            ownership[event.broker_id][event.generation].append(event)
        elif isinstance(event, ConnectionEvent) and event.owned and event.broker_id >= 0:
            connections[event.id] = event
    takeovers: dict[tuple[BrokerId, int], tuple[int | None, ...]] = {}
    for broker_id, changes in ownership.items():
        of_identity = [each for each in connections.values() if each.broker_id == broker_id]
        for generation, ends_ms in _ends(changes).items():
            times = _takeover(changes[generation], ends_ms, of_identity)
            if times is not None:
                takeovers[broker_id, generation] = times
    found = ReportedAvailability(takeovers, frozenset(_outages(list(connections.values()))), {})
    missing_ms = dict.fromkeys(ownership, 0)
    for broker_id, spans in found.windows(until_ms).items():
        missing_ms[broker_id] = sum(to_ms - from_ms for from_ms, to_ms in spans)
    return ReportedAvailability(found.takeovers, found.outages, missing_ms)


def from_document(document: AvailabilityDocument) -> ReportedAvailability:
    """Return the availability that the data pipeline reports."""
    missing_ms: dict[BrokerId, int] = defaultdict(int)
    for each in document.identities:
        assert each.broker_id is not None
        missing_ms[each.broker_id] += each.unavailable_ms
    return ReportedAvailability(
        {
            (each.broker_id, each.generation): (
                each.alive_ms,
                each.began_ms,
                each.advertised_ms,
                each.committed_ms,
                each.first_request_ms,
            )
            for each in document.takeovers
        },
        frozenset((each.broker_id, each.began_ms, each.ended_ms, each.cuts) for each in document.outages),
        missing_ms,
    )


def _ends(changes: Mapping[int, Sequence[OwnershipEvent]]) -> dict[int, int | None]:
    """Return when the ownership of each generation ended."""
    ends: dict[int, int | None] = {}
    from_ms, before = 0, None
    for generation in sorted(changes):
        from_ms = max(from_ms, min(each.proposed_at_ms for each in changes[generation]))
        if before is not None:
            ends[before] = from_ms
        before, ends[generation] = generation, None
    return ends


def _takeover(
    reports: Sequence[OwnershipEvent], ends_ms: int | None, connections: Sequence[ConnectionEvent]
) -> tuple[int | None, ...] | None:
    """Return the times of a takeover; None if the change is not a takeover."""
    detected = [each.detected_at_ms for each in reports if each.detected_at_ms is not None]
    if not detected or reports[0].reason != "takeover":
        return None
    began_ms, committed_ms = min(detected), min(each.committed_at_ms for each in reports)
    alive = [each.alive_at_ms for each in reports if each.alive_at_ms is not None]
    advertised = [each.advertised_at_ms for each in reports if each.advertised_at_ms is not None]
    request_times_ms = [
        each.at_ms
        for each in connections
        if each.what == "opened" and each.told_by in reports[0].owners and each.at_ms >= began_ms
    ]
    return (
        min(max(alive), began_ms) if alive else None,
        began_ms,
        max(advertised, default=committed_ms),
        committed_ms,
        min((at_ms for at_ms in request_times_ms if ends_ms is None or at_ms < ends_ms), default=None),
    )


def _outages(connections: Sequence[ConnectionEvent]) -> Iterator[tuple[BrokerId, int, int | None, int]]:
    cut = [each for each in connections if each.why == "unreachable"]
    away = {each.connection for each in cut}
    together: dict[tuple[BrokerId, int | None], list[int]] = defaultdict(list)
    for each in cut:
        later_ms = [
            other.at_ms
            for other in connections
            if (other.broker_id, other.what) == (each.broker_id, "opened")
            and other.connection not in away
            and other.at_ms > each.at_ms
        ]
        together[each.broker_id, min(later_ms, default=None)].append(each.at_ms)
    for (broker_id, ended_ms), times in together.items():
        yield broker_id, min(times), ended_ms, len(times)


def _without_overlaps(spans: Iterable[Span]) -> Iterator[Span]:
    """Yield the spans in order, and merge spans that touch or overlap."""
    last: Span | None = None
    for from_ms, to_ms in sorted(spans):
        if last is not None and from_ms <= last[1]:
            last = last[0], max(last[1], to_ms)
            continue
        if last is not None:
            yield last
        last = from_ms, to_ms
    if last is not None:
        yield last


@dataclass(frozen=True, slots=True)
class SeenMissing:
    """An identity that an observer saw at a member that was down; times of the machine's monotonic clock.

    Args:
        at_s, there_s: right before the fault, and when the fault was certain.
        asked_s: time of the last request that a survivor answered with the address of such a member.
        better_s: when the last of these survivors first gave a correct answer; None if it gave none during
            the fault.
    """

    broker_id: BrokerId
    at_s: float
    there_s: float
    asked_s: float
    better_s: float | None


def seen_missing(history: History) -> list[SeenMissing]:
    """Return the identities that the observer saw at members that were down, by outage and identity."""
    found = []
    for outage in history.outages:
        for broker_id in sorted(history.broker_ids):
            each = _seen(history, outage, broker_id)
            if each is not None:
                found.append(each)
    return found


def _seen(history: History, outage: Outage, broker_id: BrokerId) -> SeenMissing | None:
    last_s: float | None = None
    better: list[float | None] = []
    for proxy_id in outage.survivors:
        bad_s: float | None = None
        better_s: float | None = None
        for view in history.views.get(proxy_id, ()):
            if view.at_s >= outage.until_s:
                break
            if view.owners.get(broker_id) not in outage.victims:
                better_s = view.at_s if better_s is None else better_s
            elif view.asked_s >= outage.at_s:
                bad_s, better_s = min(view.asked_s, outage.until_s), None
        if bad_s is not None:
            last_s = bad_s if last_s is None else max(last_s, bad_s)
            better.append(better_s)
    if last_s is None:
        return None
    ends = [each for each in better if each is not None]
    there_s = outage.at_s if outage.there_s is None else outage.there_s
    better_s = max(ends) if len(ends) == len(better) else None
    return SeenMissing(broker_id, outage.at_s, there_s, last_s, better_s)


@dataclass(frozen=True, slots=True)
class Margin:
    """Difference between a reported and an observed period, in milliseconds.

    Args:
        before_ms: time from the start of the reported period to the fault.
        after_ms: time from the last survivor's correct answer to the end of the reported period; None if
            there was no such answer.
    """

    before_ms: int
    after_ms: int | None


def margin(
    missed: SeenMissing, windows: Mapping[BrokerId, Sequence[Span]], wall_ms: float, drift_ms: float
) -> Margin | None:
    """Return the margin of the reported period that contains an observed period; None without such a period.

    Args:
        missed: the observed period.
        windows: see `ReportedAvailability.windows`.
        wall_ms: how far the wall clock is ahead of the machine's monotonic clock.
        drift_ms: change of that difference in the run.
    """
    slack_ms = drift_ms + 1.0  # reported times are whole milliseconds
    at_ms, there_ms, asked_ms = (
        1000 * each + wall_ms for each in (missed.at_s, missed.there_s, missed.asked_s)
    )
    for from_ms, to_ms in windows.get(missed.broker_id, ()):
        if from_ms <= there_ms + slack_ms and to_ms >= asked_ms - slack_ms:
            better_s = missed.better_s
            after_ms = None if better_s is None else round(to_ms - 1000 * better_s - wall_ms)
            return Margin(round(at_ms - from_ms), after_ms)
    return None


def read_events(servers: str, topics: Iterable[str]) -> list[Event]:
    """Read all events that topics hold now. Raises: DemoError: the events cannot be read."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "unused", "enable.auto.commit": False, "log_level": 0}
    )
    try:
        places = [
            TopicPartition(topic, partition, 0)
            for topic in topics
            for partition in consumer.list_topics(topic, _QUERY_LIMIT_S).topics[topic].partitions
        ]
        ends = [consumer.get_watermark_offsets(place, _QUERY_LIMIT_S)[1] for place in places]
        consumer.assign(places)
        found: list[Event] = []
        while len(found) < sum(ends):
            # A request for more messages than there are would wait for the rest.
            messages = consumer.consume(min(1000, sum(ends) - len(found)), _QUERY_LIMIT_S)
            if not messages:
                raise DemoError(f"only {len(found)} of {sum(ends)} events could be read")
            for message in messages:
                error = message.error()
                if error is not None:
                    raise DemoError(f"events cannot be read: {error.str()}")
                found.append(EVENTS.decode(message.value() or b""))
        return found
    finally:
        consumer.close()
