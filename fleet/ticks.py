"""What a process does regularly, at moments that all of it shares: it wakes up once for several things.

A process that has nothing else to do pays for its wake-ups, and for little else.
"""

from __future__ import annotations

import asyncio
import math
import time
from typing import Final

_BEGAN_S: Final = time.monotonic()
"""Each process counts from a moment of its own: those of one machine do not all wake up together."""


EARLY: Final = 0.1
"""By so much of its time a tick may come before it is due."""


async def next_tick(every_s: float) -> None:
    """Sleep until the next multiple of a time, counted from when the process began."""
    await asyncio.sleep(until_tick(time.monotonic() - _BEGAN_S, every_s))


def until_tick(now_s: float, every_s: float) -> float:
    """How long it is to the next multiple of ``every_s``: from a tenth of it to eleven tenths.

    Timers are early or late by a little. Whoever is early has had that tick, and waits for the next.
    """
    return (math.floor(now_s / every_s + EARLY) + 1) * every_s - now_s
