"""A timer of the kernel that an event loop can watch like a socket: timerfd_create(2).

A loop with its own timers passes a time-out to the kernel with each wait, and the kernel sets and cancels a
timer each time. A loop that watches a kernel timer waits without a time-out.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Final

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_CLOCK_MONOTONIC: Final = 1
_TFD_NONBLOCK: Final = os.O_NONBLOCK if sys.platform == "linux" else 0
_TFD_CLOEXEC: Final = os.O_CLOEXEC if sys.platform == "linux" else 0
_NS_PER_S: Final = 1_000_000_000
_MIN_FIRST_S: Final = 1e-9
"""The shortest first time; zero would disable the timer."""
_EXPIRATIONS_BYTES: Final = 8


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("it_interval", _Timespec), ("it_value", _Timespec))


def create(interval_s: float, first_s: float) -> int:
    """Create a descriptor that is readable after ``first_s``, and again after each ``interval_s``.

    The caller closes it. From Python 3.13 on `os` has this function, too.

    Raises:
        OSError: this is not Linux, or too many files are open.
    """
    if not hasattr(_LIBC, "timerfd_create"):
        raise OSError("timerfd_create is not available on this system")
    descriptor: int = _LIBC.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "timerfd_create")
    times = _Itimerspec(_timespec(interval_s), _timespec(max(_MIN_FIRST_S, first_s)))
    if _LIBC.timerfd_settime(descriptor, 0, ctypes.byref(times), None) != 0:
        error = OSError(ctypes.get_errno(), "timerfd_settime")
        os.close(descriptor)
        raise error
    return descriptor


def has_expired(descriptor: int) -> bool:
    """Whether the timer has expired since the last call."""
    try:
        return bool(os.read(descriptor, _EXPIRATIONS_BYTES))
    except BlockingIOError:
        return False


def _timespec(time_s: float) -> _Timespec:
    seconds, ns = divmod(round(time_s * _NS_PER_S), _NS_PER_S)
    return _Timespec(seconds, ns)
