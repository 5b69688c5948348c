"""Brokers that require TLS, certificates and SCRAM, with topics separated by ACLs."""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from fleet.core import event_schema
from fleet.core.errors import AdminError
from fleet.core.event_schema import WeightEvent
from fleet.core.model import IdentitySpace
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.events.weights import read_weights
from fleet.tls.broker_credentials import KafkaAccess
from tests.certificates import Authority
from tests.integration.clients import LIMIT_S, produce, read_all, wait_for
from tests.integration.conftest import PATIENT, ROOT, FleetCommand
from tests.integration.metrics import expiries

pytestmark = pytest.mark.size("test-all")

FLEET_PASSWORD: Final = "correct-horse-battery"
APP = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "app",
    "sasl.password": "staple",
}
"""An application towards the fleet, whose own listeners are plaintext."""
OPEN, CLOSED = "orders", "payroll"
"""Topics that the application may, and may not, write and read."""
MakeSecured = Callable[..., LocalFleet]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def secured(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Two brokers with ACLs: `tls` requires a certificate, `scram` a password, other listeners nothing."""
    scram = "listener.name.scram.scram-sha-512.sasl.jaas.config"
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        scram: "org.apache.kafka.common.security.scram.ScramLoginModule required;",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.issue("broker").both),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.certificate),
        "listener.name.tls.ssl.client.auth": "required",
    }
    with KafkaCluster(
        2,
        tmp_path_factory.mktemp("secured"),
        secured={"tls": "SSL", "scram": "SASL_SSL"},
        properties=properties,
        scram={"fleet": FLEET_PASSWORD, APP["sasl.username"]: APP["sasl.password"]},
    ) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        for made in admin.create_topics([NewTopic(name, 2, 2) for name in (OPEN, CLOSED)]).values():
            made.result(timeout=LIMIT_S)
        for principal in (f"User:{APP['sasl.username']}", "User:CN=proxy"):
            allow(admin, principal, ResourceType.TOPIC, OPEN, AclOperation.WRITE)
            allow(admin, principal, ResourceType.TOPIC, OPEN, AclOperation.READ)
            allow(admin, principal, ResourceType.GROUP, "*", AclOperation.READ)
        yield cluster


def allow(admin: AdminClient, principal: str, kind: ResourceType, name: str, operation: AclOperation) -> None:
    pattern, allowed = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    binding = AclBinding(kind, name, pattern, principal, "*", operation, allowed)
    for made in admin.create_acls([binding]).values():
        made.result(timeout=LIMIT_S)


@pytest.fixture
def make_secured(secured: KafkaCluster, tmp_path: Path) -> Iterator[MakeSecured]:
    """Makes and starts a fleet that reaches the brokers through one of their listeners."""
    made: list[LocalFleet] = []

    def make(listener: str, proxies: int, upstream: dict[str, object], **options: Any) -> LocalFleet:
        endpoints = [secured.listener(listener, broker_id) for broker_id in secured.brokers]
        space = IdentitySpace(first_id=1, count=4)
        options = {"identities": space, "timing": PATIENT, "upstream": upstream, **options}
        fleet = LocalFleet(tmp_path, endpoints, proxies, **options)
        made.append(fleet)
        fleet.start()
        return fleet

    yield make
    for fleet in made:
        fleet.close()
        fleet.remove_data()


def says(fleet: LocalFleet, text: str) -> bool:
    """Whether the first member's log has a line with this text (a regular expression)."""
    log = fleet.log("p1")
    return log.exists() and re.search(text, log.read_text()) is not None


def documented() -> list[str]:
    """The commands that grant the fleet's principal its rights, as in the handbook."""
    text = (ROOT / "docs" / "configuration.md").read_text()
    commands = re.findall(r"kafka-acls --bootstrap-server \S+ (.* User:fleet .*)", text)
    assert len(commands) == 2
    return commands


def grant(secured: KafkaCluster, rights: str) -> None:
    arguments = ("--bootstrap-server", secured.bootstrap_servers, *shlex.split(rights))
    done = secured.tool("org.apache.kafka.tools.AclCommand", *arguments)
    assert done.returncode == 0, done.stderr


def refusal(bootstrap: str, topic: str, **config: Any) -> int:
    """The error code with which a topic refuses a record."""
    refused: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, _: object) -> None:
        if error is not None:
            refused.append(error)

    producer = Producer({"bootstrap.servers": bootstrap, **config})
    try:
        producer.produce(topic, b"x", on_delivery=on_delivery)
    except KafkaException as error:
        return int(error.args[0].code())
    assert producer.flush(LIMIT_S) == 0
    return int(refused[0].code())


def test_brokers_are_trusted_only_by_current_certificates(
    secured: KafkaCluster, authority: Authority, make_secured: MakeSecured, tmp_path: Path
) -> None:
    foreign, ca, own = (
        Authority(tmp_path, "foreign").certificate,
        tmp_path / "ca.pem",
        authority.issue("proxy").both,
    )
    shutil.copy(foreign, ca)
    tls = {"ca": "ca.pem", "certificate": str(own), "key": str(own)}
    fleet = make_secured("tls", 1, {"tls": tls})
    refused = "its certificate is refused: unable to get local issuer certificate"
    expected_log = f"discovery failed, no server listed the brokers: .*{refused}"
    wait_for(lambda: says(fleet, expected_log), "a refusal in the log")
    assert not fleet.ownership("p1").identities

    shutil.copy(authority.certificate, ca)
    fleet.await_settled(frozenset(secured.brokers))
    assert expiries(fleet, "p1").keys() == {"upstream.tls.ca", "upstream.tls.certificate"}
    values = [b"%d" % number for number in range(100)]
    produce(fleet.bootstrap(), OPEN, values)
    read = read_all(fleet.bootstrap(), OPEN, len(values), partitions=2)
    assert sorted(each.value() or b"" for each in read) == sorted(values)

    shutil.copy(foreign, ca)
    wait_for(lambda: says(fleet, f"broker 1 at .* cannot be reached: {refused}"), "the broker is down")
    shutil.copy(authority.certificate, ca)
    wait_for(lambda: says(fleet, "broker 1 at .* is reachable again"), "the broker is up")
    produce(fleet.bootstrap(), OPEN, values)


@pytest.mark.proves("librdkafka", "SASL SCRAM", "ACLs")
def test_documented_rights_suffice_for_fleet_and_clients(
    secured: KafkaCluster,
    authority: Authority,
    make_secured: MakeSecured,
    fleet_command: FleetCommand,
    tmp_path: Path,
) -> None:
    for rights in documented():
        grant(secured, rights)

    password = tmp_path / "password"
    password.touch(0o600)
    password.write_text("wrong")
    sasl = {"mechanism": "SCRAM-SHA-512", "username": "fleet", "password": {"file": "password"}}
    upstream = {"tls": {"ca": str(authority.certificate)}, "sasl": sasl}
    fleet = make_secured("scram", 3, upstream, events={})
    expected_log = "discovery failed, no server listed the brokers: .*SaslAuthenticationFailed"
    wait_for(lambda: says(fleet, expected_log), "the reason in the log")
    password.write_text(f"{FLEET_PASSWORD}\n")
    fleet.await_settled(frozenset(secured.brokers))

    members = read_all(secured.bootstrap_servers, "fleet.members", 3, partitions=3)
    assert {event_schema.EVENTS.decode(each.value() or b"").fleet for each in members} == {"demo"}

    weight = WeightEvent("w1", "demo", 1, 2.5, at_ms=1)
    pipeline = Producer({"bootstrap.servers": secured.bootstrap_servers})
    pipeline.produce("fleet.weights", event_schema.EVENTS.encode(weight), event_schema.key(weight))
    assert pipeline.flush(LIMIT_S) == 0
    settings = fleet.settings
    access = KafkaAccess(settings.upstream, settings.source)
    assert asyncio.run(read_weights(settings.bootstrap_servers, access, "fleet.", "demo")) == {1: 2.5}

    # Clients keep their own principals, and have the same rights as without a fleet.
    direct = ",".join(str(each) for each in settings.bootstrap_servers)
    trust = {"ssl.ca.location": str(authority.certificate)}
    for bootstrap, config in (
        (direct, {**APP, **trust, "security.protocol": "SASL_SSL"}),
        (fleet.bootstrap(), APP),
    ):
        produce(bootstrap, OPEN, [b"1", b"2"], **config)
        assert read_all(bootstrap, OPEN, 2, partitions=2, config=config)
        assert refusal(bootstrap, CLOSED, **config) == KafkaError.TOPIC_AUTHORIZATION_FAILED
        assert refusal(bootstrap, "fleet.members", **config) == KafkaError.TOPIC_AUTHORIZATION_FAILED

    for each in fleet.members:
        assert FLEET_PASSWORD not in fleet.log(each).read_text()
    assert FLEET_PASSWORD not in str(fleet_command(fleet, "check", "--node", "p1"))


@pytest.mark.parametrize("taken", ["Create", "Write", "Read"])
def test_every_documented_right_is_needed(
    secured: KafkaCluster, authority: Authority, make_secured: MakeSecured, tmp_path: Path, taken: str
) -> None:
    """The operation that needs the revoked right names the topic that it may not use."""
    prefix = f"without-{taken.lower()}."
    weights = f"{prefix}weights"
    for rights in documented():
        spared = rights.replace(f"--operation {taken} ", "").replace("--topic fleet.", f"--topic {prefix}")
        if "--operation" in spared:
            grant(secured, spared)
    admin = AdminClient({"bootstrap.servers": secured.bootstrap_servers})
    admin.create_topics([NewTopic(weights, 1, 2)])[weights].result(LIMIT_S)
    weight = WeightEvent("w1", "demo", 1, 2.5, at_ms=1)
    produce(secured.bootstrap_servers, weights, [event_schema.EVENTS.encode(weight)])

    password = tmp_path / "password"
    password.touch(0o600)
    password.write_text(FLEET_PASSWORD)
    sasl = {"mechanism": "SCRAM-SHA-512", "username": "fleet", "password": {"file": "password"}}
    upstream = {"tls": {"ca": str(authority.certificate)}, "sasl": sasl}
    fleet = make_secured("scram", 1, upstream, events={"topic_prefix": prefix})
    fleet.await_settled(frozenset(secured.brokers))

    settings = fleet.settings
    access = KafkaAccess(settings.upstream, settings.source)
    reading = read_weights(settings.bootstrap_servers, access, prefix, "demo")
    if taken == "Read":
        with pytest.raises(AdminError, match=f"TopicAuthorizationFailed.*{weights}"):
            asyncio.run(reading)
        wait_for(lambda: f"{prefix}members" in admin.list_topics(timeout=LIMIT_S).topics, "events")
    else:
        assert asyncio.run(reading) == {1: 2.5}
        denied = rf"events cannot be \w+: .*TopicAuthorizationFailed.*{re.escape(prefix)}"
        wait_for(lambda: says(fleet, denied), "the denied operation in the log")


def test_without_a_principal_brokers_are_learned_from_traffic(
    secured: KafkaCluster, authority: Authority, make_secured: MakeSecured
) -> None:
    fleet = make_secured("scram", 3, {"tls": {"ca": str(authority.certificate)}})
    expected_log = (
        "discovery failed, no server listed the brokers: .*sends no Metadata to clients without credentials"
    )
    wait_for(lambda: says(fleet, expected_log), "the reason in the log")
    assert not fleet.ownership("p1").identities

    produce(fleet.bootstrap(["p1"]), OPEN, [b"1"], **APP)
    fleet.await_settled(frozenset(secured.brokers))
    for each in fleet.members:
        produce(fleet.bootstrap([each]), OPEN, [b"1", b"2", b"3"], **APP)

    # The brokers are known permanently: a restarted fleet needs no client for that.
    fleet.close()
    fleet.start()
    fleet.await_settled(frozenset(secured.brokers))
    leader = fleet.leader()
    assert leader is not None
    fleet.kill(leader)
    survivors = [each for each in fleet.members if each != leader]
    fleet.await_settled(frozenset(secured.brokers), survivors)
    produce(fleet.bootstrap(survivors), OPEN, [b"1", b"2", b"3"], **APP)
