"""Inputs to begin with: valid frames of every API and version, made from Kafka's own definitions."""

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
from tests.fuzz.corpus import kept
from tests.fuzz.target import (
    API_VERSIONS,
    ASKED,
    BOTH,
    BROKER,
    CLIENT,
    DRAINS,
    FRAMED,
    MESSAGES,
    PRODUCE,
    REAL_HOST,
    REDIRECTS,
    SMALL,
    UNKNOWN_VERSION,
    WITH_ADDRESSES,
    short,
)
from tests.property import wire_fleet

FINDS: Final = Path(__file__).parent / "finds"
"""Inputs that something was wrong with, once."""
LONGEST_BYTES: Final = 1500
_TRIES: Final = 30
_MORE: Final = 4
"""Seeds of a response with addresses, and as long as may be."""
REAL: Final = {
    each: Endpoint(f"{REAL_HOST}-{each}.example", 30_000 + each) for each in (0, 1, 2, 3, 4, 9, 12, 99)
}
"""Where the brokers are, of all of which clients must not learn."""


def seeds(seed: int) -> Iterator[bytes]:
    """One after the other; the same ones for the same seed."""
    chance = random.Random(seed)
    maker = Maker(chance, REAL)
    answers: dict[int, bytes] = {}
    for api in ASKED[:-1]:
        message, version = MESSAGES[api >> 16], api & 0xFFFF
        asked = request_frame(message, version, 1, _short(maker, request_form(message, version), chance))
        body = _short(maker, response_form(message, version), chance)
        answer = response_frame(message, version, 1, body)
        answers[api] = answer
        cuts = chance.randrange(256)
        yield bytes((CLIENT, cuts)) + asked
        yield bytes((CLIENT | FRAMED, cuts)) + asked[4:]
        yield _broker(FRAMED, cuts, api, api, answer[8:])
        for _ in range(_MORE if api in WITH_ADDRESSES else 0):
            body = _long(maker, response_form(message, version))
            yield _broker(
                FRAMED, chance.randrange(256), api, api, response_frame(message, version, 1, body)[8:]
            )
        if api in WITH_ADDRESSES:
            with patch.object(messages, "unsigned_varint", _in_two_bytes):
                body = _long(maker, response_form(message, version))
                wide = response_frame(message, version, 1, body)
            yield _broker(FRAMED, cuts, api, api, wide[8:])
        if message.api_key != PRODUCE:  # whose acks are any number
            yield bytes((BOTH, cuts)) + _chunk(0, asked) + _chunk(1, answer)
    for api, other in zip(ASKED, (*ASKED[7:], *ASKED[:7]), strict=True):
        both = answers.get(api, b"") + b"\0\0" + answers.get(other, b"")
        first, second = answers.get(api), answers.get(other)
        if first is None or second is None:
            continue
        both = first + second[:4] + struct.pack(">i", 2) + second[8:]
        yield _broker(SMALL if chance.random() < 0.3 else 0, chance.randrange(256), api, other, both)
    yield from _special()


def _in_two_bytes(value: int) -> bytes:
    """An unsigned varint of two bytes or more, as nobody sends a small number, and everybody reads it."""
    return unsigned_varint(value) if value > 0x7F else bytes((value | 0x80, 0))


def _special() -> Iterator[bytes]:
    """What frames of one kind do not lead to: authentication, heartbeats, drains, answers from here."""
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
    talk = (
        _chunk(0, handshake)
        + _chunk(1, refused)
        + _chunk(0, token)
        + _chunk(1, struct.pack(">iihii", 14, 2, 0, -1, 0))
    )
    yield bytes((BOTH, 0)) + talk + _chunk(0, metadata)
    yield (
        bytes((BOTH, 9))
        + talk[: len(talk) - 6]
        + _chunk(0, metadata)
        + _chunk(1, refused[:4] + metadata[8:12])
    )
    yield bytes((BOTH, 0)) + _chunk(0, handshake + token + token + unknown)
    low = struct.pack(">hihhh", 35, 1, API_VERSIONS, 0, 4)
    yield _broker(FRAMED, 1, ASKED[-1], ASKED[-1], low)
    yield _broker(FRAMED, 1, API_VERSIONS << 16 | 3, ASKED[-1], low)


def _broker(flags: int, cuts: int, first: int, second: int, data: bytes) -> bytes:
    return struct.pack(">BBHH", BROKER | flags, cuts, short(first), short(second)) + data


def _chunk(side: int, data: bytes) -> bytes:
    return struct.pack(">H", side << 15 | len(data)) + data


def _short(maker: Maker, form: Form, chance: random.Random) -> bytes:
    """The body of a random message, if there is a short one."""
    bodies = (encode(form, maker.message(form)) for _ in range(_TRIES))
    limit = chance.choice((200, 600, LONGEST_BYTES))
    shortest = b""
    for body in bodies:
        if len(body) <= limit:
            return body
        if not shortest or len(body) < len(shortest):
            shortest = body
    return shortest


def _long(maker: Maker, form: Form) -> bytes:
    """The longest of some random messages, up to the limit."""
    bodies = [encode(form, maker.message(form)) for _ in range(_TRIES)]
    return max((each for each in bodies if len(each) <= LONGEST_BYTES), key=len, default=min(bodies, key=len))


def finds() -> list[bytes]:
    """What was kept of what was found."""
    return [each.read_bytes() for each in sorted(FINDS.glob("*.bin"))]


def write_corpus(folder: Path, seed: int) -> int:
    """All of them, a file each. Returns: how many."""
    folder.mkdir(parents=True, exist_ok=True)
    made = [*seeds(seed), *finds(), *kept()]
    for number, each in enumerate(made):
        (folder / f"seed-{number:05}").write_bytes(each)
    return len(made)
