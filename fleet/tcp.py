"""The options that TCP connections are given."""

from __future__ import annotations

import socket


def no_delay(sock: socket.socket) -> None:
    """Send small segments at once. Anything but TCP is left alone."""
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def keep_alive(sock: socket.socket, idle_s: int, interval_s: int) -> None:
    """Have the kernel ask whether the other end is still there. Anything but TCP is left alone.

    Args:
        idle_s: the silence before the first question; interval_s: between two of them.
    """
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s)
