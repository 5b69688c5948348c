"""A fleet with one port and an IP address for each broker: the address that a client dials selects it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet.config.file import load
from fleet.core.model import BrokerId, Endpoint, ProxyId
from fleet.drills.cluster.fleet import LISTENER, LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests import previous_release
from tests.certificates import Authority
from tests.conftest import IMPATIENT, MakeTopic, fleets
from tests.integration import wire
from tests.integration.clients import count, produce, produce_by_java, read_all, wait_for
from tests.integration.conftest import PATIENT
from tests.integration.test_frames import config_error
from tests.integration.wire import Connection

pytestmark = pytest.mark.size("test-all")

MEMBERS = ("p1", "p2", "p3")
LIMIT_S = 120.0
VALUES = [b"%03d" % number for number in range(600)]


@pytest.fixture(scope="module")
def addressed(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    with fleets(kafka, tmp_path_factory.mktemp("fleet")) as make:
        yield make(addressing="addresses", timing=PATIENT)


def address(fleet: LocalFleet, proxy_id: ProxyId, broker_id: BrokerId) -> Endpoint:
    """The configured address of a broker at a member."""
    first = fleet.settings.member(proxy_id).listeners[0].first_address
    assert first is not None
    return Endpoint(str(ip_address(first) + broker_id - 1), fleet.bootstrap_endpoint(proxy_id).port)


def advertises_addresses(fleet: LocalFleet, proxy_id: ProxyId) -> bool:
    found = wire.advertised(fleet.bootstrap_endpoint(proxy_id))
    return all(
        address(fleet, owner, broker_id) == found[broker_id] for broker_id, owner in fleet.owners().items()
    )


@pytest.mark.size("test")
def test_metadata_has_owners_and_each_member_has_every_address(addressed: LocalFleet) -> None:
    expected = {
        broker_id: address(addressed, owner, broker_id) for broker_id, owner in addressed.owners().items()
    }
    for proxy_id in MEMBERS:
        assert wire.advertised(addressed.bootstrap_endpoint(proxy_id)) == expected
        assert wire.advertised(address(addressed, proxy_id, 3)) == expected


@pytest.mark.size("test")
def test_each_address_leads_to_its_broker(addressed: LocalFleet, kafka: KafkaCluster) -> None:
    """Brokers refuse to describe the configuration of another broker."""
    for proxy_id in MEMBERS:
        for broker_id in addressed.owners():
            with Connection(address(addressed, proxy_id, broker_id)) as connection:
                assert config_error(connection, broker_id) == 0
                assert config_error(connection, broker_id % len(kafka.brokers) + 1) != 0


@pytest.mark.size("test")
@pytest.mark.proves("librdkafka", "IP addresses")
def test_librdkafka_finds_every_broker_by_address(
    addressed: LocalFleet, kafka: KafkaCluster, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    produce(addressed.bootstrap(), topic, VALUES)
    assert sorted(each.value() for each in read_all(addressed.bootstrap(), topic, len(VALUES))) == VALUES


@pytest.mark.proves("Java", "IP addresses")
def test_java_finds_brokers_by_address_and_a_survivor_after_a_death(
    addressed: LocalFleet, kafka: KafkaCluster, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    produce_by_java(kafka, addressed.bootstrap(), topic, 200)
    assert count(kafka.bootstrap_servers, topic) == 200
    addressed.kill("p2")
    addressed.await_settled(frozenset(kafka.brokers), ["p1", "p3"])
    survivors = {
        addressed.owner_of(each) for each in wire.advertised(addressed.bootstrap_endpoint("p1")).values()
    }
    assert survivors == {"p1", "p3"}
    produce_by_java(kafka, addressed.bootstrap(), topic, 100)
    wait_for(lambda: count(kafka.bootstrap_servers, topic) == 300, "all records")
    addressed.start("p2")
    addressed.await_settled(frozenset(kafka.brokers), MEMBERS)


def test_certificate_names_the_addresses(
    kafka: KafkaCluster, make_topic: MakeTopic, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    authority = Authority(tmp_path_factory.mktemp("tls"))
    for index, each in enumerate(MEMBERS, 1):
        authority.issue(f"{each}-external", ["127.0.0.1", *(f"127.88.{index}.{n}" for n in range(1, 5))])
    folder = authority.certificate.parent
    files = {
        "certificate": f"{folder}/{{proxy_id}}-external.crt",
        "key": f"{folder}/{{proxy_id}}-external.key",
    }
    with fleets(kafka, tmp_path) as make:
        fleet = make(addressing="addresses", timing=PATIENT, listener_tls=files)
        topic = make_topic()
        secured = {"security.protocol": "ssl", "ssl.ca.location": str(authority.certificate)}
        produce(fleet.bootstrap(), topic, VALUES, **secured)
        assert count(kafka.bootstrap_servers, topic) == len(VALUES)


@pytest.mark.timeout(600)
def test_members_of_the_previous_release_never_advertise_the_addresses(
    kafka: KafkaCluster, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """The previous release would take the listener for one with ports, and advertise ports of nobody."""
    release = tmp_path / "release"
    previous_release.unpack_into(release)
    fleet = LocalFleet(tmp_path / "fleet", kafka.endpoints, 3, timing={**IMPATIENT, **PATIENT})
    fleet.through = dict.fromkeys(MEMBERS, ("env", f"--chdir={release}", f"PYTHONPATH={release}"))
    brokers, topic = frozenset(kafka.brokers), make_topic()
    document: dict[str, Any] = yaml.safe_load(fleet.config.read_text())
    for index, member in enumerate(document["members"].values(), 1):
        listener = member["listeners"][LISTENER]
        del listener["first_port"]
        listener |= {"addressing": "addresses", "first_address": f"127.88.{index}.1"}

    def upgrade(proxy_id: ProxyId) -> None:
        assert fleet.stop(proxy_id) == 0
        fleet.through.pop(proxy_id)
        fleet.configure(proxy_id, document)
        fleet.start(proxy_id)
        fleet.await_ready(proxy_id)

    with fleet:
        fleet.await_settled(brokers)
        upgrade("p1")
        fleet.wait_until(lambda: "p1" in fleet.owners().values(), "the new member owns a broker")
        mixed = {proxy_id: wire.advertised(fleet.bootstrap_endpoint(proxy_id)) for proxy_id in MEMBERS}
        for proxy_id in ("p2", "p3"):
            owned = {fleet.owner_of(endpoint) for endpoint in mixed[proxy_id].values()}
            assert owned <= {"p2", "p3"}, mixed
        produce(fleet.bootstrap(), topic, VALUES)
        for proxy_id in ("p2", "p3"):
            upgrade(proxy_id)
        fleet.await_settled(brokers)
        fleet.settings = load(fleet.own_config["p1"], {})
        for proxy_id in MEMBERS:
            fleet.wait_until(partial(advertises_addresses, fleet, proxy_id), f"{proxy_id} has all addresses")
        produce(fleet.bootstrap(), topic, VALUES)
        assert count(kafka.bootstrap_servers, topic) == 2 * len(VALUES)
