"""fleet.runtime.timerfd: timers of the kernel."""

from __future__ import annotations

import errno
import os
import resource
import select
import time

import pytest

from fleet.runtime import timerfd

LIMIT_S = 10.0


def test_timer_is_readable_at_first_and_then_regularly() -> None:
    began_s = time.monotonic()
    timer = timerfd.create(0.05, first_s=0.2)
    try:
        assert not timerfd.has_expired(timer)
        for nth in range(3):
            assert select.select([timer], [], [], LIMIT_S)[0] == [timer]
            assert time.monotonic() - began_s >= 0.2 + 0.05 * nth
            assert timerfd.has_expired(timer)
    finally:
        os.close(timer)


def test_expiration_is_reported_once_without_blocking() -> None:
    timer = timerfd.create(interval_s=600.0, first_s=0.001)
    try:
        assert select.select([timer], [], [], LIMIT_S)[0] == [timer]
        assert timerfd.has_expired(timer)
        assert not timerfd.has_expired(timer)
    finally:
        os.close(timer)


def test_whole_seconds_and_zero_are_valid_times() -> None:
    for interval_s, first_s in ((2.0, 0.0), (1.999_999_999_9, 0.0), (12.0, 1e-12)):
        timer = timerfd.create(interval_s, first_s)
        try:
            assert select.select([timer], [], [], LIMIT_S)[0] == [timer]
        finally:
            os.close(timer)


def test_child_process_does_not_inherit_the_timer() -> None:
    timer = timerfd.create(1.0, 1.0)
    assert not os.get_inheritable(timer)
    os.close(timer)


def test_too_many_open_files_raise() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(OSError, match="timerfd_create") as raised:
            timerfd.create(1.0, 1.0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert raised.value.errno == errno.EMFILE


def test_invalid_time_raises_and_leaves_nothing_open() -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="timerfd_settime") as raised:
        timerfd.create(-1.0, 1.0)
    assert raised.value.errno == errno.EINVAL
    assert os.listdir("/proc/self/fd") == before


def test_other_systems_have_no_kernel_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timerfd, "_LIBC", object())
    with pytest.raises(OSError, match="not available on this system"):
        timerfd.create(1.0, 1.0)
