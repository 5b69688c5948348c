"""A connection to somebody else: look a name up, connect, and tell whose failure it is where that fails.

What a member cannot do for a reason of its own (its resolver is away, it has no descriptor or memory left, it
has no route) says nothing of whom it wanted to reach. ``is_peers_doing`` therefore lists what *is* the other
side's doing; whatever nobody has thought of counts as this member's own failure.
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

_PEERS_DOING: Final = (
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
"""What an address is met with whose family this machine cannot use."""


NAMES_KEPT_S: Final = 5.0
"""How long the addresses of a broker are good for, unless none of them is reached."""
STALE_WAIT_S: Final = 0.1
STALE_LIMIT_S: Final = 300.0
MOST_PORT: Final = 65535
MOST_KEPT = 4_096  # not Final: tests change it
_UNANSWERED: Final = frozenset((socket.EAI_AGAIN, socket.EAI_FAIL, socket.EAI_MEMORY, socket.EAI_SYSTEM))
"""What a look-up ends with that says nothing of the name."""
ATTEMPT_DELAY_S: Final = 0.25
"""After which the next address of a name is tried beside those before it. Source: RFC 8305, section 8"""


class LocalFailure(OSError):
    """This member could not even ask: a name, a descriptor, memory or a route of its own is missing."""


class _NoAnswer(LocalFailure):
    """Nobody has said what the addresses of a name are."""


def is_peers_doing(error: BaseException) -> bool:
    """Whether an error on a connection is a refusal, a reset, or an answer that is wrong."""
    return isinstance(error, _PEERS_DOING)


class Resolver:
    """Looks names up, each once at a time, however many wait for it and however slow it is.

    Args:
        keep_s: how long an answer is good for. From half of that on it is looked up again while it is given
            out; once it is older, those who ask wait for the look-up, but not for long (``STALE_WAIT_S``)
            while the answer before is younger than ``STALE_LIMIT_S``. 0: nothing is kept.

    Source: RFC 8767 on answers that are stale
    """

    def __init__(self, keep_s: float = 0.0) -> None:
        self._keep_s = keep_s
        self._lookups: dict[Endpoint, asyncio.Task[Addresses]] = {}
        self._kept: dict[Endpoint, tuple[Addresses, float]] = {}
        """The last answers, the oldest first, each with the loop's time when it came."""

    def known(self, endpoint: Endpoint) -> Addresses | None:
        """The addresses of an endpoint, unless they are to be looked up; None where `find` is to be asked."""
        kept = self._kept.get(endpoint)
        if kept is None or self._now_s() - kept[1] >= self._keep_s / 2:
            return None
        return kept[0]

    async def find(self, endpoint: Endpoint, timeout_s: float) -> Addresses:
        """The addresses of an endpoint.

        Raises: LocalFailure: the name cannot be looked up, or not in time
        """
        stale: Addresses | None = None
        if endpoint in self._kept:
            addresses, at_s = self._kept[endpoint]
            age_s = self._now_s() - at_s
            if age_s < self._keep_s:
                if age_s >= self._keep_s / 2:
                    self._look_up(endpoint)
                return addresses
            if age_s < STALE_LIMIT_S:
                stale = addresses
        elif self._keep_s and (numeric := _of_number(endpoint)) is not None:
            self._keep(endpoint, numeric, inf)  # it is never old
            return numeric
        patience_s = timeout_s if stale is None else min(timeout_s, STALE_WAIT_S)
        try:
            async with asyncio.timeout(patience_s):
                return await asyncio.shield(self._look_up(endpoint))
        except (TimeoutError, _NoAnswer) as error:
            if stale is not None:
                return stale
            if isinstance(error, _NoAnswer):
                raise
            raise LocalFailure(f"no address for {endpoint.host} within {timeout_s:g} s") from None

    def _keep(self, endpoint: Endpoint, addresses: Addresses, at_s: float) -> None:
        self._kept.pop(endpoint, None)
        self._kept[endpoint] = addresses, at_s
        if len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]

    def forget(self, endpoint: Endpoint) -> None:
        """Nobody could be reached there: it may be elsewhere by now."""
        self._kept.pop(endpoint, None)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _look_up(self, endpoint: Endpoint) -> asyncio.Task[Addresses]:
        lookup = self._lookups.get(endpoint)
        if lookup is None:
            lookup = asyncio.get_running_loop().create_task(_look_up(endpoint))
            self._lookups[endpoint] = lookup
            lookup.add_done_callback(lambda task: self._ended(endpoint, task))
        return lookup

    def _ended(self, endpoint: Endpoint, lookup: asyncio.Task[Addresses]) -> None:
        del self._lookups[endpoint]
        if lookup.cancelled():
            return
        error = lookup.exception()  # read here, because asyncio logs an error that nobody has read
        if error is None and self._keep_s:
            self._keep(endpoint, lookup.result(), self._now_s())
        elif error is not None and not isinstance(error, _NoAnswer):
            self.forget(endpoint)  # there is no such name any more


def _of_number(endpoint: Endpoint) -> Addresses | None:
    """The addresses of a host that is an IP address, which nobody has to be asked for."""
    numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    if not 0 <= endpoint.port <= MOST_PORT:
        return None
    try:
        return socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=numeric)
    except (OSError, ValueError, OverflowError):
        return None


async def _look_up(endpoint: Endpoint) -> Addresses:
    """Look a name up in a thread of its own.

    The loop's threads are four, and slow names of brokers may have them all.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[Addresses] = loop.create_future()

    def tell(addresses: Addresses | None, error: Exception | None) -> None:
        if found.done():  # nobody waits any more
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
            addresses = _ask(endpoint.host, endpoint.port)
        except (OSError, ValueError, OverflowError, MemoryError) as error:
            failure = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(tell, addresses, failure)

    try:
        # A daemon: a process that ends does not wait for a name server.
        threading.Thread(target=work, name=f"look up {endpoint.host}", daemon=True).start()
    except RuntimeError as error:  # no thread can be made
        raise _NoAnswer(f"no address for {endpoint.host}: {error}") from error
    return await found


def _ask(host: str, port: int) -> Addresses:
    """Ask the system, for as long as that takes. Raises: as `socket.getaddrinfo`; ValueError: no port."""
    if not 0 <= port <= MOST_PORT:  # glibc makes another port of it
        raise ValueError(f"there is no port {port}")
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror:
        # A dot ends a complete name in DNS; a hosts file, and some resolvers, know the name without it.
        if not host.endswith("."):
            raise
        return socket.getaddrinfo(host[:-1], port, type=socket.SOCK_STREAM)


async def connect(addresses: Addresses) -> socket.socket:
    """Connect to the first of some addresses that takes it, and wait for none of them while others are left.

    Raises:
        LocalFailure: none took it, and not all of them could be tried
        OSError: all of them were tried; what became of the first. ``is_peers_doing``, or nobody answered
    Source: RFC 8305, sections 4 and 5
    """
    if len(addresses) == 1:
        try:
            return await _connect_once(addresses[0])
        except OSError as error:
            raise _failure([error]) from error
    attempts: list[asyncio.Task[socket.socket]] = []
    waiting = _by_turns(addresses)
    try:
        while True:
            attempts += [asyncio.create_task(_connect_once(each)) for each in waiting[:1]]
            del waiting[:1]
            under_way = [each for each in attempts if not each.done()]
            if under_way:
                await asyncio.wait(
                    under_way,
                    timeout=ATTEMPT_DELAY_S if waiting else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            for each in attempts:
                if each.done() and each.exception() is None:
                    attempts.remove(each)
                    return each.result()
            if not waiting and all(each.done() for each in attempts):
                raise _failure([each.exception() for each in attempts])
    finally:
        for each in attempts:
            each.add_done_callback(_give_up)
            each.cancel()


def _by_turns(addresses: Addresses) -> list[Address]:
    """The addresses with their families by turns; the first one stays the first."""
    by_family: dict[int, list[Address]] = {}
    for each in addresses:
        by_family.setdefault(each[0], []).append(each)
    rounds = zip_longest(*by_family.values())
    return [each for one in rounds for each in one if each is not None]


def _give_up(attempt: asyncio.Task[socket.socket]) -> None:
    """Another address was faster."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()


def _failure(errors: Iterable[BaseException | None]) -> BaseException:
    """What the failures of all addresses, in their order, come to."""
    failure: BaseException | None = None
    local: BaseException | None = None
    for error in errors:
        if not isinstance(error, OSError):
            return LocalFailure("no connection") if error is None else error
        if isinstance(error, TimeoutError) or is_peers_doing(error):
            failure = failure or error
        elif failure is None or error.errno not in _NO_ROUTE:
            # getaddrinfo puts addresses without a route last (RFC 6724, rule 1): there, they add nothing.
            local = local or error
    if local is not None:
        found = LocalFailure(f"no connection: {local}")
        found.__cause__ = local
        return found
    return failure or LocalFailure("no address")


async def _connect_once(to: Address) -> socket.socket:
    family, kind, protocol, _, address = to
    # asyncio wants sockets that do not block; they are inherited by nobody (PEP 446).
    sock = socket.socket(family, kind | socket.SOCK_NONBLOCK, protocol)
    try:
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock
