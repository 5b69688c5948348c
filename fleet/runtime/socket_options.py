"""The options that TCP connections are given, and how strangers' connections are accepted."""

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
"""How long a broker may not answer the kernel: as long as a client, by default."""
ACCEPT_BATCH: Final = 8
"""How many connections are accepted in one turn of the event loop: they take it about a millisecond."""
ACCEPT_INTERVAL_S: Final = 0.002
"""Between two turns, for other work. A queue of 1,000 strangers, who wait in front of others, is through in
about half a second."""
ACCEPT_RETRY_S: Final = 0.5
"""After a failure to accept, such as that no file descriptor is left."""
_UNANSWERED: Final = frozenset((errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH))

# By names of this module: each connection to a broker is given the four. Not all systems have them.
_SOCKET: Final[int] = socket.SOL_SOCKET
_TCP: Final[int] = socket.IPPROTO_TCP
_KEEPALIVE: Final[int] = socket.SO_KEEPALIVE
_KEEPIDLE: Final[int] = getattr(socket, "TCP_KEEPIDLE", 0)
_KEEPINTVL: Final[int] = getattr(socket, "TCP_KEEPINTVL", 0)
_KEEPCNT: Final[int] = getattr(socket, "TCP_KEEPCNT", 0)
_INET: Final[int] = socket.AF_INET
_STREAM: Final[int] = socket.SOCK_STREAM
_Socket: Final = socket.SocketType
"""Without what `socket.socket` adds."""


def no_delay(sock: socket.socket) -> None:
    """Send small segments at once. Anything but TCP is left alone."""
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def keep_alive(fd: int, vanished_timeout_s: float) -> None:
    """Have the kernel ask whether the other end of a TCP connection is still there, and end it if not.

    Connections inherit it from the socket that they are accepted by. Source: socket(7), tcp(7)

    Args:
        vanished_timeout_s: the silence after which it ends, to whole seconds: the first four tenths of it
            without a question, and then one in each fifteenth.
    """
    idle_s, interval_s, questions = _questions(vanished_timeout_s)
    sock = _Socket(_INET, _STREAM, 0, fd)  # whatever its family is: nothing here asks for that
    try:
        sock.setsockopt(_SOCKET, _KEEPALIVE, 1)
        sock.setsockopt(_TCP, _KEEPIDLE, idle_s)
        sock.setsockopt(_TCP, _KEEPINTVL, interval_s)
        sock.setsockopt(_TCP, _KEEPCNT, questions)
    finally:
        sock.detach()


@cache
def _questions(vanished_timeout_s: float) -> tuple[int, int, int]:
    """The silence before the first one, the time between two, and how many; not once for each connection."""
    idle_s, interval_s = max(1, round(vanished_timeout_s * 0.4)), max(1, round(vanished_timeout_s / 15))
    return idle_s, interval_s, max(1, round((vanished_timeout_s - idle_s) / interval_s))


def is_gone(exc: BaseException | None) -> bool:
    """Whether a connection was lost because nobody answers the kernel any more."""
    return isinstance(exc, OSError) and exc.errno in _UNANSWERED


async def accept_connections(
    listener: socket.socket,
    on_accepted: Callable[[socket.socket, object], None],
    on_failure: Callable[[OSError], None],
) -> NoReturn:
    """Accept connections, and leave half of the event loop's time to others, until cancelled.

    Args:
        listener: a listening socket that does not block.
        on_accepted: called with each connection and the address of its other end; must not block.
        on_failure: called where none can be accepted for a while.
    """
    loop = asyncio.get_running_loop()
    while True:
        try:
            sock, address = await loop.sock_accept(listener)
        except ConnectionAbortedError:  # it has gone again
            continue
        except OSError as error:
            on_failure(error)
            await asyncio.sleep(ACCEPT_RETRY_S)
            continue
        on_accepted(sock, address)
        for _ in range(ACCEPT_BATCH - 1):
            try:
                sock, address = listener.accept()
            except OSError:  # nobody waits, or what the next turn reports
                break
            sock.setblocking(False)
            on_accepted(sock, address)
        await asyncio.sleep(ACCEPT_INTERVAL_S)


def is_of_this_machine(host: str) -> bool:
    """Whether an IP address is one of this machine's; a name is looked up by nobody, and is not."""
    try:
        version = ip_address(host).version
        with socket.socket(socket.AF_INET if version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as sock:
            sock.bind((host, 0))
    except (OSError, ValueError):
        return False
    return True


def unread_bytes(transport: asyncio.Transport) -> int:
    """What has come to a transport's socket, and nobody has read."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return 0
    (waiting,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4)))
    return int(waiting)


def is_secured(transport: asyncio.Transport) -> bool:
    """Whether what passes through the kernel is not what passes through the transport."""
    return transport.get_extra_info("ssl_object") is not None
