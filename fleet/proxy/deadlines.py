"""Time limits of many things that may all take equally long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

ThingT = TypeVar("ThingT")


class Deadlines(Generic[ThingT]):
    """One timer serves all of them: most are done before it is due.

    Args:
        limit_s: how long each may take.
        over: called with each that is not done by then.
    """

    def __init__(self, limit_s: float, over: Callable[[ThingT], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._limit_s = limit_s
        self._over = over
        self._due_s: dict[ThingT, float] = {}
        """The oldest first."""
        self._timed = False

    def __len__(self) -> int:
        return len(self._due_s)

    def begin(self, thing: ThingT) -> None:
        """Have its time run from now on; it must not be under way."""
        self._due_s[thing] = self._loop.time() + self._limit_s
        if not self._timed:
            self._look_later(self._limit_s)

    def done(self, thing: ThingT) -> None:
        """It is over, or was never begun."""
        self._due_s.pop(thing, None)

    def _look_later(self, delay_s: float) -> None:
        self._timed = True
        self._loop.call_later(delay_s, self._look)

    def _look(self) -> None:
        self._timed = False
        now_s = self._loop.time()
        while self._due_s:
            thing, due_s = next(iter(self._due_s.items()))
            if due_s > now_s:
                self._look_later(due_s - now_s)
                return
            del self._due_s[thing]
            self._over(thing)
