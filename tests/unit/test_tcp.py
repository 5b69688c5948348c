"""Options of sockets, as the kernel has them."""

from __future__ import annotations

import socket

from fleet.tcp import KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, keep_alive


def test_what_a_listening_socket_accepts_is_watched_by_the_kernel_as_it_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        keep_alive(listening.fileno())
        with socket.create_connection(listening.getsockname()), listening.accept()[0] as accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == KEEPALIVE_IDLE_S
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == KEEPALIVE_INTERVAL_S
