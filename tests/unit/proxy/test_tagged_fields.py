"""Fetch responses with many tagged fields: each turn of the event loop skips a limited number."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial

import pytest

from benchmarks.instruction_counts import instructions
from fleet.core.errors import MalformedFrame
from fleet.proxy.wire.primitives import encode_varint
from fleet.proxy.wire.scan import FIELDS_PER_TURN
from fleet.proxy.wire.tail import MAX_TAIL_FIELDS
from tests.integration.in_process.proxy.test_worker import DATA_BYTES
from tests.property.test_stream import before_tail
from tests.property.test_tail import array, endpoint, section, tagged
from tests.property.wire_fleet import Play

FETCH, VERSION = 1, 16
MOST_INSTRUCTIONS = 110_000
"""The limit of one turn, like in `tests.fuzz.cost`; 256 KB of tagged fields took 13 million."""
FIELD = tagged(9, b"")
LONG_VARINTS = b"\x89\x80\x80\x80\0" + b"\x80\x80\x80\x80\0"
END = b"\0"
"""A tail without fields."""


def framed(body: bytes, correlation_id: int = 1) -> bytes:
    return struct.pack(">ii", len(body) + 4, correlation_id) + body


def fields(size_bytes: int, field: bytes = FIELD) -> bytes:
    count = size_bytes // len(field)
    return encode_varint(count) + field * count


def of_header(size_bytes: int) -> bytes:
    return framed(before_tail(FETCH, header=fields(size_bytes)) + END)


def of_header_with_long_varints(size_bytes: int) -> bytes:
    return framed(before_tail(FETCH, header=fields(size_bytes, LONG_VARINTS)) + END)


def of_transactions(size_bytes: int) -> bytes:
    """Each aborted transaction has 16 fields."""
    transaction = struct.pack(">qq", 1, 2) + section(*[FIELD] * 16)
    count = size_bytes // len(transaction)
    partition = bytes(30) + encode_varint(count + 1) + transaction * count + b"\xff" * 4 + b"\0\0"
    return framed(before_tail(FETCH, partition) + END)


def of_short_responses(size_bytes: int) -> bytes:
    """No section has as many fields as are skipped in one turn."""
    one = framed(before_tail(FETCH, header=fields(len(FIELD) * (FIELDS_PER_TURN - 1))) + END)
    return one * (size_bytes // len(one))


def walk(raw: bytes, responses: int = 1) -> tuple[bytes, int, int]:
    """Let a session receive bytes in one read; returns its output, its turns, and the most instructions of
    one."""
    play, written = Play.new(), list[bytes | memoryview]()
    play.ask(*[(FETCH, VERSION, 1)] * responses)
    session, turns, most = play.session, 0, 0
    taken = 0

    def receive() -> None:
        nonlocal taken
        taken += session.receive_from_broker(raw[taken:], written.append)

    while taken < len(raw):
        act: Callable[[], object] = partial(session.work, written.append) if session.is_working else receive
        most = max(most, instructions(act))
        turns += 1
    assert session.in_flight == 0
    assert not session.is_working
    return b"".join(written), turns, most


@pytest.mark.interpreted
@pytest.mark.parametrize(
    "make", [of_header, of_header_with_long_varints, of_transactions, of_short_responses]
)
def test_read_full_of_tagged_fields_takes_many_turns(make: Callable[[int], bytes]) -> None:
    """Found: one read took 807 ms of the event loop."""
    raw = make(DATA_BYTES // 4)
    written, turns, most = walk(raw, raw.count(framed(b"")[4:8]) if make is of_short_responses else 1)
    assert most <= MOST_INSTRUCTIONS
    assert turns > 10
    assert written == raw


@pytest.mark.interpreted
def test_long_tails_take_a_turn_each() -> None:
    node = endpoint(1, "h", 1, tags=fields(8_000))
    one = framed(before_tail(FETCH) + section(tagged(0, array(*[node] * 7))))
    assert walk(one * 4, 4)[2] <= 1.1 * walk(one)[2]


def test_fields_of_a_tail_are_limited() -> None:
    """The fields are copied: 64 KB of them took 65 ms."""
    play = Play.new()
    play.ask((FETCH, VERSION, 1), (FETCH, VERSION, 2))
    allowed = framed(before_tail(FETCH) + section(*[FIELD] * MAX_TAIL_FIELDS))
    play.broker(allowed)
    assert bytes(play.to_client) == allowed
    with pytest.raises(MalformedFrame, match=f"{MAX_TAIL_FIELDS + 1} tagged fields"):
        play.broker(framed(before_tail(FETCH) + section(*[FIELD] * (MAX_TAIL_FIELDS + 1)), 2))
