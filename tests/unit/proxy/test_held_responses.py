"""Responses that must be complete before patching: work in slices, and a common limit for all clients."""

from __future__ import annotations

import struct
from functools import partial

import pytest

from benchmarks.instruction_counts import instructions
from fleet.core.errors import OversizeFrame
from fleet.proxy.rewriter import AT_ONCE_BYTES, METADATA, PIECE_BYTES, SlicedPatch
from fleet.proxy.wire._tables import find_coordinator_v4
from fleet.proxy.wire.addresses import SLICE_BYTES, TAG_LIMIT_BYTES, Addresses, Layout, Parts, Slices
from fleet.proxy.wire.primitives import MAX_INT32, encode_varint
from tests.integration.in_process.proxy.test_worker import DATA_BYTES, MIB, PRODUCE, response
from tests.property.test_heads import ONE_OWNER_EACH
from tests.property.wire_fleet import Limits as SessionLimits
from tests.property.wire_fleet import Play

REAL = b"PLAINTEXT://real-broker-1.hidden:9092"
DESCRIBE_CONFIGS, FIND_COORDINATOR, FETCH = 32, 10, 1

ROOM = SessionLimits(max_patched_response_bytes=64 * MIB)


def compact(text: bytes) -> bytes:
    return encode_varint(len(text) + 1) + text


def config(name: bytes, value: bytes) -> bytes:
    """A configuration of DescribeConfigs v4, with a synonym."""
    synonym = compact(name) + compact(value) + b"\x05\0"
    return compact(name) + compact(value) + b"\0\x05\0" + b"\x02" + synonym + b"\x01\0\0"


def configs(copies: int, value: bytes = REAL) -> bytes:
    """A body of DescribeConfigs v4 that answers a request with the same broker many times."""
    entries = [config(b"some.broker.config.name.%d" % number, b"value") for number in range(100)]
    broker = (
        bytes(2) + b"\0\x04\x021" + encode_varint(102) + b"".join((*entries, config(b"listeners", value)))
    )
    return bytes(5) + encode_varint(copies + 1) + (broker + b"\0") * copies + b"\0"


def copies_for(size_bytes: int) -> int:
    return size_bytes // (len(configs(2)) - len(configs(1)))


# ---- a session


@pytest.mark.interpreted
def test_each_turn_patches_at_most_a_slice() -> None:
    """Found: 30 MB, requested with 8 KB, took 0.93 s in one turn of the event loop."""
    of_slice = _most_instructions(4 * SLICE_BYTES + AT_ONCE_BYTES)
    of_many = _most_instructions(MIB // 2)
    assert of_many <= 2 * of_slice


def _most_instructions(size_bytes: int) -> int:
    play, written = Play.new(limits=ROOM), list[bytes | memoryview]()
    play.ask((DESCRIBE_CONFIGS, 4, 1))
    frame = response(1, configs(copies_for(size_bytes)))
    session = play.session
    most = 0
    for begin in range(0, len(frame), DATA_BYTES):
        piece = frame[begin : begin + DATA_BYTES]
        most = max(most, instructions(partial(session.receive_from_broker, piece, written.append)))
    assert session.is_working
    while session.is_working:
        before = len(written)
        most = max(most, instructions(lambda: session.work(written.append)))
        assert sum(map(len, written[before:])) <= 2 * PIECE_BYTES
    received = b"".join(written)
    assert received == response(1, configs(copies_for(size_bytes), b""))
    return most


def test_bytes_behind_a_held_response_wait() -> None:
    play, written = Play.new(limits=ROOM), list[bytes | memoryview]()
    play.ask((DESCRIBE_CONFIGS, 4, 1), (FIND_COORDINATOR, 3, 2))
    frame, behind = response(1, configs(20)), response(2, bytes(4))
    assert len(frame) > AT_ONCE_BYTES
    session = play.session
    assert session.receive_from_broker(frame + behind, written.append) == len(frame)
    assert session.is_holding
    assert session.held_bytes == len(frame)
    assert session.receive_from_broker(behind, written.append) == 0
    assert session.in_flight == 2
    assert not written
    while session.is_working:
        session.work(written.append)
    assert session.held_bytes == 0
    assert session.in_flight == 1


@pytest.mark.interpreted
def test_many_short_responses_are_patched_in_several_turns() -> None:
    """Found: 200 clients that each requested 15 KB 100 times made a turn of the event loop take 2.4 s."""
    play, written = Play.new(limits=ROOM), list[bytes | memoryview]()
    frame = response(1, configs(copies_for(AT_ONCE_BYTES // 2)))
    count = DATA_BYTES // len(frame)
    play.ask(*[(DESCRIBE_CONFIGS, 4, 1)] * count)
    read, session, most = frame * count, play.session, 0
    while read or session.is_working:
        before = len(written)
        if session.is_working:
            session.work(written.append)
        else:
            read = read[session.receive_from_broker(read, written.append) :]
        most = max(most, sum(map(len, written[before:])))
    assert most <= AT_ONCE_BYTES
    assert b"".join(written) == response(1, configs(copies_for(AT_ONCE_BYTES // 2), b"")) * count


def test_all_slices_use_the_same_directory() -> None:
    play, written = Play.new(limits=ROOM), list[bytes | memoryview]()
    play.ask((FIND_COORDINATOR, 4, 1))
    coordinator = (
        compact(b"group") + struct.pack(">i", 2) + compact(b"real") + bytes(4) + b"\0\0" + b"\0" + b"\0"
    )
    count = 5_000
    body = b"\0" + bytes(4) + encode_varint(count + 1) + coordinator * count + b"\0"
    session = play.session
    frame = response(1, body)
    session.receive_from_broker(frame, written.append)
    for _ in range(20):
        session.work(written.append)
    play.source.update(play.source.book.directory.__class__())
    while session.is_working:
        session.work(written.append)
    received = b"".join(written)
    assert received.count(b"a-proxy-with-a-name") == count
    assert b"real" not in received


def test_response_without_addresses_is_unchanged() -> None:
    play = Play.new(limits=ROOM)
    play.ask((DESCRIBE_CONFIGS, 4, 1))
    frame = response(1, configs(50, b""))
    play.broker(frame)
    assert bytes(play.to_client) == frame
    assert not any(play.counters.rewritten)


def test_tagged_field_of_addresses_is_limited() -> None:
    """The field cannot be sliced, because its length comes first and changes."""
    play = Play.new(limits=ROOM)
    play.ask((PRODUCE, 10, 1))
    endpoints = encode_varint(2) + bytes(TAG_LIMIT_BYTES)
    tags = b"\1\0" + encode_varint(len(endpoints)) + endpoints
    with pytest.raises(OversizeFrame) as caught:
        play.broker(response(1, b"\0" + b"\1" + bytes(4) + tags))
    assert caught.value.peer == "broker"
    assert not play.to_client


@pytest.mark.parametrize("is_pattern_known", [False, True])
@pytest.mark.parametrize(("size", "is_refused"), [(MAX_INT32 - 100, False), (MAX_INT32, True)])
def test_size_above_int32_in_a_response_of_brokers_is_refused(
    is_pattern_known: bool, size: int, is_refused: bool
) -> None:
    """Found: struct.error, or a size below 0 was sent to the client."""
    play = Play.new(ONE_OWNER_EACH)
    play.ask((METADATA, 12, 1), (METADATA, 12, 2))
    broker = struct.pack(">i", 1) + compact(b"h") + struct.pack(">i", 9092) + b"\0\0"
    brokers = bytes(5) + b"\2" + broker
    if is_pattern_known:
        play.broker(response(1, brokers + b"\1" + bytes(4) + b"\1" + bytes(5)))
        assert play.source.book.heads
    number = 1 + is_pattern_known
    sent_bytes = len(play.to_client)
    begin = struct.pack(">ii", size, number) + brokers
    if is_refused:
        with pytest.raises(OversizeFrame, match="is above int32 with the fleet's addresses"):
            play.broker(begin)
        assert len(play.to_client) == sent_bytes
    else:
        play.broker(begin)
        assert size < struct.unpack_from(">i", play.to_client, sent_bytes)[0] <= MAX_INT32


@pytest.mark.parametrize(("times", "is_refused"), [(31, False), (32, True)])
def test_size_above_int32_of_a_held_response_is_refused(times: int, is_refused: bool) -> None:
    """Found: struct.error, and the connection stayed open. 120 MB of coordinators would become 2 GiB."""
    long_host = bytes(64 * MIB)

    def slices(frame: memoryview, addresses: Addresses, parts: Parts) -> Slices:
        parts += [long_host] * times
        yield
        return len(frame)

    patched = SlicedPatch(
        Layout("sample", find_coordinator_v4, True, slices), memoryview(bytes(100)), Addresses()
    )
    if not is_refused:
        patched.step(list[object]().append)
        assert patched.has_replacements
        return
    with pytest.raises(OversizeFrame) as caught:
        patched.step(list[object]().append)
    assert str(caught.value) == (
        "broker: sample response of 100 bytes is above int32 with the fleet's addresses; "
        "request less at once, or advertise shorter host names"
    )
