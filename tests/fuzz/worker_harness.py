"""Workers whose transports are in memory, and client connections in every state.

A transport keeps what the worker writes to it. Above its high-water mark the transport pauses its writer, as
uvloop's transports do. It receives no data while its reading is paused. A client never reads. A broker
reads everything or nothing.

Not covered: bodies that the kernel forwards (``fleet.proxy.splice``), because they need sockets, and quotas,
because they need time.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias, cast
from unittest.mock import patch

from benchmarks import patch_metadata
from benchmarks.instruction_counts import instructions
from fleet.config.settings import EventsSettings, Limits
from fleet.core.errors import Peer
from fleet.core.model import Broker, Directory
from fleet.proxy import worker
from fleet.proxy.brokers import Candidate
from fleet.proxy.connection import ClientConnection
from fleet.proxy.host import State
from fleet.proxy.tls_transport import RECORD_BYTES, SharedTls, TlsTransport
from fleet.proxy.turns import TurnQueue
from fleet.proxy.worker import Worker
from fleet.runtime.ipc import BOOTSTRAP
from tests.certificates import Authority
from tests.integration.in_process.proxy.test_worker import make_spec, response
from tests.key_updates import request_key_update
from tests.property import wire_fleet
from tests.unit.proxy.test_held_responses import DESCRIBE_CONFIGS, configs, copies_for

Mode: TypeAlias = Literal["plaintext", "TLS 1.2", "TLS 1.3"]
"""The protection of both sides of a connection."""
MODES: Final[tuple[Mode, ...]] = ("plaintext", "TLS 1.2", "TLS 1.3")


class ConnectionState(StrEnum):
    """A client connection, named by what has happened to it."""

    IDLE = "idle"
    OVER_LIMIT = "beyond a limit of connections"
    DIALING = "dialling"
    UNKNOWN = "waiting for a broker's confirmation"
    JOINED = "joined"
    CROWDED = "joined, thousands in flight"
    DRAINING = "draining, one in flight"
    LEAVING = "leaving"
    PARTIAL = "joined, half of a Metadata response has come"
    HELD = "joined, half of a DescribeConfigs response has come"
    WORKING = "joined, a DescribeConfigs response is patched in slices"
    SHAKING = "handshake of TLS"
    GOODBYE = "goodbye of TLS"


S = ConnectionState
CLIENT_STATES: Final = (
    *(S.IDLE, S.OVER_LIMIT, S.DIALING, S.UNKNOWN, S.JOINED, S.CROWDED, S.DRAINING, S.LEAVING),
    *(S.PARTIAL, S.HELD, S.WORKING, S.SHAKING, S.GOODBYE),
)
"""The states in which a client may send something."""
BROKER_STATES: Final = (S.JOINED, S.DRAINING, S.LEAVING, S.GOODBYE)
"""The states in which a broker may send a response. What the broker sends leads to the other states."""
TLS_STATES: Final = (S.SHAKING, S.GOODBYE)

HOST: Final = "127.0.0.1"
METADATA, LIST_GROUPS = 3, 16
LIMITS: Final = Limits(write_buffer_bytes=64 * 1024, max_patched_response_bytes=1 << 20)
READ_BYTES: Final = 256 * 1024
"""The largest read of uvloop."""
PENDING_WRITE_BYTES: Final = 600
"""Bytes that uvloop and libuv use for a waiting write, in addition to its data and the object of the data."""
DEFAULT_HIGH_WATER_BYTES: Final = 64 * 1024
"""The high-water mark of a transport that has no limits set."""
CROWDED_REQUESTS: Final = 4_000
"""Requests in flight: slightly fewer than the number at which the worker stops reading a client."""
HELD_RESPONSE_BYTES: Final = 96 * 1024
SETTLE_TURNS: Final = 5
DRAIN_S: Final = 60.0


class MemoryTransport(asyncio.Transport):
    """A socket's transport. Keeps what is written until the other side reads it.

    Args: protocol: the protocol that the transport pauses when its buffer is full.

    ``reads`` is whether the other side reads everything at once.
    """

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.reads = False
        self._protocol = protocol
        self._written: list[bytes | bytearray | memoryview] = []
        self._pending_writes: list[bytes] = []
        self._written_bytes = 0
        self._high_bytes = DEFAULT_HIGH_WATER_BYTES
        self._is_full = False
        self._is_reading_enabled = True
        self._is_closing = False

    def forget(self) -> None:
        """Lose the connection. Like a socket's transport, drop the reference to the protocol."""
        self.take()
        self._protocol = asyncio.Protocol()

    def take(self) -> bytes:
        """Read as the other side: return what was written since the last call."""
        taken = b"".join(self._written)
        self._written.clear()
        self._pending_writes.clear()
        self._written_bytes = 0
        return taken

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if data and not self.reads:
            self._written.append(data)
            self._pending_writes.append(bytes(PENDING_WRITE_BYTES))
            self._written_bytes += len(data)
            self._pause_if_full()

    def _pause_if_full(self) -> None:
        if self._written_bytes > self._high_bytes and not self._is_full:
            self._is_full = True
            self._protocol.pause_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_bytes = DEFAULT_HIGH_WATER_BYTES if high is None else high
        self._pause_if_full()

    def get_write_buffer_size(self) -> int:
        return self._written_bytes

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (HOST, 1) if name == "peername" else default

    def pause_reading(self) -> None:
        self._is_reading_enabled = False

    def resume_reading(self) -> None:
        self._is_reading_enabled = True

    def is_reading(self) -> bool:
        return self._is_reading_enabled and not self._is_closing

    def write_eof(self) -> None: ...
    def close(self) -> None:
        self._is_closing = True

    def abort(self) -> None:
        self._is_closing = True

    def is_closing(self) -> bool:
        return self._is_closing


@dataclass
class Side:
    """One side of a client's connection.

    Args:
        protocol: the protocol that the socket's transport calls.
        tls: the TLS object of the other side; None for plaintext.
    """

    protocol: asyncio.Protocol
    transport: MemoryTransport
    tls: ssl.SSLObject | None = None
    to_tls: ssl.MemoryBIO = field(default_factory=ssl.MemoryBIO)
    from_tls: ssl.MemoryBIO = field(default_factory=ssl.MemoryBIO)

    def complete_handshake(self) -> None:
        if self.tls is None:
            return
        for _ in range(3):
            with suppress(ssl.SSLWantReadError):
                self.tls.do_handshake()
            if output := self.from_tls.read():
                self.protocol.data_received(output)
            self.to_tls.write(self.transport.take())

    def network_data(self, data: bytes, record_bytes: int) -> Iterator[bytes]:
        """Yield what arrives from the network, one TLS record or more at a time.

        Args: record_bytes: size of the plaintext in each record.
        """
        if self.tls is None:
            yield data
            return
        for begin in range(0, len(data), RECORD_BYTES):
            for at in range(begin, min(begin + RECORD_BYTES, len(data)), record_bytes):
                self.tls.write(data[at : min(at + record_bytes, begin + RECORD_BYTES)])
            yield self.from_tls.read()

    def key_updates(self, count: int) -> bytes:
        """Return what arrives from the network when the other side changes its keys ``count`` times."""
        assert self.tls is not None
        for _ in range(count):
            request_key_update(self.tls)
            self.tls.do_handshake()
        return self.from_tls.read()


@dataclass(slots=True)
class Usage:
    """The cost of receiving data.

    Args:
        reads, received_bytes: number and size of the reads; read_opcodes: their opcodes.
        turns: other turns of the event loop; of_turns: their opcodes; most_in_turn: the maximum of one turn.
    """

    reads: int = 0
    received_bytes: int = 0
    read_opcodes: int = 0
    turns: int = 0
    turn_opcodes: int = 0
    max_turn_opcodes: int = 0

    @property
    def opcodes(self) -> int:
        return self.read_opcodes + self.turn_opcodes


class Connect(Protocol):
    """The ``connect`` of a dialer."""

    def __call__(self, connection: ClientConnection, candidate: Candidate) -> Coroutine[Any, Any, None]: ...


class ConnectionHarness:
    """A client's connection and both of its sides.

    Args: workers: the workers without sockets.
    """

    client: Side
    broker: Side | None = None
    connection: ClientConnection

    def __init__(self, workers: WorkerHarness, host: Worker) -> None:
        self._workers = workers
        self._worker = host
        self.usage = Usage()
        self._is_counting = False

    def count(self) -> None:
        """Count opcodes, reads and turns from now on."""
        self.usage = Usage()
        self._is_counting = True

    def send(
        self, peer: Peer, data: bytes, read_bytes: int = READ_BYTES, record_bytes: int = RECORD_BYTES
    ) -> bool:
        """Let a side receive the data. Return whether the worker read all of it."""
        side_of = self.side_of(peer)
        return all(
            self.receive(side_of, records, read_bytes) for records in side_of.network_data(data, record_bytes)
        )

    def side_of(self, peer: Peer) -> Side:
        side_of = self.client if peer == "client" else self.broker
        assert side_of is not None
        return side_of

    def receive(self, side_of: Side, records: bytes, read_bytes: int = READ_BYTES) -> bool:
        """Let a side receive bytes from the network while the worker reads.

        Return whether it read all of them.
        """
        with memoryview(records) as view:
            for begin in range(0, len(records), read_bytes):
                while not side_of.transport.is_reading():
                    if not self.run_turn():
                        return False
                self._read(side_of, bytes(view[begin : begin + read_bytes]))
        return True

    def _read(self, side_of: Side, data: bytes) -> None:
        self._worker.sampling.reads = 1  # the worker samples each read, which costs more
        self.usage.reads += 1
        self.usage.received_bytes += len(data)
        self.usage.read_opcodes += self._count_opcodes(partial(side_of.protocol.data_received, data))

    def run_turn(self) -> bool:
        """Run one waiting step. Return whether there was one."""
        if not self._workers.turns:
            return False
        opcodes = self._count_opcodes(self._workers.turns.pop(0))
        self.usage.turns += 1
        self.usage.turn_opcodes += opcodes
        self.usage.max_turn_opcodes = max(self.usage.max_turn_opcodes, opcodes)
        return True

    def run_turns(self) -> None:
        """Run all waiting steps."""
        while self.run_turn():
            pass

    def _count_opcodes(self, act: Callable[[], object]) -> int:
        if self._is_counting:
            return instructions(act)
        act()
        return 0

    async def lose_connection(self) -> None:
        """Lose both sides, and drop every reference to them."""
        for side_of in [self.client] if self.broker is None else [self.client, self.broker]:
            side_of.protocol.connection_lost(None)
            side_of.transport.forget()
        self.run_turns()
        self._worker.dialer.connect = dial_silent_broker
        self._worker.sources["external"].book.heads.clear()  # the worker reuses heads for later connections
        self.__dict__.clear()
        await settle()


class _NoSocket:
    """Replaces a listening socket."""

    def getsockname(self) -> tuple[str, int]:
        return HOST, 9100

    def detach(self) -> int:
        return -1


class WorkerHarness:
    """Workers without sockets.

    Args: folder: the folder for the files of the workers.
    """

    def __init__(self, folder: Path) -> None:
        authority = Authority(folder)
        self._server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._server.load_cert_chain(authority.issue("one", [HOST]).both)
        self._clients = {mode: _client_context(authority, mode) for mode in MODES[1:]}
        self._handshakes: set[asyncio.Task[None]] = set()
        self.turns: list[Callable[[], None]] = []
        """Steps that wait for the event loop."""
        self.worker = self._make_worker(folder, LIMITS)
        self._is_full = self._make_worker(folder, replace(LIMITS, max_connections=0))

    def _make_worker(self, folder: Path, limits: Limits) -> Worker:
        sockets = {BOOTSTRAP: cast(socket.socket, _NoSocket())}
        spec = make_spec(folder, sockets, [1], limits, events=EventsSettings())
        with patch.object(worker, "create_pipe", lambda: None):
            new_worker = Worker(spec)
        new_worker.turns = TurnQueue(self.turns.append)
        owners, me = {1: ("p1",)}, spec.member.to_member(spec.settings)
        brokers = {1: Broker(1, HOST, 1)}
        new_worker.apply(Directory(advertised=owners, members={"p1": me}, brokers=brokers, generation=1))
        return new_worker

    def discard_traffic_log(self) -> None:
        """Discard the log rows of the connections so far, as if the workers had sent them to control."""
        for each in (self.worker, self._is_full):
            assert each.traffic_log is not None
            each.traffic_log.take(0.0, 0)

    async def open_connection(
        self, state: ConnectionState, mode: Mode, sent_requests: bytes = b"", broker_reads: bool = True
    ) -> ConnectionHarness:
        """Open a new connection and bring it to a state.

        Args:
            sent_requests: requests in flight at that point, if the state has a broker.
            broker_reads: whether the broker reads what is written to it.
        """
        host = self._is_full if state == S.OVER_LIMIT else self.worker
        harness = ConnectionHarness(self, host)
        self.turns.clear()
        host.dialer.connect = (
            dial_silent_broker if state == S.DIALING else self._joining_dial(harness, mode, broker_reads)
        )
        factory = host.protocol_factory("external", 2 if state == S.UNKNOWN else 1)

        def client() -> ClientConnection:
            harness.connection = factory()
            return harness.connection

        harness.client = self._side(mode, client, host.shared_tls, is_client=True)
        if state == S.SHAKING:
            harness.client.tls = None  # the data is sent unencrypted
            return harness
        harness.client.complete_handshake()
        if state in (S.IDLE, S.OVER_LIMIT):
            return harness
        harness.send("client", wire_fleet.produce(9, 0, 0))
        await settle()
        if state in (S.DIALING, S.UNKNOWN):
            assert harness.connection.state is State.DIALING
            return harness
        assert harness.connection.state is State.JOINED
        self._enter_state(harness, state, sent_requests)
        return harness

    @staticmethod
    def _enter_state(harness: ConnectionHarness, state: ConnectionState, sent_requests: bytes) -> None:
        """Bring a joined connection to its state."""
        if state == S.CROWDED:
            sent_requests = wire_fleet.request(LIST_GROUPS, 0, 1) * CROWDED_REQUESTS
        elif state == S.DRAINING:
            sent_requests = sent_requests or wire_fleet.request(LIST_GROUPS, 0, 1)
        elif state == S.PARTIAL:
            sent_requests = wire_fleet.request(METADATA, 12, 1)
        elif state in (S.HELD, S.WORKING):
            sent_requests = wire_fleet.request(DESCRIBE_CONFIGS, 4, 1)
        harness.send("client", sent_requests)
        if state == S.PARTIAL:
            frame = patch_metadata.response(100, 10)
            harness.send("broker", frame[:4] + struct.pack(">i", 1) + frame[8:1_000])
            assert harness.connection.session.in_response
        elif state in (S.HELD, S.WORKING):
            frame = response(1, configs(copies_for(HELD_RESPONSE_BYTES)))
            harness.send("broker", frame[: len(frame) // 2] if state == S.HELD else frame)
            assert harness.connection.session.held_bytes
            assert harness.connection.session.is_working == (state == S.WORKING)
        elif state in (S.DRAINING, S.LEAVING):
            harness.connection.drain(DRAIN_S)
            if state == S.LEAVING:
                harness.connection.on_drain_deadline()  # the time of the requests in flight has passed
            assert (harness.connection.state is State.LEAVING) == (state == S.LEAVING)
        elif state == S.GOODBYE:
            harness.connection.close()

    def _joining_dial(self, harness: ConnectionHarness, mode: Mode, reads: bool) -> Connect:
        async def join(connection: ClientConnection, candidate: Candidate) -> None:
            shared_tls = harness._worker.shared_tls
            harness.broker = self._side(mode, connection.broker_side, shared_tls, is_client=False)
            harness.broker.transport.reads = reads and mode == "plaintext"
            harness.broker.complete_handshake()
            harness.broker.transport.reads = reads

        return join

    def _side(
        self, mode: Mode, factory: Callable[[], asyncio.Protocol], shared_tls: SharedTls, *, is_client: bool
    ) -> Side:
        """Create one side with a connected socket."""
        if mode == "plaintext":
            protocol = factory()
            side_of = Side(protocol, MemoryTransport(protocol))
        else:
            ours, theirs = self._server, self._clients[mode]
            if not is_client:
                ours, theirs = theirs, ours
            tls_transport = TlsTransport(shared_tls, ours, lambda _: factory(), None if is_client else HOST)
            self._handshakes.add(task := asyncio.create_task(_handshake(tls_transport)))
            task.add_done_callback(self._handshakes.discard)
            side_of = Side(tls_transport, MemoryTransport(tls_transport))
            name = HOST if is_client else None
            side_of.tls = theirs.wrap_bio(side_of.to_tls, side_of.from_tls, not is_client, name)
        side_of.protocol.connection_made(side_of.transport)
        return side_of


def _client_context(authority: Authority, mode: Mode) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.certificate)
    if mode == "TLS 1.2":
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


async def _handshake(tls: TlsTransport) -> None:
    """Await the handshake, as a server does."""
    with suppress(OSError):
        await tls.handshake()


async def dial_silent_broker(connection: ClientConnection, candidate: Candidate) -> None:
    """Dial a broker that does not answer."""
    await asyncio.Event().wait()


async def settle() -> None:
    """Let the tasks that dial make progress."""
    for _ in range(SETTLE_TURNS):
        await asyncio.sleep(0)
