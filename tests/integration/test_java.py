"""Kafka's own tools, which are Java clients, behind the fleet.

Each run starts a virtual machine, so they are few.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from fleet.demo.kafka import KafkaCluster
from fleet.demo.local_fleet import LocalFleet
from tests.integration.clients import LIMIT_S, wait_for
from tests.integration.relay import Recording

Tool = Callable[..., str]
TOPIC = "org.apache.kafka.tools.TopicCommand"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
CONFIGS = "kafka.admin.ConfigCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"


def saw_the_fleet(recorded: Recording, fleet: LocalFleet) -> bool:
    """Whether addresses were sent to clients at all: a recording of nothing has no leak either."""
    return recorded.contains(fleet.bootstrap_endpoint("p1").host.encode())


def test_topics_are_created_listed_and_described(
    fleet: LocalFleet, kafka_tool: Tool, recorded: Recording
) -> None:
    bootstrap = ("--bootstrap-server", fleet.bootstrap())
    kafka_tool(TOPIC, *bootstrap, "--create", "--topic", "by-java", "--partitions", "6")
    assert "by-java" in kafka_tool(TOPIC, *bootstrap, "--list").splitlines()
    described = kafka_tool(TOPIC, *bootstrap, "--describe", "--topic", "by-java")
    assert re.search(r"PartitionCount:\s*6\s+ReplicationFactor:\s*3", described)
    assert set(re.findall(r"Leader:\s*(\S+)", described)) == {"1", "2", "3"}
    assert saw_the_fleet(recorded, fleet)


def test_console_producer_consumer_and_their_group(
    fleet: LocalFleet, kafka_tool: Tool, make_topic: Callable[..., str], recorded: Recording
) -> None:
    topic, lines = make_topic(), [f"line {number}" for number in range(100)]
    bootstrap = ("--bootstrap-server", fleet.bootstrap())
    kafka_tool(PRODUCER, *bootstrap, "--topic", topic, stdin="\n".join(lines) + "\n")
    consumed = kafka_tool(
        CONSUMER,
        *bootstrap,
        *("--topic", topic, "--group", topic, "--from-beginning"),
        *("--max-messages", "100", "--timeout-ms", "60000"),
    )
    assert sorted(consumed.splitlines()) == sorted(lines)
    assert topic in kafka_tool(GROUPS, *bootstrap, "--list").splitlines()
    described = kafka_tool(GROUPS, *bootstrap, "--describe", "--all-groups")
    rows = [line.split() for line in described.splitlines() if line.split()[:2] == [topic, topic]]
    # The consumer leaves after its hundredth line, and what it commits then are the partitions whose first
    # offset it had learned by that time: those with records, and of the empty ones none to all.
    partitions = [int(row[2]) for row in rows]
    assert len(set(partitions)) == len(partitions)
    assert set(partitions) <= set(range(12))
    assert sum(int(row[3]) for row in rows if row[3] != "-") == 100  # the offsets that it committed
    assert saw_the_fleet(recorded, fleet)


def test_configurations_are_described_without_addresses_and_altered(
    fleet: LocalFleet, kafka_tool: Tool, kafka: KafkaCluster, make_topic: Callable[..., str]
) -> None:
    bootstrap = ("--bootstrap-server", fleet.bootstrap())
    of_broker = kafka_tool(
        CONFIGS, *bootstrap, "--describe", "--all", "--entity-type", "brokers", "--entity-name", "2"
    )
    values = dict(re.findall(r"^\s*([\w.]+)=(\S*) sensitive=", of_broker, re.MULTILINE))
    assert values["node.id"] == "2"
    assert values["listeners"] == values["advertised.listeners"] == values["controller.quorum.voters"] == ""
    assert "127.77." not in of_broker
    assert not any(str(endpoint.port) in of_broker for endpoint in kafka.endpoints)

    topic = make_topic()
    of_topic = ("--entity-type", "topics", "--entity-name", topic)
    kafka_tool(CONFIGS, *bootstrap, "--alter", "--add-config", "retention.ms=7200000", *of_topic)
    directly = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})

    def altered() -> bool:
        asked = ConfigResource(ResourceType.TOPIC, topic)
        described = directly.describe_configs([asked], request_timeout=LIMIT_S)[asked].result(LIMIT_S)
        return bool(described["retention.ms"].value == "7200000")

    wait_for(altered, "the altered configuration at the brokers")


def test_the_cluster_and_its_quorum(fleet: LocalFleet, kafka_tool: Tool, kafka: KafkaCluster) -> None:
    """DescribeQuorum names the controllers' listeners from v2 on, which is why v1 is all that is offered."""
    bootstrap = ("--bootstrap-server", fleet.bootstrap())
    assert f"Cluster ID: {kafka._cluster_id()}" in kafka_tool(CLUSTER, "cluster-id", *bootstrap)
    status = kafka_tool(QUORUM, *bootstrap, "describe", "--status")
    assert re.search(r"LeaderId:\s+[123]$", status, re.MULTILINE)
    assert "127.77." not in status
