"""One step in each turn of the event loop, whoever waits."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fleet.proxy.turns import TurnQueue


class Loop:
    """An event loop whose turns are called by the test."""

    def __init__(self) -> None:
        self.ready: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.ready.append(callback)

    def turn(self) -> None:
        ready, self.ready = self.ready, []
        for each in ready:
            each()


def test_one_step_is_taken_in_a_turn_in_order() -> None:
    loop, taken = Loop(), list[str]()
    turns = TurnQueue(loop.call_soon)

    def first() -> None:
        taken.append("first")
        if len(taken) < 5:
            turns.add(first)

    def second() -> None:
        taken.append("second")

    turns.add(first)
    turns.add(second)
    turns.add(second)
    for number in range(1, 4):
        loop.turn()
        assert len(taken) == number
    assert taken == ["first", "second", "first"]


def test_step_that_fails_holds_up_nobody() -> None:
    loop, taken = Loop(), list[str]()
    turns = TurnQueue(loop.call_soon)

    def fails() -> None:
        raise ValueError("fails")

    turns.add(fails)
    turns.add(lambda: taken.append("next"))
    with pytest.raises(ValueError, match="fails"):
        loop.turn()
    loop.turn()
    assert taken == ["next"]
    assert not loop.ready
