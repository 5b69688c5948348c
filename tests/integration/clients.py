"""Helpers for librdkafka: produce records, read them, and run clients in the background."""

from __future__ import annotations

import itertools
import os
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from fleet.core.model import BrokerId
from fleet.drills.cluster.kafka import KafkaCluster
from tests.chaos.harness import becomes

LIMIT_S = 60.0


def wait_for(
    condition: Callable[[], object], what: str, limit_s: float = LIMIT_S, *, every_s: float | None = None
) -> None:
    """Wait until a condition holds. Fails the test if it does not hold in time."""
    assert becomes(condition, limit_s, every_s=every_s), f"{what}: not within {limit_s:g} s"


def produce(bootstrap: str, topic: str, values: Collection[bytes], **config: Any) -> None:
    """Produce records to a topic, spread over its partitions. Each must be acknowledged without an error."""
    failures: list[object] = []
    delivered: list[Message] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        (failures if error is not None else delivered).append(error or message)

    producer = Producer({"bootstrap.servers": bootstrap, "sticky.partitioning.linger.ms": 0, **config})
    for value in values:
        producer.produce(topic, value, on_delivery=on_delivery)
    assert producer.flush(LIMIT_S) == 0
    assert failures == []
    assert len(delivered) == len(values)


def produce_by_java(
    kafka: KafkaCluster, bootstrap: str, topic: str, number: int, *options: str, java_options: str = ""
) -> None:
    """Produce records with Kafka's console producer, which must report no error.

    Args: options: more arguments of the producer; java_options: of its JVM.
    """
    command = ("--bootstrap-server", bootstrap, "--topic", topic, *options)
    done = subprocess.run(
        kafka.tool_command("org.apache.kafka.tools.ConsoleProducer", *command),
        input="".join(f"{each}\n" for each in range(number)),
        capture_output=True,
        text=True,
        timeout=2 * LIMIT_S,
        check=False,
        env={**os.environ, "JAVA_TOOL_OPTIONS": java_options},
    )
    assert done.returncode == 0, done.stderr
    assert "ERROR" not in done.stderr


def read_all(
    bootstrap: str,
    topic: str,
    expected: int,
    partitions: int = 12,
    config: Mapping[str, str] | None = None,
) -> list[Message]:
    """Read a whole topic, without a group, until N records have come. Fails if they do not come."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"unused-{topic}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **(config or {}),
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    received: list[Message] = []
    try:
        wait_for(lambda: _poll(consumer, received) >= expected, f"{expected} records of {topic}")
    finally:
        consumer.close()
    return received


def _poll(consumer: Consumer, received: list[Message]) -> int:
    for message in consumer.consume(100, 0.2):
        assert message.error() is None, message.error()
        received.append(message)
    return len(received)


def count(bootstrap: str, topic: str, partitions: Collection[int] = range(12)) -> int:
    """The number of records in some partitions of a topic from which no record was removed."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"unused-{topic}"})
    try:
        marks = [
            consumer.get_watermark_offsets(TopicPartition(topic, partition), LIMIT_S)
            for partition in partitions
        ]
    finally:
        consumer.close()
    return sum(high for _, high in marks)


def leaders(kafka: KafkaCluster, topic: str) -> set[BrokerId]:
    """The brokers that lead a partition."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    return {each.leader for each in admin.list_topics(topic, LIMIT_S).topics[topic].partitions.values()}


def led_by(kafka: KafkaCluster, topic: str, broker_id: BrokerId) -> int:
    """A partition that a broker leads. Of twelve partitions over three brokers, each broker leads some."""
    admin = AdminClient({"bootstrap.servers": str(kafka.endpoints[0])})
    found: list[int] = []

    def known() -> list[int]:
        partitions = admin.list_topics(topic, LIMIT_S).topics[topic].partitions.values()
        found.extend(each.id for each in partitions if each.leader == broker_id)
        return found

    wait_for(known, f"a partition of {topic} that broker {broker_id} leads")
    return found[0]


class Load:
    """An idempotent producer in its own thread, which notes every error.

    with Load(bootstrap, topic) as load:
        …
    assert load.failures == []
    assert load.acknowledged == count(kafka.bootstrap_servers, topic)

    Where a member is killed, `errors` may have that its address refuses; `failures` are records.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int = 12,
        rate_per_s: int = 120,
        values: Sequence[bytes] = (b"load",),
        **config: str,
    ) -> None:
        self.topic = topic
        self._partitions = partitions
        self._pause_s = partitions / rate_per_s
        self._values = itertools.cycle(values)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="load")
        self.failures: list[str] = []
        self.errors: list[str] = []
        self.acknowledged = 0
        self.latest_s: dict[int, float] = {}
        """The time of each partition's newest acknowledgement."""
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "error_cb": lambda error: self.errors.append(str(error)),
                **config,
            }
        )

    def __enter__(self) -> Load:
        self._thread.start()
        self.await_flow()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.await_flow()
        self._stopping.set()
        self._thread.join()

    def await_flow(self) -> None:
        """Wait until every partition has a new acknowledgement."""
        since_s = time.monotonic()

        def flows() -> bool:
            latest_s = dict(self.latest_s)
            return len(latest_s) == self._partitions and min(latest_s.values()) > since_s

        wait_for(flows, "records acknowledged on every partition")

    def _work(self) -> None:
        while not self._stopping.wait(self._pause_s):
            for partition in range(self._partitions):
                value = next(self._values)
                self._producer.produce(self.topic, value, partition=partition, on_delivery=self._on_delivery)
            self._producer.poll(0)
        left = self._producer.flush(LIMIT_S)
        if left:
            self.failures.append(f"{left} records were not acknowledged in the end")

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(str(error))
            return
        self.acknowledged += 1
        self.latest_s[message.partition()] = time.monotonic()


class Reader:
    """A consumer in a group, in its own thread, which notes every error.

    with Reader(bootstrap, topic) as reader:
        …
        wait_for(lambda: reader.received == expected, "everything read")
    assert reader.failures == []
    """

    def __init__(self, bootstrap: str, topic: str, **config: str) -> None:
        self.received = 0
        self.failures: list[str] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="reader")
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": topic,
                "auto.offset.reset": "earliest",
                "error_cb": lambda error: self.failures.append(f"client: {error}"),
                **config,
            }
        )
        self._consumer.subscribe([topic])

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._stopping.is_set():
            for message in self._consumer.consume(100, 0.1):
                if message.error() is not None:
                    self.failures.append(f"record: {message.error()}")
                else:
                    self.received += 1
        self._consumer.close()
