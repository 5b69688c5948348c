"""Children never outlive their parent; with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from fleet.core.errors import DemoError
from fleet.drills.cluster.spawn import end, signal_trees, spawn, spawn_module, tail, tree

SLEEP = "import time; time.sleep(600)"
# A child that ignores SIGTERM and has a child of its own, in another session.
STUBBORN = f"""
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", {SLEEP!r}], start_new_session=True)
print("up", flush=True)
time.sleep(600)
"""


def eventually(condition: Callable[[], bool], limit_s: float = 20.0) -> bool:
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        if condition():
            return True
        time.sleep(0.01)
    return condition()


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_output_goes_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "child.log"
    child = spawn([sys.executable, "-c", "print('a'); print('b'); print('c')"], log)
    assert child.wait(20) == 0
    assert tail(log, 2) == "b\nc"
    assert "no log" in tail(tmp_path / "none.log")


def test_modules_run_with_the_code_of_this_checkout(tmp_path: Path) -> None:
    child = spawn_module("fleet.drills.workload.history", log=tmp_path / "log")
    assert child.wait(20) == 0


def test_missing_program_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match="cannot start no-such-program"):
        spawn(["no-such-program"], tmp_path / "log")


def test_only_the_main_thread_may_spawn(tmp_path: Path) -> None:
    caught: list[BaseException] = []

    def attempt() -> None:
        try:
            spawn([sys.executable, "-c", SLEEP], tmp_path / "log")
        except DemoError as error:
            caught.append(error)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    assert "main thread" in str(caught[0])


def test_end_kills_a_stubborn_child_and_its_descendants(tmp_path: Path) -> None:
    log = tmp_path / "log"
    child = spawn([sys.executable, "-c", STUBBORN], log)
    assert eventually(lambda: "up" in log.read_text())
    everyone = [each.pid for each in tree(child)]
    assert len(everyone) == 2
    end([child], patience_s=0.2)
    assert child.returncode == -signal.SIGKILL
    assert all(gone(pid) for pid in everyone)


def test_end_waits_for_children_that_stop(tmp_path: Path) -> None:
    child = spawn([sys.executable, "-c", SLEEP], tmp_path / "log")
    end([child], patience_s=20.0)
    assert child.returncode == -signal.SIGTERM
    end([child], patience_s=0.0)


def test_a_signal_reaches_the_whole_tree(tmp_path: Path) -> None:
    log = tmp_path / "log"
    child = spawn([sys.executable, "-c", STUBBORN], log)
    assert eventually(lambda: "up" in log.read_text())
    everyone = tree(child)
    try:
        before_s = time.monotonic()
        at_s = signal_trees([child], signal.SIGSTOP)
        assert before_s <= at_s <= time.monotonic()
        assert eventually(lambda: all(each.status() == psutil.STATUS_STOPPED for each in everyone))
        signal_trees([child], signal.SIGCONT)
        assert eventually(lambda: not any(each.status() == psutil.STATUS_STOPPED for each in everyone))
    finally:
        end([child], 0.0)
    assert eventually(lambda: all(gone(each.pid) for each in everyone))
    assert tree(child) == []


def test_a_child_dies_when_its_parent_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    parent_code = f"""
import sys, time
from pathlib import Path
from fleet.drills.cluster.spawn import spawn
child = spawn([sys.executable, "-c", {SLEEP!r}], Path({str(log)!r}))
print(child.pid, flush=True)
time.sleep(600)
"""
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    with subprocess.Popen(
        [sys.executable, "-c", parent_code], stdout=subprocess.PIPE, text=True, env=environment
    ) as parent:
        assert parent.stdout is not None
        child_pid = int(parent.stdout.readline())
        assert not gone(child_pid)
        parent.kill()
        assert eventually(lambda: gone(child_pid))


def test_fork_hooks_are_registered_before_the_first_fork() -> None:
    # Found: a chaos test failed with "release unlocked lock". While the main thread was in a fork, the
    # observers' thread had imported the executor's module, which registers fork hooks.
    code = "import sys, fleet.drills.cluster.spawn; print('concurrent.futures.thread' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "True"
