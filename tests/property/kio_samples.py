"""Random Kafka responses, made and encoded by kio: the oracle of the patching functions.

kio reads the same definitions with other code. It rewrites a response by decoding all of it, changing
objects,
and encoding all of it again: slow and naive, as an oracle should be.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import io
import random
import struct
import types
import typing
import uuid
from collections.abc import Callable, Iterator

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import Records
from kio.static.protocol import Entity

RESPONSES = {
    0: ("produce", "ProduceResponse", range(10, 14)),
    1: ("fetch", "FetchResponse", range(16, 19)),
    3: ("metadata", "MetadataResponse", range(14)),
    10: ("find_coordinator", "FindCoordinatorResponse", range(7)),
    32: ("describe_configs", "DescribeConfigsResponse", range(1, 5)),
    55: ("describe_quorum", "DescribeQuorumResponse", range(2, 3)),
    60: ("describe_cluster", "DescribeClusterResponse", range(3)),
    78: ("share_fetch", "ShareFetchResponse", range(1, 3)),
    79: ("share_acknowledge", "ShareAcknowledgeResponse", range(1, 3)),
}
"""Maps each API key to kio's module and class, and the versions that can carry addresses."""

CASES = [(key, version) for key, (_, _, versions) in RESPONSES.items() for version in versions]

ENDS_WITHOUT_ENDPOINTS = {1: b"\0", 78: b"\x01\0"}
"""Maps the API key of responses that keep their length to their end without endpoints."""

BROKER_IDS = (-1, 0, 1, 2, 3, 4, 9, 16, 17, 1000, 2**31 - 1, -2)
CONFIG_NAMES = (
    "listeners",
    "advertised.listeners",
    "log.dirs",
    "controller.quorum.voters",
    "",
    "broker.rack",
)
HOSTS = ("", "k", "127.77.0.1", "kafka-1.example.org", "ünï.example", "h" * 126, "h" * 127, "h" * 300)

Convert = Callable[[int, str, int], tuple[str, int]]
ConvertListener = Callable[[str, int], tuple[str, int]]


def response_class(key: int, version: int) -> type[Entity]:
    module, name, _ = RESPONSES[key]
    found: type[Entity] = getattr(importlib.import_module(f"kio.schema.{module}.v{version}.response"), name)
    return found


def is_flexible(entity: Entity) -> bool:
    return entity.__flexible__


def make(key: int, version: int, seed: int) -> Entity:
    """Make a random response. The same seed gives the same response."""
    return typing.cast(Entity, _entity(response_class(key, version), random.Random(seed)))


def frame(entity: Entity, correlation_id: int) -> bytes:
    """Encode the response as a broker sends it."""
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    body = (b"\0" if is_flexible(entity) else b"") + buffer.getvalue()
    return struct.pack(">ii", len(body) + 4, correlation_id) + body


def for_client(
    key: int, entity: Entity, correlation_id: int, address: Convert, blank: Callable[[str], bool]
) -> bytes:
    """The bytes that a client must get for a response; ENDS_WITHOUT_ENDPOINTS lists those of fixed length."""
    before, after = frame(entity, correlation_id), frame(convert(entity, address, blank), correlation_id)
    if key not in ENDS_WITHOUT_ENDPOINTS or len(before) == len(after):
        return after
    at = tail_at(key, entity)
    if key == 1:
        array, field, nothing = b"", after[at + 1 :], b""
    else:
        array, field, nothing = after[at:-1], b"", b"\x01"
    size = len(before) - at
    return before[:at] + (padded(array, field, size) or padded(nothing, b"", size) or b"")


def tail_at(key: int, entity: Entity) -> int:
    """The position at which the changeable part of such a response begins."""
    without = dataclasses.replace(entity, node_endpoints=())
    assert frame(without, 0).endswith(ENDS_WITHOUT_ENDPOINTS[key])
    return len(frame(without, 0)) - len(ENDS_WITHOUT_ENDPOINTS[key])


def padded(array: bytes, field: bytes, size: int) -> bytes | None:
    """An array, and a section with at most one tagged field and padding: tries all combinations."""
    room = size - len(array) - 1 - len(field)
    zeros = [_varint(length) + bytes(length) for length in range(max(0, room - 8), max(0, room))]
    for number, paddings in enumerate(
        ([b""], [b"\x7e" + each for each in zeros], [b"\x7e\0\x7f" + each for each in zeros])
    ):
        for padding in paddings:
            if len(padding) == room:
                return array + bytes([bool(field) + number]) + field + padding
    return None


def without_padding(key: int, framed: bytes, at: int) -> bytes:
    """The same response without the tagged fields 126 and 127 in its last section: kio takes no such tags.

    Args: at: of ``tail_at``.
    """
    if key != 1:
        at = _behind_endpoints(framed, at)
    count, pos = _read_varint(framed, at)
    kept_fields = []
    for _ in range(count):
        begin = pos
        tag, pos = _read_varint(framed, pos)
        size, pos = _read_varint(framed, pos)
        pos += size
        if tag not in (126, 127):
            kept_fields.append(framed[begin:pos])
        else:
            assert not any(framed[pos - size : pos]), "the padding has bytes other than zero"
    assert pos == len(framed)
    body = framed[4:at] + _varint(len(kept_fields)) + b"".join(kept_fields)
    return struct.pack(">i", len(body)) + body


def _behind_endpoints(framed: bytes, pos: int) -> int:
    count, pos = _read_varint(framed, pos)
    for _ in range(count - 1):
        host, pos = _read_varint(framed, pos + 4)
        rack, pos = _read_varint(framed, pos + max(host - 1, 0) + 4)
        pos += max(rack - 1, 0)
        assert framed[pos] == 0, "kio sent a tagged field here"
        pos += 1
    return pos


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)


def _read_varint(data: bytes, pos: int) -> tuple[int, int]:
    low, pos = data[pos], pos + 1
    if low < 128:
        return low, pos
    high, pos = _read_varint(data, pos)
    return high << 7 | low & 127, pos


def decode(key: int, version: int, framed: bytes) -> Entity:
    """Read a whole response. Fails if bytes are left over."""
    cls = response_class(key, version)
    (size,) = struct.unpack_from(">i", framed)
    assert size + 4 == len(framed)
    begin = 8 + (1 if cls.__flexible__ else 0)
    entity, read = entity_reader(cls)(memoryview(framed), begin)
    assert begin + read == len(framed), "bytes are left over"
    return entity


def no_address(_host: str, _port: int) -> tuple[str, int]:
    """The address that clients receive instead of the address of a controller's listener."""
    return "", 0


def convert(
    entity: Entity, address: Convert, blank: Callable[[str], bool], listener: ConvertListener = no_address
) -> Entity:
    """Copy a response with other addresses, and with empty values of configurations that carry an address.

    Args: listener: converts the address of a controller's listener.
    """
    return typing.cast(Entity, _convert(entity, address, blank, listener, False))


def _convert(
    entity: object,
    address: Convert,
    blank: Callable[[str], bool],
    listener: ConvertListener,
    enclosed: bool,
) -> object:
    if isinstance(entity, tuple):
        return tuple(_convert(each, address, blank, listener, enclosed) for each in entity)
    if not dataclasses.is_dataclass(entity) or isinstance(entity, type):
        return entity
    names = [item.name for item in dataclasses.fields(entity)]
    changes: dict[str, object] = {}
    if {"name", "value"} <= set(names):
        enclosed = enclosed or blank(entity.name)  # type: ignore[attr-defined]
        if enclosed and entity.value:  # type: ignore[attr-defined]
            changes["value"] = ""
    if {"name", "host", "port"} <= set(names):
        changes["host"], changes["port"] = listener(entity.host, entity.port)  # type: ignore[attr-defined]
    elif {"host", "port"} <= set(names):
        broker_id = getattr(entity, "node_id" if "node_id" in names else "broker_id")
        host, port = entity.host, entity.port  # type: ignore[attr-defined]
        if broker_id != -1 and host:
            changes["host"], changes["port"] = address(broker_id, host, port)
    for name in names:
        if name not in changes:
            changes[name] = _convert(getattr(entity, name), address, blank, listener, enclosed)
    return dataclasses.replace(entity, **changes)


def addresses(entity: Entity) -> Iterator[tuple[int, str, int]]:
    """Yield every broker id, host and port in a response."""
    found: list[tuple[int, str, int]] = []

    def note(broker_id: int, host: str, port: int) -> tuple[str, int]:
        found.append((broker_id, host, port))
        return host, port

    convert(entity, note, lambda _: False)
    return iter(found)


def _entity(cls: type, rng: random.Random) -> object:
    hints = typing.get_type_hints(cls)
    values = {item.name: _value(item.name, hints[item.name], rng) for item in dataclasses.fields(cls)}
    return cls(**values)


def _value(name: str, hint: typing.Any, rng: random.Random) -> object:
    if isinstance(hint, types.UnionType):
        options = [option for option in typing.get_args(hint) if option is not types.NoneType]
        return None if rng.random() < 0.25 else _value(name, options[0], rng)
    if typing.get_origin(hint) is tuple:
        count = rng.choice((0, 1, 1, 2, 3, 3, 130)) if name == "brokers" else rng.choice((0, 1, 2, 3))
        return tuple(_value("", typing.get_args(hint)[0], rng) for _ in range(count))
    if name in ("node_id", "broker_id"):
        return rng.choice(BROKER_IDS)
    if name == "host":
        return rng.choice(HOSTS)
    if name == "name" and rng.random() < 0.7:
        return rng.choice(CONFIG_NAMES)
    if name == "endpoint_type":
        return rng.choice((1, 2))
    if dataclasses.is_dataclass(hint):
        return _entity(typing.cast(type, hint), rng)
    return _primitive(hint, rng)


def _primitive(hint: type, rng: random.Random) -> object:
    if issubclass(hint, ErrorCode):
        return rng.choice(list(ErrorCode))
    if issubclass(hint, bool):
        return rng.random() < 0.5
    if issubclass(hint, int):
        low, high = hint.__low__, hint.__high__  # type: ignore[attr-defined]
        return rng.choice((low, high, 0, rng.randint(low, high)))
    if issubclass(hint, Records | bytes):
        return rng.randbytes(rng.choice((0, 1, 100, 200, 5_000)))
    if issubclass(hint, uuid.UUID):
        return uuid.UUID(bytes=rng.randbytes(16))
    if issubclass(hint, datetime.timedelta):
        return datetime.timedelta(milliseconds=rng.randint(0, 2**31 - 1))
    if issubclass(hint, datetime.datetime):
        return datetime.datetime.fromtimestamp(rng.randint(0, 2**31), datetime.UTC)
    assert issubclass(hint, str), hint
    return "".join(rng.choice("abc.-é€") for _ in range(rng.choice((0, 1, 5, 60, 200))))
