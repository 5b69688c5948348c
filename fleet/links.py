"""The connections between members: one for each two, dialled by the one with the greater id, carrying every
kind of frame.

Frame    length of kind and payload (4) | kind (1) | payload

The dialling side says HELLO first; the other one checks it and answers with its own. A link is up, on either
side, once the peer's HELLO is accepted. Nothing here judges whether a member lives: a link is up or down, and
the failure detector makes of that what it will.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import socket
import ssl
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, ParamSpec, Protocol, cast

from fleet.model import Endpoint, ProxyId
from fleet.tcp import no_delay

log = logging.getLogger(__name__)

P = ParamSpec("P")

PROTOCOL_VERSION: Final = 1
MAX_FRAME_BYTES: Final = 8 << 20
_MAX_HELLO_BYTES: Final = 4096
_MAX_UNSENT_BYTES: Final = 16 << 20
_MAX_STRANGERS: Final = 64
_LENGTH: Final = struct.Struct(">I")
_LOG_INTERVAL_S: Final = 10.0


class Kind(IntEnum):
    """What a frame carries; PING carries nothing, and is not passed on."""

    HELLO = 1
    RAFT = 2
    REPORT = 3
    PING = 4


class LinkEvents(Protocol):
    """Who is told of links and frames; called on the loop, must not block."""

    def on_up(self, peer: ProxyId) -> None:
        """There is a link to the peer; always followed by exactly one ``on_down``."""

    def on_down(self, peer: ProxyId, reason: str) -> None:
        """The link that ``on_up`` announced is gone."""

    def on_frame(self, peer: ProxyId, kind: Kind, payload: bytes) -> None:
        """A RAFT or REPORT frame arrived, in the order in which the peer sent it."""


@dataclass(frozen=True, slots=True)
class LinkTiming:
    """Intervals of the links (seconds); a lost link is dialled again after ``redial_s``, ``refused_redial_s``
    where the peer does not want it."""

    ping_s: float = 0.15
    idle_s: float = 5.0
    hello_timeout_s: float = 3.0
    connect_timeout_s: float = 1.0
    redial_s: tuple[float, float] = (0.05, 0.1)
    refused_redial_s: float = 1.0
    close_timeout_s: float = 0.5


@dataclass(frozen=True, slots=True)
class Hello:
    """How a member introduces itself."""

    fleet: str
    proxy_id: ProxyId
    incarnation: int
    protocol_version: int = PROTOCOL_VERSION

    def encode(self) -> bytes:
        values = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps(values, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, payload: bytes) -> Hello:
        """Read a HELLO; unknown keys are left to later versions.

        Raises: ValueError: it is none
        """
        values = json.loads(payload)
        match values:
            case {
                "fleet": str(fleet),
                "proxy_id": str(proxy_id),
                "incarnation": int(incarnation),
                "protocol_version": int(version),
            }:
                return cls(fleet, proxy_id, incarnation, version)
        raise ValueError("not a HELLO")


class _Connection(asyncio.Protocol):
    """One TCP connection: cuts the stream into frames, and knows no more of the fleet than its peer's
    HELLO.
    """

    def __init__(self, links: PeerLinks, dialled: ProxyId | None) -> None:
        self.links = links
        self.dialled = dialled
        self.peer: ProxyId | None = None
        self.incarnation = 0
        self.transport: asyncio.Transport | None = None
        self.heard_s = self.opened_s = time.monotonic()
        self.closed = asyncio.get_running_loop().create_future()
        self.reason = ""
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):
                no_delay(sock)
        self.links._opened(self)

    def data_received(self, data: bytes) -> None:
        self.heard_s = time.monotonic()
        self._buffer += data
        while not self.reason and len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            limit = MAX_FRAME_BYTES if self.peer is not None else _MAX_HELLO_BYTES
            if not 1 <= length <= limit:
                self.abort(f"sent a frame of {length} bytes")
                return
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            kind, payload = self._buffer[_LENGTH.size], bytes(self._buffer[_LENGTH.size + 1 : end])
            del self._buffer[:end]
            self.links._received(self, kind, payload)

    def connection_lost(self, exc: Exception | None) -> None:
        self.reason = self.reason or (f"connection lost: {exc}" if exc else "closed by the peer")
        self.links._lost(self)
        if not self.closed.done():
            self.closed.set_result(None)

    def write(self, kind: Kind, payload: bytes) -> bool:
        if self.reason or self.transport is None or len(payload) >= MAX_FRAME_BYTES:
            return False
        self.transport.write(_LENGTH.pack(len(payload) + 1) + bytes((kind,)) + payload)
        if self.transport.get_write_buffer_size() > _MAX_UNSENT_BYTES:
            self.abort("does not read what it is sent")
            return False
        return True

    def close(self, reason: str) -> None:
        """Close after what has been written; nothing more is received."""
        self.reason = self.reason or reason
        if self.transport is not None:
            self.transport.close()

    def abort(self, reason: str) -> None:
        """Close at once."""
        self.reason = self.reason or reason
        if self.transport is not None:
            self.transport.abort()


class PeerLinks:
    """The links of one member to all others.

    Args:
        me, incarnation, fleet: what the HELLO says.
        peers: the other members and where they listen; nobody else is let in.
        listen_socket: bound already, and listening or not.
        events: told of everything.
    """

    def __init__(
        self,
        me: ProxyId,
        incarnation: int,
        fleet: str,
        peers: Mapping[ProxyId, Endpoint],
        listen_socket: socket.socket,
        events: LinkEvents,
        timing: LinkTiming | None = None,
    ) -> None:
        self._hello = Hello(fleet, me, incarnation)
        self._peers = {peer: endpoint for peer, endpoint in peers.items() if peer != me}
        self._listen_socket = listen_socket
        self._events = events
        self._timing = timing or LinkTiming()
        self._links: dict[ProxyId, _Connection] = {}
        self._strangers: set[_Connection] = set()
        self._open: set[_Connection] = set()
        self._server: asyncio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._logged_s: dict[str, float] = {}

    @property
    def connected(self) -> frozenset[ProxyId]:
        return frozenset(self._links)

    async def start(self) -> None:
        """Listen, and dial the peers with smaller ids from now on."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self, None), sock=self._listen_socket, ssl=self._tls(server=True)
        )
        self._tasks = [loop.create_task(self._keep_warm())]
        self._tasks += [
            loop.create_task(self._keep_dialled(peer)) for peer in self._peers if peer < self._hello.proxy_id
        ]

    async def stop(self) -> None:
        """Close all links after what has been written, and wait for that a moment; ``on_down`` is called for
        each.
        """
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                log.error("a task of the links failed", exc_info=result)
        if self._server is not None:
            self._server.close()
        connections = list(self._open)
        for connection in connections:
            connection.close("stopped")
        if connections:
            closed = [connection.closed for connection in connections]
            await asyncio.wait(closed, timeout=self._timing.close_timeout_s)
        for connection in list(self._open):
            connection.abort("stopped")
            await connection.closed

    def send(self, peer: ProxyId, kind: Kind, payload: bytes) -> bool:
        """Hand a frame to the link; False where there is none, or the frame is too large.

        True means no more than that: what is under way when a link breaks is lost.
        """
        connection = self._links.get(peer)
        return connection is not None and connection.write(kind, payload)

    def _tls(self, *, server: bool) -> ssl.SSLContext | None:
        """The TLS context of both directions: none yet, which is why the configuration allows loopback
        only.
        """
        return None

    # Dialling and keeping.

    async def _keep_dialled(self, peer: ProxyId) -> None:
        """Dial a peer whenever there is no link to it, until cancelled."""
        refused = 0
        while True:
            connection = await self._dial(peer)
            if connection is not None:
                await asyncio.wait([connection.closed])
                # A peer that accepts connections and then does not want them is not dialled ten times a
                # second.
                refused = 0 if connection.peer is not None else refused + 1
            pause_s = random.uniform(*self._timing.redial_s) * 2 ** max(0, min(refused, 16) - 1)
            await asyncio.sleep(min(pause_s, self._timing.refused_redial_s))

    async def _dial(self, peer: ProxyId) -> _Connection | None:
        endpoint = self._peers[peer]
        try:
            async with asyncio.timeout(self._timing.connect_timeout_s):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: _Connection(self, peer), endpoint.host, endpoint.port, ssl=self._tls(server=False)
                )
        except (OSError, ValueError):  # a time-out is the former, a name that cannot be one the latter
            return None
        return connection

    async def _keep_warm(self) -> None:
        """Ping the links that are up, and close what is silent, until cancelled."""
        timing = self._timing
        while True:
            await asyncio.sleep(timing.ping_s)
            now_s = time.monotonic()
            for connection in list(self._open):
                if connection.peer is None:
                    if now_s - connection.opened_s > timing.hello_timeout_s:
                        connection.abort(f"no HELLO within {timing.hello_timeout_s:g} s")
                elif now_s - connection.heard_s > timing.idle_s:
                    connection.abort(f"silent for {timing.idle_s:g} s")
                else:
                    connection.write(Kind.PING, b"")

    # What the connections report.

    def _opened(self, connection: _Connection) -> None:
        self._open.add(connection)
        if self._stopping:
            connection.abort("stopped")
        elif connection.dialled is not None:
            connection.write(Kind.HELLO, self._hello.encode())
        elif len(self._strangers) >= _MAX_STRANGERS:
            connection.abort("too many connections that have not said HELLO")
        else:
            self._strangers.add(connection)

    def _received(self, connection: _Connection, kind: int, payload: bytes) -> None:
        if connection.peer is None:
            self._introduce(connection, kind, payload)
        elif kind in (Kind.RAFT, Kind.REPORT):
            self._tell(self._events.on_frame, connection.peer, Kind(kind), payload)
        elif kind != Kind.PING:
            connection.abort(f"sent a frame of kind {kind}")

    def _introduce(self, connection: _Connection, kind: int, payload: bytes) -> None:
        """Take the first frame of a connection, which must be a HELLO that fits; make the connection the
        link.
        """
        self._strangers.discard(connection)
        refusal = self._refusal(connection, kind, payload)
        if refusal:
            self._warn(refusal)
            connection.abort(refusal)
            return
        hello = Hello.decode(payload)
        connection.peer, connection.incarnation = hello.proxy_id, hello.incarnation
        former = self._links.get(hello.proxy_id)
        if former is not None:
            self._down(former, "replaced by a newer connection")
            former.abort("replaced by a newer connection")
        if connection.dialled is None:
            connection.write(Kind.HELLO, self._hello.encode())
        self._links[hello.proxy_id] = connection
        self._tell(self._events.on_up, hello.proxy_id)

    def _refusal(self, connection: _Connection, kind: int, payload: bytes) -> str:
        """Why a first frame is not accepted; empty where it is."""
        try:
            if kind != Kind.HELLO:
                raise ValueError("not a HELLO")
            hello = Hello.decode(payload)
        except (ValueError, RecursionError):
            return "a connection began with something else than a HELLO"
        who = f"{hello.proxy_id!r:.100}"
        if hello.protocol_version != PROTOCOL_VERSION:
            return f"{who} speaks protocol version {hello.protocol_version}, this is {PROTOCOL_VERSION}"
        if hello.fleet != self._hello.fleet:
            return f"{who} belongs to fleet {hello.fleet!r:.100}, this is {self._hello.fleet!r}"
        if hello.proxy_id not in self._peers:
            return f"{who} is no member of this fleet"
        if connection.dialled is not None and hello.proxy_id != connection.dialled:
            return f"{who} answered at the address of {connection.dialled!r}"
        if connection.dialled is None and hello.proxy_id < self._hello.proxy_id:
            return f"{who} dialled, and should have been dialled"
        former = self._links.get(hello.proxy_id)
        if former is not None and hello.incarnation < former.incarnation:
            return f"{who} is linked already, in a later life: it runs twice"
        return ""

    def _lost(self, connection: _Connection) -> None:
        self._open.discard(connection)
        self._strangers.discard(connection)
        self._down(connection, connection.reason)

    def _down(self, connection: _Connection, reason: str) -> None:
        peer = connection.peer
        if peer is not None and self._links.get(peer) is connection:
            del self._links[peer]
            self._tell(self._events.on_down, peer, reason)

    def _tell(self, callback: Callable[P, None], *arguments: P.args, **named: P.kwargs) -> None:
        """Call back; a fault there must not break the link that told of it."""
        try:
            callback(*arguments, **named)
        except Exception:
            log.exception("the callback for a link failed")

    def _warn(self, message: str) -> None:
        now_s = time.monotonic()
        if now_s - self._logged_s.get(message, -_LOG_INTERVAL_S) >= _LOG_INTERVAL_S:
            if len(self._logged_s) >= _MAX_STRANGERS:  # the text comes from outside
                self._logged_s.clear()
            self._logged_s[message] = now_s
            log.warning("refused a link: %s", message)
