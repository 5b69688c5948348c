from __future__ import annotations

import asyncio
import threading
import time
from itertools import islice

import pytest

from fleet.core.errors import DemoError
from fleet.drills.workload.waiting import (
    LONGEST_POLL_PAUSE_S,
    background_tasks,
    eventually,
    in_thread,
    pauses_s,
    wait_until,
)


async def test_a_result_and_an_error_come_back() -> None:
    assert await in_thread(lambda: threading.current_thread() is threading.main_thread()) is False

    def fail() -> None:
        raise DemoError("broken")

    with pytest.raises(DemoError, match="broken"):
        await in_thread(fail)


def test_an_interrupted_loop_does_not_wait_for_the_call() -> None:
    release = threading.Event()

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(in_thread(lambda: release.wait(60)), 0.05)

    started_s = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - started_s < 30
    release.set()


async def test_eventually_returns_whether_the_condition_held() -> None:
    times = iter([False, False, True])
    assert await eventually(lambda: next(times), 10, 0.001)
    assert not await eventually(lambda: False, 0.02, 0.005)
    with pytest.raises(DemoError, match="the sun rises: not within 0 s"):
        await wait_until(lambda: False, "the sun rises", 0.0)


async def test_background_tasks_end_with_the_block_and_raise_errors() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def fail() -> None:
        raise DemoError("broken")

    async with background_tasks(work()):
        await started.wait()
        assert not ended.is_set()
    assert ended.is_set()
    with pytest.raises(DemoError, match="broken"):
        async with background_tasks(work(), fail()):
            await asyncio.sleep(0)
    with pytest.raises(ValueError, match="the block's own"):
        async with background_tasks(work(), fail()):
            raise ValueError("the block's own")


def test_pauses_grow_up_to_a_limit() -> None:
    pauses = list(islice(pauses_s(), 50))
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (0.02, LONGEST_POLL_PAUSE_S)
