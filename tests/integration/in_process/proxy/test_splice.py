"""Large bodies that a worker in this process splices in the kernel."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import random
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from fleet.config.settings import Limits
from fleet.proxy import counters
from fleet.proxy.connection import ClientConnection
from fleet.proxy.large_bodies import LargeBodies
from fleet.proxy.session import Session
from fleet.proxy.splice import LARGE_BODY_BYTES, MAX_HEAD_READS, Pipe, SplicedBody, create_pipe
from fleet.proxy.splice import MAX_SPLICED_BODIES as MOST_AT_ONCE
from fleet.proxy.wire.primitives import encode_varint
from fleet.runtime import sockets
from tests.certificates import Authority
from tests.integration.in_process.proxy.test_worker import (
    AT_ONCE,
    FETCH,
    LIMIT_S,
    MIB,
    PLAINTEXT,
    PRODUCE,
    BrokerScript,
    Route,
    Running,
    ends,
    eventually,
    fetch,
    produce,
    read_frame,
    request,
    response,
    running,
    secured,
)

BODIES = 4
LARGE = 3 * MIB + 17
SMALL = LARGE_BODY_BYTES // 2
MAX_SPLICED_BODIES = 2
HEAD = 10


def records(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def produced(correlation_id: int, size: int) -> bytes:
    """A Produce request whose records never repeat."""
    whole = produce(correlation_id, acks=1, records_bytes=size)
    return whole[: len(whole) - size] + records(size, correlation_id)


class LargeBody(BrokerScript):
    """Records the bytes of requests, and answers each with a number of bytes."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.heard = size, b""
        self.cut_off: Callable[[asyncio.StreamWriter], Awaitable[None]] | None = None
        """Called at the first request, instead of the usual answer."""
        self.answers: Callable[[int], bytes] | None = None
        """Creates an answer, instead of random bytes."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self.writers.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await self.reads.wait()
                frame = await read_frame(reader)
                if self.cut_off is not None:
                    await self.cut_off(writer)
                    break
                self.heard += struct.pack(">i", len(frame)) + frame
                key, _, correlation_id = struct.unpack_from(">hhi", frame)
                self.requests.append((key, correlation_id))
                writer.write(self.make(key, correlation_id))
                await writer.drain()
        writer.close()

    def make(self, key: int, correlation_id: int) -> bytes:
        if self.answers is not None:
            return self.answers(correlation_id)
        return response(correlation_id, records(self.size if key == FETCH else HEAD, correlation_id))


@dataclass
class SpliceSetup:
    """A worker with one such broker."""

    running_worker: Running
    broker: LargeBody

    @property
    def connection(self) -> ClientConnection:
        (only,) = self.running_worker.connections()
        return only

    @property
    def pipe(self) -> Pipe:
        pipe = self.running_worker.worker.pipe
        assert pipe is not None
        return pipe


MakeSpliceSetup = Callable[..., AbstractAsyncContextManager[SpliceSetup]]


@pytest.fixture
def splice_setup(tmp_path: Path) -> MakeSpliceSetup:
    @asynccontextmanager
    async def make(
        size: int = LARGE, limits: Limits = AT_ONCE, route: Route = PLAINTEXT
    ) -> AsyncIterator[SpliceSetup]:
        broker = LargeBody(size)
        broker.reads.set()
        server = await asyncio.start_server(broker.serve, "127.0.0.1", 0, limit=MIB, ssl=route.tls)
        broker.port = server.sockets[0].getsockname()[1]
        async with running(tmp_path, [broker.port], limits, route=route) as running_worker:
            running_worker.worker.apply(running_worker.directory([broker]))
            yield SpliceSetup(running_worker, broker)
        server.close()
        for writer in broker.writers:
            writer.transport.abort()

    return make


async def answer(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(LIMIT_S):
        return await read_frame(reader)


# ---- spliced bodies


async def test_large_requests_arrive_unchanged_by_splice(
    splice_setup: MakeSpliceSetup,
) -> None:
    async with splice_setup() as on:
        reader, writer = await on.running_worker.connect(1)
        sent = b"".join(produced(number, LARGE) for number in range(BODIES))
        writer.write(sent)
        for number in range(BODIES):
            assert await answer(reader) == response(number, records(HEAD, number))[4:]
        assert on.broker.heard == sent
        assert on.running_worker.worker.snapshot().bytes_to_broker[1] == len(sent)
        # Not spliced: one read of the first body by the transport, and the bytes read behind each other body.
        # On a busy machine a side may be slow, and its transport writes the bytes that the kernel does not
        # take.
        assert on.pipe.filled_bytes > len(sent) // 2
        assert on.pipe.started_bodies >= 1
        writer.close()


async def test_large_responses_arrive_unchanged_by_splice(
    splice_setup: MakeSpliceSetup,
) -> None:
    async with splice_setup() as on:
        reader, writer = await on.running_worker.connect(1)
        expected = b""
        for number in range(BODIES):
            writer.write(fetch(number))
            expected += response(number, records(LARGE, number))
            assert await answer(reader) == expected[-LARGE - 4 :]
        assert on.running_worker.worker.snapshot().bytes_to_client[1] == len(expected)
        assert on.pipe.filled_bytes > len(expected) // 2
        assert on.pipe.started_bodies >= 1
        assert on.connection.session.is_idle
        writer.close()


async def test_frames_between_bodies_return_reading_to_transports(
    splice_setup: MakeSpliceSetup,
) -> None:
    async with splice_setup() as on:
        reader, writer = await on.running_worker.connect(1)
        for size in (LARGE, 10, SMALL, 10, 10, 10, 10, LARGE, 10, LARGE):
            on.broker.size = size
            writer.write(fetch(size) + produced(size + 1, size))
            assert await answer(reader) == response(size, records(size, size))[4:]
            assert await answer(reader) == response(size + 1, records(HEAD, size + 1))[4:]
        assert on.pipe.started_bodies >= 4  # each direction, and again after many small ones
        on.broker.size = 10
        for number in range(2 * MAX_HEAD_READS):
            writer.write(fetch(number))
            await answer(reader)
        assert on.pipe.active_bodies == 0
        broker = on.connection.broker
        assert broker is not None
        assert on.connection.transport.is_reading()
        assert broker.transport.is_reading()
        assert on.connection.active_timeout()[0] == "idle_timeout_s"
        writer.close()


def fetched(correlation_id: int, end: bytes) -> bytes:
    """The records of one partition, and the bytes behind them. Source: FetchResponse.json, v16"""
    partition = bytes(30) + b"\x01" + struct.pack(">i", -1) + encode_varint(LARGE + 1)
    topics = b"\x02" + bytes(16) + b"\x02" + partition + records(LARGE, correlation_id) + end
    return response(correlation_id, b"\0" + bytes(10) + topics)


async def test_end_of_a_spliced_fetch_response_is_checked(splice_setup: MakeSpliceSetup) -> None:
    async with splice_setup() as on:
        reader, writer = await on.running_worker.connect(1)
        on.broker.answers = partial(fetched, end=bytes(3))
        for number in range(BODIES):
            writer.write(request(FETCH, 16, number, bytes(31)))
            assert await answer(reader) == fetched(number, bytes(3))[4:]
        assert on.pipe.started_bodies >= 1
        assert on.pipe.filled_bytes > BODIES * LARGE // 2
        on.broker.answers = partial(fetched, end=b"\0\1\0")
        writer.write(request(FETCH, 16, 9, bytes(31)))
        await ends(reader)
        assert on.running_worker.worker.snapshot().errors == {"truncated": 1}
        writer.close()


async def test_small_bodies_are_not_spliced(splice_setup: MakeSpliceSetup) -> None:
    async with splice_setup(SMALL) as on:
        reader, writer = await on.running_worker.connect(1)
        writer.write(fetch(1) + produced(2, SMALL))
        await answer(reader)
        await answer(reader)
        assert (on.pipe.started_bodies, on.pipe.filled_bytes) == (0, 0)
        writer.close()


@pytest.mark.parametrize("why", ["quotas", "TLS", "no pipe", "too many files"])
async def test_bodies_are_copied_where_splice_is_impossible(
    splice_setup: MakeSpliceSetup,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    why: str,
) -> None:
    limits, route = AT_ONCE, PLAINTEXT
    if why == "quotas":
        much = 1 << 40
        limits = replace(AT_ONCE, to_broker_bytes_per_second=much, to_client_bytes_per_second=much)
    elif why == "TLS":
        route = secured(Authority(tmp_path))
    elif why == "no pipe":
        monkeypatch.setattr(os, "pipe2", failing)
    async with splice_setup(limits=limits, route=route) as on:
        if why == "too many files":
            monkeypatch.setattr(os, "dup", failing)
        reader, writer = await on.running_worker.connect(1)
        writer.write(fetch(1) + produced(2, LARGE))
        assert await answer(reader) == response(1, records(LARGE, 1))[4:]
        await answer(reader)
        assert on.broker.heard[-LARGE:] == records(LARGE, 2)
        assert on.running_worker.worker.pipe is None or on.running_worker.worker.pipe.started_bodies == 0
        writer.close()


def failing(*_: object, **__: object) -> int:
    raise OSError(errno.EMFILE, "too many files")


# ---- slow sides, and sides that end


async def test_slow_client_gets_the_whole_body(splice_setup: MakeSpliceSetup) -> None:
    size = 16 * MIB
    async with splice_setup(size) as on:
        reader, writer = await on.running_worker.connect(1)
        transport = cast(asyncio.Transport, writer.transport)
        transport.pause_reading()
        writer.write(fetch(1) + fetch(2))
        await eventually(
            lambda: (
                on.running_worker.connections() and on.connection.waiting_bytes and not on.pipe.active_bodies
            ),
            "the kernel takes no more",
        )
        broker = on.connection.broker
        assert broker is not None
        await eventually(lambda: not broker.transport.is_reading(), "the broker's side is paused")
        assert on.connection.waiting_bytes <= Limits().write_buffer_bytes + MIB
        transport.resume_reading()
        for number in (1, 2):
            assert await answer(reader) == response(number, records(size, number))[4:]
        assert on.pipe.filled_bytes > 0
        writer.close()


async def test_slow_broker_gets_the_whole_body(splice_setup: MakeSpliceSetup) -> None:
    size = 16 * MIB
    async with splice_setup() as on:
        reader, writer = await on.running_worker.connect(1)
        writer.write(produced(1, LARGE))
        await answer(reader)
        on.broker.reads.clear()
        writer.write(fetch(9))  # the first read; then no more
        await answer(reader)
        writer.write(produced(2, size) + produced(3, size))
        broker = on.connection.broker
        assert broker is not None
        await eventually(lambda: broker.waiting_bytes > MIB, "the kernel takes no more")
        await eventually(lambda: not on.connection.transport.is_reading(), "the client's side is paused")
        assert on.connection.bodies is not None
        assert not on.connection.bodies.has_requests
        on.broker.reads.set()
        for number in (2, 3):
            assert await answer(reader) == response(number, records(HEAD, number))[4:]
        assert on.broker.heard[-size:] == records(size, 3)
        assert on.pipe.filled_bytes > LARGE // 2
        writer.close()


async def inside_a_request(on: SpliceSetup) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client that has sent half of a large request, which is spliced."""
    reader, writer = await on.running_worker.connect(1)
    writer.write(fetch(1))
    await answer(reader)
    writer.write(produced(2, LARGE)[: LARGE // 2])
    await eventually(
        lambda: on.running_worker.worker.snapshot().bytes_to_broker[1] > LARGE // 2,
        "half of the body has passed",
    )
    assert on.pipe.active_bodies == 1
    return reader, writer


@pytest.mark.parametrize("how", ["eof", "reset"])
async def test_client_that_ends_inside_a_spliced_request_is_counted(
    splice_setup: MakeSpliceSetup, how: str
) -> None:
    async with splice_setup(HEAD) as on:
        _, writer = await inside_a_request(on)
        if how == "eof":
            writer.write_eof()
        else:
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        await eventually(
            lambda: not on.running_worker.connections() and not on.pipe.active_bodies,
            "the connection is closed",
        )
        assert on.running_worker.worker.snapshot().errors == ({"truncated": 1} if how == "eof" else {})
        writer.close()


async def test_client_vanishing_inside_a_spliced_request_is_counted(
    splice_setup: MakeSpliceSetup,
) -> None:
    """The kernel reports an error only to its first reader, which is not the transport here."""
    async with splice_setup(HEAD) as on:
        reader, writer = await inside_a_request(on)
        LargeBodies(on.connection).side_failed(OSError(errno.ETIMEDOUT, "timed out"), broker=False)
        with suppress(ConnectionResetError):
            await ends(reader)
        await eventually(lambda: not on.running_worker.connections(), "the connection is closed")
        assert on.running_worker.worker.snapshot().limited == {"vanished_timeout_s": 1}
        writer.close()


@pytest.mark.parametrize("how", ["end", "reset"])
async def test_broker_end_inside_a_spliced_response_closes_client(
    splice_setup: MakeSpliceSetup, how: str
) -> None:
    async with splice_setup() as on:
        reader, writer = await on.running_worker.connect(1)

        async def cut_off(to: asyncio.StreamWriter) -> None:
            to.write(response(1, records(LARGE, 1))[: LARGE // 2])
            await eventually(
                lambda: on.running_worker.worker.snapshot().bytes_to_client[1] == LARGE // 2,
                "half of the body has passed",
            )
            assert on.pipe.active_bodies == 1
            if how == "reset":
                sock = to.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                to.transport.abort()

        on.broker.cut_off = cut_off
        writer.write(fetch(1))
        async with asyncio.timeout(LIMIT_S):
            received = await reader.read()
        assert received == response(1, records(LARGE, 1))[: LARGE // 2]
        await eventually(
            lambda: not on.running_worker.connections() and not on.pipe.active_bodies,
            "the connection is closed",
        )
        assert on.running_worker.worker.snapshot().errors == {"truncated": 1}
        writer.close()


async def test_spliced_request_has_its_time_limit(splice_setup: MakeSpliceSetup) -> None:
    """No limit runs for a paused client; here the kernel reads from the client instead of the transport."""
    async with splice_setup(HEAD) as on:
        _, writer = await inside_a_request(on)
        limit, spoken = on.connection.active_timeout()
        assert limit == "request_timeout_s"
        writer.write(bytes(10))
        await eventually(lambda: on.connection.active_timeout()[1] > spoken, "progress is seen")
        writer.close()


async def test_leaving_connection_completes_its_spliced_response(
    splice_setup: MakeSpliceSetup,
) -> None:
    async with splice_setup(16 * MIB) as on:
        reader, writer = await on.running_worker.connect(1)
        transport = cast(asyncio.Transport, writer.transport)
        transport.pause_reading()
        writer.write(fetch(1))
        await eventually(
            lambda: (
                on.running_worker.connections()
                and on.running_worker.worker.snapshot().bytes_to_client[1] > MIB
            ),
            "the response arrives",
        )
        on.connection.move(LIMIT_S, LIMIT_S)
        transport.resume_reading()
        assert await answer(reader) == response(1, records(16 * MIB, 1))[4:]
        await ends(reader)
        assert on.running_worker.worker.snapshot().errors == {}
        writer.close()


async def test_drain_completes_a_spliced_request(splice_setup: MakeSpliceSetup) -> None:
    async with splice_setup(HEAD) as on:
        reader, writer = await inside_a_request(on)
        on.connection.drain(LIMIT_S)
        writer.write(produced(2, LARGE)[LARGE // 2 :] + fetch(3))
        assert await answer(reader) == response(2, records(HEAD, 2))[4:]
        await ends(reader)
        assert on.broker.requests == [(FETCH, 1), (PRODUCE, 2)]
        assert on.broker.heard[-LARGE:] == records(LARGE, 2)
        writer.close()


class Side(asyncio.Transport):
    """The part of a transport that a splice needs."""

    def __init__(self, sock: socket.socket, events: list[str], waiting_bytes: int = 0) -> None:
        super().__init__({"socket": sock})
        self.events, self.written, self.waiting_bytes = events, b"", waiting_bytes

    def get_write_buffer_size(self) -> int:
        return self.waiting_bytes

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.events.append("written")
        self.written += data


class LeavingPeer:
    """An owner that stops as soon as its body has passed, like a connection that has to leave."""

    def __init__(self, events: list[str]) -> None:
        self.events = events
        self.body: SplicedBody | None = None

    def body_passed(self, size_bytes: int, to_broker: bool) -> None:
        self.events.append(f"{size_bytes} passed")
        assert self.body is not None
        self.body.stop()

    def head_received(self, data: bytes, to_broker: bool) -> None:
        self.events.append("head")

    def splice_ended(self, to_broker: bool) -> None:
        self.events.append("ends")
        assert self.body is not None
        self.body.stop()

    def side_failed(self, error: OSError, broker: bool) -> None:
        self.events.append("failed")


async def test_rest_of_a_body_is_written_before_leaving() -> None:
    """Found by review: the rest was reported before it was written, and the connection left without it."""
    pipe, events = Pipe(), list[str]()
    source, broker = socket.socketpair()
    target, client = socket.socketpair()
    for each in (source, broker, target, client):
        each.setblocking(False)
    full = 0
    with suppress(BlockingIOError):
        while True:
            full += target.send(bytes(4096))
    body = records(32_000)
    assert broker.send(body) == len(body)
    to, leaves = Side(target, events), LeavingPeer(events)
    leaves.body = SplicedBody(pipe, Side(source, events), to, len(body), leaves, to_broker=False)
    await eventually(lambda: events, "the body has passed")
    assert events == ["written", f"{len(body)} passed"]
    assert pipe.active_bodies == 0
    assert not pipe.idle_bodies
    received = b""
    with suppress(BlockingIOError):
        while True:
            received += client.recv(1 << 20)
    assert received[full:] + to.written == body
    for each in (source, broker, target, client):
        each.close()


@pytest.mark.parametrize("left_bytes", [1000, 0])
async def test_splice_does_not_overtake_waiting_writes(left_bytes: int) -> None:
    pipe, events = Pipe(), list[str]()
    source, broker = socket.socketpair()
    target, client = socket.socketpair()
    for each in (source, client):
        each.setblocking(False)
    broker.send(records(1000))
    leaves = LeavingPeer(events)
    sides = Side(source, events), Side(target, events, waiting_bytes=1)
    leaves.body = SplicedBody(pipe, *sides, left_bytes, leaves, to_broker=False)
    await eventually(lambda: events, "the callback has run")
    assert events == ["ends"]
    assert source.recv(2000) == records(1000)
    with pytest.raises(BlockingIOError):
        client.recv(1)
    for each in (source, broker, target, client):
        each.close()


async def test_broker_is_read_again_once_its_client_takes_more(splice_setup: MakeSpliceSetup) -> None:
    async with splice_setup(HEAD) as on:
        reader, writer = await on.running_worker.connect(1)
        writer.write(fetch(1))
        await answer(reader)
        broker = on.connection.broker
        assert broker is not None
        broker.pause_reading()
        broker.read_on()
        assert not broker.transport.is_reading()
        broker.resume_reading()
        assert broker.transport.is_reading()
        on.broker.size = LARGE
        writer.write(fetch(2))
        await answer(reader)
        assert on.connection.has_response_bodies
        broker.resume_reading()
        assert not broker.transport.is_reading()
        writer.close()


async def test_move_at_the_end_of_a_body_leaves_no_idle_splice(splice_setup: MakeSpliceSetup) -> None:
    """Found by review: a stopped splice stayed in the list of idle ones forever."""
    async with splice_setup() as on:
        reader, writer = await on.running_worker.connect(1)

        async def half(to: asyncio.StreamWriter) -> None:
            whole = response(1, records(LARGE, 1))
            to.write(whole[: LARGE // 2])
            await eventually(
                lambda: on.running_worker.worker.snapshot().bytes_to_client[1] == LARGE // 2,
                "half of the body has passed",
            )
            on.connection.move(LIMIT_S, LIMIT_S)
            to.write(whole[LARGE // 2 :])
            await to.drain()

        on.broker.cut_off = half
        writer.write(fetch(1))
        assert await answer(reader) == response(1, records(LARGE, 1))[4:]
        await ends(reader)
        assert not on.pipe.idle_bodies
        assert on.pipe.active_bodies == 0
        writer.close()


@pytest.mark.parametrize("left", [1, LARGE])
async def test_reset_behind_many_received_bytes_is_detected(splice_setup: MakeSpliceSetup, left: int) -> None:
    """Found by review: uvloop calls only once then, and the client waited forever."""
    async with splice_setup() as on:
        reader, writer = await on.running_worker.connect(1)

        async def reset(to: asyncio.StreamWriter) -> None:
            whole = response(1, records(2 * LARGE, 1))
            to.write(whole[:MIB])
            await eventually(
                lambda: on.running_worker.worker.snapshot().bytes_to_client[1] == MIB,
                "the beginning has passed",
            )
            sock = to.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            rest = whole[MIB : len(whole) - left]
            raw = socket.socket(fileno=os.dup(sock.fileno()))
            with suppress(BlockingIOError):
                raw.send(rest)  # in one turn of the loop, so that the worker sees both at once
            raw.close()
            to.transport.abort()

        on.broker.cut_off = reset
        writer.write(fetch(1))
        with suppress(ConnectionResetError):
            async with asyncio.timeout(LIMIT_S):
                await reader.read()
        await eventually(lambda: not on.running_worker.connections(), "the connection is closed")
        assert on.pipe.active_bodies == 0
        writer.close()


async def test_urgent_byte_causes_no_busy_loop(splice_setup: MakeSpliceSetup) -> None:
    """Found by review: a splice was called again and again without bytes to move."""
    async with splice_setup(HEAD) as on:
        reader, writer = await inside_a_request(on)
        sock = socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno()))
        sock.send(b"!", socket.MSG_OOB)
        sock.close()
        writer.write(produced(2, LARGE)[LARGE // 2 :])
        await eventually(
            lambda: len(on.broker.requests) == 2, "the request has arrived, without the urgent byte"
        )
        assert await answer(reader) == response(2, records(HEAD, 2))[4:]
        writer.close()


async def test_failure_between_two_bodies_closes_the_connection(splice_setup: MakeSpliceSetup) -> None:
    """Like in a transport: otherwise bytes would be missing in the middle of the forwarded bytes."""

    def broken(_: bytes | memoryview) -> None:
        raise ZeroDivisionError

    async with splice_setup() as on:
        reader, writer = await on.running_worker.connect(1)
        writer.write(fetch(1))
        await answer(reader)
        on.broker.reads.clear()
        writer.write(fetch(2))  # the broker has already waited for the event
        await answer(reader)
        writer.write(fetch(3))
        await eventually(lambda: on.connection.session.in_flight, "the body is in transit")
        on.connection.write = broken
        with pytest.raises(ZeroDivisionError):
            LargeBodies(on.connection).head_received(response(3, b""), to_broker=False)
        with suppress(ConnectionResetError):
            await ends(reader)
        writer.close()


# ---- resources


@pytest.mark.parametrize("name", ["splice", "pipe2"])
async def test_no_pipe_where_the_system_forbids_splice(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    files = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, name, failing)
    assert create_pipe() is None
    assert len(os.listdir("/proc/self/fd")) == files


async def test_idle_splice_makes_room_at_the_limit(splice_setup: MakeSpliceSetup) -> None:
    async with splice_setup(HEAD) as on:
        on.pipe.max_bodies = MAX_SPLICED_BODIES
        clients = [await on.running_worker.connect(1) for _ in range(MAX_SPLICED_BODIES + 1)]
        for number, (reader, writer) in enumerate(clients):
            writer.write(produced(number, LARGE))
            await answer(reader)
        assert on.pipe.started_bodies > MAX_SPLICED_BODIES
        assert on.pipe.active_bodies == len(on.pipe.idle_bodies) == MAX_SPLICED_BODIES
        for number, (reader, writer) in enumerate(clients):
            writer.write(produced(number, LARGE))
            await answer(reader)
        assert on.broker.heard.count(records(LARGE, 0)) == 2
        for _, writer in clients:
            writer.close()
        await eventually(lambda: not on.pipe.active_bodies, "the connections are closed")
        assert not on.pipe.idle_bodies


async def test_bodies_are_copied_when_all_splices_are_busy(splice_setup: MakeSpliceSetup) -> None:
    async with splice_setup(HEAD) as on:
        on.pipe.max_bodies = 1
        _, halfway = await inside_a_request(on)
        reader, writer = await on.running_worker.connect(1)
        writer.write(produced(3, LARGE))
        await answer(reader)
        assert on.broker.heard[-LARGE:] == records(LARGE, 3)
        assert on.pipe.started_bodies == 1
        writer.close()
        halfway.close()


async def test_connection_with_large_bodies_leaves_no_reference(
    splice_setup: MakeSpliceSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No reference cycle, and no open file: a duplicated descriptor keeps a connection open."""
    monkeypatch.setattr(counters.log, "disabled", True)
    gc.collect()
    gc.disable()
    try:
        async with splice_setup() as on:
            files = len(os.listdir("/proc/self/fd"))
            before = alive()
            for number in range(3):
                reader, writer = await on.running_worker.connect(1)
                writer.write(fetch(number) + produced(number + 10, LARGE))
                await answer(reader)
                await answer(reader)
                assert alive() > before
                if number == 1:
                    writer.transport.abort()
                else:
                    writer.close()
                await eventually(lambda: not on.running_worker.connections(), "the client is closed")
                await eventually(lambda: alive() <= before, "no object of the connection is left")
            await eventually(lambda: len(os.listdir("/proc/self/fd")) <= files, "its files are closed")
    finally:
        gc.enable()


def alive() -> int:
    return sum(isinstance(each, (ClientConnection, Session, SplicedBody)) for each in gc.get_objects())


def test_descriptor_limit_includes_spliced_bodies() -> None:
    assert sockets.BODY_FDS == 2 + 2 * MOST_AT_ONCE


async def test_pipe_is_empty_after_a_partial_write() -> None:
    pipe = Pipe()
    left, right = socket.socketpair()
    for each in (left, right):
        each.setblocking(False)
    sent = 0
    with suppress(BlockingIOError):
        while True:
            sent += left.send(bytes(4096))  # the right side's buffer is full
    other, end = socket.socketpair()
    other.setblocking(False)
    end.sendall(records(1000))
    assert pipe.fill(other.fileno(), 1000) == 1000
    assert pipe.empty(left.fileno(), 1000) == records(1000)
    end.sendall(records(1000, 1))
    right.close()
    assert pipe.fill(other.fileno(), 600) == 600
    with pytest.raises(OSError, match=r"reset|Broken"):
        pipe.empty(left.fileno(), 600)
    assert pipe.fill(other.fileno(), 600) == 400
    assert pipe.empty(end.fileno(), 400) == b""
    assert other.recv(400) == records(1000, 1)[600:]
    for each in (left, other, end):
        each.close()
