"""fleet.ticks: regular work at moments that are the same for all of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from fleet.ticks import Regularly, until_tick

LIMIT_S = 30.0


@pytest.mark.parametrize(
    ("now_s", "every_s", "wait_s"),
    [
        (0.0, 1.0, 1.0),
        (7.0, 1.0, 1.0),
        (7.3, 1.0, 0.7),
        (6.999, 1.0, 1.001),  # the timer was early: it was for the tick at 7
        (7.001, 1.0, 0.999),
        (7.3, 0.25, 0.2),
    ],
)
def test_the_next_tick_is_a_multiple_and_never_the_one_that_was(
    now_s: float, every_s: float, wait_s: float
) -> None:
    assert until_tick(now_s, every_s) == pytest.approx(wait_s)


@pytest.mark.parametrize("step", range(100))
def test_ticks_are_apart_by_their_time_and_a_tenth_at_most(step: int) -> None:
    every_s = 0.25
    now_s = step * 0.0173
    wait_s = until_tick(now_s, every_s)
    assert 0.1 * every_s <= wait_s + 1e-9
    assert wait_s <= 1.1 * every_s + 1e-9
    assert (now_s + wait_s) / every_s == pytest.approx(round((now_s + wait_s) / every_s))


async def test_whoever_has_begun_at_other_times_wakes_up_together() -> None:
    woken: list[float] = []
    regular = []
    for _ in range(3):
        regular.append(Regularly(0.5, lambda: woken.append(time.monotonic())))
        await asyncio.sleep(0.001)
    await until(lambda: len(woken) >= 3)
    for each in regular:
        each.stop()
    apart = [round((each - woken[0]) / 0.5) for each in woken]
    assert all(each in (-1, 0, 1) for each in apart)
    assert len(set(apart)) <= 2  # two ticks, where the three stand on either side of one


async def test_it_goes_on_until_it_is_stopped() -> None:
    woken: list[float] = []
    regular = Regularly(0.01, lambda: woken.append(time.monotonic()))
    await until(lambda: len(woken) >= 5)
    regular.stop()
    so_far = len(woken)
    after = asyncio.Event()
    other = Regularly(0.03, after.set)
    await after.wait()
    other.stop()
    assert len(woken) == so_far
    assert not regular.failed.done()


async def test_what_fails_is_told_and_not_tried_again() -> None:
    tried = 0

    def fail() -> None:
        nonlocal tried
        tried += 1
        raise RuntimeError("no")

    regular = Regularly(0.01, fail)
    with pytest.raises(RuntimeError, match="no"):
        await asyncio.wait_for(regular.failed, LIMIT_S)
    after = asyncio.Event()
    other = Regularly(0.03, after.set)
    await after.wait()
    other.stop()
    assert tried == 1


async def until(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not met():  # noqa: ASYNC110 (whoever meets it tells nobody)
            await asyncio.sleep(0.001)
