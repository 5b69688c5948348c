"""Finds records that their own producer sent again under another epoch. No broker can detect them.

After the error OUT_OF_ORDER_SEQUENCE_NUMBER an idempotent producer counts from 0 under the next epoch, and
sends all unacknowledged records again. Records that the brokers already have are then in the log twice.
Observed with librdkafka 2.16.1 when brokers shut down in order.

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
    """The producer of a record, and its epoch."""

    producer_id: int
    epoch: int


def lives(dump: str) -> dict[int, Life]:
    """The writer of each offset, for idempotent producers without transactions.

    Args:
        dump: output of Kafka's DumpLogSegments for one partition.
    """
    found: dict[int, Life] = {}
    for first, last, producer_id, epoch, transactional in _BATCH.findall(dump):
        if int(producer_id) != _NONE and transactional == "false":
            life = Life(int(producer_id), int(epoch))
            found.update(dict.fromkeys(range(int(first), int(last) + 1), life))
    return found


def sent_again(log: Iterable[Event], written: Mapping[Place, Life]) -> frozenset[Place]:
    """The entries that repeat a record which the same producer last wrote in an earlier epoch.

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
    """The partitions that have a record more than once."""
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
    """The `sent_again` entries of a topic, all of whose partitions one broker has.

    Raises: DemoError: a partition has no dump.
    """
    entries = list(log)
    written = {
        (partition, offset): life
        for partition in repeated_partitions(entries)
        for offset, life in lives(kafka.dump(broker_id, topic, partition)).items()
    }
    return sent_again(entries, written)
