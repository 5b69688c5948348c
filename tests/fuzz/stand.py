"""A worker that is fed by transports on paper, and connections of it in every state.

What is written to such a transport stays there. Above its high mark it pauses its writer, as uvloop's do, and
nothing is fed while it is paused itself. A client never reads. A broker reads all, or nothing.

Not reached: bodies that pass inside the kernel (``fleet.proxy.splice``), which needs sockets, and quotas,
which need time.
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
from tests.key_updates import ask_for_new_keys
from tests.property import wire_fleet
from tests.unit.proxy.test_held_responses import DESCRIBE_CONFIGS, configs, copies_for

Mode: TypeAlias = Literal["plaintext", "TLS 1.2", "TLS 1.3"]
"""Of both sides of a connection."""
MODES: Final[tuple[Mode, ...]] = ("plaintext", "TLS 1.2", "TLS 1.3")


class States(StrEnum):
    """A client's connection, by what has happened to it."""

    IDLE = "idle"
    BEYOND = "beyond a limit of connections"
    DIALING = "dialling"
    UNKNOWN = "waiting for a broker's confirmation"
    JOINED = "joined"
    CROWDED = "joined, thousands in flight"
    DRAINING = "draining, one in flight"
    LEAVING = "leaving"
    PART = "joined, half of a Metadata response has come"
    HELD = "joined, half of a DescribeConfigs response has come"
    WORKING = "joined, a DescribeConfigs response is patched in slices"
    SHAKING = "handshake of TLS"
    GOODBYE = "goodbye of TLS"


S = States
OF_CLIENT: Final = (
    *(S.IDLE, S.BEYOND, S.DIALING, S.UNKNOWN, S.JOINED, S.CROWDED, S.DRAINING, S.LEAVING),
    *(S.PART, S.HELD, S.WORKING, S.SHAKING, S.GOODBYE),
)
"""In which a client may send something."""
OF_BROKER: Final = (S.JOINED, S.DRAINING, S.LEAVING, S.GOODBYE)
"""In which a broker may, what it was asked for; it comes to the other states by what it sends."""
OF_TLS: Final = (S.SHAKING, S.GOODBYE)

HOST: Final = "127.0.0.1"
METADATA, LIST_GROUPS = 3, 16
LIMITS: Final = Limits(write_buffer_bytes=64 * 1024, max_patched_response_bytes=1 << 20)
READ_BYTES: Final = 256 * 1024
"""The most that uvloop reads at once."""
REQUEST_BYTES: Final = 600
"""What uvloop and libuv take for a write that waits, besides its bytes and what these are an object of."""
HIGH_BYTES: Final = 64 * 1024
"""Of a transport that was not told otherwise."""
MANY: Final = 4_000
"""Requests in flight: hardly fewer than stop a client."""
HELD_BYTES: Final = 96 * 1024
SETTLED_TURNS: Final = 5
DRAIN_S: Final = 60.0


class Paper(asyncio.Transport):
    """A socket's transport. Keeps what is written until the other side reads it.

    Args: protocol: is told when it is full.

    ``reads`` is whether the other side reads all at once.
    """

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.reads = False
        self._protocol = protocol
        self._kept: list[bytes | bytearray | memoryview] = []
        self._requests: list[bytes] = []
        self._kept_bytes = 0
        self._high_bytes = HIGH_BYTES
        self._full = False
        self._reading = True
        self._closing = False

    def forget(self) -> None:
        """It is lost. A socket's transport has no reference to its protocol any more."""
        self.take()
        self._protocol = asyncio.Protocol()

    def take(self) -> bytes:
        """What was written: the other side reads it now."""
        taken = b"".join(self._kept)
        self._kept.clear()
        self._requests.clear()
        self._kept_bytes = 0
        return taken

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if data and not self.reads:
            self._kept.append(data)
            self._requests.append(bytes(REQUEST_BYTES))
            self._kept_bytes += len(data)
            self._look()

    def _look(self) -> None:
        if self._kept_bytes > self._high_bytes and not self._full:
            self._full = True
            self._protocol.pause_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_bytes = HIGH_BYTES if high is None else high
        self._look()

    def get_write_buffer_size(self) -> int:
        return self._kept_bytes

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (HOST, 1) if name == "peername" else default

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def write_eof(self) -> None: ...
    def close(self) -> None:
        self._closing = True

    def abort(self) -> None:
        self._closing = True

    def is_closing(self) -> bool:
        return self._closing


@dataclass
class Side:
    """One side of a client's connection.

    Args:
        protocol: what the socket's transport calls.
        tls: the other side's; None for plaintext.
    """

    protocol: asyncio.Protocol
    paper: Paper
    tls: ssl.SSLObject | None = None
    to_tls: ssl.MemoryBIO = field(default_factory=ssl.MemoryBIO)
    from_tls: ssl.MemoryBIO = field(default_factory=ssl.MemoryBIO)

    def shake_hands(self) -> None:
        if self.tls is None:
            return
        for _ in range(3):
            with suppress(ssl.SSLWantReadError):
                self.tls.do_handshake()
            if said := self.from_tls.read():
                self.protocol.data_received(said)
            self.to_tls.write(self.paper.take())

    def wires(self, data: bytes, record_bytes: int) -> Iterator[bytes]:
        """What comes from the network, a record or more at a time.

        Args: record_bytes: of plaintext in each record.
        """
        if self.tls is None:
            yield data
            return
        for begin in range(0, len(data), RECORD_BYTES):
            for at in range(begin, min(begin + RECORD_BYTES, len(data)), record_bytes):
                self.tls.write(data[at : min(at + record_bytes, begin + RECORD_BYTES)])
            yield self.from_tls.read()

    def key_updates(self, count: int) -> bytes:
        """What comes from the network where the other side wants new keys ``count`` times."""
        assert self.tls is not None
        for _ in range(count):
            ask_for_new_keys(self.tls)
            self.tls.do_handshake()
        return self.from_tls.read()


@dataclass(slots=True)
class Spent:
    """What feeding has cost.

    Args:
        reads, received_bytes: that were fed; of_reads: their opcodes.
        turns: of the event loop besides; of_turns: their opcodes; most_in_turn: those of one.
    """

    reads: int = 0
    received_bytes: int = 0
    of_reads: int = 0
    turns: int = 0
    of_turns: int = 0
    most_in_turn: int = 0

    @property
    def opcodes(self) -> int:
        return self.of_reads + self.of_turns


class Connect(Protocol):
    """Of a dialer."""

    def __call__(self, connection: ClientConnection, candidate: Candidate) -> Coroutine[Any, Any, None]: ...


class Scene:
    """A client's connection, and both sides of it.

    Args: stand: of the worker.
    """

    client: Side
    broker: Side | None = None
    connection: ClientConnection

    def __init__(self, stand: Stand, host: Worker) -> None:
        self._stand = stand
        self._worker = host
        self.spent = Spent()
        self._counts = False

    def count(self) -> None:
        """Count opcodes and all else from now on."""
        self.spent = Spent()
        self._counts = True

    def feed(
        self, peer: Peer, data: bytes, read_bytes: int = READ_BYTES, record_bytes: int = RECORD_BYTES
    ) -> bool:
        """Have a side receive this; returns whether it was read to its end."""
        side = self.side(peer)
        return all(self.receive(side, wire, read_bytes) for wire in side.wires(data, record_bytes))

    def side(self, peer: Peer) -> Side:
        side = self.client if peer == "client" else self.broker
        assert side is not None
        return side

    def receive(self, side: Side, wire: bytes, read_bytes: int = READ_BYTES) -> bool:
        """Have a side receive what comes from the network, as long as it is read."""
        with memoryview(wire) as view:
            for begin in range(0, len(wire), read_bytes):
                while not side.paper.is_reading():
                    if not self.turn():
                        return False
                self._read(side, bytes(view[begin : begin + read_bytes]))
        return True

    def _read(self, side: Side, data: bytes) -> None:
        self._worker.sampling.reads = 1  # each read is looked at more closely, which costs more
        self.spent.reads += 1
        self.spent.received_bytes += len(data)
        self.spent.of_reads += self._counted(partial(side.protocol.data_received, data))

    def turn(self) -> bool:
        """Take a step of what waits for its turn; whether there was one."""
        if not self._stand.turns:
            return False
        opcodes = self._counted(self._stand.turns.pop(0))
        self.spent.turns += 1
        self.spent.of_turns += opcodes
        self.spent.most_in_turn = max(self.spent.most_in_turn, opcodes)
        return True

    def finish(self) -> None:
        """Take all steps."""
        while self.turn():
            pass

    def _counted(self, act: Callable[[], object]) -> int:
        if self._counts:
            return instructions(act)
        act()
        return 0

    async def lose(self) -> None:
        """Both sides are gone, and nothing here refers to them any more."""
        for side in [self.client] if self.broker is None else [self.client, self.broker]:
            side.protocol.connection_lost(None)
            side.paper.forget()
        self.finish()
        self._worker.dialer.connect = never
        self._worker.sources["external"].book.heads.clear()  # it serves later connections, up to a limit
        self.__dict__.clear()
        await settle()


class _NoSocket:
    """In place of one that listens."""

    def getsockname(self) -> tuple[str, int]:
        return HOST, 9100

    def detach(self) -> int:
        return -1


class Stand:
    """Workers without sockets.

    Args: folder: where their files would be.
    """

    def __init__(self, folder: Path) -> None:
        authority = Authority(folder)
        self._server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._server.load_cert_chain(authority.issue("one", [HOST]).both)
        self._clients = {mode: _client_context(authority, mode) for mode in MODES[1:]}
        self._handshakes: set[asyncio.Task[None]] = set()
        self.turns: list[Callable[[], None]] = []
        """That wait for the event loop."""
        self.worker = self._make(folder, LIMITS)
        self._full = self._make(folder, replace(LIMITS, max_connections=0))

    def _make(self, folder: Path, limits: Limits) -> Worker:
        sockets = {BOOTSTRAP: cast(socket.socket, _NoSocket())}
        spec = make_spec(folder, sockets, [1], limits, events=EventsSettings())
        with patch.object(worker, "create_pipe", lambda: None):
            made = Worker(spec)
        made.turns = TurnQueue(self.turns.append)
        owners, me = {1: ("p1",)}, spec.member.to_member(spec.settings)
        brokers = {1: Broker(1, HOST, 1)}
        made.apply(Directory(advertised=owners, members={"p1": me}, brokers=brokers, generation=1))
        return made

    def told(self) -> None:
        """Control has been told of the connections up to now."""
        for each in (self.worker, self._full):
            assert each.traffic_log is not None
            each.traffic_log.take(0.0, 0)

    async def scene(self, state: States, mode: Mode, asks: bytes = b"", broker_reads: bool = True) -> Scene:
        """A new connection in a state.

        Args:
            asks: requests that are in flight then, where the state has a broker.
            broker_reads: what is written to it.
        """
        host = self._full if state == S.BEYOND else self.worker
        scene = Scene(self, host)
        self.turns.clear()
        host.dialer.connect = never if state == S.DIALING else self._joining(scene, mode, broker_reads)
        factory = host.protocol_factory("external", 2 if state == S.UNKNOWN else 1)

        def client() -> ClientConnection:
            scene.connection = factory()
            return scene.connection

        scene.client = self._side(mode, client, host.shared_tls, of_client=True)
        if state == S.SHAKING:
            scene.client.tls = None  # what is fed is sent as it is
            return scene
        scene.client.shake_hands()
        if state in (S.IDLE, S.BEYOND):
            return scene
        scene.feed("client", wire_fleet.produce(9, 0, 0))
        await settle()
        if state in (S.DIALING, S.UNKNOWN):
            assert scene.connection.state is State.DIALING
            return scene
        assert scene.connection.state is State.JOINED
        self._lead(scene, state, asks)
        return scene

    @staticmethod
    def _lead(scene: Scene, state: States, asks: bytes) -> None:
        """Have what belongs to a state happen to a joined connection."""
        if state == S.CROWDED:
            asks = wire_fleet.request(LIST_GROUPS, 0, 1) * MANY
        elif state == S.DRAINING:
            asks = asks or wire_fleet.request(LIST_GROUPS, 0, 1)
        elif state == S.PART:
            asks = wire_fleet.request(METADATA, 12, 1)
        elif state in (S.HELD, S.WORKING):
            asks = wire_fleet.request(DESCRIBE_CONFIGS, 4, 1)
        scene.feed("client", asks)
        if state == S.PART:
            frame = patch_metadata.response(100, 10)
            scene.feed("broker", frame[:4] + struct.pack(">i", 1) + frame[8:1_000])
            assert scene.connection.session.in_response
        elif state in (S.HELD, S.WORKING):
            frame = response(1, configs(copies_for(HELD_BYTES)))
            scene.feed("broker", frame[: len(frame) // 2] if state == S.HELD else frame)
            assert scene.connection.session.held_bytes
            assert scene.connection.session.is_working == (state == S.WORKING)
        elif state in (S.DRAINING, S.LEAVING):
            scene.connection.drain(DRAIN_S)
            if state == S.LEAVING:
                scene.connection.on_drain_deadline()  # what is in flight has had its time
            assert (scene.connection.state is State.LEAVING) == (state == S.LEAVING)
        elif state == S.GOODBYE:
            scene.connection.close()

    def _joining(self, scene: Scene, mode: Mode, reads: bool) -> Connect:
        async def join(connection: ClientConnection, candidate: Candidate) -> None:
            room = scene._worker.shared_tls
            scene.broker = self._side(mode, connection.broker_side, room, of_client=False)
            scene.broker.paper.reads = reads and mode == "plaintext"
            scene.broker.shake_hands()
            scene.broker.paper.reads = reads

        return join

    def _side(
        self, mode: Mode, factory: Callable[[], asyncio.Protocol], room: SharedTls, *, of_client: bool
    ) -> Side:
        """One side, whose socket is connected."""
        if mode == "plaintext":
            protocol = factory()
            side = Side(protocol, Paper(protocol))
        else:
            ours, theirs = self._server, self._clients[mode]
            if not of_client:
                ours, theirs = theirs, ours
            secured = TlsTransport(room, ours, lambda _: factory(), None if of_client else HOST)
            self._handshakes.add(task := asyncio.create_task(_handshake(secured)))
            task.add_done_callback(self._handshakes.discard)
            side = Side(secured, Paper(secured))
            name = HOST if of_client else None
            side.tls = theirs.wrap_bio(side.to_tls, side.from_tls, not of_client, name)
        side.protocol.connection_made(side.paper)
        return side


def _client_context(authority: Authority, mode: Mode) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.certificate)
    if mode == "TLS 1.2":
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


async def _handshake(tls: TlsTransport) -> None:
    """Wait for it, as a server does."""
    with suppress(OSError):
        await tls.handshake()


async def never(connection: ClientConnection, candidate: Candidate) -> None:
    """A broker that does not answer."""
    await asyncio.Event().wait()


async def settle() -> None:
    """Have what was begun go on: tasks that dial."""
    for _ in range(SETTLED_TURNS):
        await asyncio.sleep(0)
