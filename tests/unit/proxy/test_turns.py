"""Steps of long work: one in each turn of the event loop."""

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


def test_each_turn_takes_a_single_step_in_order() -> None:
    loop, taken = Loop(), list[str]()
    turns = TurnQueue(loop.call_soon)

    def first() -> None:
        taken.append("first")
        if len(taken) < 5:
            turns.add("192.0.2.1", first)

    def second() -> None:
        taken.append("second")

    turns.add("192.0.2.1", first)
    turns.add("192.0.2.1", second)
    turns.add("192.0.2.1", second)
    for number in range(1, 4):
        loop.turn()
        assert len(taken) == number
    assert taken == ["first", "second", "first"]


def test_failing_step_does_not_delay_others() -> None:
    loop, taken = Loop(), list[str]()
    turns = TurnQueue(loop.call_soon)

    def fails() -> None:
        raise ValueError("fails")

    turns.add("192.0.2.1", fails)
    turns.add("192.0.2.1", lambda: taken.append("next"))
    with pytest.raises(ValueError, match="fails"):
        loop.turn()
    loop.turn()
    assert taken == ["next"]
    assert not loop.ready


def test_addresses_take_turns() -> None:
    """Found: a response to one client waited for a step of each of a thousand connections of another
    client."""
    loop, taken = Loop(), list[str]()
    turns = TurnQueue(loop.call_soon)

    def of_many(number: int) -> Callable[[], None]:
        return lambda: taken.append(f"many {number}")

    def other() -> None:
        taken.append("other")
        if taken.count("other") < 3:
            turns.add("192.0.2.2", other)

    for number in range(5):
        turns.add("192.0.2.1", of_many(number))
    turns.add("192.0.2.2", other)
    assert len(turns) == 6
    while len(turns):
        loop.turn()
    assert taken == ["many 0", "other", "many 1", "other", "many 2", "other", "many 3", "many 4"]
