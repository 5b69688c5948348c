"""Waiting helpers: blocking calls in threads, conditions with a time limit, and background tasks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from fleet.core.errors import DemoError

T = TypeVar("T")
LONGEST_POLL_PAUSE_S: Final = 0.1


async def in_thread(call: Callable[[], T]) -> T:
    """Run a blocking call in a thread of its own.

    Unlike a thread of `asyncio.to_thread`, this thread is a daemon: an interrupted demo does not wait for it.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)  # type: ignore[arg-type]

    def work() -> None:
        value, failure = None, None
        try:
            value = call()
        except Exception as error:
            failure = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, failure)

    threading.Thread(target=work, daemon=True).start()
    return await future


def pauses_s() -> Iterator[float]:
    """Seconds to pause between polls of a condition: from 20 ms up to `LONGEST_POLL_PAUSE_S`.

    The pauses grow because each poll of a fleet costs every member a request.
    """
    pause_s = 0.02
    while True:
        yield pause_s
        pause_s = min(1.25 * pause_s, LONGEST_POLL_PAUSE_S)


async def wait_until(condition: Callable[[], bool], what: str, limit_s: float, every_s: float = 0.03) -> None:
    """Wait until a non-blocking condition holds. Raises: DemoError: the condition does not hold in time."""
    if not await eventually(condition, limit_s, every_s):
        raise DemoError(f"{what}: not within {limit_s:.0f} s")


async def eventually(condition: Callable[[], bool], limit_s: float, every_s: float = 0.03) -> bool:
    """Wait until a non-blocking condition holds. Returns: whether it holds in time."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + limit_s
    while not condition():
        if loop.time() > deadline_s:
            return False
        await asyncio.sleep(every_s)
    return True


@asynccontextmanager
async def background_tasks(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run coroutines while the block runs, and cancel them at its end.

    Raises: the first error of a coroutine, after the block has ended without an error of its own.
    """
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for failure in ended:
        if isinstance(failure, Exception):
            raise failure
