"""Sample events for the jobs, and the timeline that they must give."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from fleet.core.event_schema import OwnershipEvent
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.events.topics import TOPICS
from fleet.pipeline.jobs import Site
from fleet.pipeline.timeline import Change, OwnershipHistory, Row
from fleet.pipeline.timeline_job import current, read

Plain: TypeAlias = tuple[Any, ...]

LIMIT_S = 60.0
IDENTITIES = 5
MEMBERS = ("p1", "p2", "p3")
START_MS = 1_790_000_000_000


def make_reports(chance: random.Random, generations: int = 60) -> list[OwnershipEvent]:
    """Return the reports of three members about identities that move; no member reports some of the moves."""
    reports: list[OwnershipEvent] = []
    owners: dict[int, tuple[str, ...]] = {}
    for generation in range(1, generations):
        broker_id, now_ms = chance.randrange(IDENTITIES), START_MS + 1000 * generation
        before = owners.get(broker_id)
        owners[broker_id] = (chance.choice(MEMBERS),)
        event = OwnershipEvent(
            id=f"f/ownership/{generation}/{broker_id}",
            fleet="f",
            told_by="p1",
            generation=generation,
            broker_id=broker_id,
            before=before,
            owners=owners[broker_id],
            reason="takeover",
            proposed_at_ms=now_ms + chance.randrange(-3000, 3000),
            committed_at_ms=now_ms + 10,
        )
        if chance.random() < 0.1:
            continue
        for member in MEMBERS:
            delay_ms = chance.randrange(50)
            reports.append(replace(event, told_by=member, committed_at_ms=now_ms + delay_ms))
            if chance.random() < 0.5:
                taken = replace(reports[-1], detected_at_ms=now_ms - 5, advertised_at_ms=now_ms + delay_ms)
                reports.append(replace(taken, alive_at_ms=now_ms - 5 - chance.randrange(90)))
        if chance.random() < 0.1:
            reports.append(replace(event, owners=("p9",)))
    # Each report is late by some places.
    order = sorted(range(len(reports)), key=lambda place: place + chance.randrange(60))
    return [reports[place] for place in order]


def make_topics(kafka: KafkaCluster, prefix: str) -> None:
    """Create the topics that members would create."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    topics = [NewTopic(prefix + each.name, each.partitions, 1, config=dict(each.config)) for each in TOPICS]
    for future in admin.create_topics(topics).values():
        future.result(LIMIT_S)


def produce(kafka: KafkaCluster, topic: str, values: Sequence[bytes]) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(LIMIT_S) == 0


def read_timeline(spark: SparkSession, site: Site) -> list[Plain]:
    """Return the current rows of the timeline."""
    rows = current(read(spark, site.timeline)).collect()
    return sorted(
        plain(row.fleet, row.broker_id, Row(**{name: row[name] for name in Row.__dataclass_fields__}))
        for row in rows
    )


def expected_timeline(reports: Sequence[OwnershipEvent]) -> list[Plain]:
    """Return the timeline of all reports, learned at once."""
    changes: dict[tuple[str, int], list[Change]] = {}
    for each in reports:
        fields = {name: getattr(each, name) for name in Change.__dataclass_fields__}
        changes.setdefault((each.fleet, each.broker_id), []).append(Change(**fields))
    return sorted(
        plain(*place, row)
        for place, reported in changes.items()
        for row in OwnershipHistory().learn(reported, 0)[1]
    )


def plain(fleet: str, broker_id: int, row: Row) -> Plain:
    times = (
        row.from_ms,
        row.to_ms,
        row.committed_at_ms,
        row.alive_at_ms,
        row.detected_at_ms,
        row.advertised_at_ms,
    )
    return (fleet, broker_id, row.what, row.generation, tuple(row.owners), *(each or 0 for each in times))
