import asyncio
import logging
import threading
import time
from collections.abc import Callable

import pytest

from fleet.runtime.threads import RestartingThread

LIMIT_S = 30.0
SOON_S = 0.001


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Work:
    """Ends in the given ways, one after the other, and then runs until it is stopped."""

    def __init__(self, *ends: BaseException | None, backoff_first_s: float = SOON_S) -> None:
        self.starts = 0
        self.goes_on = threading.Event()
        self._ends = list(ends)
        self.thread = RestartingThread("work", self._run, backoff_first_s)

    def _run(self) -> None:
        self.starts += 1
        if self._ends:
            end = self._ends.pop(0)
            if end is None:
                return
            raise end
        self.goes_on.set()
        self.thread.stopping.wait()


@pytest.mark.parametrize("end", [OverflowError("port"), asyncio.CancelledError(), SystemExit(1), None])
def test_work_that_ends_is_started_again(end: BaseException | None, caplog: pytest.LogCaptureFixture) -> None:
    work = Work(end)
    work.thread.start()
    assert work.goes_on.wait(LIMIT_S)
    work.thread.stop(LIMIT_S)
    assert (work.starts, work.thread.restarts) == (2, 1)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "thread=work" in record.getMessage()


def test_waits_double_from_failure_to_failure(caplog: pytest.LogCaptureFixture) -> None:
    work = Work(*(ValueError(number) for number in range(4)))
    work.thread.start()
    assert work.goes_on.wait(LIMIT_S)
    work.thread.stop(LIMIT_S)
    waits_s = [record.args[1] for record in caplog.records if isinstance(record.args, tuple)]
    assert waits_s == [SOON_S, 2 * SOON_S, 4 * SOON_S, 8 * SOON_S]


def test_work_stopped_between_restarts_runs_once_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    work = Work(ValueError("x"), backoff_first_s=100 * LIMIT_S)
    work.thread.start()
    wait_until(lambda: caplog.records)
    began_s = time.monotonic()
    work.thread.stop(LIMIT_S)
    assert time.monotonic() - began_s < LIMIT_S
    assert work.goes_on.is_set(), "the work can save what is left"
    assert work.starts == 2


def test_work_that_is_stopped_is_not_started_again(caplog: pytest.LogCaptureFixture) -> None:
    work = Work()
    work.thread.start()
    assert work.goes_on.wait(LIMIT_S)
    work.thread.stop(LIMIT_S)
    assert (work.starts, work.thread.restarts) == (1, 0)
    assert not caplog.records
