"""A worker in this process, between scripted clients and brokers."""

import asyncio
import contextlib
import gc
import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from fleet.config.settings import (
    EventsSettings,
    Limits,
    ListenerSettings,
    ListenerTlsSettings,
    MemberSettings,
    Settings,
    Timing,
    UpstreamSettings,
    UpstreamTlsSettings,
)
from fleet.core.model import AdvertisedListener, Broker, Directory, Endpoint, IdentitySpace, Member
from fleet.proxy import brokers as upstream
from fleet.proxy import control_channel, counters, worker
from fleet.proxy import limits as guard
from fleet.proxy.broker_connection import BrokerConnection
from fleet.proxy.connection import ClientConnection
from fleet.proxy.host import State
from fleet.proxy.session import Session
from fleet.proxy.wire.heartbeats import HEARTBEAT, build_not_coordinator
from fleet.proxy.worker import MOVE_NOTICE_S, Worker
from fleet.runtime import ipc
from fleet.runtime.child import MODULES, ChildSpec, ListenerFd
from fleet.runtime.ipc import (
    BOOTSTRAP,
    BrokersLostMessage,
    BrokersSeenMessage,
    Channel,
    CountersMessage,
    CountMessage,
    DirectoryMessage,
    Hello,
    ReachableMessage,
)
from fleet.runtime.socket_options import BROKER_VANISHED_S, unread_bytes
from tests.certificates import Authority

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]
LIMIT_S = 30.0
ROOT = Path(__file__).parents[4]
PRODUCE, FETCH, METADATA, FIND_COORDINATOR, LIST_GROUPS, API_VERSIONS = 0, 1, 3, 10, 16, 18
MIB = 1 << 20
DATA_BYTES = 256 << 10
"""About the size of one read of a worker."""
LONG_LINGER_S = 600.0
AT_ONCE = Limits(moves_per_second=1_000)


@dataclass(frozen=True)
class Route:
    """How the worker and its brokers communicate."""

    upstream: UpstreamSettings
    tls: ssl.SSLContext | None


PLAINTEXT = Route(UpstreamSettings(), None)


@pytest.fixture(params=["plaintext", "tls"])
def route(request: pytest.FixtureRequest, tmp_path: Path) -> Route:
    """For tests that depend on the transport, because a TLS transport behaves differently."""
    return PLAINTEXT if request.param == "plaintext" else secured(Authority(tmp_path))


def secured(authority: Authority, believed: Authority | None = None, host: str = "127.0.0.1") -> Route:
    """TLS with brokers that one authority certifies, and a worker that trusts this authority or another."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("broker", [host]).both)
    tls = UpstreamTlsSettings((believed or authority).certificate, None, None, check_hostname=True, lines={})
    return Route(UpstreamSettings(tls), context)


# ---- a minimal Kafka


def request(key: int, version: int, correlation_id: int, body: bytes = b"") -> bytes:
    header = struct.pack(">hhih", key, version, correlation_id, 4) + b"test"
    return struct.pack(">i", len(header) + len(body)) + header + body


def produce(correlation_id: int, acks: int, records_bytes: int = 10) -> bytes:
    return request(PRODUCE, 3, correlation_id, struct.pack(">hhi", -1, acks, 1000) + bytes(records_bytes))


def fetch(correlation_id: int) -> bytes:
    return request(FETCH, 4, correlation_id, bytes(30))


def response(correlation_id: int, body: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(body), correlation_id) + body


def string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def metadata(brokers: list[Broker]) -> bytes:
    """The body of a Metadata response v1."""
    body = struct.pack(">i", len(brokers))
    for each in brokers:
        body += struct.pack(">i", each.broker_id) + string(each.host) + struct.pack(">ih", each.port, -1)
    return body + struct.pack(">ii", brokers[0].broker_id, 0)


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    size = await reader.readexactly(4)
    return await reader.readexactly(int.from_bytes(size, "big"))


Answer = Callable[["BrokerScript", int, int, asyncio.StreamWriter], Awaitable[None]]


async def answer_at_once(
    script: "BrokerScript", key: int, correlation_id: int, writer: asyncio.StreamWriter
) -> None:
    body = metadata(script.known) if key == METADATA else b"answer"
    writer.write(response(correlation_id, body))
    await writer.drain()


@dataclass
class BrokerScript:
    """A broker that records its requests, and answers with a function of the test."""

    answer: Answer = answer_at_once
    known: list[Broker] = field(default_factory=list)
    requests: list[tuple[int, int]] = field(default_factory=list)
    accepted: int = 0
    ended: int = 0
    reads: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self.writers.append(writer)
        try:
            await self.reads.wait()
            while True:
                frame = await read_frame(reader)
                key, _, correlation_id = struct.unpack_from(">hhi", frame)
                self.requests.append((key, correlation_id))
                if key == PRODUCE and struct.unpack_from(">h", frame, 16)[0] == 0:
                    continue
                await self.answer(self, key, correlation_id, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.ended += 1
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def broker_script(
    answer: Answer = answer_at_once, route: Route = PLAINTEXT
) -> AsyncIterator[BrokerScript]:
    script = BrokerScript(answer)
    script.reads.set()
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0, limit=MIB, ssl=route.tls)
    script.port = server.sockets[0].getsockname()[1]
    yield script
    server.close()
    for writer in script.writers:
        writer.transport.abort()


@pytest.fixture
def refusing_broker() -> Iterator[BrokerScript]:
    """A broker that refuses connections, at a port that no other process can get meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield BrokerScript(port=bound.getsockname()[1])


# ---- a worker


async def eventually(condition: Callable[[], object], what: str) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + LIMIT_S
    while not condition():
        assert loop.time() < deadline, f"not within {LIMIT_S} s: {what}"
        await asyncio.sleep(0.005)


def listening() -> socket.socket:
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    return sock


@dataclass
class Running:
    worker: Worker
    stop: asyncio.Event
    task: "asyncio.Task[None]"
    ports: dict[int, int]
    """Broker id, or BOOTSTRAP → port."""
    member: Member
    spec: ChildSpec

    def directory(self, brokers: list[BrokerScript], **changes: object) -> Directory:
        known = {
            number: Broker(number, "127.0.0.1", each.port) for number, each in enumerate(brokers, start=1)
        }
        owners = {each: ("p1",) for each in known}
        whole = Directory(
            advertised=owners, committed=owners, members={"p1": self.member}, brokers=known, generation=1
        )
        return replace(whole, **changes)  # type: ignore[arg-type]

    async def connect(
        self, broker_id: int = BOOTSTRAP, tls: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.ports[broker_id], limit=MIB, ssl=tls)

    def connections(self) -> list[ClientConnection]:
        return [each for served in self.worker.connections.values() for each in served]


def make_spec(
    folder: Path,
    sockets: dict[int, socket.socket],
    bootstrap: list[int],
    limits: Limits = AT_ONCE,
    listener_tls: ListenerTlsSettings | None = None,
    broker_host: str | None = None,
    route: Route = PLAINTEXT,
    events: EventsSettings | None = None,
    **timing: float,
) -> ChildSpec:
    ports = {each: sock.getsockname()[1] for each, sock in sockets.items()}
    advertised = ("proxy1.example", 9100, 9101, broker_host)
    listener = ListenerSettings("external", "127.0.0.1", ports[BOOTSTRAP], 9101, *advertised)
    member = MemberSettings(
        proxy_id="p1",
        rack=None,
        voter=True,
        witness=False,
        peer=Endpoint("127.0.0.1", 7101),
        admin=Endpoint("127.0.0.1", 7201),
        data_dir=folder,
        workers=1,
        listeners=(listener,),
    )
    settings = Settings(
        fleet="test",
        bootstrap_servers=tuple(Endpoint("127.0.0.1", port) for port in bootstrap),
        identities=IdentitySpace(first_id=1, count=3),
        members={"p1": member},
        timing=Timing(**{"drain_timeout_s": 5.0, **timing}),
        limits=limits,
        listener_tls={} if listener_tls is None else {"external": listener_tls},
        upstream=route.upstream,
        events=events,
    )
    return ChildSpec(
        settings=settings,
        proxy_id="p1",
        kind="worker",
        index=0,
        incarnation=1,
        parent_pid=os.getpid(),
        heartbeat_fd=-1,
        lifeline_fd=-1,
        listeners=tuple(
            ListenerFd("external", None if each == BOOTSTRAP else each, sock.detach())
            for each, sock in sockets.items()
        ),
    )


@contextlib.asynccontextmanager
async def running(
    folder: Path,
    bootstrap: list[int],
    limits: Limits = AT_ONCE,
    listener_tls: ListenerTlsSettings | None = None,
    broker_host: str | None = None,
    route: Route = PLAINTEXT,
    events: EventsSettings | None = None,
    **timing: float,
) -> AsyncIterator[Running]:
    sockets = {each: listening() for each in ((BOOTSTRAP,) if broker_host else (BOOTSTRAP, 1, 2, 3))}
    ports = {each: sock.getsockname()[1] for each, sock in sockets.items()}
    spec = make_spec(folder, sockets, bootstrap, limits, listener_tls, broker_host, route, events, **timing)
    running = Worker(spec, first_directory_s=0.01)  # most tests have no control process to wait for
    stop = asyncio.Event()
    task = asyncio.create_task(running.run(stop))
    try:
        await eventually(lambda: task.done() or len(running.servers) == len(sockets), "the worker listens")
        yield Running(running, stop, task, ports, spec.member.to_member(spec.settings), spec)
    finally:
        stop.set()
        for served in list(running.connections.values()):
            for each in list(served):
                each.transport.abort()
        async with asyncio.timeout(LIMIT_S):
            await task


# ---- forwarding


@pytest.mark.parametrize("host", ["localhost", "localhost."])
@pytest.mark.parametrize("in_plaintext", [False, True])
async def test_name_with_a_final_dot_leads_to_its_broker(
    tmp_path: Path, host: str, in_plaintext: bool
) -> None:
    """Found: TLS has no names with a final dot, so a broker with such a name was never reached."""
    route = PLAINTEXT if in_plaintext else secured(Authority(tmp_path), host="localhost")
    async with (
        broker_script(route=route) as one,
        running(tmp_path, [one.port], route=route) as running_worker,
    ):
        running_worker.worker.apply(
            replace(running_worker.directory([one]), brokers={1: Broker(1, host, one.port)})
        )
        reader, writer = await running_worker.connect(1)
        writer.write(fetch(1))
        async with asyncio.timeout(LIMIT_S):
            assert await read_frame(reader) == response(1, b"answer")[4:]
        writer.close()


async def test_hanging_name_delays_only_its_own_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found: each look-up used one of four threads for as long as the name server was silent."""
    hangs, look_up = threading.Event(), socket.getaddrinfo

    def getaddrinfo(host: str, *arguments: Any, **named: Any) -> Any:
        if host.startswith("silent") and not named.get("flags", 0) & socket.AI_NUMERICHOST:
            hangs.wait(LIMIT_S)
            raise socket.gaierror(socket.EAI_AGAIN, "no name server answers")
        return look_up(host, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    async with broker_script() as one, running(tmp_path, [one.port]) as running_worker:
        brokers = {1: Broker(1, "localhost", one.port), 2: Broker(2, "silent.invalid", 9092)}
        running_worker.worker.apply(replace(running_worker.directory([one]), brokers=brokers))
        waiting = []
        for _ in range(20):
            _, writer = await running_worker.connect(2)
            writer.write(fetch(1))
            waiting.append(writer)
        reader, writer = await running_worker.connect(1)
        writer.write(fetch(1))
        async with asyncio.timeout(LIMIT_S / 2):
            assert await read_frame(reader) == response(1, b"answer")[4:]
        hangs.set()
        for each in (*waiting, writer):
            each.close()


async def test_sockets_have_nodelay_and_broker_keep_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's socket has keep-alive, too: from the member's listening socket (`test_socket_options`)."""
    monkeypatch.setattr(guard, "KEEP_ALIVE_AFTER_S", 3600.0)
    async with broker_script() as one, running(tmp_path, [one.port]) as running_worker:
        running_worker.worker.apply(running_worker.directory([one]))
        reader, writer = await running_worker.connect(1)
        writer.write(fetch(1))
        await read_frame(reader)
        (connection,) = running_worker.connections()
        assert connection.broker is not None
        for transport in (connection.transport, connection.broker.transport):
            sock = transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        running_worker.worker.limiter.enforce(0.0)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0  # the connection is too young
        monkeypatch.setattr(guard, "KEEP_ALIVE_AFTER_S", -1.0)
        running_worker.worker.limiter.enforce(0.0)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 0.4 * BROKER_VANISHED_S
        writer.close()


async def test_identity_port_reaches_its_broker_through_proxies(tmp_path: Path, route: Route) -> None:
    async with (
        broker_script(route=route) as one,
        broker_script(route=route) as two,
        running(tmp_path, [one.port], route=route) as running_worker,
    ):
        two.known = [Broker(1, "127.77.0.1", 19092), Broker(2, "127.77.0.2", 29092)]
        running_worker.worker.apply(running_worker.directory([one, two]))
        reader, writer = await running_worker.connect(2)
        sent = fetch(7) + request(METADATA, 1, 8, struct.pack(">i", -1))
        writer.write(sent)
        assert await read_frame(reader) == response(7, b"answer")[4:]
        proxied = [Broker(1, "proxy1.example", 9101), Broker(2, "proxy1.example", 9102)]
        assert await read_frame(reader) == response(8, metadata(proxied))[4:]
        assert two.requests == [(FETCH, 7), (METADATA, 8)]
        assert one.accepted == 0
        counted = running_worker.worker.snapshot()
        assert counted.requests == {FETCH: 1, METADATA: 1}
        assert counted.bytes_to_broker[2] == len(sent)
        assert counted.connections[2] == 1
        assert counted.upstream_up == {2: True}
        assert sum(counted.rewrite_buckets) == 1
        assert counted.rewrite_sum_s > 0
        writer.close()
        await eventually(
            lambda: running_worker.worker.snapshot().connections[2] == 0, "the connection is counted out"
        )
        await eventually(lambda: two.ended == 1, "the broker sees the end")


async def test_connection_ends_with_its_last_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's garbage collector looks for reference cycles only once in 50,000 objects."""
    # pytest keeps log records, which refer to errors, and these to the frames that raised them.
    monkeypatch.setattr(counters.log, "disabled", True)
    gc.collect()
    before = alive()  # of other tests
    gc.disable()
    try:
        async with broker_script() as broker, running(tmp_path, [broker.port]) as running_worker:
            running_worker.worker.apply(running_worker.directory([broker]))
            for number in range(4):
                reader, writer = await running_worker.connect(1)
                writer.write(fetch(number))
                await read_frame(reader)
                assert len(alive()) > len(before)
                if number == 1:
                    writer.transport.abort()
                elif number == 2:
                    broker.writers[-1].close()
                elif number == 3:
                    writer.write(b"GET / HTTP/1.1\r\n\r\n")
                else:
                    writer.close()
                await ends(reader)
                writer.close()
            await eventually(lambda: len(alive()) == len(before), "no object of the connections is left")
    finally:
        gc.enable()


@pytest.mark.parametrize("cut", [0, 3])
@pytest.mark.parametrize(
    ("first_bytes", "expected"),
    [
        (bytes.fromhex("16030100f8010000f40303ab12cd") + bytes(240), "it speaks TLS to the plaintext"),
        (b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n", "it speaks HTTP to the plaintext"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "it speaks HTTP/2 to the plaintext"),
        (b"PROXY TCP4 10.0.0.1 10.0.0.2 5 9092\r\n", "it speaks PROXY protocol v1 to"),
        (b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c", "it speaks PROXY protocol v2 to"),
        (b"SSH-2.0-OpenSSH_9.2p1\r\n", "it speaks SSH to the plaintext"),
    ],
)
async def test_refused_first_bytes_are_named_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first_bytes: bytes, expected: str, cut: int
) -> None:
    async with broker_script() as broker, running(tmp_path, [broker.port]) as running_worker:
        running_worker.worker.apply(running_worker.directory([broker]))
        reader, writer = await running_worker.connect(1)
        if cut:
            writer.write(first_bytes[:cut])
            await eventually(
                lambda: any(each.unconsumed for each in running_worker.connections()), "what came is kept"
            )
        writer.write(first_bytes[cut:])
        assert await ends(reader) == b""
        writer.close()
        (line,) = [each for each in caplog.messages if "closing the connection of client" in each]
        assert f"client: {expected}" in line
        assert " listener external; " in line
        assert running_worker.worker.snapshot().errors == {"oversize": 1}
        assert broker.accepted == 0


async def test_client_that_ends_in_its_first_bytes_is_named_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker_script() as broker, running(tmp_path, [broker.port]) as running_worker:
        reader, writer = await running_worker.connect(1)
        writer.write(b"GET /\r\n")
        writer.write_eof()
        assert await ends(reader) == b""
        writer.close()
        assert "client: it speaks HTTP to the plaintext listener external; send health checks" in caplog.text
        assert running_worker.worker.snapshot().errors == {"truncated": 1}


async def test_protocol_is_named_if_its_bytes_are_a_valid_size(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limits = Limits(max_request_bytes=2**31 - 1, first_request_timeout_s=0.2)
    async with broker_script() as broker, running(tmp_path, [broker.port], limits=limits) as running_worker:
        reader, writer = await running_worker.connect(1)
        writer.write(b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c")
        await ends(reader)
        writer.close()
        assert "it speaks PROXY protocol v2 to the plaintext listener external; switch" in caplog.text
        assert running_worker.worker.snapshot().limited == {"first_request_timeout_s": 1}


async def test_foreign_bytes_behind_requests_are_no_other_protocol(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker_script() as broker, running(tmp_path, [broker.port]) as running_worker:
        running_worker.worker.apply(running_worker.directory([broker]))
        reader, writer = await running_worker.connect(1)
        writer.write(fetch(1))
        await read_frame(reader)
        writer.write(b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n")
        await ends(reader)
        writer.close()
        assert "client: request of 1195725856 bytes is above" in caplog.text


def alive() -> list[object]:
    kinds = (ClientConnection, BrokerConnection, Session)
    return [each for each in gc.get_objects() if isinstance(each, kinds)]


@pytest.mark.parametrize("step", [1, 3, 13])
async def test_requests_arrive_whole_at_any_split(tmp_path: Path, step: int) -> None:
    async with broker_script() as one, running(tmp_path, [one.port]) as running_worker:
        running_worker.worker.apply(running_worker.directory([one]))
        reader, writer = await running_worker.connect(1)
        client = writer.get_extra_info("socket")
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sent = fetch(1) + produce(2, acks=1) + fetch(3)
        for start in range(0, len(sent), step):
            writer.write(sent[start : start + step])
            await writer.drain()
            await asyncio.sleep(0)
        answers = [await read_frame(reader) for _ in range(3)]
        assert answers == [response(number, b"answer")[4:] for number in (1, 2, 3)]
        assert one.requests == [(FETCH, 1), (PRODUCE, 2), (FETCH, 3)]
        writer.close()


async def test_probe_and_port_scan_touch_no_broker(tmp_path: Path) -> None:
    async with broker_script() as one, running(tmp_path, [one.port]) as running_worker:
        for _ in range(3):
            _, writer = await running_worker.connect()
            writer.close()
        reader, writer = await running_worker.connect()
        writer.write(request(API_VERSIONS, 0x7FFF, 9))
        answer = await read_frame(reader)
        assert struct.unpack_from(">ih", answer) == (9, 35)
        assert one.accepted == 0
        # Then the same connection serves an ordinary request.
        writer.write(fetch(10))
        assert await read_frame(reader) == response(10, b"answer")[4:]
        assert one.requests == [(FETCH, 10)]
        writer.close()


async def test_bootstrap_connection_tries_the_next_broker(
    tmp_path: Path, refusing_broker: BrokerScript
) -> None:
    async with broker_script() as one, running(tmp_path, [one.port]) as running_worker:
        running_worker.worker.apply(running_worker.directory([refusing_broker, one, refusing_broker]))
        for number in range(4):
            reader, writer = await running_worker.connect()
            writer.write(fetch(number))
            assert await read_frame(reader) == response(number, b"answer")[4:]
            writer.close()
        assert running_worker.worker.snapshot().upstream_up[2] is True
        assert False in running_worker.worker.snapshot().upstream_up.values()


async def test_worker_without_directory_uses_configured_brokers(tmp_path: Path) -> None:
    async with broker_script() as one, running(tmp_path, [one.port]) as running_worker:
        one.known = [Broker(1, "127.0.0.1", one.port)]
        reader, writer = await running_worker.connect()
        writer.write(request(METADATA, 1, 1, struct.pack(">i", -1)))
        proxied = metadata([Broker(1, "proxy1.example", 9101)])
        assert await read_frame(reader) == response(1, proxied)[4:]
        writer.close()
        # The address in the response is dialed once control has confirmed it.
        reader, writer = await running_worker.connect(1)
        writer.write(fetch(2))
        await eventually(
            lambda: running_worker.connections() and running_worker.connections()[0].state is State.DIALING,
            "the bytes wait",
        )
        running_worker.worker.apply(running_worker.directory([one]))
        assert await read_frame(reader) == response(2, b"answer")[4:]
        writer.close()


# ---- unreachable brokers


async def ends(reader: asyncio.StreamReader) -> bytes:
    """Return all bytes up to the end."""
    async with asyncio.timeout(LIMIT_S):
        return await reader.read(-1)


async def test_client_of_an_unconfirmed_identity_is_closed(tmp_path: Path) -> None:
    async with (
        broker_script() as one,
        running(tmp_path, [one.port], upstream_connect_timeout_s=0.2) as running_worker,
    ):
        reader, writer = await running_worker.connect(3)
        writer.write(fetch(1))
        assert await ends(reader) == b""
        writer.close()


async def test_client_of_a_new_broker_waits_for_the_directory(tmp_path: Path) -> None:
    async with (
        broker_script() as one,
        broker_script() as two,
        running(tmp_path, [one.port]) as running_worker,
    ):
        running_worker.worker.apply(running_worker.directory([one]))
        reader, writer = await running_worker.connect(2)
        writer.write(produce(1, acks=0) + produce(2, acks=1))
        await eventually(
            lambda: running_worker.connections() and running_worker.connections()[0].state is State.DIALING,
            "the bytes wait",
        )
        writer.write(produce(3, acks=1))
        running_worker.worker.apply(running_worker.directory([one, two]))
        for number in (2, 3):
            assert await read_frame(reader) == response(number, b"answer")[4:]
        assert two.requests == [(PRODUCE, 1), (PRODUCE, 2), (PRODUCE, 3)]
        assert one.accepted == 0
        writer.close()


async def test_broker_that_refuses_closes_the_client(tmp_path: Path, refusing_broker: BrokerScript) -> None:
    async with running(tmp_path, [refusing_broker.port]) as running_worker:
        running_worker.worker.apply(running_worker.directory([refusing_broker]))
        for port in (1, BOOTSTRAP):
            reader, writer = await running_worker.connect(port)
            writer.write(fetch(1))
            assert await ends(reader) == b""
            writer.close()
        assert running_worker.worker.snapshot().upstream_up == {1: False}


async def test_invalid_broker_address_closes_the_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, refusing_broker: BrokerScript
) -> None:
    async with running(tmp_path, [refusing_broker.port]) as running_worker:
        directory = running_worker.directory([refusing_broker])
        running_worker.worker.apply(replace(directory, brokers={1: Broker(1, "real\ufffdbroker", 9092)}))
        reader, writer = await running_worker.connect(1)
        writer.write(fetch(1))
        assert await ends(reader) == b""
        writer.close()
    assert [each.levelname for each in caplog.records if "cannot be reached" in each.message] == ["WARNING"]
    assert "dialing a broker failed" not in caplog.text


async def test_unanswered_dial_closes_the_client_in_time(tmp_path: Path) -> None:
    # The backlog of the socket is full, so the kernel ignores connection attempts, like a lost host.
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as knocking:
        silent = BrokerScript(port=full.getsockname()[1])
        for _ in range(3):
            knock = knocking.enter_context(socket.socket())
            knock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                knock.connect(full.getsockname())
        async with running(tmp_path, [silent.port], upstream_connect_timeout_s=0.3) as running_worker:
            running_worker.worker.apply(running_worker.directory([silent]))
            reader, writer = await running_worker.connect(1)
            writer.write(fetch(1))
            assert await ends(reader) == b""
            writer.close()


@pytest.mark.parametrize(
    ("serves", "expected"),
    [
        ("foreign", "its certificate is refused: unable to get local issuer certificate"),
        ("misnamed", "its certificate is refused: IP address mismatch"),
        ("plaintext", "it does not speak TLS"),
        ("silent", "timed out"),
    ],
)
async def test_untrusted_broker_counts_as_unreachable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, serves: str, expected: str
) -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if serves == "plaintext":
            writer.write(b"SSH-2.0-OpenSSH_9.2p1\r\n")

    authority = Authority(tmp_path)
    route = secured(authority)
    if serves == "foreign":
        route = secured(authority, believed=Authority(tmp_path, "foreign"))
    elif serves == "misnamed":
        route = secured(authority, host="127.0.0.2")
    context = route.tls if serves in ("foreign", "misnamed") else None
    server = await asyncio.start_server(greet, "127.0.0.1", 0, ssl=context)
    broker = BrokerScript(port=server.sockets[0].getsockname()[1])
    limit_s = 0.3 if serves == "silent" else LIMIT_S
    async with running(
        tmp_path, [broker.port], route=route, upstream_connect_timeout_s=limit_s
    ) as running_worker:
        running_worker.worker.apply(running_worker.directory([broker]))
        reader, writer = await running_worker.connect(1)
        writer.write(fetch(1))
        assert await ends(reader) == b""
        writer.close()
        assert running_worker.worker.snapshot().upstream_up == {1: False}
    server.close()
    assert f"the broker at 127.0.0.1:{broker.port} cannot be reached: {expected}" in caplog.text


async def test_broker_that_closes_has_its_last_answer_delivered(tmp_path: Path, route: Route) -> None:
    sent = bytearray(struct.pack(">ii", 1 << 30, 1))
    piece = bytes(DATA_BYTES // 4)
    watched: list[ClientConnection] = []

    async def answer_until_the_client_is_behind(
        _: BrokerScript, key: int, correlation_id: int, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(sent)
        while not (watched and watched[0].waiting_bytes):
            sent.extend(piece)
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    async with (
        broker_script(answer_until_the_client_is_behind, route) as one,
        running(tmp_path, [one.port], route=route, drain_timeout_s=LONG_LINGER_S) as running_worker,
    ):
        running_worker.worker.apply(running_worker.directory([one]))
        reader, writer = await running_worker.connect(1)
        transport = cast(asyncio.Transport, writer.transport)
        transport.pause_reading()
        await eventually(running_worker.connections, "the client is accepted")
        watched += running_worker.connections()
        writer.write(fetch(1))
        await eventually(lambda: watched[0].state is State.LEAVING, "the broker's end is seen")
        assert watched[0].waiting_bytes
        transport.resume_reading()
        assert await ends(reader) == sent
        writer.close()


async def reset(_: BrokerScript, key: int, correlation_id: int, writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def test_broker_that_resets_closes_the_client(tmp_path: Path, route: Route) -> None:
    async with (
        broker_script(reset, route) as one,
        running(tmp_path, [one.port], route=route) as running_worker,
    ):
        running_worker.worker.apply(running_worker.directory([one]))
        reader, writer = await running_worker.connect(1)
        writer.write(fetch(1))
        with contextlib.suppress(ConnectionResetError):
            assert await ends(reader) == b""
        await eventually(lambda: not running_worker.connections(), "the connection is closed")
        writer.close()


# ---- clients that end or misbehave


async def test_all_bytes_of_an_ended_client_are_delivered(tmp_path: Path, route: Route) -> None:
    async with (
        broker_script(route=route) as one,
        running(tmp_path, [one.port], route=route, drain_timeout_s=LONG_LINGER_S) as running_worker,
    ):
        running_worker.worker.apply(running_worker.directory([one]))
        one.reads.clear()
        _, writer = await running_worker.connect(1)
        sent = 0
        while not (
            running_worker.connections()
            and (broker := running_worker.connections()[0].broker)
            and broker.waiting_bytes
        ):
            writer.write(produce(sent, acks=0, records_bytes=DATA_BYTES // 4))
            sent += 1
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()
        await eventually(lambda: not running_worker.connections(), "the client's end is seen")
        assert broker.waiting_bytes
        one.reads.set()
        await eventually(lambda: one.ended, "the broker sees the end")
        assert one.requests == [(PRODUCE, number) for number in range(sent)]


async def never(script: BrokerScript, key: int, correlation_id: int, writer: asyncio.StreamWriter) -> None:
    await script.released.wait()
    await answer_at_once(script, key, correlation_id, writer)


async def test_client_that_closes_half_is_closed(tmp_path: Path) -> None:
    async with broker_script(never) as one, running(tmp_path, [one.port]) as running_worker:
        running_worker.worker.apply(running_worker.directory([one]))
        reader, writer = await running_worker.connect(1)
        writer.write(fetch(1))
        await eventually(lambda: one.requests, "the request arrives")
        writer.write_eof()
        assert await ends(reader) == b""
        writer.close()


async def test_bytes_that_are_not_kafka_close_the_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "LOG_EVERY_S", 3600.0)  # a busy machine takes seconds for three connections
    async with broker_script() as one, running(tmp_path, [one.port]) as running_worker:
        for _ in range(3):
            reader, writer = await running_worker.connect()
            writer.write(struct.pack(">ihhih", 0x7FFFFFFF, METADATA, 1, 1, -1))
            assert await ends(reader) == b""
            writer.close()
        assert running_worker.worker.snapshot().errors == {"oversize": 3}
        assert one.accepted == 0
    lines = [each for each in caplog.messages if "closing the connection of client 127.0.0.1:" in each]
    assert len(lines) == 1


async def test_unrequested_response_is_logged_with_its_broker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def wrong(_: BrokerScript, key: int, correlation_id: int, writer: asyncio.StreamWriter) -> None:
        writer.write(response(correlation_id + 1, b"answer"))

    async with broker_script(wrong) as one, running(tmp_path, [one.port]) as running_worker:
        running_worker.worker.apply(running_worker.directory([one]))
        reader, writer = await running_worker.connect(1)
        writer.write(fetch(1))
        assert await ends(reader) == b""
        assert running_worker.worker.snapshot().errors == {"unknown_response": 1}
        host, port = writer.get_extra_info("sockname")
        (line,) = [each for each in caplog.messages if each.startswith("closing the connection of client")]
        assert line.startswith(
            f"closing the connection of client {host}:{port} to 127.0.0.1:{one.port}: broker: "
        )
        writer.close()


async def test_client_that_ends_inside_a_request_is_counted(tmp_path: Path) -> None:
    """Found by fuzzing a running fleet: the end was not counted. An end between two requests is no error."""
    async with broker_script() as one, running(tmp_path, [one.port]) as running_worker:
        running_worker.worker.apply(running_worker.directory([one]))
        for requests in (b"", fetch(1), fetch(1)[:-1], fetch(1) + fetch(2)[:3]):
            reader, writer = await running_worker.connect(1)
            writer.write(requests)
            writer.write_eof()
            await ends(reader)
            writer.close()
        assert running_worker.worker.snapshot().errors == {"truncated": 2}


@pytest.mark.parametrize("unconsumed_bytes", [3, 10])
async def test_broker_that_ends_inside_a_response_is_counted(tmp_path: Path, unconsumed_bytes: int) -> None:
    async def cut_off(_: BrokerScript, key: int, correlation_id: int, writer: asyncio.StreamWriter) -> None:
        writer.write(response(correlation_id, b"answer")[:unconsumed_bytes])
        writer.close()

    async with broker_script(cut_off) as one, running(tmp_path, [one.port]) as running_worker:
        running_worker.worker.apply(running_worker.directory([one]))
        reader, writer = await running_worker.connect(1)
        writer.write(fetch(1))
        await ends(reader)
        assert running_worker.worker.snapshot().errors == {"truncated": 1}
        writer.close()


# ---- back-pressure


async def test_client_that_does_not_read_stops_the_broker(tmp_path: Path, route: Route) -> None:
    size = 64 * MIB

    async def much(_: BrokerScript, key: int, correlation_id: int, writer: asyncio.StreamWriter) -> None:
        writer.write(response(correlation_id, bytes(size)))
        await writer.drain()

    async with (
        broker_script(much, route) as one,
        running(tmp_path, [one.port], route=route) as running_worker,
    ):
        running_worker.worker.apply(running_worker.directory([one]))
        reader, writer = await running_worker.connect(1)
        transport = cast(asyncio.Transport, writer.transport)
        transport.pause_reading()
        writer.write(fetch(1))
        await eventually(
            lambda: running_worker.connections() and running_worker.connections()[0].broker, "joined"
        )
        (connection,) = running_worker.connections()
        broker = connection.broker
        assert broker is not None
        await eventually(lambda: not broker.transport.is_reading(), "the broker's side is paused")
        assert connection.waiting_bytes <= Limits().write_buffer_bytes + 2 * DATA_BYTES
        assert running_worker.worker.snapshot().bytes_to_client[1] < size / 2
        transport.resume_reading()
        async with asyncio.timeout(LIMIT_S):
            assert len(await read_frame(reader)) == 4 + size
        writer.close()


async def test_broker_that_does_not_read_stops_the_client(tmp_path: Path, route: Route) -> None:
    size = 64 * MIB
    async with (
        broker_script(route=route) as one,
        running(tmp_path, [one.port], route=route) as running_worker,
    ):
        running_worker.worker.apply(running_worker.directory([one]))
        one.reads.clear()
        reader, writer = await running_worker.connect(1)
        writer.write(produce(5, acks=1, records_bytes=size))
        await eventually(
            lambda: running_worker.connections() and running_worker.connections()[0].broker, "joined"
        )
        (connection,) = running_worker.connections()
        broker = connection.broker
        assert broker is not None
        await eventually(lambda: broker.waiting_bytes > MIB, "its buffer is full")
        await eventually(lambda: not connection.transport.is_reading(), "the client's side is paused")
        assert broker.waiting_bytes <= Limits().write_buffer_bytes + 2 * DATA_BYTES
        one.reads.set()
        async with asyncio.timeout(LIMIT_S):
            assert await read_frame(reader) == response(5, b"answer")[4:]
        assert one.requests == [(PRODUCE, 5)]
        writer.close()


# ---- moves and ends


async def test_clients_of_a_moved_identity_leave_when_idle(tmp_path: Path) -> None:
    async with (
        broker_script(never) as one,
        broker_script() as two,
        running(tmp_path, [one.port]) as running_worker,
    ):
        before = running_worker.directory([one, two])
        running_worker.worker.apply(before)
        reader, writer = await running_worker.connect(1)
        other_reader, other_writer = await running_worker.connect(2)
        writer.write(fetch(1))
        await eventually(lambda: one.requests, "the request is in flight")
        running_worker.worker.apply(replace(before, advertised={1: ("p2",), 2: ("p1",)}))
        await eventually(
            lambda: [each for each in running_worker.connections() if each.is_moving],
            "the connection has to leave",
        )
        writer.write(fetch(2))
        await eventually(
            lambda: running_worker.worker.snapshot().requests[FETCH] == 2, "there was no such moment yet"
        )
        other_writer.write(fetch(9))
        assert await read_frame(other_reader) == response(9, b"answer")[4:]
        one.released.set()
        assert await ends(reader) == response(1, b"answer") + response(2, b"answer")
        writer.close()
        await eventually(
            lambda: len(running_worker.connections()) == 1, "only the other identity's connection is left"
        )
        other_writer.close()


async def test_busy_clients_are_drained_without_cutting_requests(tmp_path: Path) -> None:
    async with (
        broker_script(never) as one,
        running(tmp_path, [one.port], move_timeout_s=0.5) as running_worker,
    ):
        running_worker.worker.apply(running_worker.directory([one]))
        reader, writer = await running_worker.connect(1)
        writer.write(fetch(1))
        await eventually(lambda: one.requests, "the request is in flight")
        running_worker.worker.apply(running_worker.directory([one], advertised={1: ("p2",)}))
        await eventually(
            lambda: running_worker.connections()[0].is_draining, "the time for a quiet moment is over"
        )
        # Unread bytes would turn the goodbye into a reset, and lose the answer.
        writer.write(fetch(2) + produce(3, acks=1, records_bytes=4 * DATA_BYTES))
        one.released.set()
        assert await ends(reader) == response(1, b"answer")
        assert one.requests == [(FETCH, 1)]
        writer.close()


async def test_group_member_leaves_with_not_coordinator(tmp_path: Path) -> None:
    """Found by a rolling restart: librdkafka came back, did not ask again, and stayed until it was
    refused."""
    async with (
        broker_script() as one,
        running(tmp_path, [one.port], move_timeout_s=LIMIT_S) as running_worker,
    ):
        running_worker.worker.apply(running_worker.directory([one]))
        reader, writer = await running_worker.connect(1)
        writer.write(request(HEARTBEAT, 0, 1))
        assert await read_frame(reader) == response(1, b"answer")[4:]
        running_worker.worker.apply(running_worker.directory([one], advertised={1: ("p2",)}))
        await eventually(lambda: running_worker.connections()[0].is_moving, "the connection has to leave")
        writer.write(request(HEARTBEAT, 0, 2))
        assert await ends(reader) == build_not_coordinator(HEARTBEAT, 0, 2)
        assert one.requests == [(HEARTBEAT, 1)]
        writer.close()


async def test_acks_0_is_forwarded_until_the_clients_goodbye(tmp_path: Path) -> None:
    """The sender counts Produce with acks=0 as delivered once it is sent."""
    async with (
        broker_script() as one,
        running(tmp_path, [one.port], drain_timeout_s=LONG_LINGER_S) as running_worker,
    ):
        running_worker.worker.apply(running_worker.directory([one]))
        reader, writer = await running_worker.connect(1)
        writer.write(produce(1, acks=0))
        await eventually(lambda: one.requests, "the broker has the request")
        running_worker.worker.apply(running_worker.directory([one], advertised={1: ("p2",)}))
        assert await ends(reader) == b""
        late = produce(2, acks=0, records_bytes=2 * DATA_BYTES)
        writer.write(late[:15])
        await writer.drain()
        writer.write(late[15:] + produce(3, acks=0) + produce(4, acks=1) + produce(5, acks=0))
        await eventually(lambda: one.ended, "the broker has received all expected bytes")
        assert one.requests == [(PRODUCE, 1), (PRODUCE, 2), (PRODUCE, 3)]
        writer.close()
        await eventually(lambda: not running_worker.connections(), "the client has gone")


def hold_dials(running_worker: Running, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Delay connections to brokers until the event is set."""
    released = asyncio.Event()
    connect = running_worker.worker.dialer.connect

    async def held(connection: ClientConnection, candidate: upstream.Candidate) -> None:
        await released.wait()
        await connect(connection, candidate)

    monkeypatch.setattr(running_worker.worker.dialer, "connect", held)
    return released


@pytest.mark.parametrize("draining", [False, True])
async def test_acks_0_reaches_a_broker_that_is_still_dialed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draining: bool
) -> None:
    """Found by reading: with bytes queued for the broker nothing was in flight, and the queue was
    discarded."""
    async with (
        broker_script() as one,
        running(tmp_path, [one.port], move_timeout_s=LIMIT_S) as running_worker,
    ):
        running_worker.worker.apply(running_worker.directory([one]))
        released = hold_dials(running_worker, monkeypatch)
        reader, writer = await running_worker.connect(1)
        writer.write(produce(1, acks=0))
        await eventually(
            lambda: [each.state for each in running_worker.connections()] == [State.DIALING],
            "the dial has begun",
        )
        (connection,) = running_worker.connections()
        if draining:
            connection.drain(LIMIT_S)
        else:
            running_worker.worker.apply(running_worker.directory([one], advertised={1: ("p2",)}))
            await eventually(lambda: connection.is_moving, "the connection has to leave")
        assert connection.state is State.DIALING
        released.set()
        assert await ends(reader) == b""
        await eventually(lambda: one.requests == [(PRODUCE, 1)], "the broker has the request")
        writer.close()


async def test_last_bytes_reach_a_broker_that_is_still_dialed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's end is seen before there is a broker, because reading continues meanwhile."""
    async with broker_script() as one, running(tmp_path, [one.port]) as running_worker:
        running_worker.worker.apply(running_worker.directory([one]))
        released = hold_dials(running_worker, monkeypatch)
        reader, writer = await running_worker.connect(1)
        writer.write(produce(1, acks=0))
        writer.write_eof()
        await eventually(
            lambda: [each.has_ended for each in running_worker.connections()] == [True], "its end is seen"
        )
        assert [each.state for each in running_worker.connections()] == [State.DIALING]
        released.set()
        assert await ends(reader) == b""
        await eventually(lambda: one.requests == [(PRODUCE, 1)], "the broker has the request")
        writer.close()
        await eventually(lambda: not running_worker.connections(), "the connection is closed")
        assert running_worker.worker.snapshot().limited == {}


async def test_request_cut_off_during_the_dial_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_script() as one, running(tmp_path, [one.port]) as running_worker:
        running_worker.worker.apply(running_worker.directory([one]))
        released = hold_dials(running_worker, monkeypatch)
        reader, writer = await running_worker.connect(1)
        writer.write(produce(1, acks=1, records_bytes=100)[:-1])
        writer.write_eof()
        await eventually(
            lambda: [each.has_ended for each in running_worker.connections()] == [True], "its end is seen"
        )
        released.set()
        assert await ends(reader) == b""
        assert running_worker.worker.snapshot().errors == {"truncated": 1}
        writer.close()


async def test_at_most_two_reads_wait_for_a_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_script() as one, running(tmp_path, [one.port]) as running_worker:
        running_worker.worker.apply(running_worker.directory([one]))
        released = hold_dials(running_worker, monkeypatch)
        reader, writer = await running_worker.connect(1)
        writer.write(produce(1, acks=0))
        await eventually(
            lambda: [len(each.queue) for each in running_worker.connections()] == [1], "the bytes wait"
        )
        (connection,) = running_worker.connections()
        assert connection.transport.is_reading()
        writer.write(produce(2, acks=0))
        await eventually(lambda: len(connection.queue) == 2, "the second waits, too")
        assert not connection.transport.is_reading()
        writer.write(produce(3, acks=0))
        await writer.drain()
        await eventually(lambda: unread_bytes(connection.transport), "the third is left in the kernel")
        assert len(connection.queue) == 2
        released.set()
        await eventually(
            lambda: one.requests == [(PRODUCE, n) for n in (1, 2, 3)], "the broker has all requests"
        )
        writer.write(fetch(4))
        assert await read_frame(reader) == response(4, b"answer")[4:]
        writer.close()


async def test_acks_0_first_while_leaving_reaches_the_broker(tmp_path: Path) -> None:
    """Found with the previous test: the connection left in the same call that began to dial."""
    async with broker_script() as one, running(tmp_path, [one.port]) as running_worker:
        running_worker.worker.apply(running_worker.directory([one]))
        reader, writer = await running_worker.connect(1)
        sent = produce(1, acks=0)
        writer.write(sent[:5])
        await eventually(
            lambda: [each for each in running_worker.connections() if each.unconsumed],
            "a part of the request has arrived",
        )
        running_worker.connections()[0].move(LIMIT_S, LIMIT_S)
        writer.write(sent[5:])
        assert await ends(reader) == b""
        await eventually(lambda: one.requests == [(PRODUCE, 1)], "the broker has the request")
        writer.close()


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("acks", [0, 1])
async def test_move_waits_for_a_slow_dial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusing_broker: BrokerScript, refused: bool, acks: int
) -> None:
    """Found by reading: acks=0 was discarded at the deadline of the move. After the fix, requests with an
    answer had only the rest of another such deadline."""
    run_out, times, answer_s = ClientConnection.on_drain_deadline, [], 0.2

    def counted(connection: ClientConnection) -> None:
        times.append((connection.state, asyncio.get_running_loop().time()))
        run_out(connection)

    monkeypatch.setattr(ClientConnection, "on_drain_deadline", counted)
    async with broker_script(never) as one, running(tmp_path, [one.port]) as running_worker:
        running_worker.worker.apply(running_worker.directory([refusing_broker if refused else one]))
        released = hold_dials(running_worker, monkeypatch)
        reader, writer = await running_worker.connect(1)
        writer.write(produce(1, acks=acks))
        await eventually(
            lambda: [each.state for each in running_worker.connections()] == [State.DIALING],
            "the dial has begun",
        )
        (connection,) = running_worker.connections()
        connection.drain(answer_s)
        await eventually(lambda: [state for state, _ in times] == [State.DIALING], "the time is up")
        assert connection.state is State.DIALING
        released_s = asyncio.get_running_loop().time()
        released.set()
        assert await ends(reader) == b""
        if not refused:
            await eventually(lambda: one.requests == [(PRODUCE, 1)], "the broker has the request")
        if not refused and acks:
            state, cut_s = times[-1]
            assert state is State.JOINED
            assert cut_s - released_s >= answer_s - 0.01  # the loop counts milliseconds
        writer.close()
        await eventually(lambda: not running_worker.connections(), "the connection is closed")


async def test_bytes_after_the_goodbye_are_read_to_the_end(tmp_path: Path) -> None:
    """Found by reading: a large piece that is not forwarded was left unread, and ended in a reset."""
    async with (
        broker_script() as one,
        running(tmp_path, [one.port], drain_timeout_s=LONG_LINGER_S) as running_worker,
    ):
        running_worker.worker.apply(running_worker.directory([one]))
        reader, writer = await running_worker.connect(1)
        writer.write(fetch(1))
        assert await read_frame(reader) == response(1, b"answer")[4:]
        running_worker.worker.apply(running_worker.directory([one], advertised={1: ("p2",)}))
        assert await ends(reader) == b""
        # As if this much had arrived with the first read.
        late = produce(2, acks=1, records_bytes=DATA_BYTES)[:DATA_BYTES]
        running_worker.connections()[0].data_received(late)
        writer.write(bytes(40 * DATA_BYTES))
        writer.transport.set_write_buffer_limits(0)
        async with asyncio.timeout(LIMIT_S):
            await writer.drain()
        writer.close()
        await eventually(lambda: not running_worker.connections(), "the client has left in order")
        assert one.requests == [(FETCH, 1)]


async def test_clients_leave_in_sequence(tmp_path: Path) -> None:
    async with (
        broker_script() as one,
        running(tmp_path, [one.port], Limits(moves_per_second=20)) as running_worker,
    ):
        running_worker.worker.apply(running_worker.directory([one]))
        clients = [await running_worker.connect(1) for _ in range(5)]
        await eventually(lambda: len(running_worker.connections()) == 5, "all are connected")
        began_s = asyncio.get_running_loop().time()
        running_worker.worker.apply(running_worker.directory([one], advertised={1: ("p2",)}))
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*(ends(reader) for reader, _ in clients))
        assert asyncio.get_running_loop().time() - began_s >= 3 / 20
        for _, writer in clients:
            writer.close()


async def test_clients_stay_if_the_identity_returns_in_time(tmp_path: Path) -> None:
    async with (
        broker_script() as one,
        running(tmp_path, [one.port], Limits(moves_per_second=5)) as running_worker,
    ):
        running_worker.worker.apply(running_worker.directory([one]))
        clients = [await running_worker.connect(1) for _ in range(3)]
        await eventually(lambda: len(running_worker.connections()) == 3, "all are connected")
        running_worker.worker.apply(running_worker.directory([one], advertised={1: ("p2",)}))
        await eventually(
            lambda: len([each for each in running_worker.connections() if not each.is_moving]) == 2,
            "a connection leaves",
        )
        running_worker.worker.apply(running_worker.directory([one]))
        later = asyncio.Event()
        asyncio.get_running_loop().call_later(1.0, later.set)
        await later.wait()
        assert len([each for each in running_worker.connections() if not each.is_moving]) == 2
        for _, writer in clients:
            writer.close()


async def coordinator_of(running_worker: Running) -> int:
    """Return the coordinator that a new librdkafka client gets for its group; -1: none yet."""
    reader, writer = await running_worker.connect()
    writer.write(request(API_VERSIONS, 32_767, 1, b"\0\x0blibrdkafka\x021\0"))
    async with asyncio.timeout(LIMIT_S):
        await read_frame(reader)
        writer.write(request(FIND_COORDINATOR, 0, 1, string("group")))
        _, _, found = struct.unpack_from(">ihi", await read_frame(reader))
    writer.close()
    return int(found)


async def test_move_is_reported_for_a_limited_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "FORGET_MOVES_INTERVAL_S", 0.01)

    async def find(script: BrokerScript, _: int, correlation_id: int, writer: asyncio.StreamWriter) -> None:
        body = struct.pack(">hi", 0, 1) + string("127.0.0.1") + struct.pack(">i", script.port)
        writer.write(response(correlation_id, body))

    async with broker_script(find) as one, running(tmp_path, [one.port]) as running_worker:
        running_worker.worker.apply(running_worker.directory([one]))
        assert await coordinator_of(running_worker) == 1
        running_worker.worker.apply(running_worker.directory([one], advertised={1: ("p2",)}, revision=1))
        later = asyncio.Event()
        asyncio.get_running_loop().call_later(0.1, later.set)
        await later.wait()
        assert await coordinator_of(running_worker) == -1, "news"
        monkeypatch.setattr(worker, "MOVE_RETENTION_S", 0.0)
        async with asyncio.timeout(LIMIT_S):
            while await coordinator_of(running_worker) == -1:
                pass


async def test_directory_leaves_no_timer_in_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: a timer of ten minutes for each listener gave each wait of the loop a limit, a timer to set."""
    async with broker_script() as one, running(tmp_path, [one.port]) as running_worker:
        loop = asyncio.get_running_loop()
        timed: list[float] = []
        with monkeypatch.context() as patch:
            patch.setattr(loop, "call_later", lambda delay_s, *_: timed.append(delay_s))
            patch.setattr(loop, "call_at", lambda when_s, *_: timed.append(when_s))
            running_worker.worker.apply(running_worker.directory([one]))
            running_worker.worker.apply(running_worker.directory([one], advertised={1: ("p2",)}, revision=1))
        assert timed == []


async def test_ended_worker_leaves_no_kernel_timer_open(tmp_path: Path) -> None:
    before = kernel_timers()
    async with running(tmp_path, [1]):
        assert kernel_timers() >= before + 3  # its sweeps, its counters, and its moves
    assert kernel_timers() == before


def kernel_timers() -> int:
    found = 0
    for each in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the iterator of the listing
            found += os.readlink(f"/proc/self/fd/{each}") == "anon_inode:[timerfd]"
    return found


FORGETS_NOTHING = """
import asyncio, sys
from pathlib import Path
from fleet.proxy import worker
from tests.integration.in_process.proxy.test_worker import BOOTSTRAP, listening, make_spec

async def run():
    await worker.Worker(make_spec(Path(sys.argv[1]), {BOOTSTRAP: listening()}, [1])).run(asyncio.Event())

worker.FORGET_MOVES_INTERVAL_S, worker.MOVE_RETENTION_S = 0.01, "invalid"
asyncio.run(run())
"""


def test_worker_ends_if_forgetting_moves_fails(tmp_path: Path) -> None:
    """In a separate process: in code compiled by mypyc, later runs raise the error of the first run again."""
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-P", "-c", FORGETS_NOTHING, str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, env=path, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("TypeError")


async def test_returning_clients_are_sent_away_again(tmp_path: Path) -> None:
    """Found by a rolling restart: aiokafka reconnects before it has requested the broker's new address."""
    async with broker_script() as one, running(tmp_path, [one.port]) as running_worker:
        running_worker.worker.apply(running_worker.directory([one]))
        reader, writer = await running_worker.connect(1)
        await eventually(lambda: running_worker.connections(), "the client is connected")
        running_worker.worker.apply(running_worker.directory([one], advertised={1: ("p2",)}))
        assert await ends(reader) == b""
        back_reader, back_writer = await running_worker.connect(1)
        back_writer.write(fetch(1))
        assert await ends(back_reader) == response(1, b"answer")
        for each in (writer, back_writer):
            each.close()


def names_itself(correlation_id: int = 0) -> bytes:
    """The first request of librdkafka."""
    return request(API_VERSIONS, 3, correlation_id, b"\0\x0blibrdkafka\x021\0")


async def greet(running_worker: Running, broker_id: int) -> Client:
    reader, writer = await running_worker.connect(broker_id)
    writer.write(names_itself())
    async with asyncio.timeout(LIMIT_S):
        await read_frame(reader)
    return reader, writer


async def answer_what_is_released(
    script: BrokerScript, key: int, correlation_id: int, writer: asyncio.StreamWriter
) -> None:
    """Answer the first request at once; all other requests later."""
    if key != API_VERSIONS:
        await script.released.wait()
    writer.write(response(correlation_id, b"\0\0\1\0\0\0\0\0" if key == API_VERSIONS else b"answer"))


@dataclass
class HalfBusy:
    """A librdkafka client with connections to two brokers, and a request in flight on the first one."""

    running_worker: Running
    one: BrokerScript
    two: BrokerScript
    reader: asyncio.StreamReader
    quiet_reader: asyncio.StreamReader
    quiet_writer: asyncio.StreamWriter


@contextlib.asynccontextmanager
async def half_busy(tmp_path: Path, move_timeout_s: float) -> AsyncIterator[HalfBusy]:
    async with (
        broker_script(answer_what_is_released) as one,
        broker_script(answer_what_is_released) as two,
        running(tmp_path, [one.port], move_timeout_s=move_timeout_s) as running_worker,
    ):
        running_worker.worker.apply(running_worker.directory([one, two]))
        reader, writer = await greet(running_worker, 1)
        quiet_reader, quiet_writer = await greet(running_worker, 2)
        writer.write(produce(1, acks=1))
        await eventually(lambda: (PRODUCE, 1) in one.requests, "the request is in flight")
        yield HalfBusy(running_worker, one, two, reader, quiet_reader, quiet_writer)
        for each in (writer, quiet_writer):
            each.close()


async def leaves_together(client: HalfBusy) -> None:
    """Require that the idle connection is served until the other has its answer, and that both end then."""
    client.two.released.set()
    client.quiet_writer.write(produce(2, acks=1))
    async with asyncio.timeout(LIMIT_S):
        assert await read_frame(client.quiet_reader) == response(2, b"answer")[4:]
    client.one.released.set()
    assert await ends(client.reader) == response(1, b"answer")
    assert await ends(client.quiet_reader) == b""


async def test_librdkafka_connections_leave_together(tmp_path: Path) -> None:
    """When its first connection ends, librdkafka requests Metadata, and drops others with requests in
    flight."""
    async with half_busy(tmp_path, LIMIT_S) as client:
        running_worker, one, two = client.running_worker, client.one, client.two
        running_worker.worker.apply(running_worker.directory([one, two], advertised={1: ("p2",), 2: ("p2",)}))
        await eventually(
            lambda: all(each.is_moving for each in running_worker.connections()), "both are to leave"
        )
        await leaves_together(client)


async def test_waiting_connection_leaves_with_later_moves(tmp_path: Path) -> None:
    """Found with a slow broker whose identity moved two seconds before the member was drained."""
    async with half_busy(tmp_path, LIMIT_S) as client:
        running_worker, one, two = client.running_worker, client.one, client.two
        running_worker.worker.apply(running_worker.directory([one, two], advertised={1: ("p2",), 2: ("p1",)}))
        running_worker.worker.apply(
            running_worker.directory([one, two], advertised={1: ("p2",), 2: ("p2",)}, revision=1)
        )
        await eventually(
            lambda: all(each.is_moving for each in running_worker.connections()), "both are to leave"
        )
        await leaves_together(client)


async def test_fetch_does_not_delay_a_producer_of_the_same_id(tmp_path: Path) -> None:
    """A Fetch may wait at its broker for as long as there are no records."""
    async with (
        broker_script(answer_what_is_released) as one,
        broker_script(answer_what_is_released) as two,
        running(tmp_path, [one.port], move_timeout_s=LIMIT_S) as running_worker,
    ):
        running_worker.worker.apply(running_worker.directory([one, two]))
        reader, writer = await greet(running_worker, 1)
        quiet_reader, quiet_writer = await greet(running_worker, 2)
        running_worker.worker.apply(running_worker.directory([one, two], advertised={1: ("p2",), 2: ("p2",)}))
        writer.write(fetch(1))
        await eventually(lambda: (FETCH, 1) in one.requests, "the request is in flight")
        assert await ends(quiet_reader) == b""
        one.released.set()
        assert await ends(reader) == response(1, b"answer")
        for each in (writer, quiet_writer):
            each.close()


async def test_returning_librdkafka_has_no_produce_in_flight(tmp_path: Path) -> None:
    """Metadata makes librdkafka drop the new connection, too. When it returns once more, it is served."""
    async with (
        broker_script(answer_what_is_released) as one,
        running(tmp_path, [one.port], move_timeout_s=0.5) as running_worker,
    ):
        one.released.set()
        running_worker.worker.apply(running_worker.directory([one]))
        reader, writer = await greet(running_worker, 1)
        running_worker.worker.apply(running_worker.directory([one], advertised={1: ("p2",)}))
        assert await ends(reader) == b""
        back_reader, back_writer = await greet(running_worker, 1)
        back_writer.write(produce(1, acks=1))
        assert await ends(back_reader) == b""
        assert (PRODUCE, 1) not in one.requests
        again_reader, again_writer = await greet(running_worker, 1)
        again_writer.write(produce(2, acks=1))
        async with asyncio.timeout(LIMIT_S):
            assert await read_frame(again_reader) == response(2, b"answer")[4:]
        for each in (writer, back_writer, again_writer):
            each.close()


async def test_withheld_requests_of_a_closed_librdkafka_do_not_run(tmp_path: Path) -> None:
    """By then the client has sent the same requests to another member."""
    async with (
        broker_script(answer_what_is_released) as one,
        running(tmp_path, [one.port], move_timeout_s=0.5) as running_worker,
    ):
        one.released.set()
        running_worker.worker.apply(running_worker.directory([one]))
        reader, writer = await greet(running_worker, 1)
        running_worker.worker.apply(running_worker.directory([one], advertised={1: ("p2",)}))
        assert await ends(reader) == b""
        writer.close()
        _, back_writer = await greet(running_worker, 1)
        back_writer.write(produce(1, acks=1))
        await back_writer.drain()
        back_writer.close()
        await eventually(lambda: not running_worker.connections(), "the connection is closed")
        assert (PRODUCE, 1) not in one.requests


async def test_later_move_does_not_cut_off_a_party(tmp_path: Path) -> None:
    """Found: a later move made ready connections leave while another connection had requests in flight."""
    async with (
        broker_script(answer_what_is_released) as one,
        broker_script(answer_what_is_released) as two,
        broker_script(answer_what_is_released) as three,
        running(tmp_path, [one.port], move_timeout_s=LIMIT_S) as running_worker,
    ):
        brokers = [one, two, three]
        running_worker.worker.apply(running_worker.directory(brokers))
        reader, writer = await greet(running_worker, 1)
        quiet_reader, quiet_writer = await greet(running_worker, 2)
        later_reader, later_writer = await greet(running_worker, 3)
        writer.write(produce(1, acks=1))
        await eventually(lambda: (PRODUCE, 1) in one.requests, "the request is in flight")
        running_worker.worker.apply(
            running_worker.directory(brokers, advertised={1: ("p2",), 2: ("p2",), 3: ("p1",)})
        )
        await eventually(
            lambda: sum(each.is_moving for each in running_worker.connections()) == 2, "two are to leave"
        )
        running_worker.worker.apply(
            running_worker.directory(brokers, advertised=dict.fromkeys((1, 2, 3), ("p2",)), revision=1)
        )
        assert await ends(later_reader) == b""
        left = [each.broker_id for each in running_worker.connections() if each.state is State.LEAVING]
        assert 2 not in left
        one.released.set()
        assert await ends(reader) == response(1, b"answer")
        assert await ends(quiet_reader) == b""
        for each in (writer, quiet_writer, later_writer):
            each.close()


async def test_withheld_librdkafka_is_served_if_identity_returns(tmp_path: Path) -> None:
    """Found: the client waited for the whole time limit at the member that owned the identity again."""
    async with (
        broker_script(answer_what_is_released) as one,
        running(tmp_path, [one.port], move_timeout_s=10 * LIMIT_S) as running_worker,
    ):
        one.released.set()
        running_worker.worker.apply(running_worker.directory([one]))
        reader, writer = await greet(running_worker, 1)
        running_worker.worker.apply(running_worker.directory([one], advertised={1: ("p2",)}))
        assert await ends(reader) == b""
        back_reader, back_writer = await greet(running_worker, 1)
        back_writer.write(produce(1, acks=1))
        running_worker.worker.apply(running_worker.directory([one], advertised={1: ("p1",)}, revision=1))
        assert await ends(back_reader) == b""
        assert (PRODUCE, 1) not in one.requests
        again_reader, again_writer = await greet(running_worker, 1)
        again_writer.write(produce(2, acks=1))
        async with asyncio.timeout(LIMIT_S):
            assert await read_frame(again_reader) == response(2, b"answer")[4:]
        for each in (writer, back_writer, again_writer):
            each.close()


async def test_stopping_worker_does_not_cut_off_a_party(tmp_path: Path) -> None:
    """Found: idle connections of a client ended at once while another connection had requests in flight."""
    async with half_busy(tmp_path, LIMIT_S) as client:
        running_worker, one, two = client.running_worker, client.one, client.two
        bootstrap_reader, bootstrap_writer = await greet(running_worker, BOOTSTRAP)
        running_worker.worker.apply(running_worker.directory([one, two], advertised={1: ("p2",), 2: ("p2",)}))
        await eventually(
            lambda: sum(each.is_moving for each in running_worker.connections()) == 2, "both are to leave"
        )
        running_worker.stop.set()
        end = asyncio.create_task(ends(client.quiet_reader))
        bootstrap_end = asyncio.create_task(ends(bootstrap_reader))
        done, _ = await asyncio.wait([end, bootstrap_end], timeout=0.2)
        assert not done
        one.released.set()
        assert await ends(client.reader) == response(1, b"answer")
        assert await end == b""
        assert await bootstrap_end == b""
        bootstrap_writer.close()


async def test_stopping_worker_adds_no_other_client_to_a_party(tmp_path: Path) -> None:
    """A Java client may have the same host and client id as a librdkafka client."""
    async with half_busy(tmp_path, LIMIT_S) as client:
        running_worker, one, two = client.running_worker, client.one, client.two
        java_reader, java_writer = await running_worker.connect(BOOTSTRAP)
        java_writer.write(request(API_VERSIONS, 3, 0, b"\0\x12apache-kafka-java\x064.3.1\0"))
        async with asyncio.timeout(LIMIT_S):
            await read_frame(java_reader)
        running_worker.worker.apply(running_worker.directory([one, two], advertised={1: ("p2",), 2: ("p2",)}))
        await eventually(
            lambda: sum(each.is_moving for each in running_worker.connections()) == 2, "both are to leave"
        )
        running_worker.stop.set()
        quiet_end = asyncio.create_task(ends(client.quiet_reader))
        assert await ends(java_reader) == b""
        assert not quiet_end.done()
        one.released.set()
        assert await ends(client.reader) == response(1, b"answer")
        assert await quiet_end == b""
        java_writer.close()


async def test_withheld_librdkafka_does_everything_but_produce(tmp_path: Path) -> None:
    """Found: the client's Metadata requests were held like all others, and so were commits at a
    coordinator."""
    async with (
        broker_script(answer_what_is_released) as one,
        running(tmp_path, [one.port], move_timeout_s=10 * LIMIT_S) as running_worker,
    ):
        one.released.set()
        running_worker.worker.apply(running_worker.directory([one]))
        reader, writer = await greet(running_worker, 1)
        running_worker.worker.apply(running_worker.directory([one], advertised={1: ("p2",)}))
        assert await ends(reader) == b""
        _, back_writer = await greet(running_worker, 1)
        back_writer.write(request(FIND_COORDINATOR, 0, 1) + produce(2, acks=1) + request(LIST_GROUPS, 0, 3))
        await eventually(lambda: (FIND_COORDINATOR, 1) in one.requests, "FindCoordinator passes")
        for each in (writer, back_writer):
            each.close()
        await eventually(
            lambda: not running_worker.connections(), "the client's end is noticed while it is withheld"
        )
        assert not {(PRODUCE, 2), (LIST_GROUPS, 3)} & set(one.requests)


async def test_stopping_worker_shortens_running_moves(tmp_path: Path) -> None:
    """Found: a connection that already had to leave kept its nine seconds, even in a short stop."""
    async with (
        broker_script(answer_what_is_released) as one,
        running(tmp_path, [one.port], drain_timeout_s=1.0, move_timeout_s=10 * LIMIT_S) as running_worker,
    ):
        running_worker.worker.apply(running_worker.directory([one]))
        reader, writer = await greet(running_worker, 1)
        writer.write(produce(1, acks=1))
        await eventually(lambda: (PRODUCE, 1) in one.requests, "the request is in flight")
        running_worker.worker.apply(running_worker.directory([one], advertised={1: ("p2",)}))
        await eventually(
            lambda: all(each.is_draining for each in running_worker.connections()), "nothing new passes"
        )
        running_worker.stop.set()
        assert await ends(reader) == b""
        writer.close()


async def test_slow_answer_delays_a_party_only_briefly(
    tmp_path: Path,
) -> None:
    """Found: one JoinGroup in flight kept a producer of the same client id from all its brokers for 5 s."""
    async with half_busy(tmp_path, 10 * LIMIT_S) as client:
        running_worker, one, two = client.running_worker, client.one, client.two
        running_worker.worker.apply(running_worker.directory([one, two], advertised={1: ("p2",), 2: ("p2",)}))
        assert await ends(client.quiet_reader) == b""


async def test_later_moves_do_not_delay_leaving_clients(tmp_path: Path) -> None:
    """Found: each later move made all waiting connections wait for the notice time once more."""
    async with (
        broker_script(answer_what_is_released) as one,
        broker_script(answer_what_is_released) as two,
        running(tmp_path, [one.port]) as running_worker,
    ):
        running_worker.worker.apply(running_worker.directory([one, two]))
        clients = [await running_worker.connect(1) for _ in range(80)]
        await eventually(lambda: len(running_worker.connections()) == len(clients), "all are connected")
        _, kept_writer = await running_worker.connect(2)
        revision = 1
        while any(
            each.broker_id == 1 and each.state is not State.LEAVING for each in running_worker.connections()
        ):
            assert revision < 5 * len(clients) / 3, "connections leave in sequence despite later moves"
            advertised = {1: ("p2",), 2: (f"p{1 + revision % 2}",)}
            running_worker.worker.apply(
                running_worker.directory([one, two], advertised=advertised, revision=revision)
            )
            revision += 1
            if not any(each.broker_id == 2 for each in running_worker.connections()):
                kept_writer.close()
                _, kept_writer = await running_worker.connect(2)
            await asyncio.sleep(MOVE_NOTICE_S / 5)
        for _, writer in clients:
            writer.close()
        kept_writer.close()


async def test_drain_ends_within_its_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with (
        broker_script(never) as one,
        running(tmp_path, [one.port], move_timeout_s=0.2) as running_worker,
    ):
        running_worker.worker.apply(running_worker.directory([one]))
        reader, writer = await running_worker.connect(1)
        writer.write(fetch(1))
        await eventually(lambda: one.requests, "the request is in flight")
        running_worker.worker.apply(running_worker.directory([one], advertised={1: ("p2",)}))
        assert await ends(reader) == b""
        # The client never closes its side: the worker does not wait forever.
        await eventually(lambda: not running_worker.connections(), "the connection is cut")
        assert "closing a client with requests unanswered: broker=1 requests=1" in caplog.text
        writer.close()


async def test_identity_that_was_never_here_is_not_drained(tmp_path: Path) -> None:
    async with broker_script() as one, running(tmp_path, [one.port]) as running_worker:
        elsewhere = running_worker.directory([one], advertised={1: ("p2",)})
        running_worker.worker.apply(elsewhere)
        reader, writer = await running_worker.connect(1)
        writer.write(fetch(1))
        assert await read_frame(reader) == response(1, b"answer")[4:]
        running_worker.worker.apply(replace(elsewhere, advertised={1: ("p3",)}))
        writer.write(fetch(2))
        assert await read_frame(reader) == response(2, b"answer")[4:]
        writer.close()


async def test_stop_refuses_clients_only_after_they_have_left(tmp_path: Path) -> None:
    async with broker_script(never) as one, running(tmp_path, [one.port]) as running_worker:
        running_worker.worker.apply(running_worker.directory([one]))
        idle_reader, idle_writer = await running_worker.connect()
        reader, writer = await running_worker.connect(1)
        writer.write(fetch(1))
        await eventually(
            lambda: one.requests and len(running_worker.connections()) == 2, "the request is in flight"
        )
        running_worker.stop.set()
        assert await ends(idle_reader) == b""
        idle_writer.close()
        back_reader, back_writer = await running_worker.connect(1)
        one.released.set()
        assert await ends(reader) == response(1, b"answer")
        writer.close()
        back_writer.write(fetch(2))
        assert await read_frame(back_reader) == response(2, b"answer")[4:]
        assert await ends(back_reader) == b""
        with pytest.raises(ConnectionRefusedError):
            await running_worker.connect()
        back_writer.close()
        async with asyncio.timeout(LIMIT_S):
            await running_worker.task


async def test_stop_does_not_wait_for_returning_clients(tmp_path: Path) -> None:
    """Found by a rolling restart: idle connections to a bootstrap port came back, and cost ten seconds."""
    async with (
        broker_script() as one,
        running(tmp_path, [one.port], drain_timeout_s=10 * LIMIT_S) as running_worker,
    ):
        running_worker.worker.apply(running_worker.directory([one]))
        (reader, writer), (other_reader, other_writer) = (
            await running_worker.connect(),
            await running_worker.connect(),
        )
        await eventually(lambda: len(running_worker.connections()) == 2, "both are connected")
        running_worker.stop.set()
        assert await ends(reader) == b""
        back_reader, back_writer = await running_worker.connect()
        assert await ends(other_reader) == b""
        writer.close()
        other_writer.close()
        async with asyncio.timeout(LIMIT_S):
            assert await ends(back_reader) == b""
            back_writer.close()
            await running_worker.task


# ---- control


@dataclass
class ControlScript:
    """Control's end of the socket."""

    path: Path
    messages: list[ipc.Message] = field(default_factory=list)
    channels: list[Channel] = field(default_factory=list)
    server: "asyncio.Server | None" = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel = Channel(reader, writer)
        self.channels.append(channel)
        while (message := await channel.receive()) is not None:
            self.messages.append(message)
        channel.close()

    async def start(self) -> None:
        self.server = await asyncio.start_unix_server(self.serve, self.path)

    def die(self) -> None:
        assert self.server is not None
        self.server.close()
        for channel in self.channels:
            channel.close()
        self.channels.clear()
        self.path.unlink()

    def seen(self) -> list[tuple[Broker, ...]]:
        return [
            each.brokers for each in self.messages if isinstance(each, BrokersSeenMessage) and each.brokers
        ]

    def unknown(self) -> set[int]:
        return {one for each in self.messages if isinstance(each, BrokersSeenMessage) for one in each.wanted}

    def lost(self) -> set[int]:
        return {
            one for each in self.messages if isinstance(each, BrokersLostMessage) for one in each.broker_ids
        }

    def counted(self) -> list[ipc.WorkerCounters]:
        return [each.counters for each in self.messages if isinstance(each, CountersMessage)]


async def test_worker_follows_successive_control_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        control_channel, "COUNTERS_INTERVAL_S", 2 * LIMIT_S
    )  # it says at once which directory it uses
    control = ControlScript(tmp_path / "control.sock")
    await control.start()
    async with broker_script() as one, running(tmp_path, [one.port]) as running_worker:
        await eventually(lambda: control.messages, "hello")
        assert control.messages[0] == Hello(0, os.getpid())
        control.channels[0].send(DirectoryMessage(running_worker.directory([one], revision=7)))
        await eventually(
            lambda: any(each.revision == 7 for each in control.counted()), "the directory is in use"
        )
        control.die()
        control.messages.clear()
        # Without control the worker serves the last directory.
        reader, writer = await running_worker.connect(1)
        writer.write(fetch(1))
        assert await read_frame(reader) == response(1, b"answer")[4:]
        await control.start()
        await eventually(lambda: control.messages, "hello to the next control process")
        control.channels[0].send(DirectoryMessage(running_worker.directory([one], revision=2)))
        await eventually(
            lambda: any(each.revision == 2 for each in control.counted()), "the directory is in use"
        )
        assert control.counted()[-1].requests == {FETCH: 1}
        writer.close()
        control.die()


@contextlib.asynccontextmanager
async def counting(folder: Path) -> AsyncIterator[tuple[ControlScript, Client]]:
    """Control, and a client that a worker has served once since its hello message."""
    control = ControlScript(folder / "control.sock")
    await control.start()
    async with broker_script() as one, running(folder, [one.port]) as running_worker:
        running_worker.worker.apply(running_worker.directory([one]))
        await eventually(lambda: control.messages, "hello")
        client = await running_worker.connect(1)
        client[1].write(fetch(1))
        await read_frame(client[0])
        yield control, client
        client[1].close()


async def test_counters_are_sent_when_control_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_channel, "COUNTERS_INTERVAL_S", 2 * LIMIT_S)
    async with counting(tmp_path) as (control, _):
        assert not control.counted()
        control.channels[0].send(CountMessage())
        await eventually(control.counted, "the requested counters")
        control.channels[0].send(CountMessage())
        await eventually(lambda: len(control.counted()) == 2, "the same once more")
        assert control.counted()[-1].requests == {FETCH: 1}
        control.die()


async def test_counters_are_sent_periodically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_channel, "COUNTERS_INTERVAL_S", 0.01)
    async with counting(tmp_path) as (control, (_, writer)):
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        await eventually(
            lambda: control.counted()[-1:] and control.counted()[-1].errors, "the refused request is counted"
        )
        control.die()


async def test_final_counters_of_a_worker_are_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_channel, "COUNTERS_INTERVAL_S", 2 * LIMIT_S)
    async with counting(tmp_path) as (control, _):
        pass
    await eventually(
        lambda: len(control.counted()) == 2, "counters at the beginning and at the end of the drain"
    )
    assert control.counted()[-1].requests == {FETCH: 1}
    assert control.counted()[-1].connections == {1: 0}
    control.die()


async def test_counters_are_resent_to_a_slow_control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by reading: a drain that began while control did not read was never reported."""
    monkeypatch.setattr(control_channel, "COUNTERS_INTERVAL_S", 2 * LIMIT_S)
    monkeypatch.setattr(control_channel, "RESEND_COUNTERS_S", 0.01)
    waiting_bytes = 0
    monkeypatch.setattr(Channel, "waiting_bytes", property(lambda _: waiting_bytes))
    control = ControlScript(tmp_path / "control.sock")
    await control.start()
    async with broker_script() as one, running(tmp_path, [one.port]) as running_worker:
        running_worker.worker.apply(running_worker.directory([one]))
        await eventually(lambda: control.messages, "hello")
        waiting_bytes = 1
        running_worker.worker.is_draining = True
        running_worker.worker.control_channel.send_counters()
        running_worker.worker.control_channel.send_counters()
        assert not control.counted()
        waiting_bytes = 0
        await eventually(lambda: control.counted() and control.counted()[-1].draining, "the drain")
        control.die()


async def test_brokers_of_a_passing_response_are_reported(tmp_path: Path) -> None:
    control = ControlScript(tmp_path / "control.sock")
    await control.start()
    async with broker_script() as one, running(tmp_path, [one.port]) as running_worker:
        await eventually(lambda: control.channels, "hello")
        running_worker.worker.apply(running_worker.directory([one]))
        one.known = [Broker(1, "127.0.0.1", one.port)]
        seen: list[tuple[Broker, ...]] = []
        for new in (Broker(2, "127.77.0.2", 29092), Broker(3, "127.77.0.3", 39092)):
            one.known.append(new)
            for number in range(2):
                reader, writer = await running_worker.connect(1)
                writer.write(request(METADATA, 1, number, struct.pack(">i", -1)))
                await read_frame(reader)
                writer.close()
            seen.append((new,))
            await eventually(lambda: control.seen() == seen, "each is reported, once")
        control.die()


async def test_broker_that_closes_or_refuses_is_reported(
    tmp_path: Path, refusing_broker: BrokerScript
) -> None:
    control = ControlScript(tmp_path / "control.sock")
    await control.start()
    async with (
        broker_script() as one,
        broker_script() as two,
        running(tmp_path, [one.port]) as running_worker,
    ):
        await eventually(lambda: control.channels, "hello")
        running_worker.worker.apply(running_worker.directory([one, refusing_broker, two]))
        served = [await running_worker.connect(broker_id) for broker_id in (1, 3)]
        for reader, writer in served:
            writer.write(fetch(1))
            assert await read_frame(reader) == response(1, b"answer")[4:]
        served[1][1].close()  # the end of a client is no evidence about its broker
        await eventually(lambda: two.ended, "the client of broker 3 has left")
        reader, writer = await running_worker.connect(2)
        writer.write(fetch(1))
        assert await reader.read() == b""
        await eventually(lambda: control.lost() == {2}, "the refusing broker is reported")
        one.writers[0].close()
        await eventually(lambda: control.lost() == {1, 2}, "the closing broker is reported")
        control.die()


async def test_broker_found_down_by_control_is_not_dialed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "BACKOFF_LIMIT_S", 10 * LIMIT_S)
    control = ControlScript(tmp_path / "control.sock")
    await control.start()
    async with broker_script() as one, running(tmp_path, [one.port]) as running_worker:
        await eventually(lambda: control.channels, "hello")
        running_worker.worker.apply(running_worker.directory([one]))
        control.channels[0].send(ReachableMessage({1: False}))
        await eventually(
            lambda: running_worker.worker.snapshot().upstream_up == {1: False}, "the worker knows"
        )
        reader, writer = await running_worker.connect(1)
        writer.write(fetch(1))
        assert await reader.read() == b""
        assert one.accepted == 0
        control.channels[0].send(ReachableMessage({1: True}))
        await eventually(
            lambda: running_worker.worker.snapshot().upstream_up == {1: True}, "the worker knows"
        )
        reader, writer = await running_worker.connect(1)
        writer.write(fetch(2))
        assert await read_frame(reader) == response(2, b"answer")[4:]
        writer.close()
        control.die()


async def test_worker_starts_from_the_stored_directory(tmp_path: Path) -> None:
    async with broker_script() as one:
        owners = {1: ("p2",)}
        other = Member("p2", listeners=(AdvertisedListener("external", "proxy2.example", 9200, 9201),))
        stored = Directory(
            generation=5,
            advertised=owners,
            committed=owners,
            members={"p2": replace(other, identities=IdentitySpace(1, 3))},
            brokers={1: Broker(1, "127.0.0.1", one.port)},
        )
        ipc.write_directory(tmp_path / ipc.DIRECTORY_FILE, stored)
        async with running(tmp_path, [one.port]) as running_worker:
            assert running_worker.worker.snapshot().generation == 5
            one.known = [Broker(1, "127.0.0.1", one.port), Broker(2, "127.0.0.1", 1)]
            reader, writer = await running_worker.connect(1)
            writer.write(request(METADATA, 1, 1, struct.pack(">i", -1)))
            # The member is not in the stored directory, and still serves the brokers that the directory
            # lacks.
            proxied = [Broker(1, "proxy2.example", 9201), Broker(2, "proxy1.example", 9102)]
            assert await read_frame(reader) == response(1, metadata(proxied))[4:]
            writer.close()


# ---- the process


def test_process_beats_serves_and_ends_cleanly(tmp_path: Path) -> None:
    sockets = {each: listening() for each in (BOOTSTRAP, 1)}
    port = sockets[BOOTSTRAP].getsockname()[1]
    heartbeats, heartbeat_fd = os.pipe()
    lifeline_fd, held_fd = os.pipe()
    spec = replace(make_spec(tmp_path, sockets, [1]), heartbeat_fd=heartbeat_fd, lifeline_fd=lifeline_fd)
    with tempfile.TemporaryFile() as file:
        file.write(spec.encode())
        file.flush()
        fds = [each.fd for each in spec.listeners]
        process = subprocess.Popen(
            [sys.executable, "-m", MODULES["worker"], str(file.fileno())],
            pass_fds=[*fds, heartbeat_fd, lifeline_fd, file.fileno()],
            cwd=ROOT,
        )
    for fd in (*fds, heartbeat_fd, lifeline_fd):
        os.close(fd)
    try:
        assert os.read(heartbeats, 1) == b"."
        with socket.create_connection(("127.0.0.1", port), LIMIT_S) as client:
            client.sendall(request(API_VERSIONS, 0x7FFF, 9))
            assert client.recv(100)[4:10] == struct.pack(">ih", 9, 35)
            process.send_signal(signal.SIGTERM)
            assert client.recv(100) == b""
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(heartbeats)
        os.close(held_fd)


async def test_sampling_survives_a_rejected_read(
    tmp_path: Path,
) -> None:
    """Found by review: one malformed request in 64 ended all samples of its worker."""
    async with (
        broker_script() as one,
        running(tmp_path, [one.port], events=EventsSettings()) as running_worker,
    ):
        running_worker.worker.apply(running_worker.directory([one]))
        running_worker.worker.sampling.reads = 1
        reader, writer = await running_worker.connect(1)
        writer.write(struct.pack(">i", -1) + bytes(20))
        assert await ends(reader) == b""
        writer.close()
        assert running_worker.worker.sampling.reads > 0
