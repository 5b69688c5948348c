"""A client's Metadata request, and the addresses of brokers in its response."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TypeAlias

from fleet.core.errors import MalformedFrame, TruncatedFrame
from fleet.core.model import BrokerId, Endpoint
from fleet.proxy.wire.primitives import OUT_OF_BYTES, read_varint, skip_tags

_METADATA = 3
_VERSION = 12
_CLIENT_ID = b"fleet-prober"

Table: TypeAlias = Mapping[BrokerId, Endpoint]


def metadata_request(correlation_id: int, *, all_topics: bool = False) -> bytes:
    """Return a request for all brokers, and for no topic or for all. Source: MetadataRequest.json v12"""
    header = struct.pack(">hhih", _METADATA, _VERSION, correlation_id, len(_CLIENT_ID)) + _CLIENT_ID + b"\0"
    topics = b"\0" if all_topics else b"\1"
    body = topics + b"\0\0\0"  # create none, no authorized operations, no tags
    return struct.pack(">i", len(header) + len(body)) + header + body


def brokers_of(response: bytes, correlation_id: int) -> Table:
    """Return the brokers in a Metadata response.

    Args:    response: the frame without its length.
    Raises:  MalformedFrame: a response to another request; TruncatedFrame: the response ends too early.
    Source:  MetadataResponse.json v12
    """
    try:
        return _brokers_of(memoryview(response), correlation_id)
    except OUT_OF_BYTES as error:
        detail = f"Metadata response of {len(response)} bytes ends inside a field"
        raise TruncatedFrame("broker", detail) from error


def _brokers_of(view: memoryview, correlation_id: int) -> Table:
    (answered,) = struct.unpack_from(">i", view)
    if answered != correlation_id:
        raise MalformedFrame("broker", f"correlation id {answered}, expected {correlation_id}")
    position = skip_tags(view, 4) + 4  # header; throttle_time_ms
    count, position = read_varint(view, position)
    found: dict[BrokerId, Endpoint] = {}
    for _ in range(count - 1):
        (broker_id,) = struct.unpack_from(">i", view, position)
        size, position = read_varint(view, position + 4)
        host = bytes(view[position : position + size - 1]).decode()
        (port,) = struct.unpack_from(">i", view, position + size - 1)
        size, position = read_varint(view, position + size + 3)
        position = skip_tags(view, position + max(0, size - 1))
        found[broker_id] = Endpoint(host, port)
    return found
