"""fleet.runtime.ticker: periodic work at common moments."""

from __future__ import annotations

import asyncio
import errno
import os
import time

import pytest

from fleet.runtime import timerfd
from fleet.runtime.ticker import PeriodicCallback, until_tick
from tests.integration.in_process.proxy.test_worker import LIMIT_S, eventually


@pytest.fixture(params=["a timer of the kernel", "one of the loop"])
def timers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source of the timer, which does not change the behaviour."""
    if request.param == "one of the loop":

        def none(*_: float) -> int:
            raise OSError(errno.EMFILE, "timerfd_create")

        monkeypatch.setattr(timerfd, "create", none)


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
def test_next_tick_is_a_later_multiple_of_the_period(now_s: float, every_s: float, wait_s: float) -> None:
    assert until_tick(now_s, every_s) == pytest.approx(wait_s)


@pytest.mark.parametrize("step", range(100))
def test_ticks_are_at_most_eleven_tenths_of_a_period_apart(step: int) -> None:
    every_s = 0.25
    now_s = step * 0.0173
    wait_s = until_tick(now_s, every_s)
    assert 0.1 * every_s <= wait_s + 1e-9
    assert wait_s <= 1.1 * every_s + 1e-9
    assert (now_s + wait_s) / every_s == pytest.approx(round((now_s + wait_s) / every_s))


@pytest.mark.usefixtures("timers")
async def test_callbacks_started_at_other_times_wake_up_together() -> None:
    woken: list[float] = []
    regular = []
    for _ in range(3):
        regular.append(PeriodicCallback(0.5, lambda: woken.append(time.monotonic())))
        await a_tick(0.001)
    await eventually(lambda: len(woken) >= 3, "all of them, once")
    for each in regular:
        each.stop()
    apart = [round((each - woken[0]) / 0.5) for each in woken]
    assert all(each in (-1, 0, 1) for each in apart)
    assert len(set(apart)) <= 2  # two ticks, if the three are on both sides of a tick


@pytest.mark.usefixtures("timers")
async def test_callback_repeats_until_stopped() -> None:
    woken: list[float] = []
    regular = PeriodicCallback(0.01, lambda: woken.append(time.monotonic()))
    await eventually(lambda: len(woken) >= 5, "five times")
    regular.stop()
    so_far = len(woken)
    await a_tick(0.03)
    assert len(woken) == so_far
    assert not regular.failed.done()


@pytest.mark.usefixtures("timers")
async def test_failed_callback_is_reported_and_not_repeated() -> None:
    tried = 0

    def fail() -> None:
        nonlocal tried
        tried += 1
        raise RuntimeError("no")

    regular = PeriodicCallback(0.01, fail)
    with pytest.raises(RuntimeError, match="no"):
        await asyncio.wait_for(regular.failed, LIMIT_S)
    await a_tick(0.03)
    assert tried == 1


async def test_the_loop_has_no_timer_to_set_before_each_wait() -> None:
    # Found: a wait with a time-out makes the kernel start and cancel a timer, 2.6 % of a worker's time for
    # records that come now and then.
    loop = asyncio.get_running_loop()
    timed: list[float] = []

    def call_later(delay_s: float, *_: object) -> None:
        timed.append(delay_s)
        enough.set()

    before = set(os.listdir("/proc/self/fd"))
    woken: list[None] = []
    enough = asyncio.Event()

    def wake() -> None:
        woken.append(None)
        if len(woken) == 3:
            enough.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "call_later", call_later)
        regular = PeriodicCallback(0.01, wake)
        await enough.wait()
    assert timed == []
    regular.stop()
    regular.stop()
    assert set(os.listdir("/proc/self/fd")) == before


async def a_tick(every_s: float) -> None:
    """One tick of another period."""
    there = asyncio.Event()
    regular = PeriodicCallback(every_s, there.set)
    await asyncio.wait_for(there.wait(), LIMIT_S)
    regular.stop()
