"""A producer of librdkafka that is not idempotent, in a process of its own, for `benchmarks.repeats`.

`python -m benchmarks.plain_producer SPEC` produces until SIGTERM, waits for outstanding acknowledgements, and
writes what it saw. Each record carries the number of its producer and its position in its partition. A reader
of the log can therefore find records that are there twice or out of order.
"""

from __future__ import annotations

import json
import signal
import struct
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaError, Message, Producer

HEADER: Final = struct.Struct(">HI")
"""The producer's number, and how many records it had produced to that partition before."""
RECORD_BYTES: Final = 200
PAUSE_S: Final = 0.05
"""The shortest interval without an acknowledgement that the producer notes."""
FLUSH_LIMIT_S: Final = 90.0


@dataclass(frozen=True, slots=True)
class Spec:
    """What to produce, with which further settings, and where to write what was seen."""

    number: int
    bootstrap_servers: str
    topic: str
    partitions: int
    rate_per_s: int
    seen: str
    settings: dict[str, str]


@dataclass(slots=True)
class ProducerReport:
    """What a producer saw.

    Args:
        produced: records by partition.
        failed: records that librdkafka gave up, as (partition, sequence).
        pauses: intervals between two acknowledgements of a partition, as (partition, begin, end).
        outstanding: how many records were not acknowledged at the end.
        said: errors that librdkafka reported to the application.
    """

    produced: list[int]
    failed: list[tuple[int, int]] = field(default_factory=list)
    pauses: list[tuple[int, float, float]] = field(default_factory=list)
    outstanding: int = 0
    said: list[str] = field(default_factory=list)


def produce(spec: Spec, stopping: threading.Event) -> ProducerReport:
    """Produce at a steady rate until the stop event, and wait for every outstanding acknowledgement."""
    seen = ProducerReport([0] * spec.partitions)
    last_s = [time.monotonic()] * spec.partitions

    def delivered(error: KafkaError | None, message: Message) -> None:
        partition, now_s = message.partition() or 0, time.monotonic()
        if error is not None:
            seen.failed.append((partition, HEADER.unpack_from(message.value() or b"")[1]))
            return
        if now_s - last_s[partition] >= PAUSE_S:
            seen.pauses.append((partition, last_s[partition], now_s))
        last_s[partition] = now_s

    producer = Producer(
        {
            **spec.settings,
            "bootstrap.servers": spec.bootstrap_servers,
            "client.id": f"plain-{spec.number}",
            "on_delivery": delivered,
            "error_cb": lambda error: seen.said.append(error.str()),
        }
    )
    filler = bytes(RECORD_BYTES - HEADER.size)
    began_s, number = time.monotonic(), 0
    while not stopping.is_set():
        # The producer does not catch up after a stall: it keeps the rate of an application.
        due = min(int((time.monotonic() - began_s) * spec.rate_per_s), number + spec.rate_per_s // 20)
        while number < due:
            partition = number % spec.partitions
            try:
                value = HEADER.pack(spec.number, seen.produced[partition]) + filler
                producer.produce(spec.topic, value, partition=partition)
            except BufferError:
                break
            seen.produced[partition] += 1
            number += 1
        producer.poll(0.005)
    seen.outstanding = producer.flush(FLUSH_LIMIT_S)
    return seen


def main() -> int:
    """Run the one argument's specification. Returns: the exit code."""
    spec = Spec(**json.loads(sys.argv[1]))
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    seen = produce(spec, stopping)
    Path(spec.seen).write_text(json.dumps(asdict(seen)))
    return 1 if seen.outstanding else 0


if __name__ == "__main__":
    sys.exit(main())
