"""The work of clients, and the process that does it: `python -m benchmarks.workloads SPEC`.

The process prepares (connections, Metadata, a few requests) and prints `ready`. For each line that it reads,
it works and prints its `Measured` as JSON. So its parent can read the proxy's CPU clock right before and
right after, and have several clients work in turns.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Literal

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from pydantic import TypeAdapter

from benchmarks.concurrent_sync import ConcurrentClients
from benchmarks.errors import BenchError

Name = Literal["sync", "small", "deep", "produce", "consume", "sparse"]
SMALL_BYTES: Final = 100
LARGE_BYTES: Final = 1_000
BATCH_RECORDS: Final = 1_000
COUNTS: Final[Mapping[Name, int]] = MappingProxyType(
    {"sync": 10_000, "small": 40_000, "deep": 120_000, "produce": 250_000, "consume": 750_000, "sparse": 400}
)
"""Records of a round by workload: about three seconds, or as many as measure CPU well (a worker that
serves a consumer is busy for a twentieth of its time); five to eight seconds of small records, forty of
sparse ones.
"""
RUNS: Final[Mapping[Name, int]] = MappingProxyType(
    {"sync": 20, "small": 20, "deep": 40, "produce": 4, "consume": 4, "sparse": 20}
)
"""The number of runs among which these records are divided, each with a client of its own.

Ten runs share a client where `race.INTERLEAVED_WORKLOADS` has the workload.

Runs of the same target differ by a tenth, of `deep` by a third, and turns of one client by as much; longer
runs by hardly less. The suspected cause is how many requests a read happens to find.
"""
_WARM_UP: Final[Mapping[Name, int]] = MappingProxyType(
    {"sync": 200, "small": 300, "deep": 300, "produce": 3 * BATCH_RECORDS, "consume": 0, "sparse": 20}
)
_LIMIT_S: Final = 120.0
_SMALL: Final = MappingProxyType({"linger.ms": 0, "acks": 1, "batch.num.messages": 1})
MAX_IN_FLIGHT: Final = 5
"""The default of the Java client, and the most of an idempotent librdkafka."""
_POLL_EVERY: Final = 100
SPARSE_PER_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Spec:
    """One run. `topic` exists, with `partitions`; `consume` finds at least `count` records there.

    Args:
        connections: of `sync`; its topic is led by broker 1.
        security: settings of librdkafka, for listeners that require them.
    """

    workload: Name
    bootstrap_servers: str
    topic: str
    partitions: int
    count: int
    connections: int = 1
    security: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measured:
    """What the client measured; `bytes` are of the records' values. `sync` and `sparse` have latencies."""

    requests: int
    bytes: int
    elapsed_s: float
    p50_us: float | None = None
    p99_us: float | None = None


SPEC: Final = TypeAdapter(Spec)
MEASURED: Final = TypeAdapter(Measured)
Work = Callable[[], Measured]
"""The work of a prepared workload; it can be called several times."""


def sync(spec: Spec) -> Work:
    """One request of one small record in flight, on each connection; acks=1."""
    if spec.connections > 1:
        return _sync_on_many(spec)
    producer = _Produced(spec, _SMALL)
    value = random.randbytes(SMALL_BYTES)

    def one() -> float:
        began_s = time.perf_counter()
        producer.produce(0, value)
        producer.finish()
        return time.perf_counter() - began_s

    for _ in range(_WARM_UP["sync"]):
        one()
    return lambda: _latencies([one() for _ in range(spec.count)])


def _sync_on_many(spec: Spec) -> Work:
    each = max(1, spec.count // spec.connections)
    clients = ConcurrentClients(
        spec.bootstrap_servers, spec.topic, 1, spec.connections, SMALL_BYTES, spec.security
    )
    clients.ask(max(1, _WARM_UP["sync"] // spec.connections))

    def work() -> Measured:
        began_s = time.perf_counter()
        took_s = clients.ask(each)
        return replace(_latencies(took_s), elapsed_s=time.perf_counter() - began_s)

    return work


def small(spec: Spec) -> Work:
    """Small records without a pause, each in a request of its own, five of them in flight; acks=1."""
    return _produce(spec, {**_SMALL, "max.in.flight": MAX_IN_FLIGHT}, SMALL_BYTES)


def deep(spec: Spec) -> Work:
    """As `small`, with no limit of requests in flight: one read of a proxy has many requests."""
    return _produce(spec, _SMALL, SMALL_BYTES)


def produce(spec: Spec) -> Work:
    """Records of 1 KB in batches of a thousand; acks=all."""
    settings = {"linger.ms": 50, "acks": -1, "batch.num.messages": BATCH_RECORDS, "batch.size": 2_000_000}
    return _produce(spec, settings, LARGE_BYTES)


def consume(spec: Spec) -> Work:
    """Read all partitions from their beginning."""
    consumer = _consumer(spec)

    def work() -> Measured:
        began_s = time.perf_counter()
        consumer.assign([TopicPartition(spec.topic, number, 0) for number in range(spec.partitions)])
        records, read_bytes = 0, 0
        while records < spec.count:
            found: list[Message] = consumer.consume(10_000, timeout=1.0)
            for message in found:
                if message.error() is not None:
                    raise BenchError(f"the consumer failed: {message.error()}")
                read_bytes += len(message.value())
            records += len(found)
            if time.perf_counter() - began_s > _LIMIT_S:
                raise BenchError(f"consumed {records} of {spec.count} records in {_LIMIT_S:.0f} s")
        return Measured(records, read_bytes, time.perf_counter() - began_s)

    return work


def sparse(spec: Spec) -> Work:
    """Ten small records a second, each timed from `produce()` to a consumer that waits for it."""
    producer = _Produced(spec, _SMALL)
    consumer = _consumer(spec)
    consumer.assign([TopicPartition(spec.topic, 0, 0)])
    value = random.randbytes(SMALL_BYTES)

    def one() -> float:
        began_s = time.perf_counter()
        producer.produce(0, value)
        found = consumer.poll(_LIMIT_S)
        took_s = time.perf_counter() - began_s
        if found is None or found.error() is not None:
            raise BenchError(f"no record arrived: {found.error() if found else 'too late'}")
        producer.finish()
        return took_s

    def at_its_time(due_s: float) -> float:
        time.sleep(max(0.0, due_s - time.perf_counter()))
        return one()

    for _ in range(_WARM_UP["sparse"]):
        one()

    def work() -> Measured:
        began_s = time.perf_counter()
        return _latencies([at_its_time(began_s + number / SPARSE_PER_S) for number in range(spec.count)])

    return work


def _latencies(took_s: Sequence[float]) -> Measured:
    cuts_us = [1e6 * cut for cut in statistics.quantiles(took_s, n=100, method="inclusive")]
    return Measured(len(took_s), len(took_s) * SMALL_BYTES, sum(took_s), cuts_us[49], cuts_us[98])


def _consumer(spec: Spec) -> Consumer:
    """A consumer that knows the topic, and has no partitions yet."""
    consumer = Consumer(
        {
            "bootstrap.servers": spec.bootstrap_servers,
            "group.id": "benchmark",
            "enable.auto.commit": False,
            "check.crcs": False,
            **spec.security,
        }
    )
    consumer.list_topics(spec.topic, timeout=_LIMIT_S)
    return consumer


def _produce(spec: Spec, settings: Mapping[str, object], record_bytes: int) -> Work:
    producer = _Produced(spec, settings)
    value = random.randbytes(record_bytes)
    for number in range(_WARM_UP[spec.workload]):
        producer.produce(number % spec.partitions, value)
    producer.finish()

    def work() -> Measured:
        began_s = time.perf_counter()
        for number in range(spec.count):
            producer.produce(number % spec.partitions, value)
        producer.finish()
        return Measured(spec.count, spec.count * record_bytes, time.perf_counter() - began_s)

    return work


class _Produced:
    """A producer that raises its first error, and counts unacknowledged records."""

    def __init__(self, spec: Spec, settings: Mapping[str, object]) -> None:
        common = {"bootstrap.servers": spec.bootstrap_servers, "queue.buffering.max.messages": 100_000}
        self._producer = Producer({**common, **spec.security, **settings})
        self._topic = spec.topic
        self._outstanding = 0
        self._unpolled = 0

    def produce(self, partition: int, value: bytes) -> None:
        self._outstanding += 1
        self._unpolled += 1
        while True:
            try:
                self._producer.produce(self._topic, value, partition=partition, on_delivery=self._delivered)
                break
            except BufferError:
                self._producer.poll(0.05)
        if self._unpolled == _POLL_EVERY:
            self._unpolled = 0
            self._producer.poll(0)

    def finish(self) -> None:
        """Wait until everything is acknowledged."""
        self._unpolled = 0
        deadline_s = time.monotonic() + _LIMIT_S
        while self._outstanding:
            self._producer.poll(1.0)
            if time.monotonic() > deadline_s:
                raise BenchError(f"{self._outstanding} records are not acknowledged after {_LIMIT_S:.0f} s")

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            raise BenchError(f"a record was refused: {error}")
        self._outstanding -= 1


WORKLOADS: Final[Mapping[Name, Callable[[Spec], Work]]] = MappingProxyType(
    {"sync": sync, "small": small, "deep": deep, "produce": produce, "consume": consume, "sparse": sparse}
)


def main() -> None:
    spec = SPEC.validate_json(sys.argv[1])
    work = WORKLOADS[spec.workload](spec)
    print("ready", flush=True)
    for _ in sys.stdin:
        print(MEASURED.dump_json(work()).decode(), flush=True)


if __name__ == "__main__":
    main()
