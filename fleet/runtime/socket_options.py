"""Options of TCP connections, and how the fleet accepts connections."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import socket
import struct
import termios
from collections.abc import Callable
from functools import cache
from ipaddress import ip_address
from typing import Final, NoReturn

BROKER_VANISHED_S: Final = 150.0
"""How long a broker may leave the kernel unanswered: as long as a client, by default."""
ACCEPT_BATCH: Final = 8
"""How many connections are accepted in one iteration of the event loop, which takes about a millisecond."""
ACCEPT_INTERVAL_S: Final = 0.002
"""The pause between two batches, for other work. A queue of 1,000 unknown clients takes half a second."""
ACCEPT_RETRY_S: Final = 0.5
"""The pause after a failure to accept, for example if no file descriptor is left."""
_UNANSWERED: Final = frozenset((errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH))

# Constants of this module, because each connection to a broker sets all four. Not all systems have them.
_SOCKET: Final[int] = socket.SOL_SOCKET
_TCP: Final[int] = socket.IPPROTO_TCP
_KEEPALIVE: Final[int] = socket.SO_KEEPALIVE
_KEEPIDLE: Final[int] = getattr(socket, "TCP_KEEPIDLE", 0)
_KEEPINTVL: Final[int] = getattr(socket, "TCP_KEEPINTVL", 0)
_KEEPCNT: Final[int] = getattr(socket, "TCP_KEEPCNT", 0)
_INET: Final[int] = socket.AF_INET
_STREAM: Final[int] = socket.SOCK_STREAM
_Socket: Final = socket.SocketType
"""The plain socket type, without the additions of `socket.socket`."""


def no_delay(sock: socket.socket) -> None:
    """Send small segments immediately. Sockets other than TCP are left unchanged."""
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def keep_alive(fd: int, vanished_timeout_s: float) -> None:
    """Make the kernel probe the other end of a TCP connection, and close the connection if it has vanished.

    Accepted connections inherit the options from their listening socket. Source: socket(7), tcp(7)

    Args:
        vanished_timeout_s: the silence after which the connection is closed, in whole seconds. The first four
            tenths pass without a probe, then one probe follows in each fifteenth.
    """
    idle_s, interval_s, probes = _probe_times(vanished_timeout_s)
    sock = _Socket(_INET, _STREAM, 0, fd)  # the real family may differ, which does not matter here
    try:
        sock.setsockopt(_SOCKET, _KEEPALIVE, 1)
        sock.setsockopt(_TCP, _KEEPIDLE, idle_s)
        sock.setsockopt(_TCP, _KEEPINTVL, interval_s)
        sock.setsockopt(_TCP, _KEEPCNT, probes)
    finally:
        sock.detach()


@cache
def _probe_times(vanished_timeout_s: float) -> tuple[int, int, int]:
    """The silence before the first probe, the interval, and the number of probes; cached."""
    idle_s, interval_s = max(1, round(vanished_timeout_s * 0.4)), max(1, round(vanished_timeout_s / 15))
    return idle_s, interval_s, max(1, round((vanished_timeout_s - idle_s) / interval_s))


def has_vanished(exc: BaseException | None) -> bool:
    """Whether a connection was lost because the other end no longer answers the kernel."""
    return isinstance(exc, OSError) and exc.errno in _UNANSWERED


async def accept_connections(
    listener: socket.socket,
    on_accepted: Callable[[socket.socket, object], None],
    on_failure: Callable[[OSError], None],
) -> NoReturn:
    """Accept connections, and leave half of the event loop's time to others, until cancelled.

    Args:
        listener: a non-blocking listening socket.
        on_accepted: called with each connection and the address of its other end; must not block.
        on_failure: called if connections cannot be accepted for a while.
    """
    loop = asyncio.get_running_loop()
    while True:
        try:
            sock, address = await loop.sock_accept(listener)
        except ConnectionAbortedError:  # the client has already disconnected
            continue
        except OSError as error:
            on_failure(error)
            await asyncio.sleep(ACCEPT_RETRY_S)
            continue
        on_accepted(sock, address)
        for _ in range(ACCEPT_BATCH - 1):
            try:
                sock, address = listener.accept()
            except OSError:  # the queue is empty, or the next iteration reports the error
                break
            sock.setblocking(False)
            on_accepted(sock, address)
        await asyncio.sleep(ACCEPT_INTERVAL_S)


def is_local_address(host: str) -> bool:
    """Whether an IP address belongs to this machine. False for a name, which is not looked up."""
    try:
        version = ip_address(host).version
        with socket.socket(socket.AF_INET if version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as sock:
            sock.bind((host, 0))
    except (OSError, ValueError):
        return False
    return True


def unread_bytes(transport: asyncio.Transport) -> int:
    """The number of bytes that have arrived at a transport's socket and are unread."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return 0
    (waiting,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4)))
    return int(waiting)


def is_secured(transport: asyncio.Transport) -> bool:
    """Whether a transport uses TLS, so that the kernel sees other bytes than the transport."""
    return transport.get_extra_info("ssl_object") is not None
