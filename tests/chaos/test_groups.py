"""A consumer group whose coordinator's proxy dies permanently."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.chaos.harness import wait_for

pytestmark = pytest.mark.size("test-all")

SESSION_S = 6.0


@pytest.mark.proves("librdkafka", "classic group", "takeover")
def test_librdkafka_group_survives_its_coordinators_proxy(
    fleet: LocalFleet, kafka: KafkaCluster, make_topic: Callable[..., str]
) -> None:
    """Found by hand: librdkafka ignored a new address of the same coordinator, and its session expired.

    The group commits nothing meanwhile, because a failed commit would make it look up the coordinator.
    """
    topic = make_topic()
    lost: list[list[TopicPartition]] = []
    seen = threading.Event()
    stopping = threading.Event()
    consumer = Consumer(
        {
            "bootstrap.servers": fleet.bootstrap(),
            "group.id": topic,
            "session.timeout.ms": int(1000 * SESSION_S),
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.subscribe([topic], on_lost=lambda _, partitions: lost.append(partitions))
    producer = Producer({"bootstrap.servers": fleet.bootstrap(), "log_level": 0})

    def consume() -> None:
        while not stopping.is_set():
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                seen.set()

    def flows() -> bool:
        producer.produce(topic, b"x", partition=0)
        producer.poll(0)
        return seen.is_set()

    consuming = threading.Thread(target=consume)
    consuming.start()
    try:
        wait_for(flows, "the group consumes", 60.0)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        coordinator = admin.describe_consumer_groups([topic])[topic].result(30).coordinator
        assert coordinator is not None
        fleet.kill(fleet.owners()[coordinator.id])
        expired_s = time.monotonic() + 3 * SESSION_S
        wait_for(lambda: bool(lost) or time.monotonic() > expired_s, "three sessions' time", 4 * SESSION_S)
        assert not lost
        seen.clear()
        wait_for(flows, "the group still consumes", 60.0)
    finally:
        stopping.set()
        consuming.join()
        consumer.close()
