"""Responses that must be complete before patching: work in slices, and a common limit for all clients."""

from __future__ import annotations

import asyncio
import ssl
import struct
from functools import partial
from pathlib import Path

import pytest

from benchmarks.instruction_counts import instructions
from fleet.config.settings import Limits, ListenerTlsSettings
from fleet.core.errors import OversizeFrame
from fleet.proxy.connection import ClientConnection
from fleet.proxy.rewriter import AT_ONCE_BYTES, METADATA, PIECE_BYTES, SlicedPatch
from fleet.proxy.turns import TurnQueue
from fleet.proxy.wire._tables import find_coordinator_v4
from fleet.proxy.wire.addresses import SLICE_BYTES, TAG_LIMIT_BYTES, Addresses, Layout, Parts, Slices
from fleet.proxy.wire.primitives import MAX_INT32, encode_varint
from tests.certificates import Authority
from tests.property.test_heads import ONE_OWNER_EACH
from tests.property.wire_fleet import Limits as SessionLimits
from tests.property.wire_fleet import Play
from tests.unit.proxy.test_unread_clients import connect_narrow
from tests.unit.proxy.test_worker import (
    DATA_BYTES,
    LIMIT_S,
    MIB,
    PRODUCE,
    BrokerScript,
    Running,
    broker_script,
    eventually,
    fetch,
    read_frame,
    request,
    response,
    running,
)
from tests.unit.proxy.test_worker_tls import tls_settings, trusting

DESCRIBE_CONFIGS, FIND_COORDINATOR, FETCH = 32, 10, 1
REAL = b"PLAINTEXT://real-broker-1.hidden:9092"
REAL_SEGMENT_BYTES = 1460
"""With it the kernel takes 74 KB of an unread response, and megabytes without. Measured."""
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


def ask(correlation_id: int) -> bytes:
    return request(DESCRIBE_CONFIGS, 4, correlation_id, b"\0\1\0\0\0")


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


# ---- a worker


async def answer_configs(script: BrokerScript, key: int, number: int, writer: asyncio.StreamWriter) -> None:
    """Answer with as many MiB as the correlation id."""
    body = configs(copies_for(number * MIB)) if key == DESCRIBE_CONFIGS else b"answer"
    writer.write(response(number, body))
    await writer.drain()


@pytest.fixture(params=["plaintext", "tls"])
def secured(
    request: pytest.FixtureRequest, tmp_path: Path
) -> tuple[ListenerTlsSettings, ssl.SSLContext] | None:
    if request.param == "plaintext":
        return None
    authority = Authority(tmp_path)
    return tls_settings(authority), trusting(authority)


async def test_other_connections_progress_while_patching_in_slices(
    tmp_path: Path, secured: tuple[ListenerTlsSettings, ssl.SSLContext] | None
) -> None:
    listener, client = secured or (None, None)
    async with (
        broker_script(answer_configs) as one,
        running(tmp_path, [one.port], listener_tls=listener) as at,
    ):
        at.worker.apply(at.directory([one]))
        reader, writer = await asyncio.open_connection("127.0.0.1", at.ports[1], limit=MIB, ssl=client)
        other_reader, other = await asyncio.open_connection("127.0.0.1", at.ports[1], limit=MIB, ssl=client)
        writer.write(ask(2) + fetch(3))
        await eventually(
            lambda: any(each.session.is_working for each in at.connections()), "the response is being patched"
        )
        first = asyncio.create_task(read_frame(reader))
        answered = 0
        while any(each.session.is_working for each in at.connections()):
            other.write(fetch(answered))
            await read_frame(other_reader)
            answered += 1
        assert answered > 10
        async with asyncio.timeout(LIMIT_S):
            frame = await first
            assert (await read_frame(reader))[:4] == struct.pack(">i", 3)
        assert frame == response(2, configs(copies_for(2 * MIB), b""))[4:]
        assert at.worker.responses.total_bytes == 0
        writer.close()
        other.close()


async def test_held_response_waits_for_a_client_that_does_not_read(
    tmp_path: Path, secured: tuple[ListenerTlsSettings, ssl.SSLContext] | None
) -> None:
    """Found: the whole response was written to the transport at once."""
    listener, client = secured or (None, None)
    limits = Limits(write_buffer_bytes=128 * 1024)
    async with (
        broker_script(answer_configs) as one,
        running(tmp_path, [one.port], limits=limits, listener_tls=listener) as at,
    ):
        at.worker.apply(at.directory([one]))
        reader, writer = await connect_narrow(at, 1, client)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(ask(8))
        await eventually(lambda: at.connections() and at.connections()[0].waiting_bytes, "something waits")
        (connection,) = at.connections()
        await eventually(lambda: not len(at.worker.turns), "nothing more is written")
        assert connection.session.is_working
        assert connection.waiting_bytes <= limits.write_buffer_bytes + 2 * PIECE_BYTES
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(LIMIT_S):
            assert await read_frame(reader) == response(8, configs(copies_for(8 * MIB), b""))[4:]
        await eventually(lambda: connection not in at.worker.backlogs, "the client has caught up")
        assert not connection.is_alert
        writer.close()


async def await_work(at: Running, requests: bytes) -> tuple[ClientConnection, asyncio.StreamWriter]:
    """Let the response to a client's requests arrive, without a turn to work on it."""
    at.worker.turns = TurnQueue(list[object]().append)
    _, writer = await at.connect(1)
    writer.write(requests)
    await eventually(
        lambda: any(each.session.is_working for each in at.connections()), "the bytes have arrived"
    )
    (connection,) = at.connections()
    return connection, writer


async def test_bytes_behind_a_held_response_count_as_held(tmp_path: Path) -> None:
    """Found: 850 clients counted with 33 KB each, and held 165 KB more."""

    async def both(script: BrokerScript, key: int, number: int, writer: asyncio.StreamWriter) -> None:
        if key == DESCRIBE_CONFIGS:
            writer.write(response(number, configs(20)) + response(number + 1, bytes(100_000)))
            await writer.drain()

    async with broker_script(both) as one, running(tmp_path, [one.port]) as at:
        at.worker.apply(at.directory([one]))
        connection, writer = await await_work(at, ask(1) + fetch(2))
        assert connection.broker is not None
        unconsumed_bytes = connection.broker.unconsumed_bytes
        assert unconsumed_bytes
        assert at.worker.responses.total_bytes == connection.session.held_bytes + unconsumed_bytes
        writer.transport.abort()
        await eventually(lambda: not at.connections(), "the client is closed")
        assert at.worker.responses.total_bytes == 0


async def test_memory_is_released_when_the_client_leaves(tmp_path: Path) -> None:
    async with broker_script(answer_configs) as one, running(tmp_path, [one.port]) as at:
        at.worker.apply(at.directory([one]))
        _, writer = await connect_narrow(at, 1, None)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(ask(8))
        await eventually(lambda: at.worker.responses.total_bytes, "a response is held")
        writer.transport.abort()
        await eventually(lambda: not at.connections(), "the client is closed")
        assert at.worker.responses.total_bytes == 0


async def test_held_response_is_released_before_a_long_fetch(tmp_path: Path) -> None:
    """Found: the Fetch response is not held, so the worker never learned that the memory was released."""
    goes_on = asyncio.Event()
    size, version = MIB, 16

    async def in_two(script: BrokerScript, key: int, number: int, writer: asyncio.StreamWriter) -> None:
        if key == DESCRIBE_CONFIGS:
            held = response(number, configs(1))
            writer.write(held[:100])
            await goes_on.wait()
            writer.write(held[100:] + struct.pack(">ii", size, number + 1) + bytes(15))

    async with broker_script(in_two) as one, running(tmp_path, [one.port]) as at:
        at.worker.apply(at.directory([one]))
        reader, writer = await at.connect(1)
        writer.write(ask(1) + request(FETCH, version, 2))
        await eventually(lambda: at.worker.responses.total_bytes, "a response is held")
        goes_on.set()
        async with asyncio.timeout(LIMIT_S):
            await read_frame(reader)
        await eventually(lambda: not at.worker.responses.total_bytes, "nothing is held")
        (connection,) = at.connections()
        assert connection.session.in_response
        writer.close()


async def test_greatest_held_response_is_evicted_above_the_limit(tmp_path: Path) -> None:
    """Found: the limit applied to each connection alone."""
    goes_on = asyncio.Event()

    async def in_part(script: BrokerScript, key: int, number: int, writer: asyncio.StreamWriter) -> None:
        size = number * MIB
        writer.write(struct.pack(">ii", size, number) + bytes(100))
        await goes_on.wait()

    limits = Limits(max_patched_response_bytes=4 * MIB)
    async with broker_script(in_part) as one, running(tmp_path, [one.port], limits=limits) as at:
        at.worker.apply(at.directory([one]))
        clients = [await at.connect(1) for _ in range(4)]
        for size, (_, writer) in zip((3, 2, 1), clients, strict=False):
            writer.write(ask(size))
        await eventually(lambda: at.worker.responses.total_bytes > 6 * MIB, "all are held")
        clients[3][1].write(ask(3))
        async with asyncio.timeout(LIMIT_S):
            assert await clients[0][0].read() == b""
        assert at.worker.snapshot().limited == {"max_patched_response_bytes": 1}
        assert at.worker.responses.total_bytes <= at.worker.responses.limit_bytes
        assert len(at.connections()) == 3
        goes_on.set()


async def test_clients_that_read_nothing_have_a_limit_together(tmp_path: Path) -> None:
    """Found: a thousand of them could each hold a megabyte."""

    async def much(script: BrokerScript, key: int, number: int, writer: asyncio.StreamWriter) -> None:
        writer.write(response(number, bytes(64 * 1024)))
        await writer.drain()

    limits = Limits(write_buffer_bytes=64 * 1024, max_patched_response_bytes=64 * 1024)
    async with broker_script(much) as one, running(tmp_path, [one.port], limits=limits) as at:
        at.worker.apply(at.directory([one]))
        writers = []
        for _ in range(80):
            _, writer = await connect_narrow(at, 1, None)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(b"".join(fetch(number) for number in range(100)))
            writers.append(writer)
        await are_too_many(at)
        for writer in writers:
            writer.transport.abort()


async def test_clients_that_leave_a_little_have_a_limit_together(tmp_path: Path) -> None:
    """Found: less than 64 KiB waited for each client, unnoticed, and held a read of up to 256 KiB."""

    async def once(script: BrokerScript, key: int, number: int, writer: asyncio.StreamWriter) -> None:
        writer.write(response(number, bytes(100_000)))
        await writer.drain()

    limits = Limits(max_patched_response_bytes=64 * 1024)
    async with broker_script(once) as one, running(tmp_path, [one.port], limits=limits) as at:
        at.worker.apply(at.directory([one]))
        writers = []
        for _ in range(150):
            _, writer = await connect_narrow(at, 1, None, REAL_SEGMENT_BYTES)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(fetch(1))
            writers.append(writer)
        await are_too_many(at)
        assert all(each.waiting_bytes < 64 * 1024 for each in at.connections())
        for writer in writers:
            writer.transport.abort()


async def are_too_many(at: Running) -> None:
    """Wait until some clients were closed for their memory, and check the memory of the others."""
    backlogs = at.worker.backlogs
    await eventually(lambda: at.worker.snapshot().limited.get("write_buffer_bytes"), "some are closed")
    await eventually(lambda: not backlogs._is_relieved_soon, "enough of them")
    assert backlogs.total_bytes <= backlogs.limit_bytes
    assert at.connections()
