"""The jobs that run on a fleet's topics: each a stream of its own, with a checkpoint of its own.

    OUT/timeline/            Parquet, by day: what `fleet.pipeline.timeline_job` tells
    OUT/load/                Parquet, by day: what `fleet.pipeline.load.minutes` gives
    OUT/liveness/            Parquet, by day: what members hold of one another, as it was told
    OUT/connections/         Parquet, by day: clients' connections, as it was told
    OUT/ledger/              Parquet, by day: what producers were told, groups were given and logs hold
    OUT/checkpoints/JOB/     Spark's: how far each has come

A batch is written to files once, whatever happens meanwhile: the file sink keeps a log of its batches beside
the checkpoint. Records for topics are written at least once; their `id` tells repetitions.
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
from fleet.pipeline.kafka_source import NAME
from fleet.pipeline.load import Passed, Summed, minutes, weights
from fleet.pipeline.observations import KINDS as OBSERVATION_KINDS
from fleet.pipeline.observations import LedgerEntry
from fleet.pipeline.parse import dead_letters, only, parse
from fleet.pipeline.streams import Kafka, records
from fleet.pipeline.timeline_job import timeline

OBSERVATION_TOPICS: Final = (OBSERVATIONS, DEPRECATED_OBSERVATIONS)
"""Topics with observations; each is read where it exists. The second is its name before 0.3.0."""
DEAD: Final = "dead"
"""How many letters there were, in the progress of each batch."""
KINDS: Final = MappingProxyType[str, type[Any]](
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
        prefix: of the topics.
        out: a folder, or any place that Spark can write to, such as s3a://….
        every_s: how long at least from one batch of a stream to the next: each writes files of its own.
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
    """Ownership events → rows of the timeline, as Parquet by the day on which they begin."""
    rows = timeline(_events(spark, site, "ownership"))
    by_day = rows.withColumn("day", F.to_date(F.timestamp_millis("from_ms")))
    return _start(_parquet(by_day, site.timeline), site, "timeline", once)


def start_load(spark: SparkSession, site: Site, once: bool) -> StreamingQuery:
    """Traffic events → what passed each identity, as Parquet by day; a minute once it is over for all."""
    passed = only(_read(spark, site, [TOPICS["traffic"]], Summed), "traffic", Passed)
    by_day = minutes(passed).withColumn("day", F.to_date("minute"))
    return _start(_parquet(by_day, site.load), site, "load", once)


def start_weights(spark: SparkSession, site: Site, once: bool) -> StreamingQuery:
    """What the job `load` has written → the topic of weights."""
    columns = "fleet string, broker_id bigint, minute timestamp, requests bigint, bytes bigint, cpu_us double"
    _make_folder(spark, site.load)  # it may be there before the other job has written anything
    loads = spark.readStream.schema(f"{columns}, day date").parquet(site.load)
    return _start(_topic(weights(loads), site, WEIGHTS), site, "weights", once)


def start_liveness(spark: SparkSession, site: Site, once: bool) -> StreamingQuery:
    """What members hold of one another, as Parquet by day; what was told twice is there twice."""
    return _start(_parquet(_by_day(_events(spark, site, "liveness")), site.liveness), site, "liveness", once)


def start_connections(spark: SparkSession, site: Site, once: bool) -> StreamingQuery:
    """Clients' connections, as Parquet by day; what was told twice is there twice."""
    by_day = _by_day(_events(spark, site, "connection"))
    return _start(_parquet(by_day, site.connections), site, "connections", once)


def start_ledger(spark: SparkSession, site: Site, once: bool) -> StreamingQuery:
    """What became of every record, as Parquet by day; what was told twice is there twice."""
    entries = only(_read(spark, site, [], optional=OBSERVATION_TOPICS), "ledger", LedgerEntry)
    by_day = entries.withColumn("day", F.to_date(F.timestamp_micros("at_us")))
    return _start(_parquet(by_day, site.ledger), site, "ledger", once)


def start_dead_letters(spark: SparkSession, site: Site, once: bool) -> StreamingQuery:
    """Records that are no event → a topic, with the reason."""
    topics = dict.fromkeys(TOPICS[kind] for kind in KINDS)
    read = _read(spark, site, topics, optional=OBSERVATION_TOPICS)
    letters = dead_letters(parse(read, {**KINDS, **OBSERVATION_KINDS}))
    counted = letters.observe(DEAD, F.count(F.lit(1)).alias(DEAD))
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
    """Wait until a job that runs once is through. Returns: how many records it has read.

    Raises: PipelineError: it failed; what it has committed stays, and it goes on there when it is run again.
    """
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        raise PipelineError(f"job {query.name}: {cause(str(error))}") from error
    return sum(progress.numInputRows for progress in query.recentProgress)


def cause(text: str) -> str:
    """The line of a failure that says what is wrong: of a Python worker's, the last one of its trace."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("fleet.core.errors.")]
    return ours[-1].partition(": ")[2] if ours else lines[0]


def _read(
    spark: SparkSession,
    site: Site,
    topics: Iterable[str],
    told: type[Any] | None = None,
    optional: Iterable[str] = (),
) -> DataFrame:
    names, more = ([site.prefix + topic for topic in each] for each in (topics, optional))
    return records(spark, site.kafka, names, streaming=True, optional=more, told=told)


def _events(spark: SparkSession, site: Site, kind: str) -> DataFrame:
    """The events of one kind, from their topic."""
    return only(_read(spark, site, [TOPICS[kind]]), kind, KINDS[kind])


def _by_day(told: DataFrame) -> DataFrame:
    return told.withColumn("day", F.to_date(F.timestamp_millis("at_ms")))


def _make_folder(spark: SparkSession, place: str) -> None:
    """Wherever Spark can write to."""
    context: Any = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(place)
    path.getFileSystem(context._jsc.hadoopConfiguration()).mkdirs(path)


def _parquet(by_day: DataFrame, path: str) -> Any:
    return by_day.writeStream.format("parquet").partitionBy("day").option("path", path)


def _topic(keys_and_values: DataFrame, site: Site, topic: str) -> Any:
    writer = keys_and_values.writeStream.format(NAME).option(
        "bootstrap.servers", site.kafka.bootstrap_servers
    )
    writer = writer.options(**{f"kafka.{key}": value for key, value in site.kafka.client.items()})
    return writer.option("topic", site.prefix + topic)


def _start(writer: Any, site: Site, job: str, once: bool) -> StreamingQuery:
    writer = writer.queryName(job).option("checkpointLocation", site.checkpoint(job))
    trigger = {"availableNow": True} if once else {"processingTime": f"{site.every_s} seconds"}
    query: StreamingQuery = writer.trigger(**trigger).start()
    return query
