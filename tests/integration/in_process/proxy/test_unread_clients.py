"""A client that does not read is paused, in each state of its connection."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from pathlib import Path

import pytest

from fleet.config.settings import Limits, ListenerTlsSettings
from fleet.proxy.broker_connection import UNNOTICED_BY_BROKER_BYTES
from fleet.proxy.budget import IN_FLIGHT_BYTES, MAX_IN_FLIGHT
from fleet.proxy.connection import REPLY_BUFFER_BYTES, WRITE_OVERHEAD_BYTES, ClientConnection
from fleet.proxy.host import State
from fleet.proxy.session import MANY_IN_FLIGHT, MAX_REPLIES_PER_READ
from tests.certificates import Authority
from tests.integration.in_process.proxy.test_limits import swept
from tests.integration.in_process.proxy.test_worker import (
    API_VERSIONS,
    DATA_BYTES,
    LIMIT_S,
    MIB,
    BrokerScript,
    Client,
    Running,
    broker_script,
    eventually,
    fetch,
    hold_dials,
    produce,
    read_frame,
    request,
    response,
    running,
)
from tests.integration.in_process.proxy.test_worker_tls import tls_settings, trusting

LIST_GROUPS = 16
UNKNOWN_API_VERSIONS = request(API_VERSIONS, 32767, 1)
REPLY_BYTES = 20
ANSWER_BYTES = 16 * 1024
PIECE_BYTES = 200
SMALL_BYTES = 4096
SEGMENT_BYTES = 1460
STALL_CHECKS = 50
"""Checks of a connection in a row: reading resumes once the kernel takes the bytes."""


@pytest.fixture(params=["plaintext", "tls"])
def secured(
    request: pytest.FixtureRequest, tmp_path: Path
) -> tuple[ListenerTlsSettings, ssl.SSLContext] | None:
    """TLS settings of listener and client; None for plaintext."""
    if request.param == "plaintext":
        return None
    authority = Authority(tmp_path)
    return tls_settings(authority), trusting(authority)


async def connect_narrow(
    running_worker: Running, broker_id: int, tls: ssl.SSLContext | None, segment_bytes: int | None = None
) -> Client:
    """A client with a small receive buffer."""
    sock = socket.socket()
    if segment_bytes is not None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, segment_bytes)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", running_worker.ports[broker_id]))
    name = None if tls is None else "127.0.0.1"
    return await asyncio.open_connection(sock=sock, ssl=tls, server_hostname=name, limit=MIB)


async def flood(running_worker: Running, writer: asyncio.StreamWriter, frame: bytes) -> ClientConnection:
    """Send a request again and again, without reading, until the worker stops reading."""
    name = "127.0.0.1:{}".format(writer.get_extra_info("sockname")[1])

    def own_frames() -> list[ClientConnection]:
        return [each for each in running_worker.connections() if each.peer == name]

    await eventually(own_frames, "connected")
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    (connection,), stalled, sent = own_frames(), 0, 0
    async with asyncio.timeout(LIMIT_S):
        while stalled < STALL_CHECKS:
            stalled = 0 if connection.transport.is_reading() else stalled + 1
            if not stalled and (connection.state is State.JOINED or connection.answered == sent):
                writer.write(frame * PIECE_BYTES)
                sent += PIECE_BYTES
            await asyncio.sleep(0.001)
    return connection


async def answer_at_length(script: BrokerScript, key: int, number: int, writer: asyncio.StreamWriter) -> None:
    writer.write(response(number, bytes(ANSWER_BYTES)))
    await writer.drain()


async def is_joined(running_worker: Running, writer: asyncio.StreamWriter) -> None:
    writer.write(fetch(1))
    await eventually(
        lambda: running_worker.connections() and running_worker.connections()[0].state is State.JOINED,
        "joined",
    )


async def test_idle_client_that_does_not_read_is_paused(
    tmp_path: Path, secured: tuple[ListenerTlsSettings, ssl.SSLContext] | None
) -> None:
    """Found: replies without a broker had no limit."""
    listener, client = secured or (None, None)
    async with running(tmp_path, [1], listener_tls=listener) as running_worker:
        reader, writer = await connect_narrow(running_worker, 1, client)
        connection = await flood(running_worker, writer, UNKNOWN_API_VERSIONS)
        assert connection.state is State.IDLE
        assert connection.waiting_bytes <= REPLY_BUFFER_BYTES + MAX_REPLIES_PER_READ * (REPLY_BYTES + 30)
        assert connection.active_timeout() == ("first_request_timeout_s", connection.answered)
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(LIMIT_S):
            for _ in range(connection.answered):
                assert (await read_frame(reader))[4:6] == struct.pack(">h", 35)
        await eventually(connection.transport.is_reading, "reading has resumed")
        writer.close()


async def test_client_above_a_limit_that_does_not_read_is_paused(tmp_path: Path) -> None:
    async with running(tmp_path, [1], limits=Limits(max_connections=1)) as running_worker:
        _, first = await running_worker.connect(1)
        await eventually(lambda: len(running_worker.connections()) == 1, "the first connection")
        _, writer = await connect_narrow(running_worker, 1, None)
        connection = await flood(running_worker, writer, UNKNOWN_API_VERSIONS)
        assert connection.waiting_bytes <= REPLY_BUFFER_BYTES + MAX_REPLIES_PER_READ * REPLY_BYTES
        first.close()
        writer.close()


async def test_unread_replies_do_not_stop_the_first_request_limit(tmp_path: Path) -> None:
    async with running(tmp_path, [1], limits=Limits(first_request_timeout_s=0.5)) as running_worker:
        _, writer = await connect_narrow(running_worker, 1, None)
        await flood(running_worker, writer, UNKNOWN_API_VERSIONS)
        await swept(running_worker, 2)
        await eventually(lambda: not running_worker.connections(), "the client is closed")
        assert running_worker.worker.snapshot().limited == {"first_request_timeout_s": 1}
        writer.close()


async def test_client_requesting_too_many_replies_is_closed(tmp_path: Path) -> None:
    async with running(tmp_path, [1]) as running_worker:
        reader, writer = await connect_narrow(running_worker, 1, None)
        writer.write(UNKNOWN_API_VERSIONS * (MAX_REPLIES_PER_READ + 1))
        async with asyncio.timeout(LIMIT_S):
            await reader.read()
        assert running_worker.worker.snapshot().errors == {"oversize": 1}
        writer.close()


async def test_joined_client_that_does_not_read_is_paused(
    tmp_path: Path, secured: tuple[ListenerTlsSettings, ssl.SSLContext] | None
) -> None:
    listener, client = secured or (None, None)

    limits = Limits(write_buffer_bytes=64 * 1024)
    async with (
        broker_script(answer_at_length) as one,
        running(tmp_path, [one.port], limits=limits, listener_tls=listener) as running_worker,
    ):
        running_worker.worker.apply(running_worker.directory([one]))
        reader, writer = await connect_narrow(running_worker, 1, client)
        await is_joined(running_worker, writer)
        connection = await flood(running_worker, writer, fetch(1))
        assert connection.waiting_bytes <= limits.write_buffer_bytes + 2 * DATA_BYTES
        assert connection.active_timeout() == ("idle_timeout_s", connection.waiting_bytes)
        in_flight = connection.session.in_flight
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(LIMIT_S):
            for _ in range(in_flight):
                assert len(await read_frame(reader)) == 4 + ANSWER_BYTES
        rest = asyncio.create_task(reader.read())  # answers to the requests that were in the kernel
        await eventually(connection.transport.is_reading, "reading has resumed")
        writer.close()
        await rest


async def test_draining_client_that_does_not_read_is_paused(tmp_path: Path) -> None:
    async with broker_script(answer_at_length) as one, running(tmp_path, [one.port]) as running_worker:
        running_worker.worker.apply(running_worker.directory([one]))
        _, writer = await connect_narrow(running_worker, 1, None)
        await is_joined(running_worker, writer)
        connection = await flood(running_worker, writer, fetch(1))
        connection.drain(LIMIT_S)
        assert not connection.transport.is_reading()
        assert connection.waiting_bytes <= Limits().write_buffer_bytes + 2 * DATA_BYTES
        writer.close()


async def test_large_first_request_pauses_reading_while_dialing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_script() as one, running(tmp_path, [one.port]) as running_worker:
        running_worker.worker.apply(running_worker.directory([one]))
        released = hold_dials(running_worker, monkeypatch)
        reader, writer = await connect_narrow(running_worker, 1, None)
        sent = request(LIST_GROUPS, 0, 1, bytes(4 * MIB))
        writer.write(sent)
        await eventually(
            lambda: running_worker.connections() and running_worker.connections()[0].state is State.DIALING,
            "dialed",
        )
        (connection,) = running_worker.connections()
        assert not connection.transport.is_reading()
        assert sum(map(len, connection.queue)) <= DATA_BYTES
        released.set()
        async with asyncio.timeout(LIMIT_S):
            assert (await read_frame(reader))[:4] == struct.pack(">i", 1)
        writer.close()


async def test_client_with_thousands_in_flight_is_paused(
    tmp_path: Path, secured: tuple[ListenerTlsSettings, ssl.SSLContext] | None
) -> None:
    """Found: requests in flight took 3.2 bytes for each sent byte, without a limit."""
    listener, client = secured or (None, None)
    continues = asyncio.Event()
    count = 60_000

    async def later(script: BrokerScript, key: int, number: int, writer: asyncio.StreamWriter) -> None:
        await continues.wait()
        writer.write(response(number, b"\0\0"))

    async with (
        broker_script(later) as one,
        running(tmp_path, [one.port], listener_tls=listener) as running_worker,
    ):
        running_worker.worker.apply(running_worker.directory([one]))
        reader, writer = await connect_narrow(running_worker, 1, client)
        writer.write(b"".join(request(LIST_GROUPS, 0, number) for number in range(count)))
        await eventually(
            lambda: running_worker.connections() and running_worker.connections()[0].session.is_crowded,
            "the client has many requests in flight",
        )
        (connection,) = running_worker.connections()
        await eventually(lambda: not connection.transport.is_reading(), "reading has paused")
        assert connection.session.in_flight <= MAX_IN_FLIGHT + DATA_BYTES // len(request(LIST_GROUPS, 0, 1))
        assert connection.active_timeout() == (None, 0)
        continues.set()
        async with asyncio.timeout(2 * LIMIT_S):
            for number in range(count):
                assert (await read_frame(reader))[:4] == struct.pack(">i", number)
        assert connection.session.in_flight <= MAX_IN_FLIGHT // 2
        assert connection.transport.is_reading()
        assert not connection.is_alert
        writer.close()


def joined(running_worker: Running) -> list[ClientConnection]:
    return [each for each in running_worker.connections() if each.state is State.JOINED]


async def test_clients_with_many_in_flight_share_a_limit(tmp_path: Path) -> None:
    """Found: each client could have thousands, and 300 clients of an unanswering broker took 115 MB."""
    continues = asyncio.Event()
    clients, count = 8, 2_500

    async def later(script: BrokerScript, key: int, number: int, writer: asyncio.StreamWriter) -> None:
        await continues.wait()
        writer.write(response(number, b"\0\0"))

    async with broker_script(later) as one, running(tmp_path, [one.port]) as running_worker:
        running_worker.worker.apply(running_worker.directory([one]))
        running_worker.worker.requests.limit_bytes = MIB
        part = running_worker.worker.requests.limit_bytes // (2 * IN_FLIGHT_BYTES * clients)
        assert MANY_IN_FLIGHT < part < count
        waiting = [await running_worker.connect(1) for _ in range(clients)]
        for number in range(count):
            for _, writer in waiting:
                writer.write(request(LIST_GROUPS, 0, number))
            if number % 50 == 0:  # no read brings many requests of one client
                await asyncio.sleep(0.001)
            if not number:
                await eventually(lambda: len(joined(running_worker)) == clients, "all are joined")
        await eventually(lambda: len(running_worker.worker.requests) == clients, "all have many")
        await eventually(
            lambda: not any(each.transport.is_reading() for each in running_worker.connections()),
            "none is read from",
        )
        assert running_worker.worker.requests.total_bytes <= running_worker.worker.requests.limit_bytes
        continues.set()
        async with asyncio.timeout(4 * LIMIT_S):
            for reader, _ in waiting:
                for number in range(count):
                    assert (await read_frame(reader))[:4] == struct.pack(">i", number)
        assert not running_worker.worker.requests.total_bytes
        assert not any(each.is_alert for each in running_worker.connections())
        assert all(each.transport.is_reading() for each in running_worker.connections())
        assert not running_worker.worker.snapshot().limited
        for _, writer in waiting:
            writer.close()


async def test_clients_with_thousands_per_read_share_a_limit(tmp_path: Path) -> None:
    """Clients of one address are closed; clients with few requests, and of other addresses, stay."""

    async def never(script: BrokerScript, key: int, number: int, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    limits = Limits(write_buffer_bytes=4096)
    async with broker_script(never) as one, running(tmp_path, [one.port], limits) as running_worker:
        running_worker.worker.apply(running_worker.directory([one]))
        _, modest = await running_worker.connect(1)
        modest.write(b"".join(request(LIST_GROUPS, 0, number) for number in range(MANY_IN_FLIGHT // 2)))
        elsewhere = await asyncio.open_connection(
            "127.0.0.1", running_worker.ports[1], local_addr=("127.0.0.2", 0)
        )
        many = b"".join(request(LIST_GROUPS, 0, number) for number in range(12_000))
        elsewhere[1].write(many)
        writers = [modest, elsewhere[1]]
        await eventually(lambda: len(running_worker.worker.requests) == 1, "a client has many requests")
        async with asyncio.timeout(LIMIT_S):
            while not running_worker.worker.snapshot().limited:
                _, writer = await running_worker.connect(1)
                writer.write(many[: len(many) // 2])
                writers.append(writer)
                await asyncio.sleep(0.01)
        assert running_worker.worker.snapshot().limited.keys() == {"write_buffer_bytes"}
        assert running_worker.worker.requests.total_bytes <= running_worker.worker.requests.limit_bytes
        sources = [each.source for each in running_worker.connections()]
        assert "127.0.0.2" in sources
        assert any(each.session.in_flight == MANY_IN_FLIGHT // 2 for each in running_worker.connections())
        for writer in writers:
            writer.transport.abort()


async def test_waiting_bytes_count_with_their_whole_read(tmp_path: Path) -> None:
    """Found: less than 4 KiB was not noticed. 400 clients that left 2.9 KB of 40 KB unread took 13.7 MB."""

    async def answer_request(
        script: BrokerScript, key: int, number: int, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(response(number, bytes(number)))
        await writer.drain()

    async with broker_script(answer_request) as one, running(tmp_path, [one.port]) as running_worker:
        running_worker.worker.apply(running_worker.directory([one]))
        size, waiting = 300_000, 0
        while not 0 < waiting <= SMALL_BYTES:  # the kernel takes nearly the same number of bytes each time
            size += SMALL_BYTES // 2 - waiting
            reader, writer = await connect_narrow(running_worker, 1, None, SEGMENT_BYTES)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(fetch(size))
            await eventually(
                lambda: (
                    running_worker.connections() and running_worker.connections()[0].state is State.JOINED
                ),
                "joined",
            )
            (connection,) = running_worker.connections()
            await eventually(lambda: not connection.session.in_flight, "the request is answered")  # noqa: B023
            waiting = connection.waiting_bytes
            if not 0 < waiting <= SMALL_BYTES:
                writer.transport.abort()
                await eventually(lambda: not running_worker.connections(), "the connection is closed")
        assert connection in running_worker.worker.backlogs
        assert running_worker.worker.backlogs.total_bytes >= waiting
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(LIMIT_S):
            assert len(await read_frame(reader)) == 4 + size
        await eventually(lambda: not running_worker.worker.backlogs.total_bytes, "the client has caught up")
        assert not connection.is_alert
        writer.close()


async def test_full_client_pauses_its_new_broker(tmp_path: Path) -> None:
    """Found: a transport reports only once that it is full, so a later broker was not paused."""

    async def sends_much(script: BrokerScript, key: int, number: int, writer: asyncio.StreamWriter) -> None:
        for _ in range(1_000):
            writer.write(response(number, bytes(64 * 1024)))
            await writer.drain()

    async with broker_script(sends_much) as one, running(tmp_path, [one.port]) as running_worker:
        running_worker.worker.apply(running_worker.directory([one]))
        _, writer = await connect_narrow(running_worker, 1, None)
        connection = await flood(running_worker, writer, UNKNOWN_API_VERSIONS)
        connection.transport.resume_reading()  # bytes that were sent before arrive late
        writer.write(b"".join(fetch(number) for number in range(50)))
        await eventually(lambda: connection.state is State.JOINED, "joined")
        broker = connection.broker
        assert broker is not None
        await eventually(lambda: not broker.transport.is_reading(), "the broker is not read from")
        assert connection.waiting_bytes <= Limits().write_buffer_bytes + 2 * DATA_BYTES
        writer.close()


async def test_leaving_client_of_a_slow_broker_is_paused(tmp_path: Path) -> None:
    """Produce with acks=0 still goes to the broker: 400 MB in a second and a half."""
    async with broker_script() as one, running(tmp_path, [one.port], drain_timeout_s=600.0) as running_worker:
        running_worker.worker.apply(running_worker.directory([one]))
        _, writer = await running_worker.connect(1)
        await is_joined(running_worker, writer)
        (connection,) = running_worker.connections()
        await eventually(lambda: not connection.session.in_flight, "answered")
        one.writers[0].transport.pause_reading()  # type: ignore[attr-defined]
        connection.drain(LIMIT_S)
        await eventually(lambda: connection.state is State.LEAVING, "the connection is leaving")
        broker = connection.broker
        assert broker is not None
        for _ in range(64):
            writer.write(produce(1, acks=0, records_bytes=MIB))
        await eventually(lambda: broker.waiting_bytes > MIB // 2, "much waits for the broker")
        await eventually(lambda: not connection.transport.is_reading(), "reading has paused")
        assert broker.waiting_bytes <= Limits().write_buffer_bytes + 2 * DATA_BYTES
        writer.close()


@pytest.mark.parametrize("draining", [False, True])
async def test_bytewise_body_to_a_slow_broker_is_paused(tmp_path: Path, draining: bool) -> None:
    """Found: each waiting write takes 800 bytes, at any size. 100 KB took 76 MB, without a limit."""
    limits = Limits(write_buffer_bytes=4096)
    async with broker_script() as one, running(tmp_path, [one.port], limits=limits) as running_worker:
        running_worker.worker.apply(running_worker.directory([one]))
        _, writer = await running_worker.connect(1)
        await is_joined(running_worker, writer)
        (connection,) = running_worker.connections()
        await eventually(lambda: not connection.session.in_flight, "answered")
        one.writers[0].transport.pause_reading()  # type: ignore[attr-defined]
        broker = connection.broker
        assert broker is not None
        # The header of a longer body than is sent here; no part of it is spliced.
        running_worker.worker.pipe = None
        writer.write(produce(1, acks=1, records_bytes=64 * MIB)[:4096])
        while not broker.waiting_bytes:
            writer.write(bytes(4096))
            await asyncio.sleep(0)
        if draining:
            connection.drain(LIMIT_S)
        sent, most = 0, UNNOTICED_BY_BROKER_BYTES + 2 * limits.write_buffer_bytes // WRITE_OVERHEAD_BYTES
        async with asyncio.timeout(LIMIT_S):
            while connection.transport.is_reading() and sent <= most:
                before = broker.waiting_bytes
                writer.write(b"x")
                sent += 1
                await eventually(lambda: broker.waiting_bytes != before, "the bytes were read")  # noqa: B023
        assert sent <= most
        one.writers[0].transport.resume_reading()  # type: ignore[attr-defined]
        await eventually(connection.transport.is_reading, "reading has resumed")
        assert not broker.waiting_bytes
        assert connection.is_alert == draining
        writer.close()


async def test_small_request_behind_replies_keeps_no_large_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found: a view of 20 bytes kept the 250 KB of its read in memory."""
    async with broker_script() as one, running(tmp_path, [one.port]) as running_worker:
        running_worker.worker.apply(running_worker.directory([one]))
        released = hold_dials(running_worker, monkeypatch)
        _, writer = await running_worker.connect(1)
        writer.write(request(API_VERSIONS, 32767, 1, bytes(3_000)) * 20 + fetch(1))
        await eventually(
            lambda: running_worker.connections() and running_worker.connections()[0].state is State.DIALING,
            "dialed",
        )
        assert [type(piece) for piece in running_worker.connections()[0].queue] == [bytes]
        released.set()
        writer.close()
