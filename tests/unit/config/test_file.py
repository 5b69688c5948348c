"""fleet/config: accepted files, the report of each mistake, and the documentation of every field."""

from __future__ import annotations

import copy
import dataclasses
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter

from fleet.config import (
    AdminSettings,
    BalanceSettings,
    EventsSettings,
    Limits,
    PeerTlsFiles,
    Settings,
    Timing,
    UpstreamSettings,
    advice,
    bootstrap_endpoints,
    describe_tolerance,
    identity_owners,
)
from fleet.config.file import load, parse_text
from fleet.config.rules import ORDERS
from fleet.config.schema import (
    AdminShape,
    AdminTlsShape,
    FleetShape,
    IdentitiesShape,
    ListenerShape,
    ListenerTlsShape,
    MemberShape,
    PeerTlsShape,
    SaslShape,
    TokensShape,
    TracingShape,
    UpstreamTlsShape,
)
from fleet.config.secrets import Secret
from fleet.core.errors import ConfigError, UnknownMember
from fleet.core.model import Endpoint, IdentitySpace

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "deploy" / "examples" / "fleet.yaml"


TOKENS = {"read": {"env": "READ"}, "write": {"file": "secrets/write-token"}}
SASL = {"mechanism": "SCRAM-SHA-512", "username": "fleet", "password": {"env": "PASSWORD"}}
TOKEN = {"mechanism": "OAUTHBEARER", "token": {"env": "TOKEN"}}

TRACING = {"endpoint": "http://127.0.0.1:4318"}

EMPTY: tuple[dict[str, Any] | None, ...] = ({}, None)


def member(number: int) -> dict[str, Any]:
    return {
        "peer": f"127.0.0.1:{7100 + number}",
        "admin": f"127.0.0.1:{7200 + number}",
        "data_dir": f"d{number}",
        "listeners": {
            "external": {"bind": f"127.0.0.1:{9000 + 100 * number}", "first_port": 9001 + 100 * number}
        },
    }


def tree(members: int = 3) -> dict[str, Any]:
    return {
        "fleet": "demo",
        "bootstrap_servers": ["k1:9092"],
        "identities": {"first_id": 1, "count": 16},
        "members": {f"p{number}": member(number) for number in range(1, members + 1)},
    }


def changed(path: str, value: Any, members: int = 3) -> dict[str, Any]:
    """The valid tree with one field set, or removed if the value is ``...``."""
    data = copy.deepcopy(tree(members))
    *outer, last = path.split(".")
    node = data
    for key in outer:
        node = node.setdefault(key, {})
    if value is ...:
        del node[last]
    else:
        node[last] = value
    return data


def parse(data: Any, environ: dict[str, str] | None = None, base: str = "/fleet") -> Settings:
    text = data if isinstance(data, str) else yaml.safe_dump(data, sort_keys=False)
    return parse_text(text, environ or {}, "fleet.yaml", Path(base))


def mistakes(data: Any, **more: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(data, **more)
    return str(caught.value).splitlines()


def only_mistake(data: Any, **more: Any) -> str:
    found = mistakes(data, **more)
    assert len(found) == 1, found
    return found[0]


def test_example_is_valid_and_tolerates_one_voter() -> None:
    settings = load(EXAMPLE, {})
    assert settings.voters == ("p1", "p2", "p3")
    assert settings.identities == IdentitySpace(1, 16)
    assert settings.member("p2").listeners[0].bootstrap == Endpoint("127.0.0.1", 9130)
    assert settings.member("p1").data_dir == EXAMPLE.parent / "data" / "p1"
    assert settings.source == str(EXAMPLE)
    assert advice(settings) == ()


def test_longest_data_dir_of_the_previous_release_is_taken() -> None:
    """0.2.0 had the socket in ``data_dir`` itself, and accepted a path of 100 bytes."""
    longest = "d" * (100 - len("/fleet/") - len("/control.sock"))
    document = tree(5)
    document["members"]["p1"]["data_dir"] = longest
    assert len(str(parse(document).member("p1").control_socket)) == 107
    document["members"]["p1"]["data_dir"] = longest + "d"
    with pytest.raises(ConfigError, match="has 108 bytes, but a Unix socket may have 107"):
        parse(document)


def test_defaults_are_filled_in() -> None:
    settings = parse(tree(5))
    assert settings.voters == ("p1", "p2", "p3")
    assert settings.timing == Timing()
    assert settings.limits == Limits()
    found = settings.member("p1")
    assert (found.workers, found.rack, found.witness) == (1, None, False)
    assert found.control_socket == Path("/fleet/d1/member/control.sock")
    listener = found.listeners[0]
    assert (listener.advertised_host, listener.advertised_bootstrap_port) == ("127.0.0.1", 9100)
    assert listener.advertised_first_port == 9101


def test_advertised_address_may_differ_from_bound_address() -> None:
    data = tree(1)
    listener = data["members"]["p1"]["listeners"]["external"]
    listener |= {"bind": "0.0.0.0:9100", "advertise": "proxy.example:19100"}
    found = parse(data).member("p1").listeners[0]
    assert (found.bind_host, found.bootstrap_port, found.first_port) == ("0.0.0.0", 9100, 9101)
    assert (found.advertised_host, found.advertised_bootstrap_port) == ("proxy.example", 19100)
    assert found.advertised_first_port == 19101

    listener["advertise_first_port"] = 30000
    settings = parse(data)
    advertised = settings.member("p1").to_member(settings)
    assert advertised.endpoint("external", 3) == Endpoint("proxy.example", 30002)


def test_advertised_identity_ports_may_go_up_to_the_last_one() -> None:
    path = "members.p1.listeners.external.advertise_first_port"
    assert parse(changed(path, 65520)).member("p1").listeners[0].advertised_first_port == 65520
    assert "advertised identity ports would be 65521-65536" in only_mistake(changed(path, 65521))


def test_witness_votes_in_place_of_a_fourth_member() -> None:
    data = tree(4)
    data["members"]["w"] = {
        "peer": "127.0.0.1:7109",
        "admin": "127.0.0.1:7209",
        "data_dir": "w",
        "witness": True,
    }
    assert parse(data).voters == ("p1", "p2", "p3", "w")


def test_a_witness_votes_and_serves_nothing() -> None:
    data = tree(2)
    data["members"]["w"] = {
        "peer": "127.0.0.1:7109",
        "admin": "127.0.0.1:7209",
        "data_dir": "w",
        "witness": True,
    }
    settings = parse(data)
    assert settings.voters == ("p1", "p2", "w")
    witness = settings.member("w")
    assert (witness.listeners, witness.workers) == ((), 0)
    assert not witness.to_member(settings).serves(1)
    assert settings.member("p1").to_member(settings).serves(1)


def test_sparse_ids_ipv6_and_odd_names_are_accepted() -> None:
    data = changed("identities", {"ids": {1001: 0, 2001: 5}}, members=1)
    data["members"]["no"] = data["members"].pop("p1") | {"rack": "1a", "peer": "[::1]:7101"}
    settings = parse(data)
    assert settings.identities == IdentitySpace(explicit=((1001, 0), (2001, 5)))
    assert settings.member("no").peer == Endpoint("::1", 7101)


def test_an_unknown_member_is_named_with_the_known_ones() -> None:
    with pytest.raises(UnknownMember, match="no member 'p9'; use one of p1, p2, p3"):
        parse(tree()).member("p9")


def test_workers_auto_is_one_worker_per_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for cpus, workers in ((1, 1), (48, 48), (96, 64)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cpus=cpus: set(range(cpus)))
        assert parse(changed("members.p1.workers", "auto")).member("p1").workers == workers


def test_values_come_from_the_environment() -> None:
    data = changed("bootstrap_servers", ["${KAFKA}", "${OTHER:-k2:9092}"])
    data["members"]["p1"]["workers"] = "W"
    text = yaml.safe_dump(data).replace("workers: W", "workers: ${WORKERS}")
    settings = parse(text, environ={"KAFKA": "k1:1", "WORKERS": "3", "OTHER": ""})
    assert settings.bootstrap_servers == (Endpoint("k1", 1), Endpoint("k2", 9092))
    assert settings.member("p1").workers == 3
    assert (
        "environment variable KAFKA is not set; set KAFKA, or write ${KAFKA:-default}"
        in mistakes(text, environ={"WORKERS": "3"})[0]
    )


@pytest.mark.parametrize(
    ("written", "environ", "rack"),
    [
        ("${ZONE:-}", {"ZONE": "a"}, "a"),
        ("${ZONE:-}", {"ZONE": ""}, None),
        ("${ZONE:-}", {}, None),
        ('"${ZONE:-unknown}"', {"ZONE": "1"}, "1"),  # without quotes it would be a number, not a rack
        ('"${ZONE:-unknown}"', {"ZONE": ""}, "unknown"),
    ],
)
def test_a_rack_may_come_from_the_environment(
    written: str, environ: dict[str, str], rack: str | None
) -> None:
    text = yaml.safe_dump(changed("members.p1.rack", "R")).replace("rack: R", f"rack: {written}")
    assert parse(text, environ=environ).member("p1").rack == rack


def test_empty_events_section_enables_events() -> None:
    assert parse(tree()).events is None
    for section in EMPTY:
        assert parse(changed("events", section)).events == EventsSettings()
    section = {"topic_prefix": "ops.fleet-", "replication_factor": 2, "spool_bytes": 1 << 20}
    assert parse(changed("events", section)).events == EventsSettings("ops.fleet-", 2, 1 << 20)


def test_with_peer_tls_members_may_be_anywhere() -> None:
    data = changed("peer_tls", {})
    data["members"]["p1"]["peer"] = "10.1.1.1:7101"
    data["members"]["p2"]["peer"] = "p2.example:7101"
    assert parse(data).member("p2").peer == Endpoint("p2.example", 7101)
    data["members"]["p2"]["peer"] = "0.0.0.0:7101"
    assert "is a wildcard, which members cannot dial" in only_mistake(data)


def test_peer_certificates_default_to_folder_of_the_file() -> None:
    assert parse(tree()).peer_tls is None
    for section in EMPTY:
        found = parse(changed("peer_tls", section)).peer_tls
        assert found is not None
        assert found.files("p2") == PeerTlsFiles(
            Path("/fleet/certs/ca.pem"), Path("/fleet/certs/p2.crt"), Path("/fleet/certs/p2.key")
        )
    output = {"ca": "/etc/ca.pem", "certificate": "../{proxy_id}/${WHO}.pem", "key": "own.key"}
    found = parse(changed("peer_tls", output), environ={"WHO": "me"}).peer_tls
    assert found is not None
    assert found.files("p1") == PeerTlsFiles(Path("/etc/ca.pem"), Path("/p1/me.pem"), Path("/fleet/own.key"))


def test_listener_certificates_are_per_member() -> None:
    assert parse(tree()).listener_tls == {}
    section = {"external": {"certificate": "{proxy_id}.crt", "key": "/etc/{proxy_id}.key"}}
    found = parse(changed("listener_tls", section)).listener_tls["external"]
    assert found.client_certificates == "none"
    assert found.for_member("p2").files == {"certificate": Path("/fleet/p2.crt"), "key": Path("/etc/p2.key")}


PAIR = {"certificate": "a.crt", "key": "a.key"}
ASKING = {**PAIR, "client_ca": "ca.pem", "client_certificates": "required"}


@pytest.mark.parametrize(
    ("name", "section", "expected"),
    [
        ("external", {"key": "a.key"}, ["external.certificate: is required; add"]),
        ("internal", PAIR, ["listener_tls.internal: no member has a listener of this name; use the name"]),
        (
            "external",
            {**PAIR, "client_certificates": "allowed"},
            ["external.client_ca: is required with `client_certificates: allowed`"],
        ),
        ("external", ASKING, ["probe_certificate: is required with", "probe_key: is required with"]),
        (
            "external",
            {**ASKING, "client_certificates": "allowed", "probe_key": "p.key"},
            ["probe_certificate: is required with probe_key"],
        ),
        (
            "external",
            {**PAIR, "client_ca": "ca.pem"},
            ['client_ca: "ca.pem": is not used with `client_certificates: none`'],
        ),
        ("external", {**PAIR, "min_version": "1.1"}, ['min_version: "1.1": is not an allowed value']),
        ("external", {**PAIR, "cipher": "x"}, ["cipher: is not a known setting; did you mean ciphers?"]),
        ("external", [], ["listener_tls.external: []: must be a map"]),
    ],
)
def test_listener_tls_mistake_is_reported(name: str, section: object, expected: list[str]) -> None:
    found = mistakes(yaml.safe_dump(changed("listener_tls", {name: section})))
    assert len(found) == len(expected), found
    for line, output in zip(found, expected, strict=True):
        assert output in line


def by_name(**changes: object) -> dict[str, Any]:
    """Three members whose clients give server names; `...` removes a field of p1's listener."""
    data = changed("listener_tls", {"external": PAIR})
    for number, (proxy_id, member) in enumerate(data["members"].items()):
        member["listeners"]["external"] = {
            "bind": f"127.0.0.1:{9100 + number}",
            "advertise": f"{proxy_id}.kafka.example:9092",
            "addressing": "sni",
            "broker_host": "broker-{broker_id}.{proxy_id}.kafka.example",
        }
    own = data["members"]["p1"]["listeners"]["external"]
    own.update({name: value for name, value in changes.items() if value is not ...})
    for name in (name for name, value in changes.items() if value is ...):
        del own[name]
    return data


def test_brokers_may_have_names_instead_of_ports() -> None:
    settings = parse(by_name())
    member = settings.member("p2").to_member(settings)
    assert member.endpoint("external", 1) == Endpoint("broker-1.p2.kafka.example", 9092)
    assert identity_owners(settings)[Endpoint("broker-1.p3.kafka.example", 9092)] == "p3"
    assert bootstrap_endpoints(settings)["p1"] == Endpoint("p1.kafka.example", 9092)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"broker_host": ...}, "external.broker_host: is required; add"),
        ({"broker_host": "broker.kafka.example"}, "must be a host name that contains {broker_id} once"),
        (
            {"broker_host": "{broker_id}.{broker_id}.example"},
            "must be a host name that contains {broker_id} once",
        ),
        ({"broker_host": "{broker_id}.{id}.example"}, "must be a host name that contains {broker_id} once"),
        ({"broker_host": "b-{broker_id}.p2.kafka.example"}, None),
        (
            {"broker_host": "broker-{broker_id}.p2.kafka.example"},
            "p1 advertises the same name and port, so clients",
        ),
        ({"first_port": 9101}, "first_port: 9101: is not used with `addressing: sni`"),
        (
            {"advertise": ...},
            'bind: "127.0.0.1:9100": must be a host name: clients send no SNI for an IP address',
        ),
        ({"advertise": "10.0.0.1:9092"}, 'advertise: "10.0.0.1:9092": must be a host name'),
        ({"addressing": "none"}, 'addressing: "none": is not an allowed value'),
    ],
)
def test_broker_host_mistake_is_reported(changes: dict[str, object], expected: str | None) -> None:
    if expected is None:
        parse(by_name(**changes))
    else:
        assert expected in only_mistake(by_name(**changes))


def test_names_of_brokers_need_tls() -> None:
    data = by_name()
    del data["listener_tls"]
    assert all("requires TLS; add `listener_tls: {external" in each for each in mistakes(data))
    data = changed("members.p1.listeners.external.broker_host", "b-{broker_id}.example")
    assert "requires `addressing: sni`; remove this line, or add `addr" in only_mistake(data)


def by_address(**changes: object) -> dict[str, Any]:
    """Three members with an IP address for each identity; `...` removes a field of p1's listener."""
    data = tree()
    for number, member in enumerate(data["members"].values(), 1):
        member["listeners"]["external"] = {
            "bind": f"10.0.{number}.1:9092",
            "addressing": "addresses",
            "first_address": f"10.0.{number}.11",
        }
    own = data["members"]["p1"]["listeners"]["external"]
    own.update({name: value for name, value in changes.items() if value is not ...})
    for name in (name for name, value in changes.items() if value is ...):
        del own[name]
    return data


def test_brokers_may_have_addresses_instead_of_ports() -> None:
    settings = parse(by_address())
    member = settings.member("p2").to_member(settings)
    assert member.endpoint("external", 1) == Endpoint("10.0.2.11", 9092)
    assert member.endpoint("external", 16) == Endpoint("10.0.2.26", 9092)
    assert identity_owners(settings)[Endpoint("10.0.3.12", 9092)] == "p3"
    assert bootstrap_endpoints(settings)["p1"] == Endpoint("10.0.1.1", 9092)
    bound = dict(settings.member("p1").listeners[0].bound(settings.identities))
    assert bound[2] == Endpoint("10.0.1.12", 9092)


def test_advertised_addresses_may_differ_from_bound_ones() -> None:
    data = by_address(advertise="192.0.2.1:9192", advertise_first_address="192.0.2.11")
    data["identities"] = {"ids": {1001: 0, 2001: 5}}
    settings = parse(data)
    assert settings.member("p1").to_member(settings).endpoint("external", 2001) == Endpoint(
        "192.0.2.16", 9192
    )
    bound = dict(settings.member("p1").listeners[0].bound(settings.identities))
    assert bound == {1001: Endpoint("10.0.1.11", 9092), 2001: Endpoint("10.0.1.16", 9092)}


def test_addresses_of_version_6_are_added_up() -> None:
    settings = parse(by_address(bind="[fd00:5::1]:9092", first_address="FD00:5::ff"))
    endpoints = dict(settings.member("p1").listeners[0].bound(settings.identities))
    assert (str(endpoints[1]), str(endpoints[2])) == ("[fd00:5::ff]:9092", "[fd00:5::100]:9092")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"first_address": ...}, "external.first_address: is required; add `first_address: "),
        ({"first_address": "p1.example"}, 'first_address: "p1.example": must be an IP address; write'),
        ({"first_address": 10}, "first_address: 10: must be an IP address"),
        ({"first_address": "0.0.0.0"}, "must be the address of one host, without a zone"),
        ({"first_address": "fe80::1%eth0"}, "must be the address of one host, without a zone"),
        (
            {"first_address": "255.255.255.250"},
            'first_address: "255.255.255.250": there are no 15 addresses above this one; use a lower',
        ),
        (
            {"advertise": "p1.example:9092", "advertise_first_address": "255.255.255.250"},
            'advertise_first_address: "255.255.255.250": there are no 15 addresses above',
        ),
        (
            {"bind": "0.0.0.0:9092", "advertise": "p1.example:9092"},
            'bind: "0.0.0.0:9092": is a wildcard, which has the addresses of all identities, too; use',
        ),
        (
            {"bind": "10.0.1.12:9092"},
            "range of identity addresses of listener external overlaps the bootstrap port of listener "
            "external of p1 at port 9092",
        ),
        (
            {"first_address": "10.0.2.1"},
            "overlaps the range of identity addresses of listener external of p1 at port 9092",
        ),
        (
            {"advertise_first_address": "10.0.2.20"},
            "range of advertised identity addresses of listener external overlaps the range of advertised",
        ),
        ({"first_port": 9101}, "first_port: 9101: is not used with `addressing: addresses`: all id"),
        ({"broker_host": "b-{broker_id}.example"}, "requires `addressing: sni`; remove this line"),
    ],
)
def test_address_mistake_is_reported(changes: dict[str, object], expected: str) -> None:
    assert expected in "\n".join(mistakes(by_address(**changes)))


def test_first_address_requires_its_addressing() -> None:
    data = changed("members.p1.listeners.external.first_address", "10.0.1.11")
    assert "requires `addressing: addresses`; remove this line, or add `addr" in only_mistake(data)


def test_ranges_of_addresses_may_touch() -> None:
    data = by_address(bind="10.0.2.27:9092", first_address="10.0.2.28")
    data["members"]["p3"]["listeners"]["external"]["first_address"] = "10.0.2.44"
    parse(data)
    data["members"]["p3"]["listeners"]["external"]["first_address"] = "10.0.2.43"
    assert "overlaps the range of identity addresses" in mistakes(data)[0]


def by_request(**changes: object) -> dict[str, Any]:
    """Three members with one port for all brokers; `...` removes a field of p1's listener."""
    data = tree()
    for number, (proxy_id, member) in enumerate(data["members"].items(), 1):
        member["listeners"]["external"] = {
            "bind": f"10.0.{number}.1:9092",
            "advertise": f"{proxy_id}.kafka.example:9092",
            "addressing": "shared",
            "broker_host": "b{broker_id}.{proxy_id}.kafka.example",
        }
    own = data["members"]["p1"]["listeners"]["external"]
    own.update({name: value for name, value in changes.items() if value is not ...})
    for name in (name for name, value in changes.items() if value is ...):
        del own[name]
    return data


def test_brokers_may_share_a_port_without_tls() -> None:
    settings = parse(by_request())
    member = settings.member("p2").to_member(settings)
    assert member.endpoint("external", 1) == Endpoint("b1.p2.kafka.example", 9092)
    listener = settings.member("p1").listeners[0]
    assert (listener.is_shared, listener.same_host) == (True, False)
    assert list(listener.bound(settings.identities)) == []
    assert advice(settings) == ()


def test_brokers_with_the_same_host_are_warned_of() -> None:
    data = by_request()
    for member in data["members"].values():
        del member["listeners"]["external"]["broker_host"]
    settings = parse(data)
    member = settings.member("p2").to_member(settings)
    assert member.endpoint("external", 1) == Endpoint("p2.kafka.example", 9092)
    (sentence,) = advice(settings)
    assert sentence.startswith("listeners.external: all brokers have the same host name, so kafkajs and libr")
    assert "add `broker_host: broker-{broker_id}.{proxy_id}.kafka.example`" in sentence


def test_members_behind_one_address_may_advertise_the_same_names() -> None:
    data = by_request()
    for member in data["members"].values():
        member["listeners"]["external"] |= {
            "advertise": "kafka.example:9092",
            "broker_host": "b{broker_id}.kafka.example",
        }
    assert advice(parse(data)) == ()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"first_port": 9101},
            "first_port: 9101: is not used with `addressing: shared`: all identities share",
        ),
        ({"first_address": "10.0.1.2"}, 'first_address: "10.0.1.2": requires `addressing: addresses`'),
        ({"broker_host": "kafka.example"}, "must be a host name that contains {broker_id} once"),
        ({"bind": ...}, "external.bind: is required"),
    ],
)
def test_mistake_in_a_shared_listener_is_reported(changes: dict[str, object], expected: str) -> None:
    assert expected in only_mistake(by_request(**changes))


def test_admin_certificates_default_to_those_of_links() -> None:
    assert parse(tree()).admin == parse(changed("admin", {})).admin == AdminSettings()
    for section in EMPTY:
        found = parse(changed("admin.tls", section)).admin.tls
        assert found is not None
        own = found.for_member("p2")
        assert (own.ca, own.certificate, own.key) == (
            Path("/fleet/certs/ca.pem"),
            Path("/fleet/certs/p2.crt"),
            Path("/fleet/certs/p2.key"),
        )
    output = {"ca": None, "certificate": "/etc/{proxy_id}.pem", "key": "own.key"}
    found = parse(changed("admin.tls", output)).admin.tls
    assert found is not None
    own = found.for_member("p1")
    assert (own.ca, own.certificate, own.key) == (None, Path("/etc/p1.pem"), Path("/fleet/own.key"))


def test_file_names_the_places_of_tokens() -> None:
    tokens = parse(changed("admin.tokens", TOKENS)).admin.tokens
    assert tokens is not None
    assert tokens.read == Secret(None, "READ", ("admin", "tokens", "read"), tokens.read.line)
    assert tokens.write.file == Path("/fleet/secrets/write-token")
    assert tokens.write.line == tokens.read.line + 2


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "p1.example"])
def test_remote_admin_address_requires_tokens_or_open_to_read(host: str, tls: bool) -> None:
    """Readers of an admin address see the addresses of the brokers."""
    data = changed("members.p1.admin", f"{host}:7201")
    data["admin"] = {"tls": {}} if tls else {}
    output = only_mistake(data)
    where = f"admin.tokens: members.p1.admin ({host}:7201) is not loopback, so "
    assert f"{where}anyone who can reach it could read where the brokers are; " in output
    assert "`open_to_read: true`" in output
    data["admin"]["open_to_read"] = True
    assert parse(data).admin.open_to_read


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "p1.example"])
def test_tokens_require_tls_beyond_loopback(host: str) -> None:
    data = changed("admin.tokens", TOKENS)
    for member_id in ("p1", "p2"):
        data["members"][member_id]["admin"] = f"{host}:730{member_id[1]}"
    output = only_mistake(data)
    assert (
        f"admin.tokens: members.p1.admin ({host}:7301) is not loopback, so tokens would cross the network"
        in output
    )
    data["admin"]["tls"] = {}
    assert advice(parse(data)) == ()


@pytest.mark.parametrize(
    "tokens",
    [
        "hidden-0123456789",
        ["hidden-0123456789"],
        {"read": "hidden-0123456789", "write": {"hidden-0123456789": 1}},
    ],
)
def test_a_token_in_the_file_is_not_shown(tokens: Any) -> None:
    output = mistakes(changed("admin.tokens", tokens))
    assert all(re.match(r"fleet\.yaml:\d+: admin\.tokens", each) for each in output)
    assert "hidden" not in " ".join(output)


def test_upstream_is_plaintext_by_default() -> None:
    assert parse(tree()).upstream == UpstreamSettings()
    # A section without a value turns TLS on.
    for empty in EMPTY:
        tls = parse(changed("upstream.tls", empty)).upstream.tls
        assert tls is not None
        assert (tls.files, tls.check_hostname) == ({}, True)


def test_upstream_files_are_relative_to_the_configuration() -> None:
    data = changed("upstream.tls", {"ca": "kafka-ca.pem", "certificate": "a.crt", "key": "/etc/a.key"})
    data["upstream"]["sasl"] = {**SASL, "password": {"file": "secrets/kafka"}}
    upstream = parse(data, base="/etc/fleet").upstream
    assert upstream.tls is not None
    assert upstream.tls.files == {
        "ca": Path("/etc/fleet/kafka-ca.pem"),
        "certificate": Path("/etc/fleet/a.crt"),
        "key": Path("/etc/a.key"),
    }
    assert upstream.sasl is not None
    assert (upstream.sasl.mechanism, upstream.sasl.username) == ("SCRAM-SHA-512", "fleet")
    assert upstream.sasl.secret.file == Path("/etc/fleet/secrets/kafka")


def test_password_in_the_file_is_not_shown() -> None:
    for password in ("hidden", {"value": "hidden"}, ["hidden"], {"file": ["hidden"]}):
        assert "hidden" not in only_mistake(changed("upstream.sasl", {**SASL, "password": password}))
    data = changed("upstream.sasl", {**SASL, "password": "${PASSWORD}"})
    assert "hidden" not in only_mistake(data, environ={"PASSWORD": "hidden"})


def test_settings_for_children_name_the_place_of_the_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PASSWORD", "hidden")
    settings = parse(changed("upstream.sasl", SASL))
    adapter = TypeAdapter(Settings)
    crossed = adapter.dump_json(settings)
    assert adapter.validate_json(crossed) == settings
    assert settings.upstream.sasl is not None
    assert settings.upstream.sasl.secret.read("") == "hidden"
    assert b"hidden" not in crossed
    assert "hidden" not in repr(settings)


def test_merge_keys_and_anchors_share_settings() -> None:
    text = yaml.safe_dump(tree(1)).replace("  p1:", "  p1: &m", 1)
    text += "  p2:\n    <<: *m\n    peer: 127.0.0.1:1\n    admin: 127.0.0.1:2\n    data_dir: x\n"
    text += "    listeners: {external: {bind: 127.0.0.2:9100, first_port: 9101}}\n"
    assert parse(text).member("p2").peer == Endpoint("127.0.0.1", 1)


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("fleet", ..., "fleet: is required"),
        ("fleet", "a b", 'fleet: "a b": must be 1 to 63 letters'),
        ("fleet", 7, "fleet: 7: must be text; put it in quotes"),
        ("bootstrap_servers", ..., "bootstrap_servers: is required"),
        ("bootstrap_servers", [], "bootstrap_servers: []: must not be empty"),
        ("bootstrap_servers", "k:1", 'bootstrap_servers: "k:1": must be a list'),
        ("bootstrap_servers", ["k"], 'bootstrap_servers.0: "k": must be host:port'),
        ("bootstrap_servers", ["k:1", "k:1"], 'bootstrap_servers.1: "k:1": is listed twice'),
        (
            "bootstrap_servers",
            ["127.0.0.1:9200"],
            "is the address of listener external of p2, so the fleet would proxy itself",
        ),
        ("bootstrap_servers", ["0.0.0.0:1"], "is a wildcard, which members cannot dial"),
        (
            "bootstrap_server",
            ["k:1"],
            "bootstrap_server: is not a known setting; did you mean bootstrap_servers?",
        ),
        ("identities", ..., "identities: is required"),
        ("identities", {"first_id": 1}, "identities.count: is required"),
        ("identities", {"first_id": 1, "count": 0}, "identities.count: 0: must be at least 1"),
        ("identities", {"first_id": 2147483647, "count": 2}, "the last broker id must be at most 2147483647"),
        (
            "identities",
            {"ids": {1: 0}, "count": 4},
            "identities: must have either ids, or first_id and count",
        ),
        ("identities", {"ids": {1: 3, 2: 3}}, "identities.ids.2: 3: broker 1 already has port offset 3"),
        ("identities", {"ids": {1: -1}}, "offset of broker 1 must be 0..65534"),
        ("identities", {"ids": {"x": 1}}, "broker id 'x' must be 0..2147483647"),
        ("members", ..., "members: is required"),
        ("members", {}, "members: is required"),
        ("members.p1.peer", "10.1.1.1:7101", "host must be loopback without `peer_tls:`"),
        ("members.p1.peer", "0.0.0.0:7101", "is a wildcard, which members cannot dial"),
        ("peer_tls", {"ca": ""}, "must be the path of a file"),
        ("peer_tls", {"key": 7}, "must be the path of a file"),
        ("peer_tls", {"certificate": "certs/{id}.crt"}, "braces may contain only {proxy_id}"),
        ("peer_tls", {"cert": "p1.crt"}, "is not a known setting"),
        ("peer_tls", "certs", "must be a map"),
        ("members.p1.peer", ..., "members.p1.peer: is required; add `peer: 127.0.0.1:7101`"),
        ("members.p1.admin", "127.0.0.1:x", "port must be a number"),
        ("members.p1.admin", "127.0.0.1:0", "port must be 1..65535"),
        ("members.p1.admin", "127.0.0.1:65536", "port must be 1..65535"),
        ("members.p1.admin", "::1:7201", 'an IPv6 address must be in brackets; write it as "[::1]:7201"'),
        ("members.p1.admin", "[host]:7201", "only an IPv6 address may be in brackets"),
        ("members.p1.admin", "a/b:7201", "host must be a name or an address"),
        (
            "members.p1.admin",
            "127.0.0.1:7101",
            "admin port overlaps the peer port of p1 at port 7101",
        ),
        (
            "members.p1.admin",
            "127.0.0.1:9105",
            "identity ports of listener external overlap the admin port of p1 at port 9105",
        ),
        (
            "members.p1.admin",
            "127.0.0.1:7202",
            "admin port overlaps the admin port of p1 at port 7202",
        ),
        ("members.p1.data_dir", "d2", 'members.p2.data_dir: "d2": is already the directory of p1'),
        ("members.p1.data_dir", "./x/../d2", 'members.p2.data_dir: "d2": is already the directory of p1'),
        ("members.p1.data_dir", "", 'members.p1.data_dir: "": must not be empty'),
        (
            "members.p1.data_dir",
            "x" * 90,
            "/member/control.sock has 117 bytes, but a Unix socket may have 107",
        ),
        ("members.p1.workers", 0, "members.p1.workers: 0: must be at least 1"),
        ("members.p1.workers", "2", 'members.p1.workers: "2": must be a whole number'),
        ("members.p1.workers", True, "members.p1.workers: true: must be a whole number"),
        ("members.p1.voter", "yes", 'members.p1.voter: "yes": must be true or false'),
        ("members.p1.rack", 1, "members.p1.rack: 1: must be text; put it in quotes"),
        ("members.p1.wrokers", 2, "members.p1.wrokers: is not a known setting; did you mean workers?"),
        ("members.p1.witness", True, "members.p1.listeners: a witness has no data plane"),
        ("members.p1.listeners", {}, "members.p1.listeners: at least one listener is required"),
        ("members.p1.listeners", [1], "members.p1.listeners: [1]: must be a map"),
        ("members.p1.listeners.external.bind", ..., "members.p1.listeners.external.bind: is required"),
        ("members.p1.listeners.external.first_port", ..., "external.first_port: is required"),
        (
            "members.p1.listeners.external.bind",
            "0.0.0.0:9100",
            "is a wildcard, which clients cannot dial; add `advertise:",
        ),
        ("members.p1.listeners.external.advertise", "[::]:9100", 'advertise: "[::]:9100": is a wildcard'),
        ("members.p1.listeners.external.first_port", 65530, "the last identity port would be 65545"),
        (
            "members.p1.listeners.external.first_port",
            9095,
            "overlap the bootstrap port of listener external of p1 at port 9100",
        ),
        (
            "members.p1.listeners.external.advertise_first_port",
            65530,
            "advertised identity ports would be 65530-65545",
        ),
        (
            "members.p1.listeners.external.advertise_first_port",
            9201,
            "overlap the advertised identity ports of listener",
        ),
        ("timing.heartbeat_s", "x", 'timing.heartbeat_s: "x": must be a number of seconds'),
        ("timing.heartbeat_s", -1, "timing.heartbeat_s: -1: must be above 0"),
        ("timing.grace_s", 4000, "timing.grace_s: 4000: must be at most 3600"),
        ("timing.hartbeat_s", 1, "timing.hartbeat_s: is not a known setting; did you mean heartbeat_s?"),
        ("limits.max_request_bytes", 1, "limits.max_request_bytes: 1: must be at least 4096"),
        ("limits", 5, "limits: 5: must be a map"),
        ("limits.max_connections", 0, "limits.max_connections: 0: must be at least 1"),
        ("limits.max_connections_per_source", "2", 'per_source: "2": must be a whole number'),
        (
            "limits.to_broker_bytes_per_second",
            1,
            "limits.to_broker_bytes_per_second: 1: must be at least 65536",
        ),
        ("limits.idle_timeout_s", 0, "limits.idle_timeout_s: 0: must be above 0"),
        ("limits.listen_backlog", 70_000, "limits.listen_backlog: 70000: must be at most 65535"),
        ("limits.first_request_timeout_s", 0.2, "0.2: must be at least 3 x timing.heartbeat_s"),
        ("admin", 5, "admin: 5: must be a map"),
        ("admin.token", {}, "admin.token: is not a known setting; did you mean tokens?"),
        ("admin.tls", 5, "admin.tls: 5: must be a map"),
        ("admin.tls", {"certificate": "{id}.crt"}, "braces may contain only {proxy_id}"),
        ("admin.tls", {"ca": ""}, 'admin.tls.ca: "": must not be empty'),
        ("admin.tokens", None, "admin.tokens: must be a map with both tokens"),
        (
            "admin.tokens",
            {"read": {"env": "R"}},
            "admin.tokens.write: is required; write {read: {file: PATH}",
        ),
        (
            "admin.tokens",
            {"read": {"env": "R"}, "write": {}},
            "tokens.write: must be `{file: PATH}` or `{env: NAME}`, not the secret",
        ),
        ("events.topic_prefix", "a b", 'events.topic_prefix: "a b": must be 1 to 200 letters, digits'),
        ("events.topic_prefix", 5, "events.topic_prefix: 5: must be text"),
        ("events.replication_factor", 0, "events.replication_factor: 0: must be at least 1"),
        ("events.spool_bytes", 5, "events.spool_bytes: 5: must be at least 1048576"),
        ("events", 5, "events: 5: must be a map"),
        ("tracing", 5, "tracing: 5: must be a map"),
        ("tracing", {}, "tracing.endpoint: is required; add `endpoint: http"),
        ("tracing", None, "tracing.endpoint: is required"),
        ("tracing.endpoint", 5, "tracing.endpoint: 5: must be text"),
        ("tracing.endpoint", "collector:4318", 'endpoint: "collector:4318": must be the URL of a collector'),
        ("tracing.endpoint", "http://:4318", "must be the URL of a collector"),
        ("tracing.endpoint", "http://a:70000", "must be the URL of a collector"),
        ("tracing.endpoint", "http://a b", "must be the URL of a collector"),
        ("tracing.endpoint", "grpc://a:4317", "must be the URL of a collector"),
        ("tracing.endpoint", "http://a:4318/v1/traces/", "must be the URL without /v1/traces"),
        ("tracing.endpoint", "http://a:4318/?x=1", "must be the URL without /v1/traces"),
        (
            "tracing.endpoint",
            "http://me:hidden@a:4318",
            "tracing.endpoint: must not contain a user name or a password",
        ),
        ("tracing", {**TRACING, "sampling": 1}, "tracing.sampling: is not a known setting"),
        (
            "tracing",
            {**TRACING, "headers": "hidden"},
            "tracing.headers: must be a map from the name of a header",
        ),
        ("tracing", {**TRACING, "headers": {"A": "hidden"}}, "tracing.headers.A: must be `{file: PATH}`"),
        (
            "tracing",
            {**TRACING, "headers": {"A b": {"env": "A"}}},
            "tracing.headers.A b: is not a valid header",
        ),
        ("balance.by", "load", 'balance.by: "load": is not an allowed value'),
        ("balance.by", "weights", 'balance.by: "weights": weights are read from a topic of `events:`'),
        ("balance.min_gain", 1, "balance.min_gain: 1: must be below 1"),
        ("balance.every_s", 0, "balance.every_s: 0: must be at least 1"),
        ("balance", 5, "balance: 5: must be a map"),
        ("upstream", 5, "upstream: 5: must be a map"),
        ("upstream.ssl", {}, "upstream.ssl: is not a known setting"),
        ("upstream.tls", "yes", 'upstream.tls: "yes": must be a map'),
        ("upstream.tls", {"ca": ""}, 'upstream.tls.ca: "": must not be empty'),
        (
            "upstream.tls",
            {"certificate": "a"},
            'upstream.tls.certificate: "a": requires `key`; add `key: FILE.pem`',
        ),
        (
            "upstream.tls",
            {"key": "a"},
            'upstream.tls.key: "a": requires `certificate`; add `certificate: FILE.pem`',
        ),
        ("upstream.tls", {"key": "a", "certificate": 5}, "upstream.tls.certificate: 5: must be text"),
        ("upstream.tls", {"check_hostname": "no"}, 'check_hostname: "no": must be true or false'),
        ("upstream.sasl", {**SASL, "mechanism": "GSSAPI"}, '"GSSAPI": is not an allowed value'),
        ("upstream.sasl", {**SASL, "username": ""}, 'upstream.sasl.username: "": must not be empty'),
        ("upstream.sasl", {"mechanism": "PLAIN", "username": "fleet"}, "upstream.sasl.password: is required"),
        ("upstream.sasl", {**SASL, "password": "hidden"}, "upstream.sasl.password: must be `{file: PATH}`"),
        (
            "upstream.sasl",
            {**SASL, "token": {"env": "T"}},
            "upstream.sasl.token: is not used by SCRAM-SHA-512",
        ),
        ("upstream.sasl", {"mechanism": "OAUTHBEARER"}, "upstream.sasl.token: is required"),
        ("upstream.sasl", {**TOKEN, "token": "hidden"}, "upstream.sasl.token: must be `{file: PATH}`"),
        ("upstream.sasl", {**TOKEN, "username": "x"}, "upstream.sasl.username: is not used by OAUTHBEARER"),
    ],
)
def test_one_mistake_is_reported_once(path: str, value: Any, expected: str) -> None:
    mistake = only_mistake(changed(path, value))
    assert expected in mistake
    assert "hidden" not in mistake
    assert re.match(r"fleet\.yaml:\d+: ", mistake), mistake
    assert "; " in mistake.partition(expected[:8])[2], "no fix"


def test_a_port_of_another_host_is_no_collision() -> None:
    settings = parse(changed("members.p2.admin", "127.0.0.2:7201"))
    assert settings.member("p2").admin.port == settings.member("p1").admin.port


def test_localhost_is_127_0_0_1() -> None:
    assert "at port 7201" in only_mistake(changed("members.p2.admin", "localhost:7201"))


def test_sparse_ids_leave_the_ports_between_them_free() -> None:
    data = changed("identities", {"ids": {1: 0, 2: 40}}, members=1)
    data["members"]["p1"]["admin"] = "127.0.0.1:9120"
    assert parse(data).member("p1").admin.port == 9120
    data["members"]["p1"]["admin"] = "127.0.0.1:9141"
    assert "at port 9141" in only_mistake(data)


def test_listener_names_are_equal_everywhere() -> None:
    data = tree()
    data["members"]["p3"]["listeners"] = {"internal": data["members"]["p3"]["listeners"]["external"]}
    mistake = only_mistake(data)
    assert (
        "members.p3.listeners: must be the same on all members, but p1 and this member differ in" in mistake
    )
    assert "external, internal" in mistake


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: f"{order.low}-{order.high}")
def test_periods_out_of_order_are_refused(order: Any) -> None:
    low = getattr(Timing(), order.high) / order.factor * (1.0 if order.strict else 1.01)
    mistake = mistakes(changed("timing", {order.low: low}))
    assert any(order.rule in line and f"lower {order.low}" in line for line in mistake), mistake


def test_equal_periods_are_allowed_where_the_rule_is_not_strict() -> None:
    assert (
        parse(changed("timing", {"append_entries_s": 0.1, "election_min_s": 0.3})).timing.append_entries_s
        == 0.1
    )


def test_timing_field_has_an_order_rule_or_is_listed_as_free() -> None:
    free = {"steady_after_s", "rest_after_move_s", "broker_refresh_s", "upstream_connect_timeout_s"}
    ordered = {name for order in ORDERS for name in (order.low, order.high)}
    assert {field.name for field in dataclasses.fields(Timing)} == ordered | free
    assert all(order.holds(Timing()) for order in ORDERS)


def test_voters_are_one_to_nine() -> None:
    data = tree(10)
    for settings in data["members"].values():
        settings["voter"] = True
    assert "members.p10.voter: true: at most 9 members may vote, not 10" in only_mistake(data)
    for settings in data["members"].values():
        settings["voter"] = False
    assert "at least one member must vote" in only_mistake(data)


def test_a_witness_must_vote_and_cannot_be_alone() -> None:
    data = tree(1)
    witness = {
        "peer": "127.0.0.1:1",
        "admin": "127.0.0.1:2",
        "data_dir": "w",
        "witness": True,
        "voter": False,
    }
    data["members"]["w"] = witness
    assert "members.w.voter: false: a witness must vote" in only_mistake(data)
    data["members"] = {"w": {**witness, "voter": True}}
    assert "at least one member must carry traffic" in only_mistake(data)


def test_all_mistakes_are_reported_together_with_their_lines() -> None:
    mistake = mistakes(
        "fleet: demo\n"
        "bootstrap_servers: [k1]\n"
        "identities: {first_id: 1, count: 4}\n"
        "members:\n"
        "  p1:\n"
        "    peer: 127.0.0.1:7101\n"
        "    peer: 127.0.0.1:7102\n"
        "    admin: 127.0.0.1:70000\n"
        "    data_dir: d\n"
        "    listeners:\n"
        "      external: {bind: '0.0.0.0:9100', first_port: 9100}\n"
        "  p2: {admin: 127.0.0.1:7102}\n"
        "typo: 1\n"
    )
    assert [line.split(": ")[:2] for line in mistake] == [
        ["fleet.yaml:2", "bootstrap_servers.0"],
        ["fleet.yaml:7", "members.p1.peer"],
        ["fleet.yaml:8", "members.p1.admin"],
        ["fleet.yaml:11", "members.p1.listeners.external.bind"],
        ["fleet.yaml:11", "members.p1.listeners.external.first_port"],
        ["fleet.yaml:12", "members.p2.admin"],
        ["fleet.yaml:12", "members.p2.data_dir"],
        ["fleet.yaml:12", "members.p2.listeners"],
        ["fleet.yaml:12", "members.p2.peer"],
        ["fleet.yaml:13", "typo"],
    ]
    assert (
        mistake[1] == "fleet.yaml:7: members.p1.peer: is already set on line 6; remove one of the two lines"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "fleet.yaml: is empty"),
        ("# nothing\n", "fleet.yaml: is empty"),
        ("a: [\n", "fleet.yaml:2: not YAML"),
        ("a: b: c\n", "fleet.yaml:1: not YAML"),
        ("a: 1\n---\nb: 2\n", "fleet.yaml:2: not YAML"),
        ("a: \x01\n", "fleet.yaml:1: character #x0001 is not allowed in YAML"),
        ("just text", 'fleet.yaml:1: "just text": must be a map'),
        ("fleet: &a [*a]\n", "alias inside itself"),
        ("fleet: !!python/name:os.system x\n", "put it in quotes"),
        ("? {a: 1}\n: 2\n", "a key must be a plain word"),
    ],
)
def test_text_that_is_no_configuration_is_refused(text: str, expected: str) -> None:
    assert any(expected in line for line in mistakes(text))


DEPTH = 5_000


@pytest.mark.parametrize(
    "text",
    [
        "[" * DEPTH,
        "a: " + "[" * DEPTH + "]" * DEPTH,
        "{a: " * DEPTH + "1" + "}" * DEPTH,
        "- " * DEPTH + "x",
        "? " * DEPTH,
        "\n".join(" " * level + "a:" for level in range(DEPTH // 5)),
        "a: " + "[" * 60 + "]" * 60,
        "a: &x [*x]",
    ],
    ids=["open", "lists", "maps", "dashes", "keys", "indentation", "little", "alias"],
)
def test_deep_nesting_is_a_mistake(text: str) -> None:
    (mistake,) = mistakes(f"fleet: demo\n{text}\n") if text.startswith("a:") else mistakes(text)
    assert re.match(
        r"fleet\.yaml:\d+: nested more than 50 levels deep, or an alias inside itself; close", mistake
    )


def test_deep_nesting_is_no_traceback_of_a_command(tmp_path: Path) -> None:
    (tmp_path / "deep.yaml").write_text("x: " + "[" * DEPTH)
    with pytest.raises(ConfigError, match=r"deep\.yaml:1: nested more than 50 levels deep"):
        load(tmp_path / "deep.yaml", {})


def test_aliases_do_not_exhaust_memory() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "more than 100000 values" in mistakes("\n".join(lines))[0]


def test_unreadable_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: file not found"):
        load(tmp_path / "nowhere.yaml", {})
    with pytest.raises(ConfigError, match="is a directory"):
        load(tmp_path, {})
    (tmp_path / "latin.yaml").write_bytes(b"fleet: demo\nx: \xe4\n")
    with pytest.raises(ConfigError, match=r"latin\.yaml:2: is not UTF-8"):
        load(tmp_path / "latin.yaml", {})
    (tmp_path / "utf-16.yaml").write_bytes(yaml.safe_dump(tree(1)).encode("utf-16"))
    with pytest.raises(
        ConfigError, match=r"utf-16\.yaml: the file is UTF-16 text with a byte-order mark; save it as UTF-8"
    ):
        load(tmp_path / "utf-16.yaml", {})
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbf" + yaml.safe_dump(tree(1)).encode())
    assert load(tmp_path / "bom.yaml", {}).member("p1").data_dir == tmp_path / "d1"


def test_tolerance_is_described_by_fleet_size() -> None:
    output = " / ".join(describe_tolerance(parse(tree(3))))
    assert "3 voters: ownership is committed while 2 of them are alive" in output
    assert "any 1 voter may die" in output
    assert "the data plane tolerates the death of 2" in output
    assert "one proxy: if it dies" in " ".join(describe_tolerance(parse(tree(1))))
    two = parse(tree(2))
    assert "if one voter dies, commits stop" in " ".join(describe_tolerance(two))
    assert "2 voters tolerate no more deaths than 1" in " ".join(advice(two))
    assert "observers, which carry traffic, do not vote and may all die: p4, p5" in " ".join(
        describe_tolerance(parse(tree(5)))
    )


def test_traces_are_sent_where_there_is_a_section_for_them() -> None:
    assert parse(tree()).tracing is None
    plain = parse(changed("tracing", TRACING)).tracing
    assert plain is not None
    assert (plain.url, plain.headers) == ("http://127.0.0.1:4318/v1/traces", {})
    section = {"endpoint": "https://a.test/otlp/", "headers": {"Authorization": {"file": "secrets/otlp"}}}
    secured = parse(changed("tracing", section), base="/etc/fleet").tracing
    assert secured is not None
    assert secured.url == "https://a.test/otlp/v1/traces"
    assert secured.headers["Authorization"].file == Path("/etc/fleet/secrets/otlp")


def test_unencrypted_trace_headers_give_advice() -> None:
    for endpoint, exposed in (
        ("http://a.test:4318", True),
        ("https://a.test", False),
        (*TRACING.values(), False),
    ):
        section = {"endpoint": endpoint, "headers": {"Authorization": {"env": "A"}}}
        output = advice(parse(changed("tracing", section)))
        assert any("unencrypted to a.test:4318" in each for each in output) == exposed


def test_advice_names_probably_unintended_settings() -> None:
    data = changed("members.p1.admin", "0.0.0.0:7201")
    data["admin"] = {"open_to_read": True}
    data["members"]["p2"]["rack"] = "a"
    output = " ".join(advice(parse(data)))
    assert "members.p1.admin: 0.0.0.0:7201 is not loopback and has no tokens" in output
    assert "some members have no rack: p1, p3" in output
    data = changed("upstream.sasl", {**SASL, "mechanism": "PLAIN"})
    assert "PLAIN without TLS sends the password unencrypted to k1:9092" in " ".join(advice(parse(data)))
    data["upstream"]["tls"] = {}
    assert advice(parse(data)) == ()
    assert "OAUTHBEARER without TLS sends the token" in " ".join(
        advice(parse(changed("upstream.sasl", TOKEN)))
    )
    data = changed("upstream.sasl", {**SASL, "mechanism": "PLAIN"})
    data["bootstrap_servers"] = ["127.0.0.1:9092"]
    assert advice(parse(data)) == ()


def documented() -> dict[str, str]:
    """Field → default, from the tables of the document."""
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    rows = [
        line.split("|") for line in text.splitlines() if re.match(r"\| `[a-zA-Z_.]+` \| .* \|.*\|.*\|$", line)
    ]
    return {row[1].strip().strip("`"): row[2].strip() for row in rows}


def test_the_document_describes_every_field_and_its_default() -> None:
    expected = set(FleetShape.model_fields)
    expected |= {f"admin.{name}" for name in AdminShape.model_fields}
    expected |= {f"admin.tokens.{name}" for name in TokensShape.model_fields}
    expected |= {f"identities.{name}" for name in IdentitiesShape.model_fields}
    expected |= {f"upstream.tls.{name}" for name in UpstreamTlsShape.model_fields}
    expected |= {f"upstream.sasl.{name}" for name in SaslShape.model_fields}
    expected |= {f"tracing.{name}" for name in TracingShape.model_fields}
    expected |= {f"members.ID.{name}" for name in MemberShape.model_fields}
    expected |= {f"members.ID.listeners.NAME.{name}" for name in ListenerShape.model_fields}
    expected |= {f"listener_tls.NAME.{name}" for name in ListenerTlsShape.model_fields}
    defaults = {f"timing.{field.name}": field.default for field in dataclasses.fields(Timing)}
    defaults |= {
        f"peer_tls.{name}": f"`{field.default}`" for name, field in PeerTlsShape.model_fields.items()
    }
    defaults |= {
        f"admin.tls.{name}": f"`{field.default}`" for name, field in AdminTlsShape.model_fields.items()
    }
    defaults |= {f"limits.{field.name}": field.default for field in dataclasses.fields(Limits)}
    defaults["limits.max_connections"] = "as many as the open files are enough for"
    defaults["limits.max_connections_per_source"] = "no limit"
    defaults["limits.to_broker_bytes_per_second"] = "no limit"
    defaults["limits.to_client_bytes_per_second"] = "no limit"
    defaults |= {f"events.{field.name}": field.default for field in dataclasses.fields(EventsSettings)}
    defaults |= {f"balance.{field.name}": field.default for field in dataclasses.fields(BalanceSettings)}
    defaults["balance.by"] = f"`{BalanceSettings().by}`"
    defaults["balance.every_s"] = 300
    defaults["events.topic_prefix"] = f"`{EventsSettings().topic_prefix}`"
    defaults["events.replication_factor"] = "as many as there are brokers, three at most"
    found = documented()
    assert set(found) == expected | set(defaults)
    assert {name: found[name] for name in defaults} == {name: str(value) for name, value in defaults.items()}
