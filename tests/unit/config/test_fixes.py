"""Each fix that an error of the configuration names is accepted: applying the fix causes no other error."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import yaml

from fleet.core.model import Endpoint
from tests.unit.config import test_file
from tests.unit.config.test_file import changed, mistakes, parse, tree

ENDPOINTS: list[tuple[str, str]] = [
    ("PLAINTEXT://kafka:9092", "kafka:9092"),
    ("SASL_SSL://kafka:9093", "kafka:9093"),
    ("http://kafka:8080/path?x", "kafka:8080"),
    ("http://kafka/", "kafka:9092"),
    ("PLAINTEXT://[::1]:9094", "[::1]:9094"),
    ("kafka", "kafka:9092"),
    ("kafka:9094/", "kafka:9094"),
    (" kafka:9094 ", "kafka:9094"),
    ("user@kafka:9094", "kafka:9094"),
    ("::1", "[::1]:9092"),
    ("fe80::2", "[fe80::2]:9092"),
    ("[::1]", "[::1]:9092"),
    ("::1:9094", "[::1]:9094"),
    ("[::1:9094", "[::1]:9094"),
    ("::ffff:10.0.0.1:9094", "[::ffff:10.0.0.1]:9094"),
    ("[kafka]:9094", "kafka:9094"),
    ("[10.0.0.1]:9094", "10.0.0.1:9094"),
    ("kafka-1:9092,kafka-2:9092", "kafka-1:9092"),
    ("PLAINTEXT://kafka-1:9092,PLAINTEXT://kafka-2:9092", "kafka-1:9092"),
]
"""An endpoint that a user may write, and the endpoint that the fix must name."""

UNCLEAR: list[tuple[str, str]] = [
    ("kafka:9092:9093", "host must be a name or an address"),
    ("[zz::1]:9092", "only an IPv6 address may be in brackets"),
    ("[1:2]:9092", "only an IPv6 address may be in brackets"),
    ("[:]:9092", "only an IPv6 address may be in brackets"),
    ("kafka:x", "port must be a number"),
    ("kafka:0", "port must be 1..65535"),
    ("ftp://", "must be host:port, without ftp://"),
    (":9092", "must be host:port"),
    ("-kafka:9092", "host must be a name or an address"),
]
"""An endpoint without a single meaning, and the rule that the error must name."""

PLACES = (
    "bootstrap_servers.0",
    "members.p1.peer",
    "members.p1.admin",
    "members.p1.listeners.external.bind",
    "members.p1.listeners.external.advertise",
)
_QUOTED = re.compile(r'(?:write it as|such as) "([^"]+)"')


def remote() -> dict[str, Any]:
    """A fleet whose members may have any address."""
    return {**tree(), "peer_tls": {}, "admin": {"open_to_read": True}}


def put(data: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The data with a new value at a path; missing parents are created."""
    data = copy.deepcopy(data)
    at: Any = data
    *parents, last = (int(each) if each.isdigit() else each for each in path.split("."))
    for each in parents:
        if isinstance(at, dict) and at.get(each) is None:
            at[each] = {}
        at = at[each]
    at[last] = value
    return data


def split(mistake: str) -> tuple[str, str]:
    """The path and the fix of a mistake."""
    found = re.match(r"fleet\.yaml:\d+: ([^:]+): .*; (.*)$", mistake)
    assert found is not None, mistake
    return found[1], found[2]


def do(data: dict[str, Any], mistake: str) -> dict[str, Any] | None:
    """The data after the fix of a mistake; None if the fix is a sentence that no program can apply."""
    path, fix = split(mistake)
    if found := re.search(r'write it as "([^"]+)"', fix):
        return put(data, path, found[1])
    if found := re.match(r"use (127\.0\.0\.1:\d+|\d+)(?=$|,)", fix):
        return put(data, path, int(found[1]) if found[1].isdigit() else found[1])
    if found := re.search(r"add (?:one, such as )?`([^`]+)`", fix):
        added = yaml.safe_load(found[1])
        if not isinstance(added, dict):
            return None
        ((name, value),) = added.items()
        parent, _, last = path.rpartition(".")
        if path.endswith("listeners"):
            parent = path
        elif name in ("peer_tls", "listener_tls", "events"):
            parent = ""
        elif name in ("tls",) and last == "tokens":
            parent = "admin"
        return put(data, f"{parent}.{name}" if parent else name, value)
    return None


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("written", "meant"), ENDPOINTS)
def test_fix_for_an_endpoint_is_accepted(place: str, written: str, meant: str) -> None:
    (mistake,) = mistakes(put(remote(), place, written))
    path, fix = split(mistake)
    found = _QUOTED.search(fix)
    assert (path, found and found[1]) == (place, meant), mistake
    assert parse(put(remote(), place, meant))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("written", "rule"), UNCLEAR)
def test_unclear_endpoint_has_no_fix_that_is_refused(place: str, written: str, rule: str) -> None:
    (mistake,) = mistakes(put(remote(), place, written))
    assert f": {rule}" in mistake
    found = _QUOTED.search(split(mistake)[1])
    assert found is None or parse(put(remote(), place, found[1]))


@pytest.mark.parametrize("port", [9093, 0, 70_000, True, ["kafka:9092"], {"kafka": 9092}, 1.5])
@pytest.mark.parametrize("place", PLACES)
def test_fix_for_a_value_that_is_no_text_is_accepted(place: str, port: Any) -> None:
    (mistake,) = mistakes(put(remote(), place, port))
    again = do(remote(), mistake)
    assert again is not None, mistake
    assert parse(again)


def test_scheme_of_a_kafka_listener_is_named() -> None:
    (mistake,) = mistakes(changed("bootstrap_servers", ["PLAINTEXT://kafka:9092"]))
    assert mistake.endswith(
        'bootstrap_servers.0: "PLAINTEXT://kafka:9092": must be host:port, without PLAINTEXT://; '
        'write it as "kafka:9092"'
    )
    assert parse(changed("bootstrap_servers", ["kafka:9092"])).bootstrap_servers == (Endpoint("kafka", 9092),)


@pytest.mark.parametrize(
    ("path", "value"),
    [each[:2] for each in test_file.test_one_mistake_is_reported_once.pytestmark[0].args[1]],
)
def test_fix_of_any_one_mistake_is_accepted(path: str, value: Any) -> None:
    data = changed(path, value)
    if path == "members.p1.admin":  # the address itself breaks another rule
        data["admin"] = {"open_to_read": True}
    (mistake,) = mistakes(data)
    again = do(data, mistake)
    assert again is None or parse(again), mistake


def test_fixes_for_several_members_fit_one_another() -> None:
    data = tree()
    for member in data["members"].values():
        for field in ("peer", "admin", "listeners"):
            del member[field]
    mistake = mistakes(data)
    assert len(mistake) == 9
    for each in mistake:
        again = do(data, each)
        assert again is not None, each
        data = again
    assert parse(data)


def test_fixes_for_parts_of_listeners_fit_one_another() -> None:
    data = tree()
    for member in data["members"].values():
        member["listeners"]["external"] = {}
    for each in mistakes(data):
        again = do(data, each)
        assert again is not None, each
        data = again
    assert parse(data)


def test_fixes_for_members_of_several_machines_fit_one_another() -> None:
    data = tree()
    for number, member in enumerate(data["members"].values()):
        member["peer"] = f"10.0.0.{number}:7101"
    for each in mistakes(data):
        path, fix = split(each)
        found = re.search(r"or use (127\.0\.0\.1:\d+)", fix)
        assert found is not None, each
        data = put(data, path, found[1])
    assert parse(data)


def test_fix_for_a_wildcard_peer_needs_no_certificates() -> None:
    (mistake,) = mistakes(changed("members.p1.peer", "0.0.0.0:7101"))
    assert split(mistake)[1].startswith("use 127.0.0.1:7101, or add `peer_tls:`")
    again = do(tree(), mistake)
    assert again is not None
    assert parse(again)


def test_offsets_that_are_free_are_found() -> None:
    data = changed("identities", {"ids": {1: 65534, 2: 65534, 3: 65534}})
    mistake = mistakes(data)
    assert [split(each)[1] for each in mistake if "already has port offset" in each] == ["use 0", "use 1"]


def test_tenth_voter_that_is_a_witness_keeps_its_vote() -> None:
    data = tree(10)
    for member in data["members"].values():
        member["voter"] = True
    data["members"]["p10"] = {**data["members"]["p10"], "witness": True}
    del data["members"]["p10"]["listeners"]
    (mistake,) = mistakes(data)
    assert mistake.endswith("write `voter: false` for p9")
    assert parse(put(data, "members.p9.voter", False))
