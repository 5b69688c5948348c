"""The links between members: one connection for each pair, which the member with the greater id dials.

Frame    length of kind and payload (4) | kind (1) | payload

The dialling side sends HELLO first. The other side checks it and answers with its own HELLO, and the dialling
side answers with a PING. Each side considers the link up once a received frame proves that both directions
work. With ``peer_tls``, both sides verify each other's certificate first, and accept a HELLO only from the
member that the certificate names. A HELLO contains a digest of the voters that its member counts. Two members
that count different voters get no link, because otherwise each half could take itself for a majority. Links
are up or down; only the failure detector decides whether a member lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import random
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, ParamSpec, Protocol, cast

from fleet.core.crowd import Crowd, source_of
from fleet.core.foreign_protocols import at_peer_address, name_protocol, of_dialled_peer
from fleet.core.log_limit import LogLimit
from fleet.core.model import Endpoint, ProxyId
from fleet.runtime.outbound import LocalFailure, Resolver, connect
from fleet.runtime.socket_options import accept_connections, no_delay
from fleet.tls.peers import NOT_TLS, PeerTls, certificate_uris, explain, member_uri

log = logging.getLogger(__name__)

P = ParamSpec("P")

PROTOCOL_VERSION: Final = 1
MAX_FRAME_BYTES: Final = 8 << 20
_MAX_HELLO_BYTES: Final = 4096
_MAX_UNSENT_BYTES: Final = 16 << 20
_MAX_DIGESTS: Final = 8
_MAX_DIGEST_CHARACTERS: Final = 80
_MAX_STRANGERS: Final = 128
_LENGTH: Final = struct.Struct(">I")
_LOG_INTERVAL_S: Final = 10.0
_BACKLOG: Final = 128
_BROKEN_HANDSHAKES: Final = (ssl.SSLError, ConnectionResetError, ConnectionAbortedError)
"""Errors that a dialled connection can only have after TCP has connected."""
_PROTOCOL_PREFIX_BYTES: Final = 32
"""How many first bytes of a connection identify a foreign protocol. Its first four bytes, read as a length,
exceed every HELLO."""


class Kind(IntEnum):
    """The content of a frame. PING has no payload and causes no event."""

    HELLO = 1
    RAFT = 2
    REPORT = 3
    PING = 4


class LinkEvents(Protocol):
    """The receiver of link events. The methods are called on the event loop and must not block."""

    def on_up(self, peer: ProxyId) -> None:
        """The link to a peer is up. Exactly one ``on_down`` follows."""

    def on_down(self, peer: ProxyId, reason: str) -> None:
        """The link to a peer is down."""

    def on_failed_here(self, peer: ProxyId, error: LocalFailure) -> None:
        """A local fault prevents this member from making a link to a peer."""

    def on_broken(self, error: BaseException) -> None:
        """A task that accepts, dials or keeps links has failed. There will be no new links."""

    def on_frame(self, peer: ProxyId, kind: Kind, payload: bytes) -> None:
        """A RAFT or REPORT frame arrived. Frames arrive in the order in which the peer sent them."""


@dataclass(frozen=True, slots=True)
class LinkTiming:
    """Intervals of the links, in seconds.

    A lost link is dialled again after ``redial_s``, or after ``refused_redial_s`` if the peer refused it.
    """

    ping_s: float = 0.15
    idle_s: float = 5.0
    hello_timeout_s: float = 3.0
    connect_timeout_s: float = 1.0
    redial_s: tuple[float, float] = (0.05, 0.1)
    refused_redial_s: float = 1.0
    close_timeout_s: float = 0.5


def digest_voters(voters: Iterable[ProxyId]) -> str:
    """Compute the digest of a set of voters, in any order. The first character is the kind of digest."""
    listed = "\n".join(sorted(voters)).encode()
    return f"1:{hashlib.sha256(listed).hexdigest()[:32]}"


@dataclass(frozen=True, slots=True)
class Hello:
    """The first frame of a connection, by which a member introduces itself.

    Args:
        voter_digests: digests of the consecutive voter configurations in the member's log, the current
            configuration among them. Two members match if they have a digest in common, so that voters can
            change at run time, step by step. Empty: a release before 0.3.0.
    """

    fleet: str
    proxy_id: ProxyId
    incarnation: int
    protocol_version: int = PROTOCOL_VERSION
    voter_digests: tuple[str, ...] = ()

    def encode(self) -> bytes:
        values = {name: getattr(self, name) for name in self.__slots__}
        if not self.voter_digests:
            del values["voter_digests"]
        return json.dumps(values, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, payload: bytes) -> Hello:
        """Read a HELLO. Unknown keys belong to later versions and are ignored.

        Raises: ValueError: the payload is not a HELLO
        """
        values = json.loads(payload)
        match values:
            case {
                "fleet": str(fleet),
                "proxy_id": str(proxy_id),
                "incarnation": int(incarnation),
                "protocol_version": int(version),
            }:
                return cls(
                    fleet, proxy_id, incarnation, version, _decode_digests(values.get("voter_digests", []))
                )
        raise ValueError("not a HELLO")


def _decode_digests(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > _MAX_DIGESTS:
        raise ValueError(f"voter_digests must be a list of at most {_MAX_DIGESTS} digests")
    for each in value:
        if not isinstance(each, str) or not 0 < len(each) <= _MAX_DIGEST_CHARACTERS:
            raise ValueError(
                f"each digest in voter_digests must be text of 1 to {_MAX_DIGEST_CHARACTERS} characters"
            )
    return tuple(value)


class Connection(asyncio.Protocol):
    """One connection. It splits the stream into frames, and knows its peer's certificate and HELLO only."""

    def __init__(self, links: PeerLinks, dialled: ProxyId | None, where: str) -> None:
        self.links = links
        self.dialled = dialled
        self.where = where
        self.uris: frozenset[str] = frozenset()
        self.peer: ProxyId | None = None
        self.incarnation = 0
        self.has_digests = False
        self.linked = False
        """Whether the connection has been the link to its peer. A peer that has sent HELLO may not have
        received ours yet."""
        self.transport: asyncio.Transport | None = None
        self.heard_s = self.opened_s = time.monotonic()
        self.closed = asyncio.get_running_loop().create_future()
        self.reason = ""
        self.handshake: asyncio.Task[None] | None = None
        """The task that completes the handshake of an accepted connection."""
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):
                no_delay(sock)
        self.uris = certificate_uris(transport.get_extra_info("peercert"))
        self.links._on_opened(self)

    def data_received(self, data: bytes) -> None:
        self.heard_s = time.monotonic()
        self._buffer += data
        while not self.reason and len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            limit = MAX_FRAME_BYTES if self.peer is not None else _MAX_HELLO_BYTES
            if not 1 <= length <= limit:
                self.abort(self._describe_bad_frame(length))
                return
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            kind, payload = self._buffer[_LENGTH.size], bytes(self._buffer[_LENGTH.size + 1 : end])
            del self._buffer[:end]
            self.links._on_received(self, kind, payload)

    def _describe_bad_frame(self, length: int) -> str:
        protocol = name_protocol(bytes(self._buffer[:_PROTOCOL_PREFIX_BYTES])) if self.peer is None else None
        if protocol is None:
            return f"sent a frame of {length} bytes"
        return at_peer_address(protocol) if self.dialled is None else of_dialled_peer(protocol, self.dialled)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.reason:
            closed = "closed by the peer" if self.peer or not self.dialled else "refused; see the peer's log"
            self.reason = explain(exc) if exc else closed
            if self.reason == NOT_TLS:
                self.reason += "; all members need the same `peer_tls:`, and only members may connect here"
        self.links._on_lost(self)
        if not self.closed.done():
            self.closed.set_result(None)

    def write(self, kind: Kind, payload: bytes) -> bool:
        if self.reason or self.transport is None or len(payload) >= MAX_FRAME_BYTES:
            return False
        self.transport.write(_LENGTH.pack(len(payload) + 1) + bytes((kind,)) + payload)
        if self.transport.get_write_buffer_size() > _MAX_UNSENT_BYTES:
            self.abort("the peer does not read its frames")
            return False
        return True

    def close(self, reason: str) -> None:
        """Close after all written frames are sent. No more frames are received."""
        self.reason = self.reason or reason
        if self.transport is not None:
            self.transport.close()

    def abort(self, reason: str) -> None:
        """Close immediately."""
        self.reason = self.reason or reason
        if self.transport is not None:
            self.transport.abort()


class PeerLinks:
    """The links of one member to all its peers.

    Args:
        me, incarnation, fleet: the content of the HELLO.
        peers: the peers and their addresses; all other connections are refused.
        listen_socket: a bound socket, listening or not.
        events: receives all link events.
        tls: the certificates of the links; None if the configuration allows loopback only.
        voter_digests: the digests in the HELLO; see `Hello`. Empty: a peer may count any voters.
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
        tls: PeerTls | None = None,
        voter_digests: Sequence[str] = (),
    ) -> None:
        self.hello = Hello(fleet, me, incarnation, voter_digests=tuple(voter_digests))
        self._peers = {peer: endpoint for peer, endpoint in peers.items() if peer != me}
        self._listen_socket = listen_socket
        self._events = events
        self._timing = timing or LinkTiming()
        self._tls = tls
        self._links: dict[ProxyId, Connection] = {}
        self.strangers: Crowd[Connection] = Crowd(_MAX_STRANGERS)
        self._open: set[Connection] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._log_limit = LogLimit(_LOG_INTERVAL_S)
        self._resolver = Resolver()

    @property
    def connected(self) -> frozenset[ProxyId]:
        return frozenset(self._links)

    @property
    def without_digests(self) -> frozenset[ProxyId]:
        """Linked peers whose HELLO has no voter digest, so that the voters cannot be compared."""
        return frozenset(peer for peer, link in self._links.items() if not link.has_digests)

    async def start(self) -> None:
        """Start to listen, and to dial the peers with smaller ids."""
        loop = asyncio.get_running_loop()
        self._listen_socket.setblocking(False)
        self._listen_socket.listen(_BACKLOG)
        self._tasks = [loop.create_task(self._accept()), loop.create_task(self._ping_links())]
        self._tasks += [
            loop.create_task(self._keep_dialled(peer)) for peer in self._peers if peer < self.hello.proxy_id
        ]
        for task in self._tasks:
            task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._notify(self._events.on_broken, error)

    async def stop(self) -> None:
        """Close all links after their written frames are sent, and wait for a moment.

        ``on_down`` is called for each link.
        """
        self._stopping = True
        handshakes = [each.handshake for each in self.strangers if each.handshake is not None]
        tasks = [*self._tasks, *handshakes]
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                log.error("a link task failed", exc_info=result)
        self._listen_socket.close()
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
        """Write a frame to the link. False: there is no link, or the frame is too large.

        True is no promise of delivery: frames in flight are lost when a link breaks.
        """
        connection = self._links.get(peer)
        return connection is not None and connection.write(kind, payload)

    # Accepting, dialling and keeping.

    def _tls_arguments(self, *, server: bool) -> dict[str, Any]:
        """TLS arguments of an asyncio connection, with the certificates that are in the files now.

        Raises: OSError: the certificates cannot be used
        """
        if self._tls is None:
            return {}
        return {
            "ssl": self._tls.context(server=server),
            "ssl_handshake_timeout": self._timing.hello_timeout_s,
            "ssl_shutdown_timeout": self._timing.close_timeout_s,
        }

    async def _accept(self) -> None:
        """Accept connections until cancelled. No connection waits for the handshake of another."""
        await accept_connections(self._listen_socket, self._on_accepted, self._on_not_accepted)

    def _on_not_accepted(self, error: OSError) -> None:
        """Accepting failed, for example without a free file descriptor. Peers that dial may be waiting."""
        self._warn(f"cannot accept connections: {error}")
        for peer in self._peers:
            if peer > self.hello.proxy_id and peer not in self._links:
                self._notify(self._events.on_failed_here, peer, LocalFailure(str(error)))

    def _on_accepted(self, sock: socket.socket, address: object) -> None:
        host = address[0] if isinstance(address, tuple) else address
        connection = Connection(self, None, f"a connection from {host}")
        displaced = self.strangers.add(connection, source_of(address))
        if displaced is not None:
            # A member completes its handshake within milliseconds, however many strangers connect.
            if displaced.handshake is not None:
                displaced.handshake.cancel()
            displaced.abort("too many connections without a HELLO")
        connection.handshake = asyncio.get_running_loop().create_task(
            self._complete_handshake(connection, sock)
        )

    async def _complete_handshake(self, connection: Connection, sock: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, sock, **self._tls_arguments(server=True)
            )
        except OSError as error:
            sock.close()
            connection.connection_lost(error)

    async def _keep_dialled(self, peer: ProxyId) -> None:
        """Dial a peer whenever there is no link to the peer, until cancelled."""
        refused = 0
        while True:
            connection = await self.dial(peer)
            if connection is not None:
                await asyncio.wait([connection.closed])
                # Do not dial a peer ten times a second that accepts connections and then refuses them.
                refused = 0 if connection.peer is not None else refused + 1
            pause_s = random.uniform(*self._timing.redial_s) * 2 ** max(0, min(refused, 16) - 1)
            await asyncio.sleep(min(pause_s, self._timing.refused_redial_s))

    async def dial(self, peer: ProxyId) -> Connection | None:
        """Open a connection to a peer, which may have refused it already. None: the peer is unreachable."""
        endpoint, timeout_s = self._peers[peer], self._timing.connect_timeout_s
        connection = Connection(self, peer, f"{peer!r} at {endpoint}")
        try:
            addresses = await self._resolver.find(endpoint, timeout_s)
            async with asyncio.timeout(timeout_s):
                await self._connect(connection, endpoint, await connect(addresses))
        except _BROKEN_HANDSHAKES as error:
            connection.connection_lost(error)
        except LocalFailure as error:
            self._notify(self._events.on_failed_here, peer, error)
            return None
        except OSError:
            return None
        return connection

    async def _connect(self, connection: Connection, endpoint: Endpoint, sock: socket.socket) -> None:
        tls_arguments = self._tls_arguments(server=False)
        if tls_arguments:
            tls_arguments["server_hostname"] = endpoint.tls_name
        try:
            await asyncio.get_running_loop().create_connection(lambda: connection, sock=sock, **tls_arguments)
        except BaseException:
            sock.close()
            raise

    async def _ping_links(self) -> None:
        """Ping the links that are up, and close silent connections, until cancelled."""
        timing = self._timing
        while True:
            await asyncio.sleep(timing.ping_s)
            now_s = time.monotonic()
            for connection in list(self._open):
                if not connection.linked:
                    if now_s - connection.opened_s > timing.hello_timeout_s:
                        connection.abort(f"no HELLO within {timing.hello_timeout_s:g} s")
                elif now_s - connection.heard_s > timing.idle_s:
                    connection.abort(f"silent for {timing.idle_s:g} s")
                else:
                    connection.write(Kind.PING, b"")

    # Events of the connections.

    def _on_opened(self, connection: Connection) -> None:
        self._open.add(connection)
        if self._stopping:
            connection.abort("stopped")
            return
        expected = self._peers if connection.dialled is None else (connection.dialled,)
        if not any(self._is_certified(connection, peer) for peer in expected):
            connection.abort(f"the certificate names {_format_uris(connection.uris)}")
        elif connection.dialled is not None:
            connection.write(Kind.HELLO, self.hello.encode())

    def _is_certified(self, connection: Connection, peer: ProxyId) -> bool:
        return self._tls is None or member_uri(self.hello.fleet, peer) in connection.uris

    def _on_received(self, connection: Connection, kind: int, payload: bytes) -> None:
        if connection.peer is None:
            self._introduce(connection, kind, payload)
            return
        if not connection.linked:
            self._set_link(connection, connection.peer)
        if kind in (Kind.RAFT, Kind.REPORT):
            self._notify(self._events.on_frame, connection.peer, Kind(kind), payload)
        elif kind != Kind.PING:
            connection.abort(f"sent a frame of kind {kind}")

    def _introduce(self, connection: Connection, kind: int, payload: bytes) -> None:
        """Check the first frame of a connection, which must be a matching HELLO.

        If the HELLO answers ours, the connection becomes the link.
        """
        self.strangers.discard(connection)
        refusal = self._refusal(connection, kind, payload)
        if refusal:
            connection.abort(refusal)
            return
        hello = Hello.decode(payload)
        connection.peer, connection.incarnation = hello.proxy_id, hello.incarnation
        connection.has_digests = bool(hello.voter_digests)
        if connection.dialled is None:
            connection.write(Kind.HELLO, self.hello.encode())
        else:
            connection.write(Kind.PING, b"")
            self._set_link(connection, hello.proxy_id)

    def _set_link(self, connection: Connection, peer: ProxyId) -> None:
        former = self._links.get(peer)
        if former is not None:
            self._remove_link(former, "replaced by a newer connection")
            former.abort("replaced by a newer connection")
        connection.linked = True
        self._links[peer] = connection
        if self.hello.voter_digests and not connection.has_digests:
            log.info(
                "%s sends no voter digest, because it runs a release before 0.3.0; upgrade %s, or "
                "compare its `voter:` fields with those of this member",
                peer,
                peer,
            )
        self._notify(self._events.on_up, peer)

    def _refusal(self, connection: Connection, kind: int, payload: bytes) -> str:
        """Why the first frame of a connection is refused; empty if the frame is accepted."""
        try:
            if kind != Kind.HELLO:
                raise ValueError("not a HELLO")
            hello = Hello.decode(payload)
        except (ValueError, RecursionError):
            first_bytes = _LENGTH.pack(len(payload) + 1) + bytes((kind,)) + payload[:_PROTOCOL_PREFIX_BYTES]
            if name_protocol(first_bytes) == "Kafka":
                return at_peer_address("Kafka")
            return "the first frame is not a HELLO"
        sender = f"{hello.proxy_id!r:.100}"
        if hello.protocol_version != PROTOCOL_VERSION:
            theirs = hello.protocol_version
            return f"{sender} speaks protocol version {theirs}, this member speaks {PROTOCOL_VERSION}"
        if hello.fleet != self.hello.fleet:
            return f"{sender} belongs to fleet {hello.fleet!r:.100}, this member to {self.hello.fleet!r}"
        if hello.proxy_id not in self._peers:
            return f"{sender} is not a member of this fleet"
        mismatch = _voter_mismatch(hello, self.hello)
        if mismatch:
            return f"{sender} {mismatch}"
        if connection.dialled is not None and hello.proxy_id != connection.dialled:
            return f"{sender} answered at the address of {connection.dialled!r}"
        if not self._is_certified(connection, hello.proxy_id):
            return f"{sender} has a certificate that names {_format_uris(connection.uris)}"
        if connection.dialled is None and hello.proxy_id < self.hello.proxy_id:
            return f"{sender} connected in the wrong direction (this member dials {hello.proxy_id})"
        former = self._links.get(hello.proxy_id)
        if former is not None and hello.incarnation < former.incarnation:
            return f"{sender} is already connected with a newer incarnation: two processes use this id"
        return ""

    def _on_lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        self.strangers.discard(connection)
        if not connection.linked and not self._stopping:
            self._warn(f"{connection.where}: {connection.reason}")
        self._remove_link(connection, connection.reason)

    def _remove_link(self, connection: Connection, reason: str) -> None:
        peer = connection.peer
        if peer is not None and self._links.get(peer) is connection:
            del self._links[peer]
            self._notify(self._events.on_down, peer, reason)

    def _notify(self, callback: Callable[P, None], *arguments: P.args, **named: P.kwargs) -> None:
        """Call a callback. An error in the callback must not break the link."""
        try:
            callback(*arguments, **named)
        except Exception:
            log.exception("a link callback failed")

    def _warn(self, message: str) -> None:
        if self._log_limit.is_due(time.monotonic(), message):
            log.warning("no link: %s", message)


def _voter_mismatch(theirs: Hello, own: Hello) -> str:
    """How the voters of two members differ; empty if they match, or if one HELLO has no digest."""
    if not theirs.voter_digests or not own.voter_digests:
        return ""
    if set(theirs.voter_digests) & set(own.voter_digests):
        return ""
    return (
        f"counts other voters than this member (voter_digests {', '.join(theirs.voter_digests)!r:.100}, own "
        f"{', '.join(own.voter_digests)!r:.100}): all members need the same `voter:` fields; put the same "
        "configuration file on both members, then restart the member whose file was old"
    )


def _format_uris(uris: frozenset[str]) -> str:
    return f"{', '.join(sorted(uris)) or 'no member'!s:.200}"
