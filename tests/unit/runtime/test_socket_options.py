"""Options of sockets, as reported by the kernel."""

from __future__ import annotations

import errno

import pytest

from fleet.runtime.socket_options import has_vanished


@pytest.mark.parametrize("number", [errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH])
def test_peer_that_does_not_answer_the_kernel_has_vanished(number: int) -> None:
    assert has_vanished(OSError(number, "as reported by the kernel"))


@pytest.mark.parametrize("exc", [None, ConnectionResetError(errno.ECONNRESET, "reset"), EOFError()])
def test_peer_that_ends_a_connection_has_not_vanished(exc: Exception | None) -> None:
    assert not has_vanished(exc)
