"""librdkafka (through confluent-kafka) behind the fleet: producers, groups, transactions, administration."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import psutil
import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from fleet.core.model import Endpoint
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.runtime.child import MODULES
from tests.integration.clients import LIMIT_S, produce, read_all, wait_for

pytestmark = pytest.mark.size("test-all")

PARTITIONS = 12
MakeTopic = Callable[..., str]


def numbered_values(count: int) -> list[bytes]:
    return [b"%05d" % number for number in range(count)]


def await_leaders(bootstrap: str, topic: str) -> None:
    """Produce an empty record to each partition, and wait for the acknowledgements."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for partition in range(PARTITIONS):
        producer.produce(topic, b"", partition=partition)
    assert producer.flush(LIMIT_S) == 0


@pytest.mark.proves("librdkafka", "produce", "consume")
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_records_arrive_with_every_acks_setting(fleet: LocalFleet, make_topic: MakeTopic, acks: str) -> None:
    topic, values = make_topic(), numbered_values(200)
    # Without acknowledgements records are lost, even directly, while a broker does not know yet that it
    # leads.
    await_leaders(fleet.bootstrap(), topic)
    produce(fleet.bootstrap(), topic, values, acks=acks)
    received = read_all(fleet.bootstrap(), topic, PARTITIONS + len(values))
    assert sorted(each.value() for each in received) == [b""] * PARTITIONS + values


@pytest.mark.proves("librdkafka", "produce", "consume")
@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_records_pass_as_they_are(fleet: LocalFleet, make_topic: MakeTopic, codec: str) -> None:
    """With compression and headers, and larger than one read."""
    topic = make_topic(partitions=1)
    producer = Producer({"bootstrap.servers": fleet.bootstrap(), "compression.type": codec})
    producer.produce(topic, b"\0\1\2" * 250_000, key=b"key", headers=[("name", b"\xff\0"), ("none", None)])
    assert producer.flush(LIMIT_S) == 0
    (message,) = read_all(fleet.bootstrap(), topic, 1, partitions=1)
    assert (message.key(), message.value()) == (b"key", b"\0\1\2" * 250_000)
    assert message.headers() == [("name", b"\xff\0"), ("none", None)]


def test_large_records_pass_unchanged_and_mostly_unread(fleet: LocalFleet, make_topic: MakeTopic) -> None:
    """Large bodies pass inside the kernel, both ways; the worker's own reads are counted."""
    topic = make_topic(partitions=1)
    values = [b"%08d" % number * 112_500 for number in range(40)]  # random bytes would have some address
    before = read_by_workers(fleet)
    produce(fleet.bootstrap(), topic, values)
    received = read_all(fleet.bootstrap(), topic, len(values), partitions=1)
    assert sorted(each.value() for each in received) == sorted(values)
    assert 0 < read_by_workers(fleet) - before < sum(map(len, values))  # and not twice that


def read_by_workers(fleet: LocalFleet) -> int:
    """The number of bytes. Source: proc_pid_io(5)"""
    children = [each for member in fleet.members for each in psutil.Process(fleet.pid(member)).children()]
    workers = [each for each in children if MODULES["worker"] in each.cmdline()]
    return sum(each.io_counters().read_chars for each in workers)


@pytest.mark.size("test")
@pytest.mark.proves("librdkafka", "produce", "classic group")
def test_a_group_shares_what_an_idempotent_producer_brings(fleet: LocalFleet, make_topic: MakeTopic) -> None:
    topic, values = make_topic(), numbered_values(600)
    config = {
        "bootstrap.servers": fleet.bootstrap(),
        "group.id": topic,
        "auto.offset.reset": "earliest",
        "partition.assignment.strategy": "cooperative-sticky",
        # The consumer's own commit, every five seconds, can leave nothing for commit() to commit.
        "enable.auto.commit": False,
    }
    members = [Consumer(config) for _ in range(2)]
    received: list[list[Message]] = [[], []]

    def poll() -> None:
        for consumer, messages in zip(members, received, strict=True):
            messages += consumer.consume(100, 0.1)

    def shared() -> bool:
        poll()
        return [len(consumer.assignment()) for consumer in members] == [PARTITIONS / 2, PARTITIONS / 2]

    def complete() -> bool:
        poll()
        return sum(map(len, received)) >= len(values)

    try:
        for consumer in members:
            consumer.subscribe([topic])
        wait_for(shared, "both members have their half of the partitions")
        produce(fleet.bootstrap(), topic, values, **{"enable.idempotence": True})
        wait_for(complete, "every record")
        for consumer in members:
            consumer.commit(asynchronous=False)
        committed = members[0].committed([TopicPartition(topic, each) for each in range(PARTITIONS)], LIMIT_S)
    finally:
        for consumer in members:
            consumer.close()
    all_messages = [message for messages in received for message in messages]
    assert [each.error() for each in all_messages if each.error() is not None] == []
    assert sorted(each.value() for each in all_messages) == values
    assert all(messages for messages in received)
    for messages in received:
        for partition in {each.partition() for each in messages}:
            offsets = [each.offset() for each in messages if each.partition() == partition]
            assert offsets == sorted(offsets)
    assert sum(each.offset for each in committed if each.offset > 0) == len(values)


@pytest.mark.size("test")
@pytest.mark.proves("librdkafka", "transactions")
def test_transactions_are_committed_aborted_and_fenced(fleet: LocalFleet, make_topic: MakeTopic) -> None:
    source, target = make_topic(), make_topic()
    produce(fleet.bootstrap(), source, numbered_values(10))
    consumer = Consumer(
        {"bootstrap.servers": fleet.bootstrap(), "group.id": source, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([source])
    read: list[Message] = []

    def all_read() -> bool:
        read.extend(consumer.consume(10, 0.2))
        return len(read) >= 10

    wait_for(all_read, "the source")
    config = {"bootstrap.servers": fleet.bootstrap(), "transactional.id": target}
    producer = Producer(config)
    producer.init_transactions(LIMIT_S)

    producer.begin_transaction()
    producer.produce(target, b"aborted")
    assert producer.flush(LIMIT_S) == 0
    producer.abort_transaction(LIMIT_S)

    producer.begin_transaction()
    for message in read:
        producer.produce(target, b"committed " + message.value())
    positions = consumer.position(consumer.assignment())
    producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), LIMIT_S)
    producer.commit_transaction(LIMIT_S)

    expected = [b"committed " + value for value in numbered_values(10)]
    received = read_all(fleet.bootstrap(), target, 10, config={"isolation.level": "read_committed"})
    assert sorted(each.value() for each in received) == expected
    all_messages = read_all(fleet.bootstrap(), target, 11, config={"isolation.level": "read_uncommitted"})
    assert sorted(each.value() for each in all_messages) == [b"aborted", *expected]
    committed = consumer.committed([TopicPartition(source, each) for each in range(PARTITIONS)], LIMIT_S)
    assert sum(each.offset for each in committed if each.offset > 0) == 10
    consumer.close()

    successor = Producer(config)
    successor.init_transactions(LIMIT_S)
    producer.begin_transaction()
    producer.produce(target, b"fenced")
    with pytest.raises(Exception, match=r"_FENCED|fenced|epoch"):
        producer.commit_transaction(LIMIT_S)


@pytest.mark.size("test")
@pytest.mark.proves("librdkafka", "addresses")
def test_advertised_addresses_are_the_fleets_at_every_member(fleet: LocalFleet, kafka: KafkaCluster) -> None:
    received = []
    for proxy_id in fleet.members:
        admin = AdminClient({"bootstrap.servers": fleet.bootstrap([proxy_id])})
        metadata = admin.list_topics(timeout=LIMIT_S)
        received.append({each.id: Endpoint(each.host, each.port) for each in metadata.brokers.values()})
        described = admin.describe_cluster(request_timeout=LIMIT_S).result(LIMIT_S)
        assert {each.id: Endpoint(each.host, each.port) for each in described.nodes} == received[0]
        assert (described.cluster_id, metadata.cluster_id) == (kafka.cluster_id(), kafka.cluster_id())
    assert received == [received[0]] * len(fleet.members)
    owned = {each.broker_id: each.committed for each in fleet.ownership("p1").identities}
    assert {broker_id: (fleet.owner_of(endpoint),) for broker_id, endpoint in received[0].items()} == owned
    assert owned.keys() == kafka.brokers.keys()


@pytest.mark.proves("librdkafka", "administration", "addresses")
def test_identity_port_reaches_its_broker_and_hides_addresses(fleet: LocalFleet, kafka: KafkaCluster) -> None:
    """A broker describes only its own configuration, and refuses to describe another broker's."""
    through = AdminClient({"bootstrap.servers": fleet.bootstrap()})
    directly = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for broker_id in kafka.brokers:
        resource = ConfigResource(ResourceType.BROKER, str(broker_id))
        configs, original = (
            client.describe_configs([resource], request_timeout=LIMIT_S)[resource].result(LIMIT_S)
            for client in (through, directly)
        )
        assert configs["node.id"].value == resource.name
        addresses = {name for name, each in original.items() if each.value and "127.77." in each.value}
        assert addresses == {"listeners", "advertised.listeners", "controller.quorum.voters"}
        for name, each in original.items():
            assert configs[name].value == ("" if name in addresses else each.value), name


@pytest.mark.proves("librdkafka", "administration")
def test_topics_are_made_altered_listed_and_deleted(fleet: LocalFleet, kafka: KafkaCluster) -> None:
    admin = AdminClient({"bootstrap.servers": fleet.bootstrap()})
    directly = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    name = "made-through-the-fleet"
    admin.create_topics([NewTopic(name, 3, 3)], request_timeout=LIMIT_S)[name].result(LIMIT_S)
    resource = ConfigResource(
        ResourceType.TOPIC,
        name,
        incremental_configs=[
            ConfigEntry("retention.ms", "3600000", incremental_operation=AlterConfigOpType.SET)
        ],
    )
    admin.incremental_alter_configs([resource], request_timeout=LIMIT_S)[resource].result(LIMIT_S)

    def retention() -> str | None:
        resource = ConfigResource(ResourceType.TOPIC, name)
        described = admin.describe_configs([resource], request_timeout=LIMIT_S)[resource].result(LIMIT_S)
        value: str | None = described["retention.ms"].value
        return value

    wait_for(lambda: retention() == "3600000", "the altered configuration")

    def partitions(client: AdminClient) -> int:
        return len(client.list_topics(name, LIMIT_S).topics[name].partitions)

    for client in (admin, directly):
        wait_for(partial(lambda client: partitions(client) == 3, client), name)
    partition = admin.list_topics(name, LIMIT_S).topics[name].partitions[0]
    assert sorted(partition.replicas) == [1, 2, 3]
    admin.delete_topics([name], request_timeout=LIMIT_S)[name].result(LIMIT_S)
    wait_for(lambda: name not in directly.list_topics(timeout=LIMIT_S).topics, f"{name} deleted")
