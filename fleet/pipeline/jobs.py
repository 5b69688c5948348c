"""The jobs that run on a fleet's topics: each is a stream with a checkpoint of its own.

    OUT/timeline/            Parquet, by day: rows of `fleet.pipeline.timeline_job`
    OUT/load/                Parquet, by day: rows of `fleet.pipeline.load.minutes`
    OUT/liveness/            Parquet, by day: liveness events, unchanged
    OUT/connections/         Parquet, by day: connection events, unchanged
    OUT/ledger/              Parquet, by day: acknowledgements, deliveries and records in logs
    OUT/checkpoints/JOB/     Spark's checkpoint of each job

A job writes a batch to files exactly once, even if it is killed: the file sink keeps a log of its batches
next to the checkpoint. A job writes records to topics at least once; repeated records have the same `id`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from fleet.core.errors import PipelineError
from fleet.core.event_schema import (
    DEAD_LETTERS,
    DEPRECATED_OBSERVATIONS,
    OBSERVATIONS,
    TOPICS,
    WEIGHTS,
    ConnectionEvent,
    LivenessEvent,
    MemberEvent,
    OwnershipEvent,
    TrafficEvent,
)
from fleet.pipeline.kafka_source import FORMAT_NAME
from fleet.pipeline.load import SummedTraffic, Traffic, minutes, weights
from fleet.pipeline.observations import OBSERVATION_CLASSES, LedgerEntry
from fleet.pipeline.parse import dead_letters, parse, parse_kind
from fleet.pipeline.streams import Kafka, read_records
from fleet.pipeline.timeline_job import timeline

OBSERVATION_TOPICS: Final = (OBSERVATIONS, DEPRECATED_OBSERVATIONS)
"""Topics with observations; each is read where it exists. The second is its name before 0.3.0."""
DEAD_LETTER_COUNT: Final = "dead"
"""Name of a metric in the progress of each batch: the number of dead letters."""
EVENT_CLASSES: Final = MappingProxyType[str, type[Any]](
    {
        "ownership": OwnershipEvent,
        "member": MemberEvent,
        "liveness": LivenessEvent,
        "traffic": TrafficEvent,
        "connection": ConnectionEvent,
    }
)


@dataclass(frozen=True, slots=True)
class Site:
    """Where the jobs of one fleet read and write.

    Args:
        kafka: cluster with the topics.
        prefix: prefix of the topic names.
        out: folder, or any URI that Spark can write to, such as s3a://….
        every_s: least time from one batch of a stream to the next; each batch writes its own files.
    """

    kafka: Kafka
    prefix: str
    out: str
    every_s: int = 0

    def checkpoint(self, job: str) -> str:
        return f"{self.out}/checkpoints/{job}"

    @property
    def timeline(self) -> str:
        return f"{self.out}/timeline"

    @property
    def load(self) -> str:
        return f"{self.out}/load"

    @property
    def liveness(self) -> str:
        return f"{self.out}/liveness"

    @property
    def connections(self) -> str:
        return f"{self.out}/connections"

    @property
    def ledger(self) -> str:
        return f"{self.out}/ledger"


Job: TypeAlias = Callable[[SparkSession, Site, bool], StreamingQuery]


def start_timeline(spark: SparkSession, site: Site, once: bool) -> StreamingQuery:
    """Ownership events → rows of the timeline, as Parquet by the day on which a row begins."""
    rows = timeline(_events(spark, site, "ownership"))
    by_day = rows.withColumn("day", F.to_date(F.timestamp_millis("from_ms")))
    return _start(_parquet(by_day, site.timeline), site, "timeline", once)


def start_load(spark: SparkSession, site: Site, once: bool) -> StreamingQuery:
    """Traffic events → load of each identity by minute, as Parquet by day; a minute after it has ended."""
    traffic = parse_kind(_read(spark, site, [TOPICS["traffic"]], SummedTraffic), "traffic", Traffic)
    by_day = minutes(traffic).withColumn("day", F.to_date("minute"))
    return _start(_parquet(by_day, site.load), site, "load", once)


def start_weights(spark: SparkSession, site: Site, once: bool) -> StreamingQuery:
    """Rows of the job `load` → weights, in a topic."""
    columns = "fleet string, broker_id bigint, minute timestamp, requests bigint, bytes bigint, cpu_us double"
    _make_folder(spark, site.load)  # this job may start before `load` has written anything
    loads = spark.readStream.schema(f"{columns}, day date").parquet(site.load)
    return _start(_topic(weights(loads), site, WEIGHTS), site, "weights", once)


def start_liveness(spark: SparkSession, site: Site, once: bool) -> StreamingQuery:
    """Liveness events → the same, as Parquet by day; repeated events stay repeated."""
    return _start(_parquet(_by_day(_events(spark, site, "liveness")), site.liveness), site, "liveness", once)


def start_connections(spark: SparkSession, site: Site, once: bool) -> StreamingQuery:
    """Connection events → the same, as Parquet by day; repeated events stay repeated."""
    by_day = _by_day(_events(spark, site, "connection"))
    return _start(_parquet(by_day, site.connections), site, "connections", once)


def start_ledger(spark: SparkSession, site: Site, once: bool) -> StreamingQuery:
    """Ledger entries → the same, as Parquet by day; repeated entries stay repeated."""
    entries = parse_kind(_read(spark, site, [], optional=OBSERVATION_TOPICS), "ledger", LedgerEntry)
    by_day = entries.withColumn("day", F.to_date(F.timestamp_micros("at_us")))
    return _start(_parquet(by_day, site.ledger), site, "ledger", once)


def start_dead_letters(spark: SparkSession, site: Site, once: bool) -> StreamingQuery:
    """Records that are not events → dead letters with the reason, in a topic."""
    topics = dict.fromkeys(TOPICS[kind] for kind in EVENT_CLASSES)
    read = _read(spark, site, topics, optional=OBSERVATION_TOPICS)
    letters = dead_letters(parse(read, {**EVENT_CLASSES, **OBSERVATION_CLASSES}))
    counted = letters.observe(DEAD_LETTER_COUNT, F.count(F.lit(1)).alias(DEAD_LETTER_COUNT))
    return _start(_topic(counted, site, DEAD_LETTERS), site, "dead_letters", once)


JOBS: Final = MappingProxyType[str, Job](
    {
        "timeline": start_timeline,
        "load": start_load,
        "liveness": start_liveness,
        "connections": start_connections,
        "ledger": start_ledger,
        "weights": start_weights,
        "dead-letters": start_dead_letters,
    }
)


def finish(query: StreamingQuery) -> int:
    """Wait for the end of a job that runs once. Returns: the number of records that it has read.

    Raises: PipelineError: the job failed. The next run continues after its last committed batch.
    """
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        raise PipelineError(f"job {query.name}: {root_cause(str(error))}") from error
    return sum(progress.numInputRows for progress in query.recentProgress)


def root_cause(text: str) -> str:
    """Return the line of a failure that states the cause: the last line of a Python worker's traceback."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    own_errors = [line for line in lines if line.startswith("fleet.core.errors.")]
    return own_errors[-1].partition(": ")[2] if own_errors else lines[0]


def _read(
    spark: SparkSession,
    site: Site,
    topics: Iterable[str],
    event_class: type[Any] | None = None,
    optional: Iterable[str] = (),
) -> DataFrame:
    return read_records(
        spark,
        site.kafka,
        [site.prefix + topic for topic in topics],
        streaming=True,
        optional=[site.prefix + topic for topic in optional],
        event_class=event_class,
    )


def _events(spark: SparkSession, site: Site, kind: str) -> DataFrame:
    """Read the events of one kind from their topic."""
    return parse_kind(_read(spark, site, [TOPICS[kind]]), kind, EVENT_CLASSES[kind])


def _by_day(events: DataFrame) -> DataFrame:
    return events.withColumn("day", F.to_date(F.timestamp_millis("at_ms")))


def _make_folder(spark: SparkSession, place: str) -> None:
    """Create a folder at any place that Spark can write to."""
    context: Any = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(place)
    path.getFileSystem(context._jsc.hadoopConfiguration()).mkdirs(path)


def _parquet(by_day: DataFrame, path: str) -> Any:
    return by_day.writeStream.format("parquet").partitionBy("day").option("path", path)


def _topic(keys_and_values: DataFrame, site: Site, topic: str) -> Any:
    writer = keys_and_values.writeStream.format(FORMAT_NAME).option(
        "bootstrap.servers", site.kafka.bootstrap_servers
    )
    writer = writer.options(**{f"kafka.{key}": value for key, value in site.kafka.client.items()})
    return writer.option("topic", site.prefix + topic)


def _start(writer: Any, site: Site, job: str, once: bool) -> StreamingQuery:
    writer = writer.queryName(job).option("checkpointLocation", site.checkpoint(job))
    trigger = {"availableNow": True} if once else {"processingTime": f"{site.every_s} seconds"}
    query: StreamingQuery = writer.trigger(**trigger).start()
    return query
