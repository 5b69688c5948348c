"""What a process does regularly, at moments that all of it shares: it wakes up once for several things.

A process that has nothing else to do pays for its wake-ups, and for little else.
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
"""Each process counts from a moment of its own: those of one machine do not all wake up together."""


EARLY: Final = 0.1
"""By so much of its time a tick may come before it is due."""


class PeriodicCallback:
    """Calls a function at each multiple of a time, until it is stopped or the function fails.

    With a timer and no task: what wakes up a process that has nothing else to do costs by how much code and
    how many objects it touches, for nothing of them is in a cache. With a timer of the kernel, so that the
    loop's waits need none; where there is none to be had, with one of the loop.

    Args:
        every_s: the time; it is counted from when the process began.
        act: does not wait for anything.

    ``failed`` gets the exception of ``act``, after which it is not called again.
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
            self._descriptor = timerfd.every(every_s, self._until_next())
        except OSError:  # another system than Linux, or too many open files
            self._timer = self._loop.call_later(self._until_next(), self._tick)
        else:
            self._loop.add_reader(self._descriptor, self._expired)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    def fail(self, error: Exception) -> None:
        """What ``act`` has begun, and goes on later, has failed."""
        self.stop()
        if not self.failed.done():
            self.failed.set_exception(error)

    def _until_next(self) -> float:
        return until_tick(time.monotonic() - _BEGAN_S, self._every_s)

    def _expired(self) -> None:
        if self._descriptor is not None and timerfd.passed(self._descriptor):
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
    """How long it is to the next multiple of ``every_s``: from a tenth of it to eleven tenths.

    Timers are early or late by a little. Whoever is early has had that tick, and waits for the next.
    """
    return (math.floor(now_s / every_s + EARLY) + 1) * every_s - now_s
