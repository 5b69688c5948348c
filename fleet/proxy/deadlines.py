"""Time limits for many things with the same duration."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

ThingT = TypeVar("ThingT")


class Deadlines(Generic[ThingT]):
    """Time limits that share one timer, because most things end before the timer is due.

    Args:
        limit_s: how long each thing may take.
        on_expired: called with each thing that has not ended by then.
    """

    def __init__(self, limit_s: float, on_expired: Callable[[ThingT], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._limit_s = limit_s
        self._on_expired = on_expired
        self._due_s: dict[ThingT, float] = {}
        """Thing → when its time is over; the oldest comes first."""
        self._has_timer = False

    def __len__(self) -> int:
        return len(self._due_s)

    def begin(self, thing: ThingT) -> None:
        """Start the time limit of a thing, which must not be running."""
        self._due_s[thing] = self._loop.time() + self._limit_s
        if not self._has_timer:
            self._check_later(self._limit_s)

    def end(self, thing: ThingT) -> None:
        """Stop the time limit of a thing; does nothing if none is running."""
        self._due_s.pop(thing, None)

    def _check_later(self, delay_s: float) -> None:
        self._has_timer = True
        self._loop.call_later(delay_s, self._check)

    def _check(self) -> None:
        self._has_timer = False
        now_s = self._loop.time()
        while self._due_s:
            thing, due_s = next(iter(self._due_s.items()))
            if due_s > now_s:
                self._check_later(due_s - now_s)
                return
            del self._due_s[thing]
            self._on_expired(thing)
