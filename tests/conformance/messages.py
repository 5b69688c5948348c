"""Random messages of any API and version, made, encoded and decoded by Kafka's own definitions.

A message is a dictionary by field name, as deep as its definition; null is None. The code under test reads
the same definitions to generate patching functions; what is here knows nothing of offsets, and decodes and
encodes whole messages, as ``kio`` does for those that it knows.
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
"""Under which name a message has tagged fields that no definition has: their values by number."""
UNKNOWN_TAGS: Final = (100, 125, 126, 127, 128, 20_000, 2**28)
"""Among them those that the fleet takes for padding, where they are free: see ADR 16."""
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
        chance: decides.
        brokers: the addresses that a broker's id has wherever one stands in a message.
        unknown: how likely a struct has tagged fields that nobody knows, where it may have any.
    """

    def __init__(
        self, chance: random.Random, brokers: Mapping[BrokerId, Endpoint], unknown: float = 0.0
    ) -> None:
        self._chance = chance
        self._brokers = brokers
        self._unknown = unknown
        self.made_unknown = 0
        """How many of those there were."""

    def message(self, form: Form) -> Values:
        made: Values = {}
        plain = form.plain
        for item in plain:
            made[item.name] = self._value(form, item)
        for index in range(len(plain)):
            if is_address(plain, index):
                names = [each.name for each in plain[index : index + 3]]
                made.update(zip(names, self._address(), strict=True))
        if _is_configuration(form, made):
            self._configuration(made)
        if _is_listener(form, made):
            _, made["Host"], made["Port"] = self._address()
            made["Port"] = max(0, made["Port"])
        for item in form.tagged:
            if self._chance.random() < 0.5:
                made[item.name] = self._value(form, item)
        unknown = self.unknown() if form.flexible else {}
        return {**made, UNKNOWN: unknown} if unknown else made

    def unknown(self) -> dict[int, bytes]:
        """Tagged fields that nobody knows, if any."""
        if not self._unknown or self._chance.random() >= self._unknown:
            return {}
        tags = self._chance.sample(UNKNOWN_TAGS, self._chance.choice((1, 1, 2, 5)))
        self.made_unknown += len(tags)
        return {tag: self._chance.randbytes(self._chance.choice((0, 1, 30, 130))) for tag in tags}

    def _address(self) -> tuple[BrokerId, str, int]:
        if self._chance.random() < 0.1:
            return -1, "", -1
        broker_id = self._chance.choice(sorted(self._brokers))
        return broker_id, self._brokers[broker_id].host, self._brokers[broker_id].port

    def _configuration(self, made: Values) -> None:
        made["Name"] = self._chance.choice(CONFIGS)
        if made["Name"] in CONFIGS_WITH_ADDRESS:
            made["Value"] = f"PLAINTEXT://{self._brokers[min(self._brokers)]}"

    def _value(self, form: Form, item: Field) -> Any:
        if form.version in item.nullable and self._chance.random() < 0.2:
            return None
        if item.is_array:
            one = replace(item, type=item.element, nullable=replace(item.nullable, low=0, high=-1))
            return [self._value(form, one) for _ in range(self._chance.choice((0, 1, 1, 2, 3)))]
        if item.fields:
            return self.message(form.of(item.fields))
        if item.name == "ErrorCode":
            return 0
        return self._scalar(item.type)

    def _scalar(self, kind: str) -> Any:
        chance = self._chance
        if kind in _INTEGERS:
            low, high = _bounds(_INTEGERS[kind])
            return chance.choice((0, 1, chance.randint(low, high)))
        if kind == "bool":
            return chance.random() < 0.5
        if kind == "float64":
            return float(chance.randint(-1000, 1000))
        if kind == "uuid":
            return uuid.UUID(int=chance.getrandbits(128))
        length = chance.choice((0, 1, 7, 30, 130, 300))
        if kind == "string":
            return "".join(chance.choice(_LETTERS) for _ in range(length))
        return chance.randbytes(length)


def _is_configuration(form: Form, values: Values) -> bool:
    return form.api == "DescribeConfigs" and {"Name", "Value"} <= values.keys()


def _is_listener(form: Form, values: Values) -> bool:
    """Of a controller."""
    return form.api == "DescribeQuorum" and {"Host", "Port"} <= values.keys()


def _bounds(code: str) -> tuple[int, int]:
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
    """A section of tagged fields."""
    parts = [unsigned_varint(len(fields))]
    for tag, value in sorted(fields.items()):
        parts += (unsigned_varint(tag), unsigned_varint(len(value)), value)
    return b"".join(parts)


def _encode_field(form: Form, item: Field, value: Any) -> bytes:
    if item.is_array:
        one = replace(item, type=item.element, nullable=replace(item.nullable, low=0, high=-1))
        many = b"" if value is None else b"".join(_encode_field(form, one, each) for each in value)
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

    Args: unknown: whether tagged fields that the definition does not know are kept, and not passed over.
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
                ends = self._pos + size
                if tag in known:
                    values[known[tag].name] = self.read_field(form, known[tag])
                    assert self._pos == ends, f"tagged field {tag} ends at {self._pos}, not at {ends}"
                elif self._unknown:
                    values.setdefault(UNKNOWN, {})[tag] = self._data[self._pos : ends]
                self._pos = ends
        return values

    def end(self) -> None:
        """Raises: AssertionError: something is left."""
        assert self._pos == len(self._data), f"{len(self._data) - self._pos} bytes are left"

    def take(self, size: int) -> bytes:
        taken = self._data[self._pos : self._pos + size]
        assert len(taken) == size, "the message ends inside a field"
        self._pos += size
        return taken

    def read_field(self, form: Form, item: Field) -> Any:
        if item.is_array:
            one = replace(item, type=item.element, nullable=replace(item.nullable, low=0, high=-1))
            count = self.read_length(form, "i")
            return None if count is None else [self.read_field(form, one) for _ in range(count)]
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


# ---- what a fleet makes of a message


def for_client(
    form: Form,
    values: Values,
    advertised: Mapping[BrokerId, Endpoint],
    blanks: Callable[[str], bool] = CONFIGS_WITH_ADDRESS.__contains__,
) -> Values:
    """The response that a client is to get: other addresses, none of controllers or in configurations."""
    return _for_client(form, values, advertised, blanks, enclosed=False)


def _for_client(
    form: Form,
    values: Values,
    advertised: Mapping[BrokerId, Endpoint],
    blanks: Callable[[str], bool],
    *,
    enclosed: bool,
) -> Values:
    made = dict(values)
    plain = form.plain
    if _is_configuration(form, made):
        enclosed = enclosed or blanks(made["Name"])
        if enclosed and made["Value"]:
            made["Value"] = ""
    if _is_listener(form, made):
        made["Host"], made["Port"] = "", 0
    for index in range(len(plain)):
        if is_address(plain, index):
            id_name, host, port = (each.name for each in plain[index : index + 3])
            if made[id_name] != -1 and made[host]:
                made[host], made[port] = advertised[made[id_name]].host, advertised[made[id_name]].port
    for item in (*plain, *form.tagged):
        inner = made.get(item.name)
        if not item.fields or inner is None:
            continue
        deeper = form.of(item.fields)
        if isinstance(inner, list):
            made[item.name] = [
                _for_client(deeper, one, advertised, blanks, enclosed=enclosed) for one in inner
            ]
        else:
            made[item.name] = _for_client(deeper, inner, advertised, blanks, enclosed=enclosed)
    return made


def without(values: Values, names: Sequence[str]) -> Values:
    """The message without some of its topmost fields."""
    return {name: value for name, value in values.items() if name not in names}
