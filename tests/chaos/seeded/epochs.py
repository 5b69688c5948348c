"""Which records of a log their own producer has sent again under another epoch: no broker can know them.

An idempotent producer that is told of a sequence number out of order counts from 0 again under the next
epoch, and sends all that is not acknowledged; what brokers hold of it is in the log twice. Seen of librdkafka
2.16.1 where brokers end in order.

Source: KIP-360 (epochs that the client bumps); record batches of version 2 (producerId, producerEpoch).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from fleet.core.model import BrokerId
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.drills.workload.audit import Identity, Place
from fleet.drills.workload.history import Event

_BATCH: Final = re.compile(
    r"^baseOffset: (\d+) lastOffset: (\d+) .*"
    r"producerId: (-?\d+) producerEpoch: (-?\d+) .*isTransactional: (true|false)",
    re.MULTILINE,
)
_NONE: Final = -1


@dataclass(frozen=True, slots=True)
class Life:
    """The producer that has written a record, and in which of its epochs."""

    producer_id: int
    epoch: int


def lives(dump: str) -> dict[int, Life]:
    """By offset, who has written it; of idempotent producers without transactions.

    Args:
        dump: what Kafka's DumpLogSegments prints of one partition.
    """
    found: dict[int, Life] = {}
    for first, last, producer_id, epoch, transactional in _BATCH.findall(dump):
        if int(producer_id) != _NONE and transactional == "false":
            life = Life(int(producer_id), int(epoch))
            found.update(dict.fromkeys(range(int(first), int(last) + 1), life))
    return found


def sent_again(log: Iterable[Event], written: Mapping[Place, Life]) -> frozenset[Place]:
    """The entries that repeat a record which the same producer has written last in an earlier epoch.

    Args:
        log: each partition in the order of its offsets.
    """
    last: dict[Identity, Place] = {}
    again = set()
    for event in log:
        identity, place = (event.partition, event.record), (event.partition, event.offset)
        before, after = written.get(last.get(identity, place)), written.get(place)
        last[identity] = place
        if before is None or after is None:
            continue
        if after.producer_id == before.producer_id and after.epoch > before.epoch:
            again.add(place)
    return frozenset(again)


def repeated_partitions(log: Iterable[Event]) -> set[int]:
    """The partitions that hold a record more than once."""
    seen: set[Identity] = set()
    repeated = set()
    for event in log:
        identity = (event.partition, event.record)
        if identity in seen:
            repeated.add(event.partition)
        seen.add(identity)
    return repeated


def read_again(
    log: Iterable[Event], kafka: KafkaCluster, broker_id: BrokerId, topic: str
) -> frozenset[Place]:
    """`sent_again` of a topic whose partitions that broker holds all of.

    Raises: DemoError: there is no dump of one.
    """
    entries = list(log)
    written = {
        (partition, offset): life
        for partition in repeated_partitions(entries)
        for offset, life in lives(kafka.dump(broker_id, topic, partition)).items()
    }
    return sent_again(entries, written)
