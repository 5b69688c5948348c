"""A fleet with one port for all brokers: requests say which broker a connection is for."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from fleet.core.model import Endpoint
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.conftest import MakeTopic, fleets
from tests.integration import wire
from tests.integration.clients import led_by, produce, read_all
from tests.integration.conftest import PATIENT
from tests.integration.wire import Connection

INVALID_REQUEST = 42
LARGE_RECORD_BYTES = 900_000
VALUES = [b"%03d" % number for number in range(600)]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(1, id="one member", marks=pytest.mark.size("test-all")),
        pytest.param(3, id="three members", marks=pytest.mark.size("test")),
    ],
)
def shared(
    kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[LocalFleet]:
    with fleets(kafka, tmp_path_factory.mktemp("fleet")) as make:
        yield make(request.param, addressing="shared", timing=PATIENT)


def test_brokers_have_names_of_their_own_at_the_port_of_their_owner(shared: LocalFleet) -> None:
    expected = {
        broker_id: Endpoint(
            f"127.88.{owner.removeprefix('p')}.{broker_id}", shared.bootstrap_endpoint(owner).port
        )
        for broker_id, owner in shared.owners().items()
    }
    for proxy_id in shared.members:
        assert wire.advertised(shared.bootstrap_endpoint(proxy_id)) == expected


@pytest.mark.proves("librdkafka", "shared port")
def test_librdkafka_produces_and_consumes(shared: LocalFleet, make_topic: MakeTopic) -> None:
    topic = make_topic()
    produce(shared.bootstrap(), topic, VALUES)
    assert sorted(each.value() for each in read_all(shared.bootstrap(), topic, len(VALUES))) == VALUES


def test_groups_are_those_of_all_brokers(
    shared: LocalFleet, kafka: KafkaCluster, make_topic: MakeTopic
) -> None:
    """Twelve groups are on all three brokers.

    A new connection to a member that owns all brokers has not shown which one it means. A member that owns
    one broker lists the groups of this broker, as the port of an identity does.
    """
    topic = make_topic()
    groups = {f"{topic}-{number}" for number in range(12)}
    for group in groups:
        consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group})
        consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
        consumer.close()
    found: set[str] = set()
    for proxy_id in shared.members:
        with Connection(shared.bootstrap_endpoint(proxy_id)) as connection:
            first = wire.groups_of(connection.ask(wire.list_groups(1))) & groups
            assert wire.brokers_of(connection.ask(wire.metadata(2))).keys() == kafka.brokers.keys()
            assert wire.groups_of(connection.ask(wire.list_groups(3))) & groups == first
        assert not found & first
        found |= first
    assert found == groups


def test_log_dirs_need_a_connection_whose_broker_is_known(
    shared: LocalFleet, kafka: KafkaCluster, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    for broker_id in kafka.brokers:
        partition = led_by(kafka, topic, broker_id)
        with Connection(shared.bootstrap_endpoint(shared.owners()[broker_id])) as connection:
            if len(shared.members) == 1:  # else the member owns one broker, which the client means
                refused = connection.ask(wire.describe_log_dirs(1))
                assert struct.unpack_from(">iih", refused)[1:] == (1, INVALID_REQUEST)
            assert connection.ask(wire.fetch(2, topic, partition, 0))
            answer = connection.ask(wire.describe_log_dirs(3))
        (result_count, error_code, path_bytes) = struct.unpack_from(">ihh", answer, 4)
        path = answer[12 : 12 + path_bytes].decode()
        assert (result_count, error_code) == (1, 0)
        assert path.endswith(f"/kafka-{broker_id}")


def test_large_records_of_two_brokers_on_one_connection(
    shared: LocalFleet, kafka: KafkaCluster, make_topic: MakeTopic
) -> None:
    """The kernel passes on such bodies. Responses to pipelined requests keep their order and their bytes."""
    topic = make_topic(**{"max.message.bytes": "2000000"})
    partitions = [led_by(kafka, topic, broker_id) for broker_id in (1, 2)]
    with Producer({"bootstrap.servers": kafka.bootstrap_servers, "message.max.bytes": 2_000_000}) as producer:
        for partition in partitions:
            producer.produce(topic, os.urandom(LARGE_RECORD_BYTES), partition=partition)
    expected = []
    for broker_id, partition in zip((1, 2), partitions, strict=True):
        with Connection(kafka.endpoints[broker_id - 1]) as direct:
            expected.append(direct.ask(wire.fetch(1, topic, partition, 0)))
    assert min(map(len, expected)) > LARGE_RECORD_BYTES
    owner = shared.owners()[1]
    for _ in range(5):
        with Connection(shared.bootstrap_endpoint(owner)) as connection:
            for number in range(6):
                connection.send(wire.fetch(number, topic, partitions[number % 2], 0))
            for number in range(6):
                assert connection.receive() == (number, expected[number % 2])


def test_consumer_in_a_rack_gets_all_records(shared: LocalFleet, make_topic: MakeTopic) -> None:
    """The leader would name a follower in the rack, and the follower's connection looks like the leader's."""
    topic = make_topic()
    produce(shared.bootstrap(), topic, VALUES)
    for rack in ("a", "b", "c"):
        received = read_all(shared.bootstrap(), topic, len(VALUES), config={"client.rack": rack})
        assert sorted(each.value() for each in received) == VALUES
