"""ApiVersions: the versions that brokers offer, restricted to the versions that the fleet can pass on."""

from __future__ import annotations

from struct import Struct
from typing import Final

from fleet.core.errors import MalformedFrame, UnsupportedVersion
from fleet.proxy.wire._tables import APIS
from fleet.proxy.wire.addresses import Addresses, Layout, Parts
from fleet.proxy.wire.primitives import (
    OUT_OF_BYTES,
    encode_varint,
    pack_int32,
    read_int16,
    read_int32,
    read_varint,
    skip_tags,
)

PRODUCE: Final = 0
SASL_HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
UNSUPPORTED_VERSION: Final = 35
NAMES_SOFTWARE_FROM: Final = 3
NAMES_NODE_FROM: Final = 5

APIS_WITH_BROKER_MINIMUM: Final = frozenset((PRODUCE, SASL_HANDSHAKE))
"""APIs whose lowest listed version stays the broker's, although the fleet refuses this version.

librdkafka derives its compression codecs from Produce v0, so brokers list v0 and reject it (KAFKA-18659).
Before 2.11.1 librdkafka authenticates only if SaslHandshake v0 is listed, and then uses v1.
"""

_read_range: Final = Struct(">hhh").unpack_from
_pack_range: Final = Struct(">hhh").pack
_pack_error_reply: Final = Struct(">iihihhh").pack


def build_error_reply(correlation_id: int) -> bytes:
    """Return the whole response to an ApiVersions request of an unknown version, like a broker's.

    Source: KIP-511: error 35 in a v0 body that lists ApiVersions itself, so that the client can choose
        another version; brokers do the same since 2.4.
    """
    known = APIS[API_VERSIONS]
    return _pack_error_reply(
        16, correlation_id, UNSUPPORTED_VERSION, 1, API_VERSIONS, known.min_version, known.max_version
    )


def read_software_name(frame: memoryview) -> bytes:
    """Return the client library's name in an ApiVersions request; empty if the request has none.

    Args:   frame: a whole request of any version, from its size field on
    Source: ApiVersionsRequest.json v3, RequestHeader.json v2; KIP-511
    """
    try:
        (version,) = read_int16(frame, 6)
        if version < NAMES_SOFTWARE_FROM:
            return b""
        (client_id_bytes,) = read_int16(frame, 12)
        pos = skip_tags(frame, 14 + max(int(client_id_bytes), 0), "client")
        length, pos = read_varint(frame, pos, "client")
        return bytes(frame[pos : pos + max(length - 1, 0)])
    except (*OUT_OF_BYTES, MalformedFrame):  # the broker answers a malformed request
        return b""


NO_NODE: Final = -1


def read_expectation(frame: bytes) -> tuple[bool, int]:
    """Return what an ApiVersions request expects of its receiver.

    Args:    frame: a whole request of any version, from its size field on
    Returns: whether it names a cluster or a broker, and the broker's id or NO_NODE.
    Source:  ApiVersionsRequest.json v5; KIP-1242
    """
    buf = memoryview(frame)
    try:
        (version,) = read_int16(buf, 6)
        if version < NAMES_NODE_FROM:
            return False, NO_NODE
        (client_id_bytes,) = read_int16(buf, 12)
        pos = skip_tags(buf, 14 + max(int(client_id_bytes), 0), "client")
        length = 0
        for _ in range(3):  # software name and version, cluster id
            length, pos = read_varint(buf, pos, "client")
            pos += max(length - 1, 0)
        (node_id,) = read_int32(buf, pos)
        return length > 0 or node_id >= 0, max(int(node_id), NO_NODE)
    except (*OUT_OF_BYTES, MalformedFrame):  # the broker answers a malformed request
        return True, NO_NODE


def offered_range(key: int, low: int, high: int) -> tuple[int, int] | None:
    """Return the versions of a broker's API that clients may use.

    Returns: lowest and highest; None if the API is unknown or no version is left.
    """
    api = APIS.get(key)
    if api is None:
        return None
    if max(low, api.min_version) > min(high, api.max_version):
        return None
    return low if key in APIS_WITH_BROKER_MINIMUM else max(low, api.min_version), min(high, api.max_version)


def _patch_classic(buf: memoryview, parts: Parts) -> int:
    """Patch versions 0 to 2: an int32 count, then six bytes for each API. The rest stays unchanged."""
    (count,) = read_int32(buf, 10)
    pos = 14
    if not 0 <= count <= (len(buf) - pos) // 6:
        raise MalformedFrame("broker", f"ApiVersions response of {len(buf)} bytes claims {count} APIs")
    offered: list[bytes] = []
    for _ in range(count):
        key, low, high = _read_range(buf, pos)
        pos += 6
        versions = offered_range(key, low, high)
        if versions is not None:
            offered.append(_pack_range(key, *versions))
    parts += (buf[4:10], pack_int32(len(offered)), *offered)
    return pos


def _patch_flexible(buf: memoryview, parts: Parts) -> int:
    """Patch version 3 and above: a compact array of APIs with tagged fields. The rest stays unchanged."""
    count, pos = read_varint(buf, 10)
    offered: list[bytes | memoryview] = []
    for _ in range(count - 1):
        key, low, high = _read_range(buf, pos)
        tags = pos + 6
        pos = skip_tags(buf, tags)
        versions = offered_range(key, low, high)
        if versions is not None:
            offered += (_pack_range(key, *versions), buf[tags:pos])
    if pos > len(buf):
        raise IndexError(pos)
    parts += (buf[4:10], encode_varint(len(offered) // 2 + 1), *offered)
    return pos


# The header of an ApiVersions response is always v0: the correlation id, then the body with its error code. A
# broker that does not know the request's version always answers in a v0 body: mostly with error 35, but with
# error 34 if it expects a SASL token.


def patch_v0(buf: memoryview, addresses: Addresses, parts: Parts) -> int:
    """Patch the ApiVersions response to a request of v0-2."""
    return _patch_classic(buf, parts)


def patch_v3(buf: memoryview, addresses: Addresses, parts: Parts) -> int:
    """Patch the ApiVersions response to a request of v3 or above, which has the form of v3 or of v0.

    A compact array that is not null begins with a non-zero byte, an int32 count below 16 million with zero.
    """
    return _patch_flexible(buf, parts) if buf[10] else _patch_classic(buf, parts)


def patch_unknown(buf: memoryview, addresses: Addresses, parts: Parts) -> int:
    """Patch the ApiVersions response to a request of a version above those that the fleet knows.

    Raises: UnsupportedVersion: the broker knows the version, so the form of its response is unknown here.
    """
    (error_code,) = read_int16(buf, 8)
    if error_code != UNSUPPORTED_VERSION:
        raise UnsupportedVersion("broker", f"error code {error_code} for an unknown version of ApiVersions")
    return _patch_classic(buf, parts)


API_VERSIONS_V0 = Layout("api_versions_v0", patch_v0, True)
API_VERSIONS_V3 = Layout("api_versions_v3", patch_v3, True)
API_VERSIONS_UNKNOWN: Final = Layout("api_versions_unknown", patch_unknown, True)
