"""A fleet with one port for all brokers: the server name selects the broker.

A private file resolves names.
"""

from __future__ import annotations

import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from fleet.config.file import load
from fleet.core.model import Endpoint, IdentitySpace
from fleet.drills.cluster.fleet import LISTENER, LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.certificates import Authority
from tests.conftest import MakeTopic
from tests.integration import wire
from tests.integration.clients import count, produce_by_java, wait_for
from tests.integration.conftest import PATIENT

pytestmark = pytest.mark.size("test-all")

MEMBERS = ("p1", "p2", "p3")
IN_NAMESPACE = 'mount --bind "$0" /etc/hosts && exec "$@"'
LIMIT_S = 120.0

PRODUCER = """
import sys
from confluent_kafka import Producer
servers, ca, topic, number = sys.argv[1:]
failures = []
producer = Producer({"bootstrap.servers": servers, "security.protocol": "ssl", "ssl.ca.location": ca})
for value in range(int(number)):
    producer.produce(topic, b"%d" % value, on_delivery=lambda error, _: error and failures.append(error))
assert producer.flush(60) == 0
assert not failures, failures
"""


def through(hosts: Path) -> list[str]:
    """A program that starts another one, with the hosts file as /etc/hosts."""
    return ["unshare", "-Urm", "bash", "-c", IN_NAMESPACE, str(hosts)]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("tls"))
    for each in MEMBERS:
        made.issue(f"{each}-external", [f"{each}.fleet.example", f"*.{each}.fleet.example"])
    return made


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    names = [name for each in MEMBERS for name in (each, *(f"broker-{n}.{each}" for n in range(1, 5)))]
    file = tmp_path_factory.mktemp("names") / "hosts"
    file.write_text("127.0.0.1 localhost\n" + "".join(f"127.0.0.1 {name}.fleet.example\n" for name in names))
    return file


@pytest.fixture(scope="module")
def named(
    kafka: KafkaCluster, authority: Authority, hosts: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalFleet]:
    folder = authority.certificate.parent
    fleet = LocalFleet(
        tmp_path_factory.mktemp("fleet"),
        kafka.endpoints,
        identities=IdentitySpace(first_id=1, count=4),
        timing=PATIENT,
        listener_tls={
            "certificate": f"{folder}/{{proxy_id}}-external.crt",
            "key": f"{folder}/{{proxy_id}}-external.key",
        },
    )
    document = yaml.safe_load(fleet.config.read_text())
    for proxy_id, member in document["members"].items():
        bind = member["listeners"][LISTENER]["bind"]
        member["listeners"][LISTENER] = {
            "bind": bind,
            "advertise": f"{proxy_id}.fleet.example:{bind.rpartition(':')[2]}",
            "addressing": "sni",
            "broker_host": "broker-{broker_id}.{proxy_id}.fleet.example",
        }
    fleet.config.write_text(yaml.safe_dump(document, sort_keys=False))
    fleet.settings = load(fleet.config, {})
    fleet.through = dict.fromkeys(MEMBERS, through(hosts))
    with fleet:
        fleet.await_settled(frozenset(kafka.brokers))
        yield fleet
    fleet.remove_data()


def advertised(fleet: LocalFleet, authority: Authority, proxy_id: str, name: str) -> dict[int, Endpoint]:
    """The brokers in one member's Metadata, requested with a server name."""
    port = fleet.bootstrap_endpoint(proxy_id).port
    context = ssl.create_default_context(cafile=authority.certificate)
    return wire.advertised(Endpoint("127.0.0.1", port), context, name)


@pytest.mark.size("test")
def test_metadata_names_owners_and_every_member_takes_every_name(
    named: LocalFleet, authority: Authority
) -> None:
    owners = named.owners()
    expected = {
        broker_id: Endpoint(f"broker-{broker_id}.{owner}.fleet.example", named.bootstrap_endpoint(owner).port)
        for broker_id, owner in owners.items()
    }
    context = ssl.create_default_context(cafile=authority.certificate)
    for proxy_id in MEMBERS:
        for name in (f"{proxy_id}.fleet.example", f"broker-3.{proxy_id}.fleet.example"):
            assert advertised(named, authority, proxy_id, name) == expected
    context.check_hostname = False  # a client's old address leads here after names have moved
    bootstrap = Endpoint("127.0.0.1", named.bootstrap_endpoint("p1").port)
    assert wire.advertised(bootstrap, context, "broker-2.p3.fleet.example") == expected


@pytest.mark.size("test")
@pytest.mark.proves("librdkafka", "TLS", "SNI")
def test_librdkafka_finds_every_broker_by_name(
    named: LocalFleet, kafka: KafkaCluster, authority: Authority, make_topic: MakeTopic, hosts: Path
) -> None:
    topic = make_topic()
    arguments = [named.bootstrap(), str(authority.certificate), topic, "600"]
    done = subprocess.run(
        [*through(hosts), sys.executable, "-c", PRODUCER, *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert count(kafka.bootstrap_servers, topic) == 600


@pytest.mark.proves("Java", "TLS", "SNI")
def test_java_finds_brokers_by_name_and_a_survivor_after_a_death(
    named: LocalFleet,
    kafka: KafkaCluster,
    authority: Authority,
    make_topic: MakeTopic,
    hosts: Path,
    tmp_path: Path,
) -> None:
    properties = tmp_path / "client.properties"
    properties.write_text(
        f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={authority.certificate}\n"
    )
    topic = make_topic()

    def produce(number: int) -> None:
        names = f"-Djdk.net.hosts.file={hosts}"
        options = ("--command-config", str(properties))
        produce_by_java(kafka, named.bootstrap(), topic, number, *options, java_options=names)

    produce(200)
    assert count(kafka.bootstrap_servers, topic) == 200
    named.kill("p2")
    named.await_settled(frozenset(kafka.brokers), ["p1", "p3"])
    endpoints = advertised(named, authority, "p1", "p1.fleet.example").values()
    assert {endpoint.host.partition(".")[2] for endpoint in endpoints} == {
        "p1.fleet.example",
        "p3.fleet.example",
    }
    produce(100)
    wait_for(lambda: count(kafka.bootstrap_servers, topic) == 300, "all records")
    named.start("p2")
    named.await_settled(frozenset(kafka.brokers), MEMBERS)
