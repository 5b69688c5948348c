"""A Kafka source and sink for Spark, made with its Python Data Source API and librdkafka; pip installs both.

    spark.dataSource.register(KafkaTopics)
    spark.readStream.format("fleet_kafka").option("bootstrap.servers", …).option("topics", "a,b").load()

The source yields each record of its topics once, in the order of each partition. It leaves out records of
open and aborted transactions. Spark keeps its checkpoint. The sink writes at least once: Spark repeats a
batch that was not committed.

Options (Spark converts their names to lower case):
    bootstrap.servers      addresses of the cluster
    topics                 topics that a source reads, separated by commas; all of them must exist
    optional_topics        topics that a source reads as soon as they exist, separated by commas
    topic                  the topic of a sink for rows without a column `topic`
    records_per_batch      about how many records a batch of a stream takes at most; 0 for no limit
    fail_on_data_loss      "false" continues where retention has removed records before they were read
    event_class            a class of events, as package.module:Class; the columns are then `decoded`, with
                           the events that `fleet.pipeline.event_decoder` decodes, and `value`, with all
                           other records
    kafka.…                any other option of librdkafka, such as kafka.security.protocol
"""

from __future__ import annotations

import pkgutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import TopicMetadata
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from fleet.core.errors import PipelineError
from fleet.pipeline.event_decoder import DECODED, EventDecoder
from fleet.pipeline.spark_schema import ddl_of

FORMAT_NAME: Final = "fleet_kafka"
RECORD_DDL: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"
)
STALL_LIMIT_S: Final = 120.0
"""Longest time in which a partition may yield none of the records that it is known to have."""
QUERY_LIMIT_S: Final = 30.0
"""Time limit of one query for metadata or offsets."""
_RECORD_ARROW_SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
_ARROW_BATCH_RECORDS: Final = 20_000
_NOT_CREATED: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE})
"""Errors of a topic that does not exist, or whose creation has not ended."""
_RETRIED_ERRORS: Final = frozenset(
    {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT}
)
"""librdkafka retries after these errors."""

Offsets: TypeAlias = dict[str, int]
"""The next offset to read, by "topic/partition"; JSON in Spark's checkpoint."""
Bounds: TypeAlias = dict[str, tuple[int, int]]
"""The first offset of each partition, and the offset after its last record, by "topic/partition"."""
Options: TypeAlias = Mapping[str, str]


@dataclass
class Span(InputPartition):
    """A range of offsets of one partition, from `first` to before `end`."""

    topic: str
    partition: int
    first: int
    end: int


class KafkaTopics(DataSource):
    """The data source that Spark knows by `FORMAT_NAME`; see the module."""

    @classmethod
    def name(cls) -> str:
        return FORMAT_NAME

    def schema(self) -> str:
        event = event_class_of(self.options)
        return RECORD_DDL if event is None else f"value binary, {DECODED} struct<{ddl_of(event)}>"

    def reader(self, schema: object) -> DataSourceReader:
        return BatchReader(self.options)

    def streamReader(self, schema: object) -> DataSourceStreamReader:
        return StreamReader(self.options)

    def streamWriter(self, schema: object, overwrite: bool) -> DataSourceStreamArrowWriter:
        return StreamWriter(self.options)


class Topics:
    """The topics of a source, and the offsets that the driver queries.

    Raises: PipelineError: the options name no topic.
    """

    def __init__(self, options: Options) -> None:
        self._options = dict(options)
        self._required = _topic_names(options, "topics")
        self._optional = _topic_names(options, "optional_topics")
        if not self._required and not self._optional:
            raise PipelineError(
                f"{FORMAT_NAME}: the option `topics` is missing; give names separated by commas"
            )
        self._consumer: Consumer | None = None

    def bounds(self) -> Bounds:
        """Return the bounds of each partition; the end is the offset after the last committed record.

        Raises: PipelineError: the cluster does not answer, a required topic does not exist, or no topic does.
        """
        if self._consumer is None:
            self._consumer = _consumer(self._options)
        found: Bounds = {}
        names = (*self._required, *self._optional)
        try:
            for name in names:
                topic = self._consumer.list_topics(name, timeout=QUERY_LIMIT_S).topics[name]
                if name in self._optional and not _is_readable(topic):
                    continue
                if topic.error is not None:
                    raise PipelineError(f"topic {name}: {topic.error.str()}")
                for partition in topic.partitions:
                    place = TopicPartition(name, partition)
                    low, high = self._consumer.get_watermark_offsets(place, timeout=QUERY_LIMIT_S)
                    found[_partition_key(name, partition)] = (low, high)
        except KafkaException as error:
            raise PipelineError(f"topics {', '.join(names)}: cannot read the offsets: {error}") from error
        if not found:
            raise PipelineError(
                f"{FORMAT_NAME}: none of the topics {', '.join(names)} exists; create one of them"
            )
        return found

    def spans(self, start: Mapping[str, int], end: Mapping[str, int], bounds: Bounds) -> list[Span]:
        """Return the spans between two offsets of each partition. A new partition begins at its first offset.

        Raises: PipelineError: retention has removed records of a span, and `fail_on_data_loss` is set.
        """
        spans = []
        for key, end_offset in end.items():
            low = bounds[key][0] if key in bounds else end_offset
            first = start.get(key, low)
            if first < low:
                if self._options.get("fail_on_data_loss", "true") != "false":
                    raise PipelineError(
                        f"{key}: records {first} to {low - 1} were removed by retention or with their topic; "
                        "set the option fail_on_data_loss to false to continue without them"
                    )
                first = low
            if first < end_offset:
                topic, _, partition = key.rpartition("/")
                spans.append(Span(topic, int(partition), first, end_offset))
        return spans

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_consumer": None}  # executors get a copy, and do not query offsets


class BatchReader(DataSourceReader):
    """Reads all records that the topics hold now."""

    def __init__(self, options: Options) -> None:
        self._options = dict(options)

    def partitions(self) -> Sequence[InputPartition]:
        topics = Topics(self._options)
        try:
            bounds = topics.bounds()
            return topics.spans({}, {key: high for key, (_, high) in bounds.items()}, bounds)
        finally:
            topics.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Span)
        return read_span(self._options, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the topics as a stream; with the trigger "available now" up to their ends at the start."""

    def __init__(self, options: Options) -> None:
        self._options = dict(options)
        self._topics = Topics(options)
        self._last: Offsets | None = None

    def initialOffset(self) -> Offsets:
        return {key: low for key, (low, _) in self._topics.bounds().items()}

    def getDefaultReadLimit(self) -> ReadLimit:
        records = int(self._options.get("records_per_batch", "0"))
        return ReadMaxRows(records) if records else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._last = {key: high for key, (_, high) in self._topics.bounds().items()}

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        bounds = self._topics.bounds()
        ends = self._last or {key: high for key, (_, high) in bounds.items()}
        ends = {**start, **ends}  # keep the offsets of an optional topic that the cluster does not list now
        firsts = {key: start.get(key, bounds[key][0] if key in bounds else end) for key, end in ends.items()}
        ends = {key: max(end, firsts[key]) for key, end in ends.items()}
        if not isinstance(limit, ReadMaxRows):
            return ends
        waiting = [key for key, end in ends.items() if end > firsts[key]]
        per_partition = max(1, limit.max_rows // max(1, len(waiting)))
        return {key: min(end, firsts[key] + per_partition) for key, end in ends.items()}

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        return self._topics.spans(start, end, self._topics.bounds())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Span)
        return read_span(self._options, partition)

    def commit(self, end: Offsets) -> None:
        """Do nothing: Spark's checkpoint keeps the offsets."""

    def stop(self) -> None:
        self._topics.close()


class StreamWriter(DataSourceStreamArrowWriter):
    """Produces rows: their column `value`, and `key` and `topic` where a row has these columns."""

    def __init__(self, options: Options) -> None:
        self._options = dict(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        produce(
            _client(self._options),
            (
                (row.get("topic") or self._options["topic"], row.get("key"), row["value"])
                for batch in iterator
                for row in batch.to_pylist()
            ),
        )
        return WriterCommitMessage()

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: `write` has produced the records."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: produced records stay, so the sink writes at least once."""


def produce(client: Mapping[str, Any], records: Iterable[tuple[str, bytes | None, bytes]]) -> int:
    """Produce records, each a topic, a key and a value. Returns: the number of records.

    Args:
        client: options of librdkafka.
    Raises: PipelineError: a record was not acknowledged.
    """
    producer = Producer({**client, "enable.idempotence": True, "linger.ms": 10})
    failures: list[str] = []

    def on_delivery(error: object, message: Message) -> None:
        if error is not None:
            failures.append(f"topic {message.topic()}: {error}")

    count = 0
    for topic, key, value in records:
        count += 1
        while True:
            try:
                producer.produce(topic, value, key, on_delivery=on_delivery)
                break
            except BufferError:
                producer.poll(0.1)
            except KafkaException as error:
                raise PipelineError(f"topic {topic}: {error}") from error
    unacknowledged = producer.flush(STALL_LIMIT_S)
    if failures:
        raise PipelineError(f"{failures[0]} ({len(failures)} of {count} records were rejected)")
    if unacknowledged:
        raise PipelineError(
            f"{unacknowledged} of {count} records were not acknowledged in {STALL_LIMIT_S:.0f} s"
        )
    return count


def read_span(options: Options, span: Span) -> Iterator[pa.RecordBatch]:
    """Yield the records of one span. Raises: PipelineError: the brokers do not send them."""
    event = event_class_of(options)
    if event is None:
        to_batches = partial(_record_batches, span)
    else:
        to_batches = partial(_decoded_batches, EventDecoder(event))
    consumer = _consumer(options)
    try:
        consumer.assign([TopicPartition(span.topic, span.partition, span.first)])
        at, since_s = span.first, time.monotonic()
        while at < span.end:
            rows: list[Message] = []
            before = at
            for message in consumer.consume(_ARROW_BATCH_RECORDS, 0.5):
                error = message.error()
                if error is None:
                    at = message.offset() + 1
                    if at > span.end:
                        break
                    rows.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    at = max(at, message.offset())  # after the markers of transactions
                elif not error.retriable() and error.code() not in _RETRIED_ERRORS:
                    raise PipelineError(f"{span.topic}/{span.partition} at offset {at}: {error.str()}")
            if rows:
                yield from to_batches(rows)
            if at > before:
                since_s = time.monotonic()
            elif time.monotonic() - since_s > STALL_LIMIT_S:
                raise PipelineError(
                    f"{span.topic}/{span.partition}: no record from offset {at} in {STALL_LIMIT_S:.0f} s; "
                    "check that the partition has a leader"
                )
    finally:
        consumer.close()


def _record_batches(span: Span, rows: Sequence[Message]) -> Iterator[pa.RecordBatch]:
    columns = [
        pa.array([each.key() for each in rows], pa.binary()),
        pa.array([each.value() for each in rows], pa.binary()),
        pa.array([span.topic] * len(rows), pa.string()),
        pa.array([span.partition] * len(rows), pa.int32()),
        pa.array([each.offset() for each in rows], pa.int64()),
        pa.array([each.timestamp()[1] * 1000 for each in rows], pa.timestamp("us", tz="UTC")),
    ]
    yield pa.RecordBatch.from_arrays(columns, schema=_RECORD_ARROW_SCHEMA)


def _decoded_batches(decode: EventDecoder, rows: Sequence[Message]) -> Iterator[pa.RecordBatch]:
    decoded, rest = decode([each.value() for each in rows])
    for values, events in (
        (pa.nulls(len(decoded), pa.binary()), decoded),
        (pa.array(rest, pa.binary()), pa.nulls(len(rest), decode.type)),
    ):
        if len(values):
            yield pa.RecordBatch.from_arrays([values, events], ["value", DECODED])


def event_class_of(options: Options) -> type[Any] | None:
    """Return the class that the option `event_class` names; None without this option."""
    name = options.get("event_class")
    if name is None:
        return None
    found: type[Any] = pkgutil.resolve_name(name)
    return found


def _topic_names(options: Options, option: str) -> tuple[str, ...]:
    return tuple(name for name in options.get(option, "").split(",") if name)


def _is_readable(topic: TopicMetadata) -> bool:
    """Whether a topic exists and has a leader for each partition, or has an error that must be reported."""
    if topic.error is None:
        return all(partition.leader >= 0 for partition in topic.partitions.values())
    return topic.error.code() not in _NOT_CREATED


def _consumer(options: Options) -> Consumer:
    return Consumer(
        {
            **_client(options),
            "group.id": "fleet-pipeline",  # librdkafka requires a group; nothing is committed to it
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.queue.backoff.ms": 5,
            "queued.max.messages.kbytes": 65536,
        }
    )


def _client(options: Options) -> dict[str, Any]:
    """Return the options for librdkafka."""
    own = {key.removeprefix("kafka."): value for key, value in options.items() if key.startswith("kafka.")}
    return {"log_level": 3, **own, "bootstrap.servers": options["bootstrap.servers"]}


def _partition_key(topic: str, partition: int) -> str:
    return f"{topic}/{partition}"
