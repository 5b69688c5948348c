"""Which broker leads each partition and coordinates each group and transaction, as a worker has learned it.

Only answers to the worker's own requests enter the map (see ``lookups``). An entry may be old: a connection
relies on an entry to find its broker, and asks again when an entry contradicts the connection.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

from fleet.core.model import BrokerId
from fleet.proxy.wire.routes import GROUP, TOPIC_ID, TOPIC_NAME, TRANSACTION

NO_BROKER: Final = -1
"""The cluster names no broker for the key: no leader, no coordinator, no such topic, or no right to know."""
UNKNOWN: Final = -2
"""The map has no entry."""

FRESH_S: Final = 1.0
"""The age up to which an entry counts as true now."""
MAX_TOPICS: Final = 20_000
MAX_PARTITIONS: Final = 1_000_000
"""Partitions of all topics together: 17 MB as Kafka assigns replicas to 100 brokers, 160 MB if at random."""
MAX_COORDINATORS: Final = 50_000
TOPIC_KINDS: Final = frozenset((TOPIC_NAME, TOPIC_ID))
COORDINATOR_KINDS: Final = frozenset((GROUP, TRANSACTION))

Replicas = tuple[BrokerId, ...]


class TopicEntry:
    """The leaders and replicas of one topic's partitions.

    Args:
        keys: each with its kind: the name, the id, or both.
        leaders, replicas: by the index of the partition; NO_BROKER without a leader.
    """

    __slots__ = ("asked_s", "keys", "leaders", "replicas")

    def __init__(
        self,
        keys: tuple[tuple[int, bytes], ...],
        leaders: Sequence[BrokerId],
        replicas: tuple[Replicas, ...],
        asked_s: float,
    ) -> None:
        self.keys = keys
        self.leaders = leaders
        self.replicas = replicas
        self.asked_s = asked_s


class RoutingMap:
    """The entries of one worker. Each map is bounded, and the entry that was learned first is dropped first.

    ``version`` changes with each change of a broker: who has seen the version needs no look-up.
    """

    __slots__ = ("_coordinators", "_interned", "_partitions", "_topics", "version")

    def __init__(self) -> None:
        self._topics: dict[tuple[int, bytes], TopicEntry] = {}
        """Entries by TOPIC_NAME and name, and the same entries by TOPIC_ID and id."""
        self._coordinators: dict[tuple[int, bytes], tuple[BrokerId, float]] = {}
        self._partitions = 0
        self._interned: dict[Replicas, Replicas] = {}
        self.version = 0

    def find(self, kind: int, key: bytes, partition: int) -> BrokerId:
        """Return the broker of a key; NO_BROKER if the cluster names none, or UNKNOWN.

        Args: kind: GROUP, TRANSACTION, TOPIC_NAME or TOPIC_ID.
        """
        if kind in TOPIC_KINDS:
            topic = self._topics.get((kind, key))
            if topic is None:
                return UNKNOWN
            leaders = topic.leaders
            return leaders[partition] if 0 <= partition < len(leaders) else NO_BROKER
        found = self._coordinators.get((kind, key))
        return UNKNOWN if found is None else found[0]

    def is_replica(self, kind: int, key: bytes, partition: int, broker_id: BrokerId) -> bool:
        """Whether a broker has a replica of a partition."""
        topic = self._topics.get((kind, key))
        return (
            topic is not None
            and 0 <= partition < len(topic.replicas)
            and broker_id in topic.replicas[partition]
        )

    def is_fresh(self, kind: int, key: bytes, now_s: float) -> bool:
        """Whether the cluster was asked about a key a moment ago."""
        if kind in TOPIC_KINDS:
            topic = self._topics.get((kind, key))
            return topic is not None and now_s - topic.asked_s < FRESH_S
        found = self._coordinators.get((kind, key))
        return found is not None and now_s - found[1] < FRESH_S

    def learn_topic(
        self,
        keys: Sequence[tuple[int, bytes]],
        leaders: Sequence[BrokerId],
        replicas: Sequence[Replicas],
        now_s: float,
    ) -> None:
        """Enter a topic of the cluster's answer.

        Args:
            keys: each with its kind: the name, the id, or both.
            leaders, replicas: none if the cluster does not have the topic.
        """
        before = [self._topics.get(each) for each in keys]
        for each in keys:
            self._drop_topic(each)
        interned = tuple(self._interned.setdefault(each, each) for each in replicas)
        entry = TopicEntry(tuple(keys), array("i", leaders), interned, now_s)
        for each in keys:
            self._topics[each] = entry
        self._partitions += len(leaders)
        if any(former is None or former.leaders != entry.leaders for former in before):
            self.version += 1
        while len(self._topics) > 2 * MAX_TOPICS or self._partitions > MAX_PARTITIONS:
            oldest = next(iter(self._topics))
            if self._topics[oldest] is entry:
                break
            self._drop_topic(oldest)
        if len(self._interned) > MAX_TOPICS:
            self._interned.clear()

    def learn_coordinator(self, kind: int, key: bytes, broker_id: BrokerId, now_s: float) -> None:
        """Enter the coordinator of a group or of a transaction, or NO_BROKER."""
        before = self._coordinators.pop((kind, key), None)
        self._coordinators[(kind, key)] = (broker_id, now_s)
        if before is None or before[0] != broker_id:
            self.version += 1
        if len(self._coordinators) > MAX_COORDINATORS:
            del self._coordinators[next(iter(self._coordinators))]

    def note_failure(self, kind: int, key: bytes, now_s: float) -> None:
        """Note that the cluster was asked about a key, and did not answer: an entry stays as it was."""
        if kind in TOPIC_KINDS:
            known = self._topics.get((kind, key))
            if known is None:
                self.learn_topic(((kind, key),), (), (), now_s)
            else:
                known.asked_s = now_s
        else:
            found = self.find(kind, key, 0)
            self.learn_coordinator(kind, key, NO_BROKER if found == UNKNOWN else found, now_s)

    def _drop_topic(self, key: tuple[int, bytes]) -> None:
        """Drop an entry under its name and its id, if there is one."""
        dropped = self._topics.get(key)
        if dropped is not None:
            self._partitions -= len(dropped.leaders)
            for each in dropped.keys:
                del self._topics[each]
