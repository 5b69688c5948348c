"""Starts Spark, and reads the records of Kafka topics for all jobs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from pyspark.sql import DataFrame, SparkSession

from fleet.pipeline.event_decoder import DECODED
from fleet.pipeline.kafka_source import FORMAT_NAME, KafkaTopics

Source: TypeAlias = Literal["python", "jvm"]

CONNECTOR_PACKAGE: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13:{version}"
_SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp")


@dataclass(frozen=True, slots=True)
class Kafka:
    """A Kafka cluster, and how Spark reads it.

    Args:
        bootstrap_servers: addresses of brokers, separated by commas.
        source: "python" is `fleet.pipeline.kafka_source`. "jvm" is Spark's own connector: Spark must find its
            jars (`spark-submit --packages`, or `session(…, "jvm")`, which downloads them from Maven).
        client: further options of librdkafka, or of the Java client, such as security.protocol.
        records_per_batch: about how many records a batch of a stream takes at most; 0 for no limit.
    """

    bootstrap_servers: str
    source: Source = "python"
    client: Mapping[str, str] = field(default_factory=dict)
    records_per_batch: int = 0


def session(master: str | None = None, source: Source = "python", **conf: str) -> SparkSession:
    """Return the Spark session of this process; create it if there is none.

    Args:
        master: master URL of Spark; None for that of `spark-submit`, or local[*] without `spark-submit`.
        source: "jvm" adds Spark's own Kafka connector.
        conf: further settings of Spark, with _ in place of the dots in their names.
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
        # This JVM does all the work. With Spark's default of 1 GB, a third of the time went to
        # garbage collection.
        own = {"spark.driver.memory": "3g", "spark.driver.extraJavaOptions": "-XX:+UseParallelGC"}
    settings = {
        **own,
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Jobs write a file for each day. Without this setting Spark sorts each batch by day before it writes.
        "spark.sql.maxConcurrentOutputFileWriters": "16",
        # Groups (identities and minutes) in one batch of `load`. Above this number Spark sorts all events.
        "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "16384",
        **{key.replace("_", "."): value for key, value in conf.items()},
    }
    if source == "jvm":
        import pyspark

        settings["spark.jars.packages"] = CONNECTOR_PACKAGE.format(version=pyspark.__version__)
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    context = spark.sparkContext
    context.setLogLevel("ERROR")
    if str(context.master).startswith("local") and not context.getConf().contains(_SHUFFLE_PARTITIONS):
        # Each partition of a stateful job uses a Python worker and some files in every batch.
        spark.conf.set(_SHUFFLE_PARTITIONS, str(min(8, os.cpu_count() or 1)))
    spark.dataSource.register(KafkaTopics)
    return spark


def read_records(
    spark: SparkSession,
    kafka: Kafka,
    topics: Sequence[str],
    *,
    streaming: bool,
    optional: Sequence[str] = (),
    event_class: type[Any] | None = None,
) -> DataFrame:
    """Read topics: key, value, topic, partition, offset, timestamp. A batch has all current records.

    Args:
        topics: topics that must exist.
        streaming: whether to return a stream; otherwise a batch.
        optional: topics that are read as soon as they exist. At least one topic must exist.
        event_class: class of the only events that the caller needs. A source that can decode them
            (`fleet.pipeline.event_decoder`) returns the columns `value` and `DECODED` instead.
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
        if event_class is not None:
            options["event_class"] = f"{event_class.__module__}:{event_class.__qualname__}"
            columns = ("value", DECODED)
        found = reader.format(FORMAT_NAME).options(**options)
    where = {f"kafka.{key}": value for key, value in kafka.client.items()}
    servers = "kafka.bootstrap.servers" if kafka.source == "jvm" else "bootstrap.servers"
    return found.options(**where, **{servers: kafka.bootstrap_servers}).load().select(*columns)
