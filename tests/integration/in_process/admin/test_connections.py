"""fleet/admin/connections.py, over real sockets: what strangers can hold, and for how long."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
import pytest_asyncio

from fleet.admin import connections
from fleet.admin.connections import AdminServer
from fleet.admin.server import serve
from fleet.config import TokenSettings
from fleet.config.secrets import Secret
from fleet.core.log_limit import LogLimit
from fleet.tls import admin
from fleet.tls.tokens import Gate
from tests.integration.in_process.admin.test_server import READ, WRITE, listening
from tests.integration.in_process.tls.test_admin import secured
from tests.unit.admin.sample_snapshot import Source

HOST, OTHER_HOST = "127.0.0.1", "127.0.0.2"
LIMIT_S = 60.0
HALF_REQUEST = b"GET /ownership HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
OWNERSHIP = b"GET /ownership HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
LIVE = b"GET /live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
CLIENT_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 (no event reports it)
            await asyncio.sleep(0.01)


class Peer:
    """One connection, which reads only on request."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    async def send(self, data: bytes) -> None:
        """Send bytes, even if the other end has closed."""
        with suppress(BrokenPipeError, ConnectionResetError):
            await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def receive(self) -> bytes:
        """Return the received bytes; none if the other end has closed."""
        try:
            async with asyncio.timeout(LIMIT_S):
                return await asyncio.get_running_loop().sock_recv(self.sock, 1 << 16)
        except ConnectionResetError:
            return b""

    async def closed(self) -> bytes:
        """Wait for the other end to close. Returns: the bytes received before."""
        received = b""
        while data := await self.receive():
            received += data
        return received

    @property
    def is_open(self) -> bool:
        try:
            return self.sock.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True
        except ConnectionResetError:
            return False


class Address:
    """A served admin address, and the connections to it."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.source = Source()
        self._stack = stack
        self._port = 0

    async def serve(self, gate: Gate | None = None, context: ssl.SSLContext | None = None) -> AdminServer:
        sock = listening()
        self._port = sock.getsockname()[1]
        server = await serve(self.source, sock, gate=gate, tls=context)
        self._stack.push_async_callback(server.cleanup)
        return server

    async def connect(self, host: str = HOST, receive_buffer_bytes: int | None = None) -> Peer:
        sock = self._stack.enter_context(socket.socket())
        sock.setblocking(False)
        if receive_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        sock.bind((host, 0))
        async with asyncio.timeout(LIMIT_S):
            await asyncio.get_running_loop().sock_connect(sock, (HOST, self._port))
        return Peer(sock)

    async def ask(self, request: bytes = HEALTH, host: str = OTHER_HOST) -> bytes:
        """The answer to one request on its own connection, read to the end."""
        peer = await self.connect(host)
        await peer.send(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        answer = await peer.closed()
        peer.sock.close()
        return answer

    async def ask_securely(self, context: ssl.SSLContext) -> bytes:
        async with asyncio.timeout(LIMIT_S):
            reader, writer = await asyncio.open_connection(
                HOST, self._port, ssl=context, local_addr=(OTHER_HOST, 0)
            )
            writer.write(HEALTH)
            answer = await reader.readuntil(b"\r\n\r\n")
            writer.transport.abort()
        return answer

    async def dropped(self) -> dict[str, int]:
        """The counts by reason, as exported to Prometheus."""
        text = (await self.ask(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")).decode()
        found = re.findall(r'fleet_admin_dropped_connections_total\{reason="(\w+)"\} (\d+)', text)
        return {reason: int(count) for reason, count in found if int(count)}


@pytest_asyncio.fixture
async def address() -> AsyncIterator[Address]:
    async with AsyncExitStack() as stack:
        yield Address(stack)


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets limits before an address is served."""

    def set_limits(**limits: float) -> None:
        for name, value in limits.items():
            monkeypatch.setattr(f"fleet.admin.connections.{name}", value)

    return set_limits


Limit = Callable[..., None]


def guarded_server() -> Gate:
    places = TokenSettings(Secret(None, "READ", (), 0), Secret(None, "WRITE", (), 0))
    return Gate(places, "fleet.yaml", {"READ": READ, "WRITE": WRITE})


def with_token(request: bytes, token: str) -> bytes:
    return request.replace(b"\r\n\r\n", f"\r\nAuthorization: Bearer {token}\r\n\r\n".encode())


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    "said", [b"", HALF_REQUEST, HEALTH, HEALTH + HALF_REQUEST], ids=lambda said: said[-9:]
)
async def test_idle_connections_are_closed_in_time(address: Address, limit: Limit, said: bytes) -> None:
    # A request must arrive before its connection is closed, on a busy machine, too.
    limit(REQUEST_TIMEOUT_S=1.0 if HEALTH in said else 0.2)
    await address.serve()
    peers = []
    for _ in range(10):
        peers.append(await address.connect())
        await peers[-1].send(said)
    assert {(await peer.closed())[:15] for peer in peers} == {b"HTTP/1.1 200 OK" if HEALTH in said else b""}


async def test_trickled_request_is_closed_in_time(address: Address, limit: Limit) -> None:
    limit(REQUEST_TIMEOUT_S=0.3)
    await address.serve()
    peer = await address.connect()
    await peer.send(HALF_REQUEST)
    async with asyncio.timeout(LIMIT_S):
        while peer.is_open:
            await peer.send(b"a")
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    "data", [b"a" * 40_000, b"\r\nX: ".join([b"a" * 4000] * 12)], ids=["field", "fields"]
)
async def test_request_header_is_bounded(address: Address, data: bytes) -> None:
    await address.serve()
    peer = await address.connect()
    await peer.send(HALF_REQUEST + data)
    assert (await peer.closed())[:12] in (b"", b"HTTP/1.1 400")


async def test_body_that_nobody_reads_is_dropped(address: Address) -> None:
    await address.serve()
    peer = await address.connect()
    await peer.send(b"POST /ownership HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000000\r\n\r\n")
    assert (await peer.receive())[:12] == b"HTTP/1.1 405"
    await peer.send(bytes(1 << 20))
    await peer.closed()
    assert await address.dropped() == {"oversize": 1}


async def test_connections_are_bounded(address: Address, limit: Limit) -> None:
    limit(MAX_STRANGERS=8, REQUEST_TIMEOUT_S=LIMIT_S)
    await address.serve()
    peers = [await address.connect() for _ in range(50)]
    await until(lambda: sum(peer.is_open for peer in peers) == 8)
    assert [peer.is_open for peer in peers] == [False] * 42 + [True] * 8, "the oldest make room"
    assert await address.dropped() == {"crowded": 43}, "one of them for the scrape"


async def test_strangers_of_one_host_displace_no_other(address: Address, limit: Limit) -> None:
    limit(MAX_STRANGERS=8, REQUEST_TIMEOUT_S=LIMIT_S)
    await address.serve()
    slow = await address.connect(OTHER_HOST)
    await slow.send(HEALTH[:-2])
    peers = [await address.connect() for _ in range(50)]
    await until(lambda: sum(peer.is_open for peer in peers) == 7)
    await slow.send(HEALTH[-2:])
    assert (await slow.receive()).startswith(b"HTTP/1.1 200")
    assert (await address.ask(host=HOST)).startswith(b"HTTP/1.1 200"), "from the same host, too"


@pytest.mark.parametrize("said", [b"", CLIENT_HELLO], ids=["silent", "half a handshake"])
async def test_idle_tls_connections_are_bounded(
    address: Address, limit: Limit, tmp_path: Path, said: bytes
) -> None:
    """The descriptors are closed at once, too, whatever the event loop does with a cancelled handshake."""
    limit(MAX_STRANGERS=8, HANDSHAKE_TIMEOUT_S=LIMIT_S)
    settings = secured(tmp_path)
    assert settings.admin.tls is not None
    await address.serve(context=admin.reloading_context(settings.admin.tls.for_member("p1")))
    files_before = open_files()
    peers = [await address.connect() for _ in range(50)]
    for peer in peers:
        await peer.send(said)
    await until(lambda: sum(peer.is_open for peer in peers) == 8)
    await until(lambda: open_files() < files_before + 50 + 20)
    context = ssl.create_default_context(cafile=settings.admin.tls.ca)
    assert (await address.ask_securely(context)).startswith(b"HTTP/1.1 200")


async def test_tls_handshake_has_a_time(address: Address, limit: Limit, tmp_path: Path) -> None:
    limit(HANDSHAKE_TIMEOUT_S=0.2)
    settings = secured(tmp_path)
    assert settings.admin.tls is not None
    await address.serve(context=admin.reloading_context(settings.admin.tls.for_member("p1")))
    peers = [await address.connect() for _ in range(10)]
    for peer in peers[5:]:
        await peer.send(CLIENT_HELLO)
    for peer in peers:
        await peer.closed()


async def test_peer_that_never_reads_is_dropped(address: Address, limit: Limit) -> None:
    """The client requested more and more without an end."""
    limit(UNREAD_TIMEOUT_S=0.5, SWEEP_INTERVAL_S=0.05, SEND_BUFFER_BYTES=1, REQUEST_TIMEOUT_S=LIMIT_S)
    await address.serve()
    peer = await address.connect(receive_buffer_bytes=1)

    async def dropped() -> bool:
        await peer.send(OWNERSHIP * 20)
        return await address.dropped() == {"unread": 1}

    await until_true(dropped)


async def test_closing_connection_waits_for_no_reader(address: Address, limit: Limit) -> None:
    """aiohttp closes idle connections, and a closing transport waits for its peer."""
    limit(UNREAD_TIMEOUT_S=0.5, SWEEP_INTERVAL_S=0.05, SEND_BUFFER_BYTES=1, REQUEST_TIMEOUT_S=0.2)
    limit(WRITE_BUFFER_BYTES=1 << 24)
    await address.serve()
    peer = await address.connect(receive_buffer_bytes=1)
    await peer.send(OWNERSHIP * 20)

    async def dropped() -> bool:
        return await address.dropped() == {"unread": 1}

    await until_true(dropped)


async def until_true(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not await condition():  # noqa: ASYNC110 (no event reports it)
            await asyncio.sleep(0.01)


async def test_slow_reader_gets_the_whole_answer(address: Address, limit: Limit) -> None:
    limit(UNREAD_TIMEOUT_S=2.0, SWEEP_INTERVAL_S=0.05, SEND_BUFFER_BYTES=1)
    limit(MIN_READ_BYTES=1, WRITE_BUFFER_BYTES=1 << 10)
    await address.serve()
    peer = await address.connect(receive_buffer_bytes=1)
    await peer.send(OWNERSHIP * 9 + OWNERSHIP.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    received = b""
    while data := await asyncio.get_running_loop().sock_recv(peer.sock, 512):
        received += data
        await asyncio.sleep(0.01)
    assert received.count(b"HTTP/1.1 200 OK") == 10
    assert received.endswith(b"}")
    assert await address.dropped() == {}


async def test_silent_watcher_loses_its_place(
    address: Address, limit: Limit, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(UNREAD_TIMEOUT_S=0.5, SWEEP_INTERVAL_S=0.05, SEND_BUFFER_BYTES=1)
    for name, value in (
        ("MAX_WATCHERS", 1),
        ("MAX_DOCUMENT_INTERVAL_S", 0.0),
        ("CHANGE_CHECK_INTERVAL_S", 0.0),
    ):
        monkeypatch.setattr(f"fleet.admin.live.{name}", value)
    await address.serve()
    silent = await address.connect(receive_buffer_bytes=1)
    await silent.send(LIVE)
    await until(lambda: silent.is_open and bool(peek(silent)))
    refused = await address.connect()
    await refused.send(LIVE)
    assert (await refused.receive()).startswith(b"HTTP/1.1 503")

    async def has_place() -> bool:
        peer = await address.connect()
        await peer.send(LIVE)
        answer = await peer.receive()
        peer.sock.close()
        return answer.startswith(b"HTTP/1.1 200")

    await until_true(has_place)


def peek(peer: Peer) -> bytes:
    try:
        return peer.sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return b""


async def test_strangers_displace_nobody_with_a_token(address: Address, limit: Limit) -> None:
    limit(MAX_STRANGERS=4)
    await address.serve(guarded_server())
    reader = await address.connect()
    await reader.send(with_token(LIVE, READ))
    assert (await reader.receive()).startswith(b"HTTP/1.1 200")
    peers = [await address.connect() for _ in range(20)]
    await until(lambda: sum(peer.is_open for peer in peers) == 4)
    for _ in range(2):
        assert await reader.receive(), "more data arrives"


@pytest.mark.parametrize("request_", [HEALTH, OWNERSHIP, with_token(OWNERSHIP, "wrong" * 8)])
async def test_refused_and_open_requests_leave_a_stranger(
    address: Address, limit: Limit, request_: bytes
) -> None:
    limit(MAX_STRANGERS=4, REQUEST_TIMEOUT_S=LIMIT_S)
    await address.serve(guarded_server())
    peers = [await address.connect() for _ in range(12)]
    for peer in peers:
        await peer.send(request_)
        await peer.receive()
    await until(lambda: sum(peer.is_open for peer in peers) == 4)


async def test_readers_are_bounded(address: Address, limit: Limit) -> None:
    limit(MAX_ADMITTED=4, REQUEST_TIMEOUT_S=LIMIT_S)
    await address.serve()
    peers = [await address.connect() for _ in range(12)]
    for peer in peers:
        await peer.send(OWNERSHIP)
        await peer.receive()
    await until(lambda: sum(peer.is_open for peer in peers) == 4)


async def test_exhausted_descriptors_pause_accepting(
    address: Address, caplog: pytest.LogCaptureFixture
) -> None:
    await address.serve()
    with socket.socket() as client:
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.open("/dev/null", os.O_RDONLY)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        try:
            await loop.sock_connect(client, (HOST, address._port))
            await until(lambda: "cannot accept connections" in caplog.text)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        peer = Peer(client)
        await peer.send(HEALTH)
        assert (await peer.receive()).startswith(b"HTTP/1.1 200")
    assert caplog.text.count("cannot accept connections") == 1


async def test_cleanup_does_not_wait_for_open_requests(address: Address) -> None:
    server = await address.serve()
    peers = [await address.connect() for _ in range(10)]
    for peer in peers:
        await peer.send(HALF_REQUEST)
    async with asyncio.timeout(LIMIT_S):
        await server.cleanup()
    for peer in peers:
        assert await peer.closed() == b""


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (CLIENT_HELLO, "it speaks TLS, and there is no admin.tls; use http, or add `admin: {tls: {}}`"),
        (b"PROXY TCP4 10.0.0.1 10.0.0.2 5 9092\r\n", "it speaks PROXY protocol v1; switch the"),
        (b"\x00\x00\x00\x19\x00\x12\x00\x03\x00\x00\x00\x01\x00\x05", "it speaks Kafka; point clients at a"),
    ],
    ids=["TLS", "PROXY", "Kafka"],
)
async def test_other_protocol_is_named_in_the_log_once(
    address: Address, caplog: pytest.LogCaptureFixture, data: bytes, said: str
) -> None:
    await address.serve()
    for _ in range(2):
        peer = await address.connect()
        await peer.send(data)
        await peer.closed()
    lines = [each for each in caplog.messages if f"admin address: connection from {HOST}: {said}" in each]
    assert len(lines) == 1
    assert (await address.ask()).startswith(b"HTTP/1.1 200")
    assert len([each for each in caplog.messages if f"{HOST}: it speaks" in each]) == 1


async def test_plaintext_at_an_admin_address_with_tls_is_logged(
    address: Address, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    files = secured(tmp_path).admin.tls
    assert files is not None
    await address.serve(context=admin.make_context(files.for_member("p1")))
    peer = await address.connect()
    await peer.send(HEALTH)
    await peer.closed()
    said = f"{HOST}: it does not speak TLS, but admin.tls is configured; use https"
    await until(lambda: said in caplog.text)


async def test_malformed_request_is_logged_once_on_one_line(
    address: Address, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found: 23 bytes of a stranger left eleven lines in the log, each time."""
    (first_answer,) = connections.REQUEST_LOG.filters
    monkeypatch.setattr(first_answer, "_limit", LogLimit(connections.LOG_INTERVAL_S))
    await address.serve()
    for _ in range(3):
        peer = await address.connect()
        await peer.send(b"GET /\x00 HTTP/9.9\r\n\r\n")
        await peer.closed()
    (record,) = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert record.exc_info is None
    assert "Error handling request" in record.getMessage()
