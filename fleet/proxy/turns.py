"""Long work in small steps, of which a worker takes one in each turn of its event loop."""

from __future__ import annotations

from collections.abc import Callable


class TurnQueue:
    """Steps that wait for their turn.

    One for all connections of a worker: if each of a thousand took its own step, the turn would be as long as
    a thousand steps.

    Args: call_soon: has something called in the next turn of the event loop.
    """

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._steps: dict[Callable[[], None], None] = {}
        """In the order in which they came."""
        self._is_called = False

    def add(self, step: Callable[[], None]) -> None:
        """Have it called once, after those that wait; it may wait already."""
        self._steps[step] = None
        self._call()

    def _call(self) -> None:
        if self._steps and not self._is_called:
            self._is_called = True
            self._call_soon(self._take)

    def _take(self) -> None:
        self._is_called = False
        step = next(iter(self._steps))
        del self._steps[step]
        self._call()
        step()
