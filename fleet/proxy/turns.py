"""Long work in small steps: a worker takes one step in each turn of its event loop."""

from __future__ import annotations

from collections.abc import Callable


class TurnQueue:
    """Steps that wait for their turn.

    All connections of a worker share one queue. If each of a thousand connections took its own step, a turn
    would be as long as a thousand steps. Addresses take turns, and so do the connections of each address: a
    thousand connections of one address delay another address no more than one connection does.

    Args: call_soon: calls a function in the next turn of the event loop.
    """

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._steps: dict[str, dict[Callable[[], None], None]] = {}
        """Address → its steps; the address, and the step, that waits for longest comes first."""
        self._is_called = False

    def __len__(self) -> int:
        """Number of steps that wait."""
        return sum(map(len, self._steps.values()))

    def add(self, source: str, step: Callable[[], None]) -> None:
        """Queue a step after those of the same address. Does nothing if the step waits already."""
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
