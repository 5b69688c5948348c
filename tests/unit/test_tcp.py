"""Options of sockets, as the kernel has them."""

from __future__ import annotations

import errno
import socket

import pytest

from fleet.tcp import is_gone, keep_alive

ASKING = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)


@pytest.mark.parametrize(
    ("vanished_timeout_s", "asking"),
    [(150.0, (60, 10, 9)), (3600.0, (1440, 240, 9)), (8.0, (3, 1, 5)), (0.1, (1, 1, 1))],
)
def test_what_a_listening_socket_accepts_is_watched_by_the_kernel_as_it_is(
    vanished_timeout_s: float, asking: tuple[int, int, int]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        keep_alive(listening.fileno(), vanished_timeout_s)
        with socket.create_connection(listening.getsockname()), listening.accept()[0] as accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert tuple(accepted.getsockopt(socket.IPPROTO_TCP, each) for each in ASKING) == asking


@pytest.mark.parametrize("number", [errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH])
def test_who_does_not_answer_the_kernel_is_gone(number: int) -> None:
    assert is_gone(OSError(number, "as the kernel says"))


@pytest.mark.parametrize("exc", [None, ConnectionResetError(errno.ECONNRESET, "reset"), EOFError()])
def test_who_ends_or_resets_a_connection_is_not(exc: Exception | None) -> None:
    assert not is_gone(exc)
