"""The proofs of process faults, with processes that were hit and processes that were not."""

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


async def test_kill_of_all_processes_is_proved(processes: list[psutil.Process]) -> None:
    for process in processes:
        process.kill()
    await prove(lambda: all(map(is_gone, processes)), "the end of both")


@pytest.mark.usefixtures("hasty")
async def test_kill_of_one_process_is_reported(processes: list[psutil.Process]) -> None:
    processes[0].kill()
    with pytest.raises(FaultNotObserved, match="the end of both"):
        await prove(lambda: all(map(is_gone, processes)), "the end of both")


async def test_stop_of_all_processes_is_proved(processes: list[psutil.Process]) -> None:
    for process in processes:
        process.suspend()
    await prove(lambda: all(map(is_stopped, processes)), "both in state T")
    for process in processes:
        process.resume()
    await prove(lambda: not any(map(is_stopped, processes)), "both go on")


@pytest.mark.usefixtures("hasty")
async def test_stop_of_one_process_is_reported(processes: list[psutil.Process]) -> None:
    processes[0].suspend()
    with pytest.raises(FaultNotObserved):
        await prove(lambda: all(map(is_stopped, processes)), "both in state T")


def test_ended_process_is_not_stopped(processes: list[psutil.Process]) -> None:
    gone = processes[0]
    gone.kill()
    gone.wait(10)
    assert is_gone(gone)
    assert not is_stopped(gone)


def test_process_with_a_reused_id_is_another(processes: list[psutil.Process]) -> None:
    former, process = processes
    assert not is_another(process, former)
    former.kill()
    former.wait(10)
    assert is_another(process, former)


def test_running_process_is_the_same(processes: list[psutil.Process]) -> None:
    assert not is_another(psutil.Process(processes[0].pid), processes[0])


def test_second_ended_process_is_not_another(processes: list[psutil.Process]) -> None:
    former, process = processes
    for each in processes:
        each.kill()
        each.wait(10)
    assert not is_another(process, former)
