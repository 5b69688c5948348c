"""Periodic callbacks of a process at common moments, so that one wake-up serves several callbacks.

In an idle process, wake-ups are nearly the only cost.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable
from typing import Final

from fleet.runtime import timerfd

_BEGAN_S: Final = time.monotonic()
"""Each process counts from its own start, so that the processes of a machine do not all wake up together."""


EARLY_TICK_SHARE: Final = 0.1
"""A tick may be early by this share of its period."""


class PeriodicCallback:
    """Calls a function at each multiple of a period, until it is stopped or the function fails.

    It uses a timer and no task: the cost of a wake-up in an idle process depends on the amount of code and
    the number of objects that it touches, because none of them is cached. It uses a timer of the kernel, so
    that the waits of the loop need no timer. If the kernel has none, it uses a timer of the loop.

    Args:
        every_s: the period, counted from the start of the process.
        act: must not wait.

    ``failed`` gets the exception of ``act``, which is then not called again.
    """

    __slots__ = ("_act", "_descriptor", "_every_s", "_loop", "_timer", "failed")

    def __init__(self, every_s: float, act: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._every_s = every_s
        self._act = act
        self.failed: asyncio.Future[None] = self._loop.create_future()
        self._descriptor: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        try:
            self._descriptor = timerfd.create(every_s, self._until_next())
        except OSError:  # another system than Linux, or too many open files
            self._timer = self._loop.call_later(self._until_next(), self._tick)
        else:
            self._loop.add_reader(self._descriptor, self._on_timer)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    def fail(self, error: Exception) -> None:
        """Report that work which ``act`` has started has failed later."""
        self.stop()
        if not self.failed.done():
            self.failed.set_exception(error)

    def _until_next(self) -> float:
        return until_tick(time.monotonic() - _BEGAN_S, self._every_s)

    def _on_timer(self) -> None:
        if self._descriptor is not None and timerfd.has_expired(self._descriptor):
            self._do()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._until_next(), self._tick)
        self._do()

    def _do(self) -> None:
        try:
            self._act()
        except Exception as error:
            self.fail(error)


def until_tick(now_s: float, every_s: float) -> float:
    """The time to the next multiple of ``every_s``: more than a tenth, at most eleven tenths of it.

    Timers are slightly early or late. An early timer has already had its tick, and waits for the next one.
    """
    return (math.floor(now_s / every_s + EARLY_TICK_SHARE) + 1) * every_s - now_s
