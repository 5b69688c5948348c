"""Spark reads and writes records through a fleet, with the pipeline's own source and sink."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from fleet.drills.cluster.kafka import KafkaCluster
from fleet.pipeline.kafka_source import FORMAT_NAME
from tests.conftest import MakeFleet, MakeTopic
from tests.integration.clients import produce, read_all

pytestmark = pytest.mark.size("test")


@pytest.mark.proves("Spark", "produce", "consume")
def test_stream_copies_topic_through_fleet(
    spark: SparkSession, kafka: KafkaCluster, make_fleet: MakeFleet, make_topic: MakeTopic, tmp_path: Path
) -> None:
    fleet, source, target = make_fleet(1), make_topic(), make_topic()
    values = [b"%05d" % number for number in range(600)]
    produce(kafka.bootstrap_servers, source, values)
    servers = {"bootstrap.servers": fleet.bootstrap()}
    stream = spark.readStream.format(FORMAT_NAME).options(**servers, topics=source).load()
    value = F.concat(F.lit("read "), F.col("value").cast("string")).cast("binary").alias("value")
    out = stream.select("key", value).writeStream.format(FORMAT_NAME).options(**servers, topic=target)
    query = out.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(240)
    written = read_all(kafka.bootstrap_servers, target, len(values))
    assert sorted(each.value() or b"" for each in written) == [b"read " + value for value in values]
