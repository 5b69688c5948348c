"""The versions that all brokers have in common, as an answer to ApiVersions before a broker is chosen.

Source: ApiVersionsResponse.json; KIP-511 and KIP-584; KAFKA-17011 for features whose lowest version is 0
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final

from fleet.core.errors import MalformedFrame
from fleet.proxy.wire.api_versions import NAMES_SOFTWARE_FROM, offered_range
from fleet.proxy.wire.body_reader import BodyReader
from fleet.proxy.wire.primitives import (
    OUT_OF_BYTES,
    encode_varint,
    pack_int16,
    pack_int32,
)

ZERO_FEATURES_FROM: Final = 4
"""The first version whose answer may list a supported feature with lowest version 0."""
THROTTLE_FROM: Final = 1
_SUPPORTED_TAG: Final = 0
_EPOCH_TAG: Final = 1
_FINALIZED_TAG: Final = 2
_range = Struct(">hhh")
_levels = Struct(">hh")
_epoch = Struct(">q")
UNKNOWN_EPOCH: Final = -1

Levels = tuple[int, int]
NO_LEVELS: Final[Levels] = (1, 0)


@dataclass(frozen=True, slots=True)
class Versions:
    """What one broker, or several together, answer to ApiVersions.

    Args:
        ranges: API key → lowest and highest version.
        supported: feature → lowest and highest version.
        finalized: feature → highest and lowest level of the cluster.
        epoch: the epoch of the finalized features; UNKNOWN_EPOCH if there are none.
    """

    ranges: Mapping[int, Levels]
    supported: Mapping[bytes, Levels] = field(default_factory=dict)
    finalized: Mapping[bytes, Levels] = field(default_factory=dict)
    epoch: int = UNKNOWN_EPOCH


def read_versions(body: bytes) -> Versions:
    """Read the body of an ApiVersions response of v3 or above: the bytes after the correlation id.

    Raises: MalformedFrame: the bytes are no such body, or have an error code
    """
    reader = BodyReader(body, 0, is_flexible=True, peer="broker")
    try:
        error_code = reader.int16()
        if error_code:
            raise MalformedFrame("broker", f"ApiVersions answers error {error_code}")
        ranges: dict[int, Levels] = {}
        for _ in range(reader.count()):
            key = reader.int16()
            ranges[key] = (reader.int16(), reader.int16())
            reader.tags()
        reader.int32()  # throttle time
        tags = {reader.varint(): reader.take(reader.varint()) for _ in range(reader.varint())}
        epoch = _epoch.unpack(tags[_EPOCH_TAG])[0] if _EPOCH_TAG in tags else UNKNOWN_EPOCH
        return Versions(
            ranges,
            _read_features(tags.get(_SUPPORTED_TAG, b"\1")),
            _read_features(tags.get(_FINALIZED_TAG, b"\1")),
            int(epoch),
        )
    except OUT_OF_BYTES as error:
        raise MalformedFrame("broker", f"ApiVersions response of {len(body)} bytes is too short") from error


def _read_features(encoded: bytes) -> dict[bytes, Levels]:
    reader = BodyReader(encoded, 0, is_flexible=True, peer="broker")
    found: dict[bytes, Levels] = {}
    for _ in range(reader.count()):
        name = reader.text() or b""
        found[name] = (reader.int16(), reader.int16())
        reader.tags()
    return found


def intersect(answers: Collection[Versions]) -> Versions:
    """Return what all of some brokers can do; the finalized features with the highest epoch.

    Args: answers: of at least one broker.
    """
    newest = max(answers, key=lambda each: each.epoch)
    return Versions(
        _common([each.ranges for each in answers]),
        _common([each.supported for each in answers]),
        newest.finalized,
        newest.epoch,
    )


def _common(many: Sequence[Mapping[Any, Levels]]) -> dict[Any, Levels]:
    """Return the common part of the ranges of each name, without empty ones."""
    first, *others = many
    found: dict[Any, Levels] = {}
    for name, levels in first.items():
        ranges = [levels, *(other.get(name, NO_LEVELS) for other in others)]
        low, high = max(each[0] for each in ranges), min(each[1] for each in ranges)
        if low <= high:
            found[name] = (low, high)
    return found


def build_answer(body: bytes, correlation_id: int) -> bytes:
    """Return a whole ApiVersions response with a body of `build_body`."""
    return pack_int32(len(body) + 4) + pack_int32(correlation_id) + body


def build_body(versions: Versions, version: int) -> bytes:
    """Return the body of an ApiVersions response, with the versions that the fleet can pass on.

    Args: version: the version of the request; the fleet knows it.
    """
    offered = {
        key: common
        for key, (low, high) in sorted(versions.ranges.items())
        if (common := offered_range(key, low, high)) is not None
    }
    is_flexible = version >= NAMES_SOFTWARE_FROM
    tags = b"\0" if is_flexible else b""
    count = encode_varint(len(offered) + 1) if is_flexible else pack_int32(len(offered))
    body = pack_int16(0) + count
    body += b"".join(_range.pack(key, *levels) + tags for key, levels in offered.items())
    if version >= THROTTLE_FROM:
        body += pack_int32(0)
    if is_flexible:
        body += _encode_features(versions, with_zero=version >= ZERO_FEATURES_FROM)
    return body


def _encode_features(versions: Versions, *, with_zero: bool) -> bytes:
    """Encode the tagged fields of a response."""
    supported = {name: levels for name, levels in versions.supported.items() if with_zero or levels[0]}
    fields = {_SUPPORTED_TAG: _encode_levels(supported)} if supported else {}
    if versions.epoch != UNKNOWN_EPOCH:
        fields[_EPOCH_TAG] = _epoch.pack(versions.epoch)
    if versions.finalized:
        fields[_FINALIZED_TAG] = _encode_levels(versions.finalized)
    encoded = [encode_varint(tag) + encode_varint(len(value)) + value for tag, value in fields.items()]
    return encode_varint(len(encoded)) + b"".join(encoded)


def _encode_levels(features: Mapping[bytes, Levels]) -> bytes:
    encoded = [
        encode_varint(len(name) + 1) + name + _levels.pack(*levels) + b"\0"
        for name, levels in features.items()
    ]
    return encode_varint(len(encoded) + 1) + b"".join(encoded)
