"""Kafka's own tools print the same through a fleet as straight at the brokers, and no broker's address."""

from __future__ import annotations

from fleet.demo.kafka import KafkaCluster
from tests.conformance.kafka_tools import PARTITIONS, TOOLS, compare, leave_a_group
from tests.conftest import MakeFleet, MakeTopic, broker_host


def test_every_tool_prints_the_same(
    kafka: KafkaCluster, make_fleet: MakeFleet, make_topic: MakeTopic
) -> None:
    topic = make_topic(PARTITIONS)
    leave_a_group(kafka.bootstrap_servers, topic, f"group-{topic}")
    printed = compare(kafka, make_fleet(), topic, f"group-{topic}")
    assert printed.keys() == TOOLS.keys()
    for name, both in printed.items():
        assert both.through == both.straight, name
        assert not any(broker_host(broker_id) in both.through for broker_id in kafka.brokers), name
