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
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

from fleet.model import Endpoint

Addresses: TypeAlias = Sequence[tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]]
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


class LocalFailure(OSError):
    """This member could not even ask: a name, a descriptor, memory or a route of its own is missing."""


def is_peers_doing(error: BaseException) -> bool:
    """Whether an error on a connection is a refusal, a reset, or an answer that is wrong."""
    return isinstance(error, _PEERS_DOING)


class Resolver:
    """Looks names up, each once at a time, however many wait for it and however slow it is."""

    def __init__(self) -> None:
        self._lookups: dict[Endpoint, asyncio.Task[Addresses]] = {}

    async def find(self, endpoint: Endpoint, timeout_s: float) -> Addresses:
        """The addresses of an endpoint.

        Raises: LocalFailure: the name cannot be looked up, or not in time
        """
        lookup = self._lookups.get(endpoint)
        if lookup is None:
            lookup = asyncio.get_running_loop().create_task(_look_up(endpoint))
            self._lookups[endpoint] = lookup
            lookup.add_done_callback(lambda task: self._ended(endpoint, task))
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(lookup)
        except TimeoutError:
            raise LocalFailure(f"no address for {endpoint.host} within {timeout_s:g} s") from None

    def _ended(self, endpoint: Endpoint, lookup: asyncio.Task[Addresses]) -> None:
        del self._lookups[endpoint]
        if not lookup.cancelled():
            lookup.exception()  # read here, because asyncio logs an error that nobody has read


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
            found.set_exception(LocalFailure(f"no address for {endpoint.host}: {error}"))

    def work() -> None:
        addresses, failure = None, None
        try:
            addresses = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
        except (OSError, ValueError, OverflowError, MemoryError) as error:
            failure = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(tell, addresses, failure)

    try:
        # A daemon: a process that ends does not wait for a name server.
        threading.Thread(target=work, name=f"look up {endpoint.host}", daemon=True).start()
    except RuntimeError as error:  # no thread can be made
        raise LocalFailure(f"no address for {endpoint.host}: {error}") from error
    return await found


async def connect(addresses: Addresses) -> socket.socket:
    """Connect to the first of some addresses that takes it.

    Raises:
        LocalFailure: none took it, and not all of them could be tried
        OSError: all of them were tried; what became of the first. ``is_peers_doing``, or nobody answered
    """
    failure: OSError | None = None
    local: OSError | None = None
    for family, kind, protocol, _, address in addresses:
        try:
            return await _connect_once(family, kind, protocol, address)
        except OSError as error:
            if isinstance(error, TimeoutError) or is_peers_doing(error):
                failure = failure or error
            elif failure is None or error.errno not in _NO_ROUTE:
                # getaddrinfo puts addresses without a route last (RFC 6724, rule 1): there, they add nothing.
                local = local or error
    if local is not None:
        raise LocalFailure(f"no connection: {local}") from local
    if failure is None:
        raise LocalFailure("no address")
    raise failure


async def _connect_once(family: int, kind: int, protocol: int, address: Any) -> socket.socket:
    # asyncio wants sockets that do not block; they are inherited by nobody (PEP 446).
    sock = socket.socket(family, kind | socket.SOCK_NONBLOCK, protocol)
    try:
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock
