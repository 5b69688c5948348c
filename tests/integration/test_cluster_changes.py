"""A cluster that changes behind a running fleet: the fleet follows without a restart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient

from fleet.core.errors import DemoError
from fleet.core.model import Endpoint
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.drills.cluster.ports import free_ports
from tests.conftest import IMPATIENT, MakeTopic, broker_host
from tests.integration.clients import LIMIT_S, Load, count, produce, read_all, wait_for
from tests.integration.relay import Relays

pytestmark = pytest.mark.size("test-all")

VALUES = [b"%02d" % number for number in range(30)]
LATE_VALUES = 3


@contextmanager
def leading(front: Endpoint, to: Endpoint) -> Iterator[None]:
    """A fixed address, like a DNS name or a load balancer, in front of a changing address."""
    relays = Relays()
    relays.forward(front, to)
    try:
        yield
    finally:
        relays.close()


def knows(fleet: LocalFleet, proxy_id: str, brokers: dict[int, tuple[str, int]]) -> bool:
    known_topics = fleet.ownership(proxy_id, 20).brokers
    return {each.broker_id: (each.host, each.port) for each in known_topics} == brokers


def at(kafka: KafkaCluster, broker_id: int) -> tuple[str, int]:
    return kafka.brokers[broker_id].host, kafka.brokers[broker_id].port


def test_cluster_at_new_addresses_is_found_by_the_bootstrap_list(
    tmp_path: Path,
) -> None:
    (port,) = free_ports(1)
    front, folder = Endpoint("127.0.0.1", port), tmp_path / "kafka"
    addresses: set[tuple[str, int]] = set()
    fleet: LocalFleet | None = None
    with ExitStack() as stack:
        for times in (1, 2):
            # The same data each time, and new ports for everything.
            kafka = KafkaCluster(1, folder, host_of=broker_host, ephemeral=False)
            addresses.add(at(kafka, 1))
            with leading(front, kafka.endpoints[0]), kafka:
                if fleet is None:
                    fleet = stack.enter_context(LocalFleet(tmp_path / "fleet", (front,)))
                for proxy_id in fleet.members:
                    wait_for(
                        partial(knows, fleet, proxy_id, {1: at(kafka, 1)}), f"{proxy_id} has found the broker"
                    )
                fleet.await_settled(frozenset(kafka.brokers))
                produce(fleet.bootstrap(), "kept", VALUES)
                written = read_all(fleet.bootstrap(), "kept", times * len(VALUES), partitions=3)
                assert sorted(each.value() for each in written) == sorted(times * VALUES)
    assert len(addresses) == 2


def brokers_through(fleet: LocalFleet) -> dict[int, Endpoint]:
    client = AdminClient({"bootstrap.servers": fleet.bootstrap()})
    brokers = client.list_topics(timeout=LIMIT_S).brokers
    return {broker_id: Endpoint(each.host, each.port) for broker_id, each in brokers.items()}


def test_new_broker_gets_an_owner_and_removed_broker_disappears(kafka: KafkaCluster, tmp_path: Path) -> None:
    kafka.stop_broker(LATE_VALUES)
    others = kafka.brokers.keys() - {LATE_VALUES}
    try:
        with LocalFleet(tmp_path / "fleet", [Endpoint(*at(kafka, each)) for each in others]) as fleet:
            wait_for(
                lambda: brokers_through(fleet).keys() == others, f"Metadata without broker {LATE_VALUES}"
            )
            fleet.await_settled(frozenset(others))
            kafka.start_broker(LATE_VALUES)
            kafka.await_ready()
            fleet.await_settled(frozenset(kafka.brokers))
            wait_for(lambda: LATE_VALUES in brokers_through(fleet), f"Metadata with broker {LATE_VALUES}")
            assert fleet.owner_of(brokers_through(fleet)[LATE_VALUES]) in fleet.members
            kafka.stop_broker(LATE_VALUES)
            wait_for(
                lambda: brokers_through(fleet).keys() == others, f"Metadata without broker {LATE_VALUES}"
            )
            assert all(fleet.is_ready(each) for each in fleet.members)
    finally:
        with suppress(DemoError):  # the broker already runs
            kafka.start_broker(LATE_VALUES)
        kafka.await_ready()


def test_broker_that_is_added_under_load_causes_no_error(
    kafka: KafkaCluster, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """Clients come before the fleet has confirmed the broker's address: they wait, and are not refused."""
    topic = make_topic(6, 2, **{"min.insync.replicas": "1"})
    kafka.stop_broker(LATE_VALUES)
    try:
        servers = [Endpoint(*at(kafka, each)) for each in kafka.brokers if each != LATE_VALUES]
        # Regular discovery would not find the broker in time.
        with LocalFleet(
            tmp_path / "fleet", servers, timing={**IMPATIENT, "broker_refresh_s": 3600.0}
        ) as fleet:
            fleet.await_settled(frozenset(kafka.brokers.keys() - {LATE_VALUES}))
            looks_often = {"topic.metadata.refresh.interval.ms": "500"}
            with Load(fleet.bootstrap(), topic, 6, **looks_often) as load:  # type: ignore[arg-type]
                load.await_flow()
                kafka.start_broker(LATE_VALUES)
                kafka.await_ready()
                fleet.await_settled(frozenset(kafka.brokers))
                wait_for(lambda: LATE_VALUES in brokers_through(fleet), f"Metadata with broker {LATE_VALUES}")
                partitions = [TopicPartition(topic, each) for each in range(6)]
                admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
                admin.elect_leaders(ElectionType.PREFERRED, partitions).result(LIMIT_S)
                load.await_flow()
            assert load.failures == []
            assert load.errors == []
            assert load.acknowledged == count(kafka.bootstrap_servers, topic, range(6))
    finally:
        with suppress(DemoError):  # the broker already runs
            kafka.start_broker(LATE_VALUES)
        kafka.await_ready()
