"""The first inputs: valid frames of every API and version, made from Kafka's own definitions."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from unittest.mock import patch

from fleet.core.model import Endpoint
from tests.conformance import messages
from tests.conformance.exchange import request_form, request_frame, response_form, response_frame
from tests.conformance.messages import Form, Maker, encode, unsigned_varint
from tests.fuzz.corpus import read_corpus
from tests.fuzz.target import (
    ANSWERED_APIS,
    API_VERSIONS,
    BOTH,
    BROKER,
    CLIENT,
    DRAINS,
    FRAMED,
    HOLDS_LITTLE,
    MESSAGES,
    PRODUCE,
    REAL_HOST,
    REDIRECTS,
    UNKNOWN_VERSION,
    WITH_ADDRESSES,
    api_code,
)
from tests.property import wire_fleet

FINDS: Final = Path(__file__).parent / "finds"
"""Inputs that failed once."""
MAX_SEED_BYTES: Final = 1500
_MAX_ATTEMPTS: Final = 30
_LONG_SEEDS: Final = 4
"""Number of additional long seeds for a response with addresses."""
REAL_ENDPOINTS: Final = {
    each: Endpoint(f"{REAL_HOST}-{each}.example", 30_000 + each) for each in (0, 1, 2, 3, 4, 9, 12, 99)
}
"""The brokers' real addresses, which clients must never learn."""


def seeds(seed: int) -> Iterator[bytes]:
    """Yield the seeds. The same seed gives the same ones."""
    rng = random.Random(seed)
    maker = Maker(rng, REAL_ENDPOINTS)
    answers: dict[int, bytes] = {}
    for api in ANSWERED_APIS[:-1]:
        message, version = MESSAGES[api >> 16], api & 0xFFFF
        request_bytes = request_frame(
            message, version, 1, _short_body(maker, request_form(message, version), rng)
        )
        body = _short_body(maker, response_form(message, version), rng)
        answer = response_frame(message, version, 1, body)
        answers[api] = answer
        cuts = rng.randrange(256)
        yield bytes((CLIENT, cuts)) + request_bytes
        yield bytes((CLIENT | FRAMED, cuts)) + request_bytes[4:]
        yield _broker_input(FRAMED, cuts, api, api, answer[8:])
        for _ in range(_LONG_SEEDS if api in WITH_ADDRESSES else 0):
            body = _long_body(maker, response_form(message, version))
            yield _broker_input(
                FRAMED, rng.randrange(256), api, api, response_frame(message, version, 1, body)[8:]
            )
        if api in WITH_ADDRESSES:
            with patch.object(messages, "unsigned_varint", _in_two_bytes):
                body = _long_body(maker, response_form(message, version))
                wide = response_frame(message, version, 1, body)
            yield _broker_input(FRAMED, cuts, api, api, wide[8:])
        if message.api_key != PRODUCE:  # its acks are random
            yield bytes((BOTH, cuts)) + _chunk(0, request_bytes) + _chunk(1, answer)
    for api, other in zip(ANSWERED_APIS, (*ANSWERED_APIS[7:], *ANSWERED_APIS[:7]), strict=True):
        both = answers.get(api, b"") + b"\0\0" + answers.get(other, b"")
        first, second = answers.get(api), answers.get(other)
        if first is None or second is None:
            continue
        both = first + second[:4] + struct.pack(">i", 2) + second[8:]
        yield _broker_input(HOLDS_LITTLE if rng.random() < 0.3 else 0, rng.randrange(256), api, other, both)
    yield from _special()


def _in_two_bytes(value: int) -> bytes:
    """Encode an unsigned varint in two bytes or more.

    Every reader accepts the form, though no sender uses it.
    """
    return unsigned_varint(value) if value > 0x7F else bytes((value | 0x80, 0))


def _special() -> Iterator[bytes]:
    """Yield inputs that single frames do not reach: authentication, heartbeats, drains, local answers."""
    unknown = wire_fleet.request(API_VERSIONS, UNKNOWN_VERSION, 1)
    heartbeat = wire_fleet.request(12, 4, 1, b"\0\2g\0\0\0\1\2m\0\0")
    silent = wire_fleet.produce(9, 1, 0, b"records")
    handshake = wire_fleet.request(17, 1, 1, b"\0\5PLAIN")
    metadata = wire_fleet.request(3, 12, 2, b"\0\1\0\0\0")
    token = wire_fleet.request(36, 0, 2, b"\0\0\0\x09\0user\0pwd")
    refused = struct.pack(">iih", 6, 1, 0)
    yield bytes((CLIENT, 3)) + unknown + unknown + metadata
    yield bytes((CLIENT, 0)) + silent + metadata + silent
    for flags in (DRAINS, REDIRECTS, DRAINS | REDIRECTS):
        yield bytes((CLIENT | flags, 5)) + metadata + silent + silent + metadata
        yield bytes((CLIENT | flags, 2)) + heartbeat + heartbeat + unknown
        yield bytes((BOTH | flags, 7)) + _chunk(0, silent) + _chunk(0, heartbeat) + _chunk(0, silent)
    conversation = (
        _chunk(0, handshake)
        + _chunk(1, refused)
        + _chunk(0, token)
        + _chunk(1, struct.pack(">iihii", 14, 2, 0, -1, 0))
    )
    yield bytes((BOTH, 0)) + conversation + _chunk(0, metadata)
    yield (
        bytes((BOTH, 9))
        + conversation[: len(conversation) - 6]
        + _chunk(0, metadata)
        + _chunk(1, refused[:4] + metadata[8:12])
    )
    yield bytes((BOTH, 0)) + _chunk(0, handshake + token + token + unknown)
    low = struct.pack(">hihhh", 35, 1, API_VERSIONS, 0, 4)
    yield _broker_input(FRAMED, 1, ANSWERED_APIS[-1], ANSWERED_APIS[-1], low)
    yield _broker_input(FRAMED, 1, API_VERSIONS << 16 | 3, ANSWERED_APIS[-1], low)


def _broker_input(flags: int, cuts: int, first: int, second: int, data: bytes) -> bytes:
    return struct.pack(">BBHH", BROKER | flags, cuts, api_code(first), api_code(second)) + data


def _chunk(side: int, data: bytes) -> bytes:
    return struct.pack(">H", side << 15 | len(data)) + data


def _short_body(maker: Maker, form: Form, rng: random.Random) -> bytes:
    """Encode a random message, a short one if there is one."""
    bodies = (encode(form, maker.message(form)) for _ in range(_MAX_ATTEMPTS))
    limit = rng.choice((200, 600, MAX_SEED_BYTES))
    shortest = b""
    for body in bodies:
        if len(body) <= limit:
            return body
        if not shortest or len(body) < len(shortest):
            shortest = body
    return shortest


def _long_body(maker: Maker, form: Form) -> bytes:
    """Encode the longest of several random messages, up to the limit."""
    bodies = [encode(form, maker.message(form)) for _ in range(_MAX_ATTEMPTS)]
    return max(
        (each for each in bodies if len(each) <= MAX_SEED_BYTES), key=len, default=min(bodies, key=len)
    )


def read_finds() -> list[bytes]:
    """Read the inputs that failed once."""
    return [each.read_bytes() for each in sorted(FINDS.glob("*.bin"))]


def write_corpus(folder: Path, seed: int) -> int:
    """Write all seeds, one file each. Returns: their number."""
    folder.mkdir(parents=True, exist_ok=True)
    seed_inputs = [*seeds(seed), *read_finds(), *read_corpus()]
    for number, each in enumerate(seed_inputs):
        (folder / f"seed-{number:05}").write_bytes(each)
    return len(seed_inputs)
