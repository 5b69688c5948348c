"""Options of sockets, as the kernel has them."""

from __future__ import annotations

import errno

import pytest

from fleet.runtime.socket_options import is_gone


@pytest.mark.parametrize("number", [errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH])
def test_who_does_not_answer_the_kernel_is_gone(number: int) -> None:
    assert is_gone(OSError(number, "as the kernel says"))


@pytest.mark.parametrize("exc", [None, ConnectionResetError(errno.ECONNRESET, "reset"), EOFError()])
def test_who_ends_or_resets_a_connection_is_not(exc: Exception | None) -> None:
    assert not is_gone(exc)
