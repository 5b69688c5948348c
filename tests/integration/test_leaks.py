"""The search for real addresses at the end of every test of the shared fleet finds every leak."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from fleet.core.model import Endpoint
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.drills.cluster.ports import free_ports
from tests.integration import wire
from tests.integration.clients import LIMIT_S, produce, read_all
from tests.integration.conftest import NAT_HOST
from tests.integration.relay import Recording, Relays, leaks, secrets_of
from tests.integration.wire import Connection

pytestmark = pytest.mark.size("test")


def test_leak_check_finds_every_address_without_a_fleet(kafka: KafkaCluster, relays: Relays) -> None:
    """The control experiment: the same relay and the same search, without a fleet."""
    (port,) = free_ports(1, (NAT_HOST,))
    direct = Endpoint(NAT_HOST, port)
    relays.forward(direct, kafka.endpoints[0])
    with relays.recording() as recorded:
        AdminClient({"bootstrap.servers": str(direct)}).list_topics(timeout=LIMIT_S)
    found = " ".join(leaks(secrets_of(kafka), recorded))
    assert "the brokers' network" in found
    for broker in kafka.brokers.values():
        assert f"host {broker.host} at" in found
        assert f"port {broker.port} as int32" in found

    with relays.recording() as recorded, Connection(direct) as connection:
        connection.ask(wire.describe_broker_config(1, 1, "listeners"))
        connection.ask(wire.describe_broker_config(2, 1, "controller.quorum.voters"))
    found = " ".join(leaks(secrets_of(kafka), recorded))
    assert f"port {kafka.brokers[1].port} at" in found
    for broker_id in kafka.brokers:
        assert f"port {kafka.listener('CONTROLLER', broker_id).port} at" in found


@pytest.mark.parametrize("broker_id", [1, 2, 3])
def test_leak_check_finds_each_form_of_an_address(kafka: KafkaCluster, broker_id: int) -> None:
    """Including hosts as bytes, which no API sends today."""
    broker, controller = kafka.brokers[broker_id], kafka.listener("CONTROLLER", broker_id)
    network, *others = secrets_of(kafka)
    somewhere = Endpoint("relay", 1)
    for pattern in (
        broker.host.encode(),
        socket.inet_aton(broker.host),
        struct.pack(">i", broker.port),
        f":{broker.port}".encode(),
        struct.pack(">i", controller.port),
        f":{controller.port}".encode(),
    ):
        clean = {(1, somewhere): bytearray(b"before" + pattern[:-1]), (2, somewhere): bytearray(pattern[-1:])}
        assert leaks(others, Recording(clean)) == []
        dirty = Recording({**clean, (3, somewhere): bytearray(b"before" + pattern + b"after")})
        assert all("connection 3" in each for each in leaks(others, dirty))
        assert leaks(others, dirty) != []
    assert leaks([network], Recording({(1, somewhere): bytearray(b"at 127.77.200.1")})) != []


def test_fleet_replaces_every_broker_address(
    fleet: LocalFleet, kafka: KafkaCluster, make_topic: Callable[..., str], recorded: Recording
) -> None:
    """The recording that is searched at the end of this test is not empty."""
    admin = AdminClient({"bootstrap.servers": fleet.bootstrap()})
    broker = ConfigResource(ResourceType.BROKER, "1")
    admin.describe_cluster(request_timeout=LIMIT_S).result(LIMIT_S)
    admin.describe_configs([broker], request_timeout=LIMIT_S)[broker].result(LIMIT_S)
    admin.list_consumer_groups(request_timeout=LIMIT_S).result(LIMIT_S)
    topic = make_topic()
    produce(fleet.bootstrap(), topic, [b"value"] * 30)
    read_all(fleet.bootstrap(), topic, 30)
    for metadata in admin.list_topics(timeout=LIMIT_S).brokers.values():
        assert recorded.contains(metadata.host.encode())
        assert recorded.contains(struct.pack(">i", metadata.port))
        # Every identity's owner has served these clients at the address that it advertises.
        assert any(endpoint.port == metadata.port for _, endpoint in recorded.streams)
    assert recorded.contains(b"advertised.listeners")
