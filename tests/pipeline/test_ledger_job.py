"""The job `ledger`, from real topics to Parquet by real Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from fleet.core.event_schema import DEPRECATED_OBSERVATIONS, OBSERVATIONS
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.events.topics import TOPICS
from fleet.pipeline.jobs import Site, finish, start_ledger
from fleet.pipeline.observations import EVENTS, LedgerEntry
from fleet.pipeline.streams import Kafka
from tests.pipeline_samples import LIMIT_S, make_topics, produce

pytestmark = pytest.mark.size("test")

PREFIX = "ledger-topics."


def entries(first: int, count: int) -> list[bytes]:
    return [
        EVENTS.encode(LedgerEntry("orders", "log", 0, 1, number, number, number, 1_000 * number))
        for number in range(first, first + count)
    ]


def test_ledger_job_reads_the_topic_and_its_former_name(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    """`fleet.outside` is the name of `fleet.observations` before 0.3.0."""
    names = [each.name for each in TOPICS]
    assert OBSERVATIONS in names
    assert DEPRECATED_OBSERVATIONS not in names
    make_topics(kafka, PREFIX)
    site = Site(Kafka(kafka.bootstrap_servers), PREFIX, str(tmp_path / "out"))

    produce(kafka, PREFIX + OBSERVATIONS, entries(0, 5))
    assert finish(start_ledger(spark, site, True)) == 5

    former = PREFIX + DEPRECATED_OBSERVATIONS
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for future in admin.create_topics([NewTopic(former, 2, 1)]).values():
        future.result(LIMIT_S)
    produce(kafka, former, entries(5, 7))
    produce(kafka, PREFIX + OBSERVATIONS, entries(12, 2))
    assert finish(start_ledger(spark, site, True)) == 9
    sequences = [row.sequence for row in spark.read.parquet(site.ledger).select("sequence").collect()]
    assert sorted(sequences) == [*range(14)]
