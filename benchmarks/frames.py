"""Frames that clients and brokers send in normal operation, as bytes."""

from __future__ import annotations

from fleet.proxy.rewriter import METADATA
from fleet.proxy.wire.api_versions import PRODUCE
from fleet.proxy.wire.fetch import FETCH

__all__ = ["FETCH", "METADATA", "PRODUCE", "nothing_fetched", "produce", "produced", "request"]


def request(api: tuple[int, int], body: bytes) -> bytes:
    """A request with request header v2. Source: RequestHeader.json"""
    header = b"".join(each.to_bytes(2, "big") for each in api) + (7).to_bytes(4, "big") + b"\0\4test\0"
    return (len(header) + len(body)).to_bytes(4, "big") + header + body


def produce(records_bytes: int) -> bytes:
    """A Produce v11 request with acks=all; a proxy does not read what follows. Source: ProduceRequest.json"""
    return request((PRODUCE, 11), b"\0\xff\xff" + bytes(records_bytes))


def produced() -> bytes:
    """A response to Produce v11, of one partition. Source: ProduceResponse.json"""
    partition = bytes(4 + 2 + 8) + b"\xff" * 8 + bytes(8) + b"\1\0\0"
    body = b"\0" + b"\2" + b"\7events" + b"\2" + partition + b"\0" + bytes(4) + b"\0"
    return (len(body) + 4).to_bytes(4, "big") + (7).to_bytes(4, "big") + body


def nothing_fetched() -> bytes:
    """A response to Fetch v16 in which no partition of the session has records. Source: FetchResponse.json"""
    body = (7).to_bytes(4, "big") + b"\0" + bytes(4 + 2 + 4) + b"\1\0"
    return len(body).to_bytes(4, "big") + body
