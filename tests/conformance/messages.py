"""Random messages of any API and version, made, encoded and decoded by Kafka's own definitions.

A message is a dictionary by field name, nested like its definition; null is None. The code under test reads
the
same definitions to generate patching functions. This module knows no offsets: it decodes and encodes whole
messages, as ``kio`` does for the messages that it knows.
"""

from __future__ import annotations

import random
import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from fleet.core.model import BrokerId, Endpoint
from tools.gen_tables import Field, active, is_address, tagged

Values: TypeAlias = dict[str, Any]

_INTEGERS: Final = {"int8": "b", "int16": "h", "uint16": "H", "int32": "i", "uint32": "I", "int64": "q"}
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz0123456789-_. ü"
CONFIGS_WITH_ADDRESS: Final = (
    "listeners",
    "advertised.listeners",
    "controller.quorum.voters",
    "rsm.config.remote.log.metadata.common.client.bootstrap.servers",
)
UNKNOWN: Final = "?"
"""The key of unknown tagged fields in a message: their values by tag number."""
UNKNOWN_TAGS: Final = (100, 125, 126, 127, 128, 20_000, 2**28)
"""The tags include those that the fleet uses for padding where they are free: see ADR 16."""
CONFIGS: Final = (*CONFIGS_WITH_ADDRESS, "log.dirs", "max.message.bytes", "listener.name.x.ssl.keystore.type")


@dataclass(frozen=True)
class Form:
    """One version of an API's request or response, or of a part of it."""

    api: str
    fields: tuple[Field, ...]
    version: int
    flexible: bool

    def of(self, fields: tuple[Field, ...]) -> Form:
        return replace(self, fields=fields)

    @property
    def plain(self) -> list[Field]:
        return active(self.fields, self.version)

    @property
    def tagged(self) -> list[Field]:
        return tagged(self.fields, self.version)


class Maker:
    """Makes random messages.

    Args:
        rng: the random generator.
        brokers: the address of each broker id, wherever an address occurs in a message.
        unknown: the probability that a struct has unknown tagged fields, where it may have any.
    """

    def __init__(
        self, rng: random.Random, brokers: Mapping[BrokerId, Endpoint], unknown: float = 0.0
    ) -> None:
        self._rng = rng
        self._brokers = brokers
        self._unknown = unknown
        self.made_unknown = 0
        """The number of unknown fields made so far."""

    def message(self, form: Form) -> Values:
        result: Values = {}
        plain = form.plain
        for item in plain:
            result[item.name] = self._value(form, item)
        for index in range(len(plain)):
            if is_address(plain, index):
                names = [each.name for each in plain[index : index + 3]]
                result.update(zip(names, self._address(), strict=True))
        if _is_configuration(form, result):
            self._configuration(result)
        if _is_listener(form, result):
            _, result["Host"], result["Port"] = self._address()
            result["Port"] = max(0, result["Port"])
        for item in form.tagged:
            if self._rng.random() < 0.5:
                result[item.name] = self._value(form, item)
        unknown = self.unknown() if form.flexible else {}
        return {**result, UNKNOWN: unknown} if unknown else result

    def unknown(self) -> dict[int, bytes]:
        """Make unknown tagged fields, or none."""
        if not self._unknown or self._rng.random() >= self._unknown:
            return {}
        tags = self._rng.sample(UNKNOWN_TAGS, self._rng.choice((1, 1, 2, 5)))
        self.made_unknown += len(tags)
        return {tag: self._rng.randbytes(self._rng.choice((0, 1, 30, 130))) for tag in tags}

    def _address(self) -> tuple[BrokerId, str, int]:
        if self._rng.random() < 0.1:
            return -1, "", -1
        broker_id = self._rng.choice(sorted(self._brokers))
        return broker_id, self._brokers[broker_id].host, self._brokers[broker_id].port

    def _configuration(self, values: Values) -> None:
        values["Name"] = self._rng.choice(CONFIGS)
        if values["Name"] in CONFIGS_WITH_ADDRESS:
            values["Value"] = f"PLAINTEXT://{self._brokers[min(self._brokers)]}"

    def _value(self, form: Form, item: Field) -> Any:
        if form.version in item.nullable and self._rng.random() < 0.2:
            return None
        if item.is_array:
            element = replace(item, type=item.element, nullable=replace(item.nullable, low=0, high=-1))
            return [self._value(form, element) for _ in range(self._rng.choice((0, 1, 1, 2, 3)))]
        if item.fields:
            return self.message(form.of(item.fields))
        if item.name == "ErrorCode":
            return 0
        return self._scalar(item.type)

    def _scalar(self, kind: str) -> Any:
        rng = self._rng
        if kind in _INTEGERS:
            low, high = _integer_range(_INTEGERS[kind])
            return rng.choice((0, 1, rng.randint(low, high)))
        if kind == "bool":
            return rng.random() < 0.5
        if kind == "float64":
            return float(rng.randint(-1000, 1000))
        if kind == "uuid":
            return uuid.UUID(int=rng.getrandbits(128))
        length = rng.choice((0, 1, 7, 30, 130, 300))
        if kind == "string":
            return "".join(rng.choice(_LETTERS) for _ in range(length))
        return rng.randbytes(length)


def _is_configuration(form: Form, values: Values) -> bool:
    return form.api == "DescribeConfigs" and {"Name", "Value"} <= values.keys()


def _is_listener(form: Form, values: Values) -> bool:
    """Whether the struct is a listener of a controller."""
    return form.api == "DescribeQuorum" and {"Host", "Port"} <= values.keys()


def _integer_range(code: str) -> tuple[int, int]:
    bits = 8 * struct.calcsize(code)
    return (0, 2**bits - 1) if code.isupper() else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


# ---- encoding


def encode(form: Form, values: Values) -> bytes:
    parts = [_encode_field(form, item, values[item.name]) for item in form.plain]
    if form.flexible:
        known = {
            item.tag or 0: _encode_field(form, item, values[item.name])
            for item in form.tagged
            if item.name in values
        }
        parts.append(encode_tagged({**values.get(UNKNOWN, {}), **known}))
    return b"".join(parts)


def encode_tagged(fields: Mapping[int, bytes]) -> bytes:
    """Encode a section of tagged fields."""
    parts = [unsigned_varint(len(fields))]
    for tag, value in sorted(fields.items()):
        parts += (unsigned_varint(tag), unsigned_varint(len(value)), value)
    return b"".join(parts)


def _encode_field(form: Form, item: Field, value: Any) -> bytes:
    if item.is_array:
        element = replace(item, type=item.element, nullable=replace(item.nullable, low=0, high=-1))
        many = b"" if value is None else b"".join(_encode_field(form, element, each) for each in value)
        return _length(form, None if value is None else len(value), "i") + many
    if item.fields:
        inner = form.of(item.fields)
        if form.version not in item.nullable:
            return encode(inner, value)
        return b"\xff" if value is None else b"\x01" + encode(inner, value)
    if item.type in _INTEGERS:
        return struct.pack(">" + _INTEGERS[item.type], value)
    if item.type == "bool":
        return bytes((value,))
    if item.type == "float64":
        return struct.pack(">d", value)
    if item.type == "uuid":
        return bytes(value.bytes)
    raw = value.encode() if item.type == "string" and value is not None else value
    return _length(form, None if raw is None else len(raw), "h" if item.type == "string" else "i") + (
        raw or b""
    )


def _length(form: Form, length: int | None, classic: str) -> bytes:
    if form.flexible:
        return unsigned_varint(0 if length is None else length + 1)
    return struct.pack(">" + classic, -1 if length is None else length)


def unsigned_varint(value: int) -> bytes:
    low, high = value & 0x7F, value >> 7
    return bytes((low | 0x80,)) + unsigned_varint(high) if high else bytes((low,))


# ---- decoding


class Reader:
    """Reads what ``encode`` writes.

    Args: unknown: whether to keep tagged fields that the definition lacks, instead of skipping them.
    """

    def __init__(self, data: bytes, *, unknown: bool = False) -> None:
        self._data = data
        self._pos = 0
        self._unknown = unknown

    def message(self, form: Form) -> Values:
        values = {item.name: self.read_field(form, item) for item in form.plain}
        if form.flexible:
            known = {item.tag: item for item in form.tagged}
            for _ in range(self._varint()):
                tag, size = self._varint(), self._varint()
                end_position = self._pos + size
                if tag in known:
                    values[known[tag].name] = self.read_field(form, known[tag])
                    assert self._pos == end_position, (
                        f"tagged field {tag} ends at {self._pos}, not at {end_position}"
                    )
                elif self._unknown:
                    values.setdefault(UNKNOWN, {})[tag] = self._data[self._pos : end_position]
                self._pos = end_position
        return values

    def check_end(self) -> None:
        """Raises: AssertionError: bytes are left."""
        assert self._pos == len(self._data), f"{len(self._data) - self._pos} bytes are left"

    def take(self, size: int) -> bytes:
        taken = self._data[self._pos : self._pos + size]
        assert len(taken) == size, "the message ends inside a field"
        self._pos += size
        return taken

    def read_field(self, form: Form, item: Field) -> Any:
        if item.is_array:
            element = replace(item, type=item.element, nullable=replace(item.nullable, low=0, high=-1))
            count = self.read_length(form, "i")
            return None if count is None else [self.read_field(form, element) for _ in range(count)]
        if item.fields:
            if form.version in item.nullable and self.take(1) == b"\xff":
                return None
            return self.message(form.of(item.fields))
        if item.type in _INTEGERS:
            return self._unpack(_INTEGERS[item.type])
        if item.type == "bool":
            return self._unpack("b") != 0
        if item.type == "float64":
            return self._unpack("d")
        if item.type == "uuid":
            return uuid.UUID(bytes=self.take(16))
        length = self.read_length(form, "h" if item.type == "string" else "i")
        if length is None:
            return None
        raw = self.take(length)
        return raw.decode() if item.type == "string" else raw

    def _unpack(self, code: str) -> Any:
        (value,) = struct.unpack(">" + code, self.take(struct.calcsize(code)))
        return value

    def read_length(self, form: Form, classic: str) -> int | None:
        length = self._varint() - 1 if form.flexible else int(self._unpack(classic))
        return None if length < 0 else length

    def _varint(self) -> int:
        value = shift = 0
        while True:
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7


# ---- how a fleet changes a message


def for_client(
    form: Form,
    values: Values,
    advertised: Mapping[BrokerId, Endpoint],
    blanks: Callable[[str], bool] = CONFIGS_WITH_ADDRESS.__contains__,
) -> Values:
    """The response that a client must receive: advertised addresses, none of controllers or in
    configurations."""
    return _for_client(form, values, advertised, blanks, enclosed=False)


def _for_client(
    form: Form,
    values: Values,
    advertised: Mapping[BrokerId, Endpoint],
    blanks: Callable[[str], bool],
    *,
    enclosed: bool,
) -> Values:
    result = dict(values)
    plain = form.plain
    if _is_configuration(form, result):
        enclosed = enclosed or blanks(result["Name"])
        if enclosed and result["Value"]:
            result["Value"] = ""
    if _is_listener(form, result):
        result["Host"], result["Port"] = "", 0
    for index in range(len(plain)):
        if is_address(plain, index):
            id_name, host, port = (each.name for each in plain[index : index + 3])
            if result[id_name] != -1 and result[host]:
                result[host], result[port] = (
                    advertised[result[id_name]].host,
                    advertised[result[id_name]].port,
                )
    for item in (*plain, *form.tagged):
        inner = result.get(item.name)
        if not item.fields or inner is None:
            continue
        inner_form = form.of(item.fields)
        if isinstance(inner, list):
            result[item.name] = [
                _for_client(inner_form, element, advertised, blanks, enclosed=enclosed) for element in inner
            ]
        else:
            result[item.name] = _for_client(inner_form, inner, advertised, blanks, enclosed=enclosed)
    return result


def without(values: Values, names: Sequence[str]) -> Values:
    """The message without some of its topmost fields."""
    return {name: value for name, value in values.items() if name not in names}
