"""Spark itself, and the one function that gives the jobs the records of Kafka's topics."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from pyspark.sql import DataFrame, SparkSession

from fleet.pipeline.event_decoder import TOLD
from fleet.pipeline.kafka_source import NAME, KafkaTopics

Source: TypeAlias = Literal["python", "jvm"]

CONNECTOR: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13:{version}"
_SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp")


@dataclass(frozen=True, slots=True)
class Kafka:
    """A cluster, and how it is read.

    Args:
        source: "python" is `fleet.pipeline.kafka_source`; "jvm" is Spark's own connector, whose jars Spark
            has to find (`spark-submit --packages`, or `session(…, "jvm")`, which asks Maven for them).
        client: further settings of librdkafka, or of the Java client, such as security.protocol.
        records_per_batch: about how many a batch of a stream takes at most; 0 for all there are.
    """

    bootstrap_servers: str
    source: Source = "python"
    client: Mapping[str, str] = field(default_factory=dict)
    records_per_batch: int = 0


def session(master: str | None = None, source: Source = "python", **conf: str) -> SparkSession:
    """The Spark of this process, made where there is none yet.

    Args:
        master: where to run; None leaves it to `spark-submit`, and is local[*] without it.
        conf: further settings, with _ for the dots of their names.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("fleet-pipeline")
    submitted = "SPARK_ENV_LOADED" in os.environ
    if master is not None or not submitted:
        builder = builder.master(master or "local[*]")
    own: dict[str, str] = {}
    if not submitted and (master or "local").startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # All work is done in this one JVM: of Spark's own gigabyte a third went to collecting garbage.
        own = {"spark.driver.memory": "3g", "spark.driver.extraJavaOptions": "-XX:+UseParallelGC"}
    settings = {
        **own,
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Files by day: without it, each batch is sorted by day before it is written.
        "spark.sql.maxConcurrentOutputFileWriters": "16",
        # Of `load`, identities and minutes in one batch: with more groups, all of its events would be sorted.
        "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "16384",
        **{key.replace("_", "."): value for key, value in conf.items()},
    }
    if source == "jvm":
        import pyspark

        settings["spark.jars.packages"] = CONNECTOR.format(version=pyspark.__version__)
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    context = spark.sparkContext
    context.setLogLevel("ERROR")
    if str(context.master).startswith("local") and not context.getConf().contains(_SHUFFLE_PARTITIONS):
        # Each partition of a stateful job costs a Python worker and some files in every batch.
        spark.conf.set(_SHUFFLE_PARTITIONS, str(min(8, os.cpu_count() or 1)))
    spark.dataSource.register(KafkaTopics)
    return spark


def records(
    spark: SparkSession,
    kafka: Kafka,
    topics: Sequence[str],
    *,
    streaming: bool,
    optional: Sequence[str] = (),
    told: type[Any] | None = None,
) -> DataFrame:
    """The records of topics: key, value, topic, partition, offset, timestamp; a batch has all now there.

    Args:
        told: a class of events, and nothing else is wanted of a record. Where the source can, it decodes them
            (`fleet.pipeline.event_decoder`), and there are the columns `value` and `TOLD`.
        optional: topics that are read, too, as soon as they exist.
    """
    columns: tuple[str, ...] = _COLUMNS
    reader = spark.readStream if streaming else spark.read
    if kafka.source == "jvm":
        # Spark's connector fails where a topic that it subscribes to by name does not exist.
        pattern = {"subscribePattern": "|".join(name.replace(".", r"\.") for name in (*topics, *optional))}
        options = {
            **(pattern if optional else {"subscribe": ",".join(topics)}),
            "startingOffsets": "earliest",
            "kafka.isolation.level": "read_committed",
        }
        limit = {"maxOffsetsPerTrigger": str(kafka.records_per_batch)} if kafka.records_per_batch else {}
        found = reader.format("kafka").options(**options, **limit)
    else:
        options = {"topics": ",".join(topics), "records_per_batch": str(kafka.records_per_batch)}
        if optional:
            options["optional_topics"] = ",".join(optional)
        if told is not None:
            options["told"] = f"{told.__module__}:{told.__qualname__}"
            columns = ("value", TOLD)
        found = reader.format(NAME).options(**options)
    where = {f"kafka.{key}": value for key, value in kafka.client.items()}
    servers = "kafka.bootstrap.servers" if kafka.source == "jvm" else "bootstrap.servers"
    return found.options(**where, **{servers: kafka.bootstrap_servers}).load().select(*columns)
