"""The first key of a request equals the one in the message, however much of the request has arrived."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.core.model import Endpoint
from fleet.proxy.wire._tables import APIS, ROUTES
from fleet.proxy.wire.requests import VERSIONS_PER_API
from fleet.proxy.wire.routes import CONFIG, GROUP, TOPIC_ID, TOPIC_NAME, TRANSACTION
from fleet.proxy.wire.routing_keys import (
    KEY_FOUND,
    KEY_INCOMPLETE,
    MAX_TOPIC_BYTES,
    NO_KEY,
    ROUTE_TABLE,
    RoutingKey,
)
from tests.conformance.messages import Form, Maker, encode
from tests.conformance.scripted import definitions
from tests.examples import examples
from tests.property import wire_fleet
from tools.gen_tables import CONFIG_KEYS, GROUP_KEYS, PARTITION_KEYS, TRANSACTION_KEYS

MESSAGES = {each.api_key: each for each in definitions()}
KEYED = [
    (key, version)
    for key, first, last, route in ROUTES
    for version in range(first, last + 1)
    if route.kind in (GROUP, TRANSACTION, CONFIG, TOPIC_NAME, TOPIC_ID)
]
BROKERS = {1: Endpoint("kafka", 9092)}
quick = settings(max_examples=examples(20), deadline=None)


def first_key(key: int, version: int, values: dict[str, Any]) -> tuple[bytes, int] | None:
    """The key by the names of the fields: its bytes, and the partition or the broker id, or -1."""
    name = APIS[key].name
    route = ROUTE_TABLE[key * VERSIONS_PER_API + version]
    assert route is not None
    if name in PARTITION_KEYS or name in CONFIG_KEYS:
        found: Any = values
        for each in (PARTITION_KEYS | CONFIG_KEYS)[name]:
            if not found[each]:
                return None
            found = found[each][0]
        if route.kind == CONFIG:
            resource = found["ResourceName"]
            is_broker = found["ResourceType"] in (4, 8) and resource.isdigit() and resource.isascii()
            return (resource.encode(), int(resource)) if is_broker and len(resource) <= 10 else None
        topic, partitions = list(found.values())[:2]
        is_absurd = isinstance(topic, str) and len(topic.encode()) > MAX_TOPIC_BYTES
        if not partitions or topic in ("", uuid.UUID(int=0)) or is_absurd:
            return None
        first = partitions[0]
        return as_bytes(topic), next(iter(first.values())) if isinstance(first, dict) else first
    for path in (GROUP_KEYS | TRANSACTION_KEYS)[name]:
        if path[0] not in values:
            continue
        found = values
        for each in path:
            found = found[each]
            if isinstance(found, list):
                if not found:
                    return None
                found = found[0]
        return (as_bytes(found), -1) if found else None
    raise AssertionError(name)


def as_bytes(value: str | uuid.UUID) -> bytes:
    return value.bytes if isinstance(value, uuid.UUID) else value.encode()


def read(key: int, version: int, data: bytes, pos: int = 0, arrived: int | None = None) -> Any:
    """The key that is found; None without a key; KEY_INCOMPLETE if more bytes are needed."""
    route = ROUTE_TABLE[key * VERSIONS_PER_API + version]
    assert route is not None
    reader = RoutingKey()
    end = len(data) if arrived is None else arrived
    found = reader.read(route, data, pos, end, version >= APIS[key].first_flexible)
    if found == KEY_FOUND:
        return data[reader.start : reader.end], reader.partition
    return None if found == NO_KEY else found


def request(key: int, version: int, seed: int) -> tuple[bytes, tuple[bytes, int] | None]:
    """A random request, and its key."""
    rng = random.Random(seed)
    message = MESSAGES[key]
    form = Form(message.name, message.request, version, version in message.flexible)
    values = Maker(rng, BROKERS, unknown=0.3).message(form)
    if form.api in CONFIG_KEYS and rng.random() < 0.8:
        for each in values["Resources"]:
            each["ResourceType"], each["ResourceName"] = (
                rng.choice((2, 4, 8)),
                rng.choice(("0", "17", "9" * 10, "t")),
            )
    tags = rng.choice((b"\0", b"\1\x05\2ab"))
    client_id = rng.choice((None, b"", b"client", b"c" * 300))
    body = (tags if form.flexible else b"") + encode(form, values)
    return wire_fleet.request(key, version, 7, body, client_id), first_key(key, version, values)


@pytest.mark.parametrize(("key", "version"), KEYED)
@quick
@given(seed=st.integers(0, 2**32))
def test_key_is_the_first_one_of_the_message(key: int, version: int, seed: int) -> None:
    data, expected = request(key, version, seed)
    assert read(key, version, data) == expected
    assert read(key, version, b"x" * 9 + data + data, 9) == expected, "between other requests"


@pytest.mark.parametrize(("key", "version"), KEYED)
@quick
@given(seed=st.integers(0, 2**32), cut=st.integers(0, 2**32))
def test_key_of_a_part_is_the_same_or_needs_more(key: int, version: int, seed: int, cut: int) -> None:
    data, expected = request(key, version, seed)
    client_id_bytes = max(int.from_bytes(data[12:14], "big", signed=True), 0)
    header = 14 + client_id_bytes
    arrived = header + cut % (len(data) - header + 1)
    found = read(key, version, data[:arrived])
    assert found in (expected, KEY_INCOMPLETE)
    assert read(key, version, data, 0, arrived) == found, "bytes that have not arrived do not count"
    if arrived == len(data):
        assert found == expected


def test_every_offered_request_has_a_route() -> None:
    for key, api in APIS.items():
        for version in range(api.min_version, api.max_version + 1):
            assert ROUTE_TABLE[key * VERSIONS_PER_API + version] is not None
