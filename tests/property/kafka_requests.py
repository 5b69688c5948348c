"""Requests with the header that Kafka expects of each version, and with unusual headers of clients."""

from __future__ import annotations

import struct
from typing import Final

from tests.property.model_broker import (
    FLEXIBLE_HEADER,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    VALID_TOKEN_PART,
    header_version,
)
from tests.property.wire_fleet import request

FETCH: Final = 1
METADATA: Final = 3
NO_TAGS: Final = b"\0"
SOFTWARE: Final = b"\7client\0041.0\0"
"""The body of an ApiVersions request, from v3 on."""


def ask(
    key: int,
    version: int,
    correlation_id: int,
    body: bytes = b"",
    tags: bytes = NO_TAGS,
    client_id: bytes | None = b"tester",
) -> bytes:
    """Make a request with the header that Kafka expects of its version."""
    tags = tags if header_version(key, version) == FLEXIBLE_HEADER else b""
    return request(key, version, correlation_id, tags + body, client_id)


def string(text: bytes) -> bytes:
    return struct.pack(">h", len(text)) + text


def handshake(version: int, correlation_id: int, mechanism: bytes) -> bytes:
    return ask(SASL_HANDSHAKE, version, correlation_id, string(mechanism))


def authenticate(version: int, correlation_id: int, token: bytes = VALID_TOKEN_PART) -> bytes:
    return ask(SASL_AUTHENTICATE, version, correlation_id, struct.pack(">i", len(token)) + token)


def token(data: bytes) -> bytes:
    """Make a token after SaslHandshake v0: a frame without a header."""
    return struct.pack(">i", len(data)) + data


def produce(
    version: int,
    correlation_id: int,
    acks: int,
    transactional_id: bytes = b"",
    tags: bytes = NO_TAGS,
    client_id: bytes | None = b"tester",
) -> bytes:
    """Args: transactional_id: encoded; empty for null."""
    if version < 3:
        null = b""
    else:
        null = b"\0" if header_version(PRODUCE, version) == FLEXIBLE_HEADER else b"\xff\xff"
    body = (transactional_id or null) + struct.pack(">hi", acks, 30_000) + b"records"
    return ask(PRODUCE, version, correlation_id, body, tags, client_id)


def produce_to(
    topic: bytes, correlation_id: int = 1, acks: int = 1, *, partition: int = 0, size: int = 0
) -> bytes:
    """Produce v8 of a number of zero bytes to one partition. Source: ProduceRequest.json"""
    body = struct.pack(">hhi", -1, acks, 1000) + struct.pack(">i", 1) + string(topic)
    body += struct.pack(">iii", 1, partition, size) + bytes(size)
    return request(PRODUCE, 8, correlation_id, body)


def fetch_in_rack(topic: bytes, rack: bytes, correlation_id: int = 1) -> bytes:
    """Fetch v11 of partition 0. Source: FetchRequest.json"""
    body = struct.pack(">iiiibii", -1, 500, 1, 1, 0, 0, 0)
    body += struct.pack(">i", 1) + string(topic) + struct.pack(">iiiqqi", 1, 0, 0, 0, 0, 1)
    return request(FETCH, 11, correlation_id, body + struct.pack(">i", 0) + string(rack))


def metadata(correlation_id: int = 1) -> bytes:
    """Metadata v1 of no topic. Source: MetadataRequest.json"""
    return request(METADATA, 1, correlation_id, struct.pack(">i", 0))
