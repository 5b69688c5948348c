"""Long work in small steps, of which a worker takes one in each turn of its event loop."""

from __future__ import annotations

from collections.abc import Callable


class TurnQueue:
    """Steps that wait for their turn.

    One for all connections of a worker: if each of a thousand took its own step, the turn would be as long as
    a thousand steps. Addresses take turns, and the connections of each: a thousand of one address hold up
    another one as one does.

    Args: call_soon: has something called in the next turn of the event loop.
    """

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._steps: dict[str, dict[Callable[[], None], None]] = {}
        """By address; of both the one that waits for longest is the first."""
        self._is_called = False

    def __len__(self) -> int:
        """How many wait."""
        return sum(map(len, self._steps.values()))

    def add(self, source: str, step: Callable[[], None]) -> None:
        """Have it called once, after those of the same address that wait; it may wait already."""
        self._steps.setdefault(source, {})[step] = None
        self._schedule()

    def _schedule(self) -> None:
        if self._steps and not self._is_called:
            self._is_called = True
            self._call_soon(self._run_next)

    def _run_next(self) -> None:
        self._is_called = False
        source = next(iter(self._steps))
        steps = self._steps.pop(source)
        step = next(iter(steps))
        del steps[step]
        if steps:
            self._steps[source] = steps
        self._schedule()
        step()
