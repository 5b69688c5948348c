"""Kafka's own tools, which are Java clients, behind the fleet.

Each run starts a virtual machine, so they are few.
"""

from __future__ import annotations

import json
import re
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster, java
from fleet.drills.cluster.kafka_jars import CHECKOUT_LIBS
from tests.integration.clients import LIMIT_S, produce, wait_for
from tests.integration.conftest import NAT_HOST
from tests.integration.relay import Recording, Relays
from tools.gen_tables import DEFINITIONS

pytestmark = pytest.mark.size("test-all")

Tool = Callable[..., str]
TOPIC = "org.apache.kafka.tools.TopicCommand"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
CONFIGS = "kafka.admin.ConfigCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
ELECT = "org.apache.kafka.tools.LeaderElectionCommand"
API_VERSIONS_V5 = (18, 5)
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"


def check_fleet_addresses(recorded: Recording, fleet: LocalFleet) -> bool:
    """Whether any address was sent to clients: an empty recording has no leak either."""
    return recorded.contains(fleet.bootstrap_endpoint("p1").host.encode())


@pytest.mark.proves("Java", "administration")
def test_topics_are_created_listed_and_described(
    fleet: LocalFleet, kafka_tool: Tool, recorded: Recording
) -> None:
    bootstrap = ("--bootstrap-server", fleet.bootstrap())
    kafka_tool(TOPIC, *bootstrap, "--create", "--topic", "by-java", "--partitions", "6")
    assert "by-java" in kafka_tool(TOPIC, *bootstrap, "--list").splitlines()
    described = kafka_tool(TOPIC, *bootstrap, "--describe", "--topic", "by-java")
    assert re.search(r"PartitionCount:\s*6\s+ReplicationFactor:\s*3", described)
    assert set(re.findall(r"Leader:\s*(\S+)", described)) == {"1", "2", "3"}
    assert check_fleet_addresses(recorded, fleet)


@pytest.mark.size("test")
@pytest.mark.proves("Java", "produce", "classic group", "administration")
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
    # Found: with --all-groups the tool prints no row after a group whose assignment it cannot read, such as
    # those that conformance tests leave.
    described = kafka_tool(GROUPS, *bootstrap, "--describe", "--group", topic)
    rows = [line.split() for line in described.splitlines() if line.split()[:2] == [topic, topic]]
    # The consumer leaves after its hundredth line. It then commits the partitions whose first offset it
    # knows: those with records, and any number of the empty ones.
    partitions = [int(row[2]) for row in rows]
    assert len(set(partitions)) == len(partitions)
    assert set(partitions) <= set(range(12))
    assert sum(int(row[3]) for row in rows if row[3] != "-") == 100  # the offsets that it committed
    assert check_fleet_addresses(recorded, fleet)


@pytest.mark.proves("Java", "produce", "consume", "client 4.4")
def test_client_naming_the_expected_broker_is_served(
    fleet: LocalFleet, relays: Relays, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    """The newest client library, newer than any broker: it begins with ApiVersions v5 (KIP-1242)."""
    (newest,) = DEFINITIONS.glob("kafka-clients-*.jar")
    libs = tmp_path / "libs"
    libs.mkdir()
    others = (each for each in CHECKOUT_LIBS.glob("*.jar") if not each.name.startswith("kafka-clients-"))
    for jar in [newest, *others]:
        (libs / jar.name).symlink_to(jar)
    logging = tmp_path / "log4j2.properties"
    logging.write_text("status=ERROR\nrootLogger.level=OFF\n")
    program = str(Path(__file__).with_name("Newest.java"))
    command = java(libs, logging, program, fleet.bootstrap(), make_topic(), "100")
    with relays.recording(both=True) as recording:
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    library, *read = done.stdout.splitlines()
    assert library.endswith(f"/{newest.name}")
    assert sorted(read) == sorted(f"record {number}" for number in range(100))
    assert recording.sent is not None
    firsts = [struct.unpack_from(">hh", sent, 4) for sent in recording.sent.values()]
    assert firsts.count(API_VERSIONS_V5) >= 2 * len(fleet.members)


@pytest.mark.proves("Java", "consume", "leader moves")
def test_a_consumer_follows_a_leader_that_moves(
    fleet: LocalFleet,
    kafka: KafkaCluster,
    kafka_tool: Tool,
    make_topic: Callable[..., str],
    recorded: Recording,
    tmp_path: Path,
) -> None:
    """The old leader answers Fetch with the new leader's address (KIP-951), at the end of its response."""
    topic, lines = make_topic(partitions=1), [f"line {number}".encode() for number in range(100)]
    directly = ("--bootstrap-server", kafka.bootstrap_servers)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    old = admin.list_topics(topic, LIMIT_S).topics[topic].partitions[0].leader
    new, *_ = others = sorted(kafka.brokers.keys() - {old})
    plan, received = tmp_path / "plan.json", tmp_path / "received"
    moved = [{"topic": topic, "partition": 0, "replicas": [*others, old]}]
    plan.write_text(json.dumps({"version": 1, "partitions": moved}))
    consume = kafka.tool_command(
        CONSUMER,
        *("--bootstrap-server", fleet.bootstrap(), "--topic", topic, "--partition", "0"),
        *("--offset", "earliest", "--max-messages", "200", "--timeout-ms", "120000"),
    )

    def endpoint_of_the_new_leader() -> bool:
        """Tag 0 of a last section with one field, and in it an array of one: node id and host."""
        nodes = re.escape(struct.pack(">i", new) + bytes([len(NAT_HOST) + 1]) + NAT_HOST.encode())
        return any(
            re.search(rb"\x01\x00.\x02" + nodes, each, re.DOTALL) for each in recorded.streams.values()
        )

    with received.open("wb") as output, subprocess.Popen(consume, stdout=output) as consumer:
        try:
            produce(fleet.bootstrap(), topic, lines)
            wait_for(lambda: received.read_bytes().count(b"\n") == 100, "the initial state")
            assert not endpoint_of_the_new_leader()
            kafka_tool(REASSIGN, *directly, "--reassignment-json-file", str(plan), "--execute")
            first = ("--election-type", "preferred", "--topic", topic, "--partition", "0")
            kafka_tool(ELECT, *directly, *first)
            wait_for(endpoint_of_the_new_leader, "the new leader's address in an answer to Fetch")
            produce(fleet.bootstrap(), topic, lines)
            assert consumer.wait(LIMIT_S) == 0
        finally:
            consumer.kill()
    assert received.read_bytes().splitlines() == lines + lines


@pytest.mark.proves("Java", "administration", "addresses")
def test_configurations_are_described_without_addresses_and_set(
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
        resource = ConfigResource(ResourceType.TOPIC, topic)
        described = directly.describe_configs([resource], request_timeout=LIMIT_S)[resource].result(LIMIT_S)
        return bool(described["retention.ms"].value == "7200000")

    wait_for(altered, "the altered configuration at the brokers")


@pytest.mark.proves("Java", "administration", "addresses")
def test_cluster_id_and_quorum_are_described_without_addresses(
    fleet: LocalFleet, kafka_tool: Tool, kafka: KafkaCluster
) -> None:
    """DescribeQuorum names the controllers' listeners from v2 on, and clients receive only the names."""
    bootstrap = ("--bootstrap-server", fleet.bootstrap())
    assert f"Cluster ID: {kafka.cluster_id()}" in kafka_tool(CLUSTER, "cluster-id", *bootstrap)
    status = kafka_tool(QUORUM, *bootstrap, "describe", "--status")
    assert re.search(r"LeaderId:\s+[123]$", status, re.MULTILINE)
    assert re.findall(r'"id": (\d)[^}]*"endpoints": \[(.*?)\]', status) == [
        (f"{broker_id}", '"CONTROLLER://:0"') for broker_id in kafka.brokers
    ]
    assert "127.77." not in status
