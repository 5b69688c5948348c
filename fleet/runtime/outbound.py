"""Outgoing connections: look up a name, connect, and decide which side is responsible for a failure.

A failure with a local cause (the resolver is unreachable, no descriptor, memory or route is left) gives no
evidence about the peer. ``is_peer_failure`` therefore lists the errors that the peer causes. All other errors
count as failures of this member.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import zip_longest
from math import inf
from typing import Any, Final, TypeAlias

from fleet.core.model import Endpoint

Address: TypeAlias = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]
Addresses: TypeAlias = Sequence[Address]
"""As ``getaddrinfo`` returns them."""

_PEER_ERRORS: Final = (
    ConnectionRefusedError,
    ConnectionResetError,
    ConnectionAbortedError,
    BrokenPipeError,
    ssl.SSLError,
    EOFError,
)
_NO_ROUTE: Final = frozenset(
    (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
)
"""Errors of an address whose family this machine cannot use."""


NAME_CACHE_S: Final = 5.0
"""How long the addresses of a broker are valid, unless none of them can be reached."""
STALE_WAIT_S: Final = 0.1
STALE_LIMIT_S: Final = 300.0
MAX_PORT: Final = 65535
MAX_CACHED_NAMES = 4_096  # not Final: tests change it
_UNANSWERED: Final = frozenset((socket.EAI_AGAIN, socket.EAI_FAIL, socket.EAI_MEMORY, socket.EAI_SYSTEM))
"""Errors of a look-up that give no evidence about the name."""
ATTEMPT_DELAY_S: Final = 0.25
"""The delay before the next address of a name is tried in parallel. Source: RFC 8305, section 8"""


class LocalFailure(OSError):
    """This member could not try to connect: it lacks a name, a descriptor, memory or a route."""


class _NoAnswer(LocalFailure):
    """The resolver has not answered."""


def is_peer_failure(error: BaseException) -> bool:
    """Whether the peer causes an error: a refusal, a reset, or a wrong answer."""
    return isinstance(error, _PEER_ERRORS)


class Resolver:
    """Looks up names, each with at most one look-up at a time, for any number of callers.

    Args:
        keep_s: how long an answer is valid. From half of that time on, it is looked up again in the
            background. When it has expired, callers wait for the look-up, but only ``STALE_WAIT_S`` while the
            previous answer is younger than ``STALE_LIMIT_S``. 0: answers are not cached.

    Source: RFC 8767 on stale answers
    """

    def __init__(self, keep_s: float = 0.0) -> None:
        self._keep_s = keep_s
        self._lookups: dict[Endpoint, asyncio.Task[Addresses]] = {}
        self._cache: dict[Endpoint, tuple[Addresses, float]] = {}
        """The last answers, the oldest first, each with the loop's time of its arrival."""

    def cached(self, endpoint: Endpoint) -> Addresses | None:
        """The cached addresses of an endpoint; None if the caller must use `find`."""
        answer = self._cache.get(endpoint)
        if answer is None or self._now_s() - answer[1] >= self._keep_s / 2:
            return None
        return answer[0]

    async def find(self, endpoint: Endpoint, timeout_s: float) -> Addresses:
        """The addresses of an endpoint.

        Raises: LocalFailure: the name cannot be looked up, or not in time
        """
        stale: Addresses | None = None
        if endpoint in self._cache:
            addresses, at_s = self._cache[endpoint]
            age_s = self._now_s() - at_s
            if age_s < self._keep_s:
                if age_s >= self._keep_s / 2:
                    self._look_up(endpoint)
                return addresses
            if age_s < STALE_LIMIT_S:
                stale = addresses
        elif self._keep_s and (numeric := _numeric_addresses(endpoint)) is not None:
            self._keep(endpoint, numeric, inf)  # never expires
            return numeric
        wait_s = timeout_s if stale is None else min(timeout_s, STALE_WAIT_S)
        try:
            async with asyncio.timeout(wait_s):
                return await asyncio.shield(self._look_up(endpoint))
        except (TimeoutError, _NoAnswer) as error:
            if stale is not None:
                return stale
            if isinstance(error, _NoAnswer):
                raise
            raise LocalFailure(f"no address for {endpoint.host} within {timeout_s:g} s") from None

    def _keep(self, endpoint: Endpoint, addresses: Addresses, at_s: float) -> None:
        self._cache.pop(endpoint, None)
        self._cache[endpoint] = addresses, at_s
        if len(self._cache) > MAX_CACHED_NAMES:
            del self._cache[next(iter(self._cache))]

    def forget(self, endpoint: Endpoint) -> None:
        """Forget the addresses of an endpoint that could not be reached: the host may have moved."""
        self._cache.pop(endpoint, None)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _look_up(self, endpoint: Endpoint) -> asyncio.Task[Addresses]:
        lookup = self._lookups.get(endpoint)
        if lookup is None:
            lookup = asyncio.get_running_loop().create_task(_look_up(endpoint))
            self._lookups[endpoint] = lookup
            lookup.add_done_callback(lambda task: self._on_lookup_end(endpoint, task))
        return lookup

    def _on_lookup_end(self, endpoint: Endpoint, lookup: asyncio.Task[Addresses]) -> None:
        del self._lookups[endpoint]
        if lookup.cancelled():
            return
        error = lookup.exception()  # read here, because asyncio logs unread errors
        if error is None and self._keep_s:
            self._keep(endpoint, lookup.result(), self._now_s())
        elif error is not None and not isinstance(error, _NoAnswer):
            self.forget(endpoint)  # the name no longer exists


def _numeric_addresses(endpoint: Endpoint) -> Addresses | None:
    """The addresses of a host that is an IP address, without a look-up; None for a name."""
    numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    if not 0 <= endpoint.port <= MAX_PORT:
        return None
    try:
        return socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=numeric)
    except (OSError, ValueError, OverflowError):
        return None


async def _look_up(endpoint: Endpoint) -> Addresses:
    """Look up a name in a separate thread.

    The loop has only four threads, and slow look-ups of brokers could occupy all of them.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[Addresses] = loop.create_future()

    def set_answer(addresses: Addresses | None, error: Exception | None) -> None:
        if found.done():  # the caller no longer waits
            return
        if addresses is not None:
            found.set_result(addresses)
        else:
            unanswered = not isinstance(error, socket.gaierror) or error.errno in _UNANSWERED
            kind = _NoAnswer if unanswered else LocalFailure
            found.set_exception(kind(f"no address for {endpoint.host}: {error}"))

    def work() -> None:
        addresses, failure = None, None
        try:
            addresses = _resolve(endpoint.host, endpoint.port)
        except (OSError, ValueError, OverflowError, MemoryError) as error:
            failure = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(set_answer, addresses, failure)

    try:
        # A daemon thread: the end of the process does not wait for a name server.
        threading.Thread(target=work, name=f"look up {endpoint.host}", daemon=True).start()
    except RuntimeError as error:  # no thread can be started
        raise _NoAnswer(f"no address for {endpoint.host}: {error}") from error
    return await found


def _resolve(host: str, port: int) -> Addresses:
    """Look up a name with the system's resolver. Blocks.

    Raises: ValueError: the port is out of range; errors of `socket.getaddrinfo`
    """
    if not 0 <= port <= MAX_PORT:  # glibc would use another port without an error
        raise ValueError(f"port {port} must be 0..{MAX_PORT}")
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror:
        # In DNS a final dot marks a complete name. Hosts files and some resolvers have names without the dot.
        if not host.endswith("."):
            raise
        return socket.getaddrinfo(host[:-1], port, type=socket.SOCK_STREAM)


async def connect(addresses: Addresses) -> socket.socket:
    """Connect to the first address that accepts, and start the next attempt while earlier ones are slow.

    Raises:
        LocalFailure: no address accepted, and some could not be tried
        OSError: all addresses were tried; the error of the first one: a peer failure, or a time-out
    Source: RFC 8305, sections 4 and 5
    """
    if len(addresses) == 1:
        try:
            return await _connect_once(addresses[0])
        except OSError as error:
            raise _failure([error]) from error
    attempts: list[asyncio.Task[socket.socket]] = []
    untried = _interleave(addresses)
    try:
        while True:
            attempts += [asyncio.create_task(_connect_once(each)) for each in untried[:1]]
            del untried[:1]
            pending = [each for each in attempts if not each.done()]
            if pending:
                await asyncio.wait(
                    pending,
                    timeout=ATTEMPT_DELAY_S if untried else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            for each in attempts:
                if each.done() and each.exception() is None:
                    attempts.remove(each)
                    return each.result()
            if not untried and all(each.done() for each in attempts):
                raise _failure([each.exception() for each in attempts])
    finally:
        for each in attempts:
            each.add_done_callback(_give_up)
            each.cancel()


def _interleave(addresses: Addresses) -> list[Address]:
    """The addresses with alternating families. The first address stays the first."""
    by_family: dict[int, list[Address]] = {}
    for each in addresses:
        by_family.setdefault(each[0], []).append(each)
    rounds = zip_longest(*by_family.values())
    return [each for addresses_of_round in rounds for each in addresses_of_round if each is not None]


def _give_up(attempt: asyncio.Task[socket.socket]) -> None:
    """Close the connection of an attempt after another address was faster."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()


def _failure(errors: Iterable[BaseException | None]) -> BaseException:
    """The error that results from the failures of all addresses, in their order."""
    failure: BaseException | None = None
    local: BaseException | None = None
    for error in errors:
        if not isinstance(error, OSError):
            return LocalFailure("no connection") if error is None else error
        if isinstance(error, TimeoutError) or is_peer_failure(error):
            failure = failure or error
        elif failure is None or error.errno not in _NO_ROUTE:
            # getaddrinfo sorts addresses without a route to the end (RFC 6724, rule 1): ignore them there.
            local = local or error
    if local is not None:
        found = LocalFailure(f"no connection: {local}")
        found.__cause__ = local
        return found
    return failure or LocalFailure("no address")


async def _connect_once(target: Address) -> socket.socket:
    family, kind, protocol, _, address = target
    # asyncio requires sockets that do not block. Child processes do not inherit them (PEP 446).
    sock = socket.socket(family, kind | socket.SOCK_NONBLOCK, protocol)
    try:
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock
