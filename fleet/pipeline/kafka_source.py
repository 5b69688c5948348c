"""Kafka as a source and a sink of Spark, by its Python Data Source API and librdkafka: pip brings it all.

    spark.dataSource.register(KafkaTopics)
    spark.readStream.format("fleet_kafka").option("bootstrap.servers", …).option("topics", "a,b").load()

A source gives every record of its topics once, in the order of each partition, those of open and aborted
transactions left out. Its checkpoint is Spark's. The sink writes at least once: Spark repeats a batch that
was not committed.

Options (Spark makes their names lower case):
    bootstrap.servers      where the cluster is
    topics                 topics that a source reads, separated by commas; all of them must exist
    optional_topics        topics that a source reads as soon as they exist, separated by commas
    topic                  of a sink: where rows without a column `topic` go
    records_per_batch      how many records a batch of a stream takes at most, about; 0 for all there are
    fail_on_data_loss      "false" goes on where retention has removed records that were not read yet
    told                   a class of events, as package.module:Class: there are two columns, `told` with what
                           `fleet.pipeline.event_decoder` decodes of them, and `value` with what is left
    kafka.…                anything else that librdkafka knows, such as kafka.security.protocol
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
from fleet.pipeline.event_decoder import TOLD, EventDecoder
from fleet.pipeline.spark_schema import ddl_of

NAME: Final = "fleet_kafka"
SCHEMA: Final = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"
STALL_LIMIT_S: Final = 120.0
"""For how long a partition may give nothing of what it is known to have."""
ASK_LIMIT_S: Final = 30.0
_ARROW: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
_CHUNK: Final = 20_000
"""Records in one Arrow batch."""

Offsets: TypeAlias = dict[str, int]
"""The next offset to read, by "topic/partition": JSON, for Spark's checkpoint."""
Bounds: TypeAlias = dict[str, tuple[int, int]]
"""The first offset of each partition, and the one behind its last."""
Options: TypeAlias = Mapping[str, str]


@dataclass
class Span(InputPartition):
    """A part of one partition: from `first` to before `end`."""

    topic: str
    partition: int
    first: int
    end: int


class KafkaTopics(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        event = told_class(self.options)
        return SCHEMA if event is None else f"value binary, {TOLD} struct<{ddl_of(event)}>"

    def reader(self, schema: object) -> DataSourceReader:
        return BatchReader(self.options)

    def streamReader(self, schema: object) -> DataSourceStreamReader:
        return StreamReader(self.options)

    def streamWriter(self, schema: object, overwrite: bool) -> DataSourceStreamArrowWriter:
        return StreamWriter(self.options)


class Topics:
    """What the driver asks the cluster: which offsets there are. Raises: PipelineError: it does not say."""

    def __init__(self, options: Options) -> None:
        self._options = dict(options)
        self._required = _names(options, "topics")
        self._optional = _names(options, "optional_topics")
        if not self._required and not self._optional:
            raise PipelineError(f"{NAME}: the option `topics` is missing; give names separated by commas")
        self._consumer: Consumer | None = None

    def bounds(self) -> Bounds:
        """The first offset and the one behind the last that is committed, by "topic/partition"."""
        if self._consumer is None:
            self._consumer = _consumer(self._options)
        found: Bounds = {}
        names = (*self._required, *self._optional)
        try:
            for name in names:
                topic = self._consumer.list_topics(name, timeout=ASK_LIMIT_S).topics[name]
                if name in self._optional and not _is_readable(topic):
                    continue
                if topic.error is not None:
                    raise PipelineError(f"topic {name}: {topic.error.str()}")
                for partition in topic.partitions:
                    place = TopicPartition(name, partition)
                    low, high = self._consumer.get_watermark_offsets(place, timeout=ASK_LIMIT_S)
                    found[_key(name, partition)] = (low, high)
        except KafkaException as error:
            raise PipelineError(f"asking for the offsets of {', '.join(names)}: {error}") from error
        if not found:
            raise PipelineError(f"{NAME}: none of the topics {', '.join(names)} exists; create one of them")
        return found

    def spans(self, start: Mapping[str, int], end: Mapping[str, int], bounds: Bounds) -> list[Span]:
        """What lies between two offsets of each partition; a partition that is new begins with its first.

        Raises: PipelineError: retention has removed what lies between, and that is to fail.
        """
        spans = []
        for key, behind in end.items():
            low = bounds[key][0] if key in bounds else behind
            first = start.get(key, low)
            if first < low:
                if self._options.get("fail_on_data_loss", "true") != "false":
                    raise PipelineError(
                        f"{key}: records {first} to {low - 1} are gone, by retention or with their topic; "
                        "set the option fail_on_data_loss to false to go on without them"
                    )
                first = low
            if first < behind:
                topic, _, partition = key.rpartition("/")
                spans.append(Span(topic, int(partition), first, behind))
        return spans

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_consumer": None}  # to the executors, who do not ask


class BatchReader(DataSourceReader):
    """All that the topics hold now."""

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
        return read(self._options, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What the topics hold, and what comes; with the trigger "available now" what they held at the start."""

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
        each = max(1, limit.max_rows // max(1, len(waiting)))
        return {key: min(end, firsts[key] + each) for key, end in ends.items()}

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        return self._topics.spans(start, end, self._topics.bounds())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Span)
        return read(self._options, partition)

    def commit(self, end: Offsets) -> None:
        """Spark's checkpoint remembers it."""

    def stop(self) -> None:
        self._topics.close()


class StreamWriter(DataSourceStreamArrowWriter):
    """Produces rows with the columns `value`, and where they are there `key` and `topic`."""

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
        """The records are there already."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Those that are there stay: at least once."""


def produce(client: Mapping[str, Any], records: Iterable[tuple[str, bytes | None, bytes]]) -> int:
    """Produce records, each a topic, a key and a value. Returns: how many.

    Args:
        client: settings of librdkafka.
    Raises: PipelineError: one was not acknowledged.
    """
    producer = Producer({**client, "enable.idempotence": True, "linger.ms": 10})
    failures: list[str] = []

    def delivered(error: object, message: Message) -> None:
        if error is not None:
            failures.append(f"topic {message.topic()}: {error}")

    count = 0
    for topic, key, value in records:
        count += 1
        while True:
            try:
                producer.produce(topic, value, key, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
            except KafkaException as error:
                raise PipelineError(f"topic {topic}: {error}") from error
    left = producer.flush(STALL_LIMIT_S)
    if failures:
        raise PipelineError(f"{failures[0]} ({len(failures)} of {count} records were refused)")
    if left:
        raise PipelineError(f"{left} of {count} records were not acknowledged in {STALL_LIMIT_S:.0f} s")
    return count


def read(options: Options, span: Span) -> Iterator[pa.RecordBatch]:
    """The records of one span. Raises: PipelineError: they do not come."""
    event = told_class(options)
    batches = partial(_batches, span) if event is None else partial(_told, EventDecoder(event))
    consumer = _consumer(options)
    try:
        consumer.assign([TopicPartition(span.topic, span.partition, span.first)])
        at, since_s = span.first, time.monotonic()
        while at < span.end:
            rows: list[Message] = []
            before = at
            for message in consumer.consume(_CHUNK, 0.5):
                error = message.error()
                if error is None:
                    at = message.offset() + 1
                    if at > span.end:
                        break
                    rows.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    at = max(at, message.offset())  # behind the markers of transactions
                elif not error.retriable() and error.code() not in _PASSING:
                    raise PipelineError(f"{span.topic}/{span.partition} at {at}: {error.str()}")
            if rows:
                yield from batches(rows)
            if at > before:
                since_s = time.monotonic()
            elif time.monotonic() - since_s > STALL_LIMIT_S:
                raise PipelineError(
                    f"{span.topic}/{span.partition}: nothing came from offset {at} in {STALL_LIMIT_S:.0f} s"
                )
    finally:
        consumer.close()


_PASSING: Final = frozenset({KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT})
"""After these librdkafka goes on trying."""


def _batches(span: Span, rows: Sequence[Message]) -> Iterator[pa.RecordBatch]:
    columns = [
        pa.array([each.key() for each in rows], pa.binary()),
        pa.array([each.value() for each in rows], pa.binary()),
        pa.array([span.topic] * len(rows), pa.string()),
        pa.array([span.partition] * len(rows), pa.int32()),
        pa.array([each.offset() for each in rows], pa.int64()),
        pa.array([each.timestamp()[1] * 1000 for each in rows], pa.timestamp("us", tz="UTC")),
    ]
    yield pa.RecordBatch.from_arrays(columns, schema=_ARROW)


def _told(decode: EventDecoder, rows: Sequence[Message]) -> Iterator[pa.RecordBatch]:
    told, left = decode([each.value() for each in rows])
    for values, events in (
        (pa.nulls(len(told), pa.binary()), told),
        (pa.array(left, pa.binary()), pa.nulls(len(left), decode.type)),
    ):
        if len(values):
            yield pa.RecordBatch.from_arrays([values, events], ["value", TOLD])


def told_class(options: Options) -> type[Any] | None:
    """The class of events that the option `told` names; None where there is none."""
    name = options.get("told")
    if name is None:
        return None
    found: type[Any] = pkgutil.resolve_name(name)
    return found


def _names(options: Options, option: str) -> tuple[str, ...]:
    return tuple(name for name in options.get(option, "").split(",") if name)


def _is_readable(topic: TopicMetadata) -> bool:
    """Whether a topic exists and has a leader for each partition, or has an error that must be reported."""
    if topic.error is None:
        return all(partition.leader >= 0 for partition in topic.partitions.values())
    return topic.error.code() not in _NOT_CREATED


_NOT_CREATED: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE})
"""Errors of a topic that does not exist, or whose creation has not ended."""


def _consumer(options: Options) -> Consumer:
    return Consumer(
        {
            **_client(options),
            "group.id": "fleet-pipeline",  # librdkafka wants one; nothing is committed under it
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.queue.backoff.ms": 5,
            "queued.max.messages.kbytes": 65536,
        }
    )


def _client(options: Options) -> dict[str, Any]:
    """What is librdkafka's of the options."""
    own = {key.removeprefix("kafka."): value for key, value in options.items() if key.startswith("kafka.")}
    return {"log_level": 3, **own, "bootstrap.servers": options["bootstrap.servers"]}


def _key(topic: str, partition: int) -> str:
    return f"{topic}/{partition}"
