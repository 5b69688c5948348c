"""Dials a broker for each client that has something for one: a task, and no timer, for each."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable
from socket import AF_INET
from typing import Final

from fleet.core.model import BrokerId, Endpoint
from fleet.proxy.brokers import Candidate, Upstreams
from fleet.proxy.connection import ClientConnection
from fleet.proxy.deadlines import Deadlines
from fleet.proxy.host import State
from fleet.proxy.tls_transport import TlsRoom, TlsTransport
from fleet.runtime.outbound import NAME_CACHE_S, Resolver, connect
from fleet.tls.brokers import DIAL_ERRORS, explain_dial

log = logging.getLogger(__name__)

DIAL_ROUNDS: Final = 2
"""How many brokers in turn may be silent before a bootstrap connection is given up."""


MOST_WAITING_BYTES: Final = 16 * 1024 * 1024
"""Received from all clients that wait for brokers that nobody knows yet. More clients are closed."""


class Dialler:
    """The connections of one worker that wait for a broker.

    Args:
        upstreams: where brokers are, and which of them to try.
        context: called for the TLS to speak to brokers, None where that is plaintext.
        room: of the worker.
        timeout_s: how long one broker may take to be connected, its TLS handshake included.
        lost: told of each identity whose broker was not reached.
        wanted: told of each identity that a client waits for, because nobody knows where its broker is.
    """

    def __init__(
        self,
        upstreams: Upstreams,
        context: Callable[[], ssl.SSLContext] | None,
        room: TlsRoom,
        timeout_s: float,
        lost: Callable[[BrokerId], None],
        wanted: Callable[[BrokerId], None],
    ) -> None:
        self._upstreams = upstreams
        self._context = context
        self._room = room
        self._timeout_s = timeout_s
        self._lost = lost
        self._wanted = wanted
        self._unknown: dict[BrokerId, asyncio.Event] = {}
        """Brokers that clients wait for: set once it is known where each is."""
        self._waiting_bytes = 0
        self._resolver = Resolver(NAME_CACHE_S)
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[ClientConnection, asyncio.Task[None]] = {}
        self._attempts = Deadlines(timeout_s, self._end_late)
        self._late: set[ClientConnection] = set()
        self.connect = self._connect

    def dial(self, connection: ClientConnection) -> None:
        """Have it joined by a broker's connection, or told that no broker can be reached."""
        self._tasks[connection] = self._loop.create_task(self._dial(connection))

    def give_up(self, connection: ClientConnection) -> None:
        """It has ended."""
        task = self._tasks.pop(connection, None)
        if task is not None:
            task.cancel()

    def stop(self) -> None:
        for connection in list(self._tasks):
            self.give_up(connection)

    def look_again(self) -> None:
        """More brokers may be known: go on with the clients that wait for these."""
        for broker_id in [each for each in self._unknown if self._upstreams.broker(each) is not None]:
            self._unknown.pop(broker_id).set()

    async def _dial(self, connection: ClientConnection) -> None:
        """Try one broker after the other. All in one coroutine: every turn goes through each."""
        try:
            began_s = time.monotonic()
            candidates = self._candidates(connection, began_s)
            if not candidates and connection.broker_id is not None:
                candidates = await self._await_broker(connection, connection.broker_id)
                began_s = time.monotonic()
            for candidate in candidates:
                now_s = time.monotonic()
                if now_s >= began_s + DIAL_ROUNDS * self._timeout_s:
                    break  # the client has better proxies to try
                if not self._upstreams.admits(candidate, now_s):
                    continue
                self._attempts.begin(connection)
                try:
                    await self.connect(connection, candidate)
                except DIAL_ERRORS as error:
                    self._failed(connection, candidate, error)
                except asyncio.CancelledError:
                    if not self._was_late(connection):
                        self._upstreams.given_up(candidate)
                        raise
                    self._failed(connection, candidate, TimeoutError())
                except BaseException:
                    self._upstreams.given_up(candidate)
                    raise
                else:
                    self._upstreams.succeeded(candidate)
                    return
                finally:
                    if self._late:
                        self._late.discard(connection)
                    self._attempts.done(connection)
                if connection.state is State.JOINED:
                    return
            connection.broker_unreachable()
        except Exception:
            log.exception("dialling a broker failed")
            connection.broker_unreachable()
        finally:
            self._tasks.pop(connection, None)

    async def _await_broker(self, connection: ClientConnection, broker_id: BrokerId) -> list[Candidate]:
        """Wait until discovery knows where a broker is, for as long as a dial may take.

        Returns: where to dial; empty where discovery does not know, or too many clients wait.
        """
        self._wanted(broker_id)
        size_bytes = connection.wait_for_broker()
        if self._waiting_bytes + size_bytes > MOST_WAITING_BYTES:
            return []
        self._waiting_bytes += size_bytes
        known = self._unknown.setdefault(broker_id, asyncio.Event())
        self._attempts.begin(connection)
        try:
            await known.wait()
        except asyncio.CancelledError:
            if not self._was_late(connection):
                raise
        finally:
            self._waiting_bytes -= size_bytes
            self._late.discard(connection)
            self._attempts.done(connection)
        return self._candidates(connection, time.monotonic())

    def _candidates(self, connection: ClientConnection, now_s: float) -> list[Candidate]:
        if connection.broker_id is None:
            return self._upstreams.candidates(now_s)
        known = self._upstreams.broker(connection.broker_id)
        return [] if known is None else [known]

    def _connect(self, connection: ClientConnection, candidate: Candidate) -> Awaitable[object]:
        """Raises, when awaited: what connecting raises."""
        if self._context is None:
            return self._open(connection.broker_side, candidate)
        return self._secure(connection, candidate, self._context())

    async def _secure(
        self, connection: ClientConnection, candidate: Candidate, context: ssl.SSLContext
    ) -> None:
        name = candidate.endpoint.tls_name
        transport = TlsTransport(self._room, context, lambda _: connection.broker_side(), name)
        await self._open(lambda: transport, candidate)
        await transport.handshake()

    def _open(self, protocol: Callable[[], asyncio.BaseProtocol], candidate: Candidate) -> Awaitable[object]:
        at = candidate.endpoint
        if candidate.is_ipv4:
            return self._loop.create_connection(protocol, at.host, at.port)
        addresses = self._resolver.cached(at)
        if addresses is not None and len(addresses) == 1:
            only = addresses[0]
            if only[0] == AF_INET:  # the loop does it at less cost
                return self._loop.create_connection(protocol, only[4][0], only[4][1])
        return self._open_by_name(protocol, at)

    async def _open_by_name(self, protocol: Callable[[], asyncio.BaseProtocol], at: Endpoint) -> None:
        sock = await connect(await self._resolver.find(at, self._timeout_s))
        try:
            await self._loop.create_connection(protocol, sock=sock)
        except BaseException:
            sock.close()
            raise

    def _was_late(self, connection: ClientConnection) -> bool:
        """Whether an attempt was cancelled because it took too long; if so, the task goes on."""
        task = self._tasks.get(connection)
        if connection not in self._late or task is None:
            return False
        task.uncancel()
        return True

    def _failed(self, connection: ClientConnection, candidate: Candidate, error: Exception) -> None:
        if connection.state is State.JOINED:  # it was late, and in the same turn a broker had it
            self._upstreams.succeeded(candidate)
            return
        self._resolver.forget(candidate.endpoint)
        if candidate.broker_id is not None:
            self._lost(candidate.broker_id)
        if self._upstreams.failed(candidate, time.monotonic()):
            why = explain_dial(error)
            log.warning("the broker at %s cannot be reached: %s", candidate.endpoint, why)

    def _end_late(self, connection: ClientConnection) -> None:
        task = self._tasks.get(connection)
        if task is not None:
            self._late.add(connection)
            task.cancel()
