"""Time limits of the same length for many items, such as handshakes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")


class Deadlines(Generic[ItemT]):
    """Time limits that share one timer, because most items end before the timer is due.

    Args:
        limit_s: how long each item may take.
        on_expired: called with each item that has not ended in time.
    """

    def __init__(self, limit_s: float, on_expired: Callable[[ItemT], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._limit_s = limit_s
        self._on_expired = on_expired
        self._due_s: dict[ItemT, float] = {}
        """Item → when its time is over; the oldest comes first."""
        self._has_timer = False

    def __len__(self) -> int:
        return len(self._due_s)

    def begin(self, item: ItemT) -> None:
        """Start the time limit of an item, which must not be running."""
        self._due_s[item] = self._loop.time() + self._limit_s
        if not self._has_timer:
            self._check_later(self._limit_s)

    def end(self, item: ItemT) -> None:
        """Stop the time limit of an item; does nothing if none is running."""
        self._due_s.pop(item, None)

    def _check_later(self, delay_s: float) -> None:
        self._has_timer = True
        self._loop.call_later(delay_s, self._check)

    def _check(self) -> None:
        self._has_timer = False
        now_s = self._loop.time()
        while self._due_s:
            item, due_s = next(iter(self._due_s.items()))
            if due_s > now_s:
                self._check_later(due_s - now_s)
                return
            del self._due_s[item]
            self._on_expired(item)
