"""Connects each client that sends a request for a broker to one: a task, and no timer, for each client."""

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
from fleet.proxy.tls_transport import SharedTls, TlsTransport
from fleet.runtime.outbound import NAME_CACHE_S, Resolver, connect
from fleet.tls.brokers import DIAL_ERRORS, explain_dial

log = logging.getLogger(__name__)

DIAL_ROUNDS: Final = 2
"""How many brokers in a row may be silent before the dialer gives up a bootstrap connection."""
MAX_WAITING_BYTES: Final = 16 * 1024 * 1024
"""Bytes received from all clients that wait for brokers without a known address. Above the limit, the next
client is closed."""


class Dialer:
    """The connections of one worker that wait for a broker.

    Args:
        upstreams: the addresses of brokers, and which brokers to try.
        context: returns the TLS context for brokers; None for plaintext.
        shared_tls: the TLS state that all connections of the worker share.
        timeout_s: the time limit for connecting to one broker, TLS handshake included.
        on_lost: called with each identity whose broker could not be reached.
        on_unknown: called with each identity that a client waits for because its broker has no known address.
    """

    def __init__(
        self,
        upstreams: Upstreams,
        context: Callable[[], ssl.SSLContext] | None,
        shared_tls: SharedTls,
        timeout_s: float,
        on_lost: Callable[[BrokerId], None],
        on_unknown: Callable[[BrokerId], None],
    ) -> None:
        self._upstreams = upstreams
        self._context = context
        self._shared_tls = shared_tls
        self.timeout_s = timeout_s
        self._on_lost = on_lost
        self._on_unknown = on_unknown
        self._unknown: dict[BrokerId, asyncio.Event] = {}
        """Broker without a known address → event that is set once the address is known."""
        self.waiting_bytes = 0
        self._resolver = Resolver(NAME_CACHE_S)
        self._loop = asyncio.get_running_loop()
        self.tasks: dict[ClientConnection, asyncio.Task[None]] = {}
        self.attempts = Deadlines(timeout_s, self._cancel_attempt)
        self.timed_out: set[ClientConnection] = set()
        self.connect = self._connect

    def dial(self, connection: ClientConnection) -> None:
        """Connect a client to a broker, or close the client when no broker can be reached."""
        self.attempts.end(connection)  # of a dial that is about to end
        self.timed_out.discard(connection)
        self.tasks[connection] = self._loop.create_task(self._dial(connection))

    def give_up(self, connection: ClientConnection) -> None:
        """Stop dialing for a client connection that has ended."""
        task = self.tasks.pop(connection, None)
        if task is not None:
            self.timed_out.discard(connection)
            self.attempts.end(connection)
            task.cancel()

    def stop(self) -> None:
        for connection in list(self.tasks):
            self.give_up(connection)

    def retry_unknown(self) -> None:
        """Continue with the clients whose brokers have a known address now."""
        for broker_id in [each for each in self._unknown if self._upstreams.broker(each) is not None]:
            self._unknown.pop(broker_id).set()

    async def _dial(self, connection: ClientConnection) -> None:
        """Try one broker after the other, in one coroutine: each turn of the loop resumes all nested ones."""
        try:
            began_s = time.monotonic()
            candidates = self._candidates(connection, began_s)
            if not candidates and connection.destination is not None:
                candidates = await self._await_broker(connection, connection.destination)
                began_s = time.monotonic()
            for candidate in candidates:
                now_s = time.monotonic()
                if now_s >= began_s + DIAL_ROUNDS * self.timeout_s:
                    break  # the client had better try another proxy
                if not self._upstreams.admits(candidate, now_s):
                    continue
                self.attempts.begin(connection)
                connection.note_candidate(candidate.broker_id)
                try:
                    await self.connect(connection, candidate)
                except DIAL_ERRORS as error:
                    self._note_failure(connection, candidate, error)
                except asyncio.CancelledError:
                    if not self._take_timeout(connection):
                        self._upstreams.given_up(candidate)
                        raise
                    self._note_failure(connection, candidate, TimeoutError())
                except BaseException:
                    self._upstreams.given_up(candidate)
                    raise
                else:
                    self._upstreams.succeeded(candidate)
                    return
                finally:
                    if self._is_dialing(connection):
                        if self.timed_out:
                            self.timed_out.discard(connection)
                        self.attempts.end(connection)
                if connection.state is State.JOINED or not self._is_dialing(connection):
                    return
            connection.broker_unreachable()
        except Exception:
            log.exception("dialing a broker failed")
            connection.broker_unreachable()
        finally:
            if self._is_dialing(connection):
                del self.tasks[connection]

    def _is_dialing(self, connection: ClientConnection) -> bool:
        """Whether this task is still the one of a connection, which may dial the next broker already."""
        return self.tasks.get(connection) is asyncio.current_task()

    async def _await_broker(self, connection: ClientConnection, broker_id: BrokerId) -> list[Candidate]:
        """Wait until discovery finds a broker's address, for as long as a dial may take.

        Returns: the candidates to dial; empty if discovery did not find the broker, or too many clients wait.
        """
        self._on_unknown(broker_id)
        size_bytes = connection.wait_for_broker()
        if self.waiting_bytes + size_bytes > MAX_WAITING_BYTES:
            return []
        self.waiting_bytes += size_bytes
        known = self._unknown.setdefault(broker_id, asyncio.Event())
        self.attempts.begin(connection)
        try:
            await known.wait()
        except asyncio.CancelledError:
            if not self._take_timeout(connection):
                raise
        finally:
            self.waiting_bytes -= size_bytes
            self.timed_out.discard(connection)
            self.attempts.end(connection)
        return self._candidates(connection, time.monotonic())

    def _candidates(self, connection: ClientConnection, now_s: float) -> list[Candidate]:
        if connection.destination is None:
            return self._upstreams.candidates(now_s)
        known = self._upstreams.broker(connection.destination)
        return [] if known is None else [known]

    def _connect(self, connection: ClientConnection, candidate: Candidate) -> Awaitable[object]:
        """Connect to one candidate. Raises, when awaited: the errors of connecting."""
        if self._context is None:
            return self._open(connection.broker_side, candidate)
        return self._secure(connection, candidate, self._context())

    async def _secure(
        self, connection: ClientConnection, candidate: Candidate, context: ssl.SSLContext
    ) -> None:
        name = candidate.endpoint.tls_name
        transport = TlsTransport(self._shared_tls, context, lambda _: connection.broker_side(), name)
        await self._open(lambda: transport, candidate)
        await transport.handshake()

    def _open(self, protocol: Callable[[], asyncio.BaseProtocol], candidate: Candidate) -> Awaitable[object]:
        endpoint = candidate.endpoint
        if candidate.is_ipv4:
            return self._loop.create_connection(protocol, endpoint.host, endpoint.port)
        addresses = self._resolver.cached(endpoint)
        if addresses is not None and len(addresses) == 1:
            only = addresses[0]
            if only[0] == AF_INET:  # the loop connects by address at less cost
                return self._loop.create_connection(protocol, only[4][0], only[4][1])
        return self._open_by_name(protocol, endpoint)

    async def _open_by_name(self, protocol: Callable[[], asyncio.BaseProtocol], endpoint: Endpoint) -> None:
        sock = await connect(await self._resolver.find(endpoint, self.timeout_s))
        try:
            await self._loop.create_connection(protocol, sock=sock)
        except BaseException:
            sock.close()
            raise

    def _take_timeout(self, connection: ClientConnection) -> bool:
        """Whether the attempt was cancelled because it took too long; if so, let the task continue."""
        task = self.tasks.get(connection)
        if connection not in self.timed_out or task is None:
            return False
        task.uncancel()
        return True

    def _note_failure(self, connection: ClientConnection, candidate: Candidate, error: Exception) -> None:
        if connection.state is State.JOINED:  # the broker was connected in the turn of the time-out
            self._upstreams.succeeded(candidate)
            return
        self._resolver.forget(candidate.endpoint)
        if candidate.broker_id is not None:
            self._on_lost(candidate.broker_id)
        if self._upstreams.failed(candidate, time.monotonic()):
            why = explain_dial(error)
            log.warning("the broker at %s cannot be reached: %s", candidate.endpoint, why)

    def _cancel_attempt(self, connection: ClientConnection) -> None:
        task = self.tasks.get(connection)
        if task is not None:
            self.timed_out.add(connection)
            task.cancel()
