"""A fleet whose TLS listener requires certificates: clients, takeovers, drains, new certificates."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka.admin import AdminClient

from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.certificates import Authority, Pair
from tests.clients.franz.program import FranzGo
from tests.clients.go_program import GoProgram, tls
from tests.conftest import MakeTopic, fleets
from tests.integration.clients import Load, Reader, count, produce, read_all, wait_for
from tests.integration.conftest import PATIENT, FleetCommand, Tool
from tests.integration.wire import Connection, brokers_of, metadata
from tools.bootstrap import KAFKA_GO, SARAMA

pytestmark = pytest.mark.size("test-all")

REFUSED = re.compile(r'^fleet_protocol_errors_total\{.*reason="handshake".*\} (\S+)$', re.MULTILINE)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def app(authority: Authority) -> Pair:
    """The certificate of an application."""
    return authority.issue("app")


@pytest.fixture(scope="module")
def config(authority: Authority, app: Pair) -> dict[str, str]:
    """The settings of librdkafka."""
    return {
        "security.protocol": "ssl",
        "ssl.ca.location": str(authority.certificate),
        "ssl.certificate.location": str(app.certificate),
        "ssl.key.location": str(app.key),
    }


@pytest.fixture(scope="module")
def secured(
    kafka: KafkaCluster, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalFleet]:
    for proxy_id in ("p1", "p2", "p3"):
        authority.issue(f"{proxy_id}-external")
    folder = authority.certificate.parent
    probe = authority.issue("probe")
    with fleets(kafka, tmp_path_factory.mktemp("secured")) as make:
        yield make(
            timing=PATIENT,
            listener_tls={
                "certificate": f"{folder}/{{proxy_id}}-external.crt",
                "key": f"{folder}/{{proxy_id}}-external.key",
                "client_ca": str(authority.certificate),
                "client_certificates": "required",
                "probe_certificate": str(probe.certificate),
                "probe_key": str(probe.key),
            },
        )


@pytest.mark.size("test")
@pytest.mark.proves("librdkafka", "TLS", "client certificate")
def test_librdkafka(secured: LocalFleet, make_topic: MakeTopic, config: dict[str, str]) -> None:
    topic, values = make_topic(), [b"%d" % number for number in range(600)]
    produce(secured.bootstrap(), topic, values, **config)
    read = read_all(secured.bootstrap(), topic, len(values), config=config)
    assert sorted(message.value() or b"" for message in read) == sorted(values)
    brokers = AdminClient({"bootstrap.servers": secured.bootstrap(), **config}).list_topics(topic).brokers
    assert {broker.host for broker in brokers.values()} == {"127.0.0.1"}


@pytest.mark.proves("Java", "TLS", "client certificate")
def test_java(
    secured: LocalFleet,
    make_topic: MakeTopic,
    kafka_tool: Tool,
    authority: Authority,
    app: Pair,
    tmp_path: Path,
) -> None:
    both = tmp_path / "app.pem"
    both.write_bytes(app.key.read_bytes() + app.certificate.read_bytes())
    properties = tmp_path / "client.properties"
    properties.write_text(
        "security.protocol=SSL\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={authority.certificate}\n"
        f"ssl.keystore.type=PEM\nssl.keystore.location={both}\n"
    )
    topic, servers = make_topic(), ("--bootstrap-server", secured.bootstrap())
    kafka_tool(
        "org.apache.kafka.tools.ConsoleProducer",
        *(*servers, "--topic", topic, "--command-config", str(properties)),
        stdin="".join(f"record {number}\n" for number in range(200)),
    )
    read = kafka_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *(*servers, "--topic", topic, "--command-config", str(properties)),
        *("--from-beginning", "--max-messages", "200", "--timeout-ms", "60000"),
    )
    assert sorted(read.split("\n")[:200]) == sorted(f"record {number}" for number in range(200))


@pytest.mark.proves("aiokafka", "TLS", "client certificate")
async def test_aiokafka(
    secured: LocalFleet, make_topic: MakeTopic, authority: Authority, app: Pair, config: dict[str, str]
) -> None:
    context = ssl.create_default_context(cafile=authority.certificate)
    context.load_cert_chain(app.certificate, app.key)
    topic = make_topic()
    async with AIOKafkaProducer(
        bootstrap_servers=secured.bootstrap(), security_protocol="SSL", ssl_context=context
    ) as producer:
        sent = [await producer.send(topic, b"%d" % number) for number in range(120)]
        await asyncio.gather(*sent)
    assert len(read_all(secured.bootstrap(), topic, 120, config=config)) == 120


@pytest.mark.proves("franz-go", "TLS", "client certificate")
def test_franz_go(
    secured: LocalFleet, kafka: KafkaCluster, make_topic: MakeTopic, authority: Authority, app: Pair
) -> None:
    topic = make_topic()
    sealed = tls(authority.certificate, app)
    with FranzGo(*sealed, "work", secured.bootstrap(), topic, topic, "consumer") as client:
        client.await_flow()
        assert client.close() == 0
    client.check_records(kafka.bootstrap_servers, topic, topic)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(KAFKA_GO, marks=pytest.mark.proves("kafka-go", "TLS", "client certificate")),
        pytest.param(SARAMA, marks=pytest.mark.proves("sarama", "TLS", "client certificate")),
    ],
)
def test_kafka_go_and_sarama(
    secured: LocalFleet,
    kafka: KafkaCluster,
    make_topic: MakeTopic,
    authority: Authority,
    app: Pair,
    program: Path,
) -> None:
    topic = make_topic()
    sealed = tls(authority.certificate, app)
    with GoProgram(program, *sealed, "work", secured.bootstrap(), topic, topic) as client:
        client.await_flow()
        assert client.close() == 0
    client.check_records(kafka.bootstrap_servers, topic, topic)


@pytest.mark.size("test")
def test_client_without_a_certificate_is_refused(secured: LocalFleet, authority: Authority) -> None:
    def refused() -> float:
        pages = (secured.get(each, "/metrics")[1].decode() for each in secured.members)
        return sum(float(value) for page in pages for value in REFUSED.findall(page))

    before = refused()
    anonymous_admin = AdminClient(
        {
            "bootstrap.servers": secured.bootstrap(),
            "security.protocol": "ssl",
            "ssl.ca.location": str(authority.certificate),
        }
    )
    with pytest.raises(Exception, match=r"_TRANSPORT|timed out"):
        anonymous_admin.list_topics(timeout=5)
    wait_for(lambda: refused() > before, "the refusal is counted")


def test_new_certificates_under_load_are_no_error(
    kafka: KafkaCluster,
    secured: LocalFleet,
    authority: Authority,
    make_topic: MakeTopic,
    config: dict[str, Any],
    app: Pair,
) -> None:
    """Existing connections stay, and new connections get the new certificate."""
    topic, served = make_topic(), make_topic()
    context = ssl.create_default_context(cafile=authority.certificate)
    context.load_cert_chain(app.certificate, app.key)
    refused_lines = []
    try:
        with Reader(secured.bootstrap(), topic, **config) as reader:
            with Load(secured.bootstrap(), topic, **config) as load:
                for round_number in range(5):
                    for proxy_id in secured.members:
                        issued = authority.issue(f"{proxy_id}-external").certificate.read_text()
                        refused_lines.append(Connection(secured.bootstrap_endpoint(proxy_id), context))
                        assert refused_lines[-1].certificate == ssl.PEM_cert_to_DER_cert(issued)
                    authority.issue("probe")
                    for each in refused_lines:
                        assert brokers_of(each.ask(metadata(round_number))).keys() == kafka.brokers.keys()
                    produce(secured.bootstrap(), served, [b"by a new connection"] * 12, **config)
                    load.await_flow()
            wait_for(lambda: reader.received == load.acknowledged, "all records read, each once")
        assert load.failures == load.errors == reader.failures == []
    finally:
        for each in refused_lines:
            each.close()
    assert load.acknowledged == count(kafka.bootstrap_servers, topic)
    assert count(kafka.bootstrap_servers, served) == 60


@pytest.mark.proves("librdkafka", "planned move", "takeover", "TLS")
def test_a_drain_and_a_death_under_load(
    kafka: KafkaCluster,
    secured: LocalFleet,
    make_topic: MakeTopic,
    config: dict[str, Any],
    fleet_command: FleetCommand,
) -> None:
    topic, brokers = make_topic(), frozenset(kafka.brokers)
    with Load(secured.bootstrap(), topic, **config) as load:
        fleet_command(secured, "drain", "p2")
        secured.await_settled(brokers, ["p1", "p3"])
        load.await_flow()
        assert load.errors == []
        fleet_command(secured, "undrain", "p2")
        secured.await_settled(brokers, secured.members)
        secured.kill("p3")
        secured.await_settled(brokers, ["p1", "p2"])
        load.await_flow()
        secured.start("p3")
        secured.await_settled(brokers, secured.members)
    assert load.failures == []
    assert load.acknowledged == count(kafka.bootstrap_servers, topic)
