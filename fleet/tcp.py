"""The options that TCP connections are given."""

from __future__ import annotations

import socket
from typing import Final

KEEPALIVE_IDLE_S: Final = 60
"""The silence before the kernel asks for the first time whether the other end is still there."""
KEEPALIVE_INTERVAL_S: Final = 10
"""Between two questions."""


def no_delay(sock: socket.socket) -> None:
    """Send small segments at once. Anything but TCP is left alone."""
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def keep_alive(fd: int) -> None:
    """Have the kernel ask whether the other end of a TCP connection is still there.

    Connections inherit it from the socket that they are accepted by. Source: socket(7), tcp(7)
    """
    # Without what `socket.socket` adds: each connection to a broker passes here. The family is not looked at.
    sock = socket.SocketType(socket.AF_INET, socket.SOCK_STREAM, 0, fd)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    finally:
        sock.detach()
