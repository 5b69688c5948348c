"""The proofs of process faults, with processes that have been hit, and some that have not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from fleet.core.errors import FaultNotObserved
from tests.chaos.seeded import effects
from tests.chaos.seeded.effects import is_another, is_gone, is_stopped, prove


@pytest.fixture
def processes() -> Iterator[list[psutil.Process]]:
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    started = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(2)]
    yield [psutil.Process(each.pid) for each in started]
    for each in started:
        each.kill()
        each.communicate()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effects, "PROOF_LIMIT_S", 0.3)


async def test_a_kill_that_hits_all_is_proved(processes: list[psutil.Process]) -> None:
    for process in processes:
        process.kill()
    await prove(lambda: all(map(is_gone, processes)), "the end of both")


@pytest.mark.usefixtures("hasty")
async def test_a_kill_that_hits_one_process_alone_is_found_out(processes: list[psutil.Process]) -> None:
    processes[0].kill()
    with pytest.raises(FaultNotObserved, match="the end of both"):
        await prove(lambda: all(map(is_gone, processes)), "the end of both")


async def test_a_stop_that_hits_all_is_proved(processes: list[psutil.Process]) -> None:
    for process in processes:
        process.suspend()
    await prove(lambda: all(map(is_stopped, processes)), "both in state T")
    for process in processes:
        process.resume()
    await prove(lambda: not any(map(is_stopped, processes)), "both go on")


@pytest.mark.usefixtures("hasty")
async def test_a_stop_that_hits_one_process_alone_is_found_out(processes: list[psutil.Process]) -> None:
    processes[0].suspend()
    with pytest.raises(FaultNotObserved):
        await prove(lambda: all(map(is_stopped, processes)), "both in state T")


def test_a_process_that_is_gone_is_not_stopped(processes: list[psutil.Process]) -> None:
    gone = processes[0]
    gone.kill()
    gone.wait(10)
    assert is_gone(gone)
    assert not is_stopped(gone)


def test_a_process_in_the_place_of_one_that_is_gone_is_another(processes: list[psutil.Process]) -> None:
    former, process = processes
    assert not is_another(process, former)
    former.kill()
    former.wait(10)
    assert is_another(process, former)


def test_a_process_that_goes_on_is_not_another(processes: list[psutil.Process]) -> None:
    assert not is_another(psutil.Process(processes[0].pid), processes[0])


def test_a_process_that_has_ended_as_well_is_not_another(processes: list[psutil.Process]) -> None:
    former, process = processes
    for each in processes:
        each.kill()
        each.wait(10)
    assert not is_another(process, former)
