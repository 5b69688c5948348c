"""The connections to a member's admin address, limited in number, time and memory.

aiohttp accepts any number of connections, and waits for ever until a client reads an answer. The same process
decides which members are alive, so strangers must not exhaust its descriptors or its memory.

A connection belongs to a stranger until one of its requests is admitted (``Connections.admit``). Strangers
have separate places, so that they take none from clients that have shown a token.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, cast, get_args

from aiohttp import web

from fleet.core.crowd import Crowd, source_of
from fleet.core.foreign_protocols import at_admin_address, name_protocol
from fleet.core.log_limit import LogLimit
from fleet.runtime.socket_options import accept_connections
from fleet.tls.peers import NOT_TLS, explain

log = logging.getLogger(__name__)

# Not Final: tests change them.
MAX_STRANGERS = 128
MAX_ADMITTED = 192
HANDSHAKE_TIMEOUT_S = 5.0
REQUEST_TIMEOUT_S = 5.0
"""Time for a whole request, from the start of the connection or the previous answer."""
UNREAD_TIMEOUT_S = 10.0
"""Time for a peer to read ``MIN_READ_BYTES`` of the waiting bytes, or all of them."""
SWEEP_INTERVAL_S = 1.0
SEND_BUFFER_BYTES = 256 << 10
"""The kernel's buffer of each connection. Without a limit it grows to megabytes if the peer does not read."""
WRITE_BUFFER_BYTES = 64 << 10

MIN_READ_BYTES: Final = 64 << 10
MAX_REQUEST_BYTES: Final = 32 << 10
"""Bytes between two requests: no request has a body, and browsers send up to some 16 KB of cookies."""
BACKLOG: Final = 1024
LINGER_S: Final = 1.0
"""Time for the rest of an unexpected body, once the answer is sent."""
SHUTDOWN_TIMEOUT_S: Final = 0.5
LOG_INTERVAL_S: Final = 60.0

DropReason: TypeAlias = Literal["crowded", "oversize", "unread"]
DROP_REASONS: Final[tuple[DropReason, ...]] = get_args(DropReason)


@dataclass(frozen=True, slots=True)
class ConnectionCounts:
    """The number of open connections, and of connections closed because of a limit since the start."""

    open: int
    dropped: Mapping[DropReason, int]


class _OncePerInterval(logging.Filter):
    """Passes one record, on one line, each ``LOG_INTERVAL_S``: a stranger can cause any number of records."""

    def __init__(self) -> None:
        super().__init__()
        self._limit = LogLimit(LOG_INTERVAL_S)

    def filter(self, record: logging.LogRecord) -> bool:
        if not self._limit.is_due(time.monotonic()):
            return False
        if record.exc_info:
            record.msg, record.args = "%s: %s", (record.getMessage(), record.exc_info[1])
            record.exc_info = None
        return True


REQUEST_LOG: Final = logging.getLogger(f"{__name__}.requests")
"""aiohttp's logger for malformed requests."""
REQUEST_LOG.addFilter(_OncePerInterval())

NO_CONNECTIONS: Final = ConnectionCounts(0, dict.fromkeys(DROP_REASONS, 0))


class _Connection(asyncio.Protocol):
    """One connection: passes everything to aiohttp, and measures what its peer sends and does not read."""

    def __init__(self, owner: Connections, handler: web.RequestHandler, source: str) -> None:
        self.handler = handler
        self.source = source
        self.handshake: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport | None = None
        self.request_bytes = 0
        """Bytes received since the last handled request."""
        self.unread: tuple[float, int] | None = None
        """While bytes wait for the peer: the time of the last progress, and the bytes left at that time."""
        self._owner = owner
        self._has_spoken = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self.handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if not self._has_spoken:
            self._has_spoken = True
            self._owner.note_first_bytes(self, data)
        self.request_bytes += len(data)
        if self.request_bytes > MAX_REQUEST_BYTES:
            self._owner.drop(self, "oversize")
            return
        self.handler.data_received(data)

    def eof_received(self) -> None:
        self.handler.eof_received()

    def pause_writing(self) -> None:
        self.note_unread()
        self.handler.pause_writing()

    def resume_writing(self) -> None:
        self.unread = None
        self.handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.forget(self)
        self.handler.connection_lost(exc)

    def note_unread(self) -> None:
        assert self.transport is not None
        now_s = asyncio.get_running_loop().time()
        self.unread = (now_s, self.transport.get_write_buffer_size())

    def is_read(self, now_s: float) -> bool:
        """Whether the peer reads the waiting bytes fast enough; true if no bytes wait."""
        if self.transport is None:
            return True
        if self.unread is None:
            # A closing transport waits for its peer, too, however little is left to be read.
            if self.transport.is_closing():
                self.note_unread()
            return True
        since_s, bytes_left = self.unread
        if self.transport.get_write_buffer_size() <= bytes_left - MIN_READ_BYTES:
            self.note_unread()
            return True
        return now_s - since_s < UNREAD_TIMEOUT_S

    def abort(self) -> None:
        """Close without waiting for the peer, also during a handshake."""
        if self.handshake is not None:
            self.handshake.cancel()
        if self.transport is not None:
            self.transport.abort()


class Connections:
    """All connections to one admin address."""

    def __init__(self) -> None:
        self._strangers: Crowd[_Connection] = Crowd(MAX_STRANGERS)
        self._admitted: Crowd[_Connection] = Crowd(MAX_ADMITTED)
        self._by_handler: dict[web.RequestHandler, _Connection] = {}
        self._handshakes: set[asyncio.Task[None]] = set()
        self._logged = LogLimit(LOG_INTERVAL_S)
        self._dropped: dict[DropReason, int] = dict.fromkeys(DROP_REASONS, 0)

    def counts(self) -> ConnectionCounts:
        """The current counts."""
        return ConnectionCounts(len(self._by_handler), dict(self._dropped))

    def note_request(self, request: web.Request) -> None:
        """Note that a whole request has arrived."""
        connection = self._by_handler.get(request.protocol)
        if connection is not None:
            connection.request_bytes = 0

    def admit(self, request: web.Request) -> None:
        """Note that the peer of an allowed request is no longer a stranger."""
        connection = self._by_handler.get(request.protocol)
        if connection is None or connection not in self._strangers:
            return
        self._strangers.discard(connection)
        displaced = self._admitted.add(connection, connection.source)
        if displaced is not None:
            self.drop(displaced, "crowded")

    def accept(
        self, sock: socket.socket, address: object, server: web.Server, secured: dict[str, Any]
    ) -> None:
        """Serve a connection that has been accepted.

        Args:    secured: the TLS arguments of ``connect_accepted_socket``; empty without TLS
        """
        connection = _Connection(self, server(), source_of(address))
        self._by_handler[connection.handler] = connection
        displaced = self._strangers.add(connection, connection.source)
        if displaced is not None:
            self.drop(displaced, "crowded")
        task = asyncio.get_running_loop().create_task(self._let_in(connection, sock, secured))
        connection.handshake = task
        self._handshakes.add(task)
        task.add_done_callback(lambda done: self._end_handshake(done, connection, sock))

    async def _let_in(self, connection: _Connection, sock: socket.socket, secured: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(lambda: connection, sock, **secured)
        except OSError as error:  # no TLS, or no handshake in time
            sock.close()
            self.forget(connection)
            if explain(error) == NOT_TLS:
                self._warn(connection, f"{NOT_TLS}, but admin.tls is configured; use https")

    def _end_handshake(self, task: asyncio.Task[None], connection: _Connection, sock: socket.socket) -> None:
        self._handshakes.discard(task)
        if task.cancelled():  # possibly before it began
            sock.close()
            self.forget(connection)

    def forget(self, connection: _Connection) -> None:
        """Forget a closed connection."""
        self._strangers.discard(connection)
        self._admitted.discard(connection)
        self._by_handler.pop(connection.handler, None)

    def drop(self, connection: _Connection, reason: DropReason) -> None:
        """Close a connection that exceeds a limit, or whose place another connection gets."""
        self._dropped[reason] += 1
        self.forget(connection)
        connection.abort()
        if self._logged.is_due(time.monotonic()):
            log.warning("admin address: connection closed: source=%s reason=%s", connection.source, reason)

    def note_first_bytes(self, connection: _Connection, data: bytes) -> None:
        """Log a connection that does not begin with HTTP: aiohttp refuses such connections silently."""
        protocol = name_protocol(data)
        fault = None if protocol is None else at_admin_address(protocol)
        if fault is not None:
            self._warn(connection, fault)

    def _warn(self, connection: _Connection, fault: str) -> None:
        if self._logged.is_due(time.monotonic(), fault):
            log.warning("admin address: connection from %s: %s", connection.source, fault)

    async def sweep(self) -> None:
        """Drop connections whose peers do not read, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            now_s = asyncio.get_running_loop().time()
            for connection in tuple(self._by_handler.values()):
                if not connection.is_read(now_s):
                    self.drop(connection, "unread")

    async def close(self) -> None:
        """Close all connections at once."""
        handshakes = list(self._handshakes)
        for connection in tuple(self._by_handler.values()):
            connection.abort()
        await asyncio.gather(*handshakes, return_exceptions=True)


class AdminServer:
    """A web application on an inherited listening socket.

    Args:
        app: answers the requests.
        connections: the connections, which the application informs about requests.
        on_broken: called if the task that accepts or checks connections has ended with an error.
    """

    def __init__(
        self,
        app: web.Application,
        connections: Connections,
        sock: socket.socket,
        tls: ssl.SSLContext | None,
        on_broken: Callable[[BaseException], object],
    ) -> None:
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=REQUEST_LOG,
            shutdown_timeout=SHUTDOWN_TIMEOUT_S,
            keepalive_timeout=REQUEST_TIMEOUT_S,
            lingering_time=LINGER_S,
            auto_decompress=False,
        )
        self._connections = connections
        self._on_broken = on_broken
        self._sock = sock
        self._secured: dict[str, Any] = {}
        if tls is not None:
            self._secured = {
                "ssl": tls,
                "ssl_handshake_timeout": HANDSHAKE_TIMEOUT_S,
                "ssl_shutdown_timeout": HANDSHAKE_TIMEOUT_S,
            }
        self._tasks: list[asyncio.Task[None]] = []
        self._logged = LogLimit(LOG_INTERVAL_S)

    async def start(self) -> None:
        """Start to accept connections."""
        await self._runner.setup()
        self._sock.setblocking(False)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._sock.listen(BACKLOG)
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(accept_connections(self._sock, self._on_accepted, self._on_failure)),
            loop.create_task(self._connections.sweep()),
        ]
        for task in self._tasks:
            task.add_done_callback(self._on_task_ended)

    def _on_accepted(self, sock: socket.socket, address: object) -> None:
        server = self._runner.server
        assert server is not None
        self._connections.accept(sock, address, server, self._secured)

    def _on_failure(self, error: OSError) -> None:
        if self._logged.is_due(time.monotonic()):
            log.warning("admin address: cannot accept connections: %s", error)

    def _on_task_ended(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("admin address: the task for its connections has failed", exc_info=error)
            self._on_broken(error)

    async def cleanup(self) -> None:
        """Stop accepting, wait shortly for answers to open requests, and close all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._sock.close()
        await self._runner.cleanup()
        await self._connections.close()
