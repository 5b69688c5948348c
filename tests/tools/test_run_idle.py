"""`tools.run_idle`: two commands at a time; the first gives way to the second."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.harness import wait_for
from tools.bootstrap import ROOT

POLICY = "import os; print('policy', os.sched_getscheduler(0))"


def run(log: Path, idle: str, main: str) -> subprocess.CompletedProcess[str]:
    python = (sys.executable, "-c")
    run_idle = (sys.executable, "-m", "tools.run_idle", str(log))
    command = [*run_idle, *python, idle, "--", *python, main]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


def test_idle_command_yields_and_is_reported_at_the_end(tmp_path: Path) -> None:
    log = tmp_path / "not" / "there" / "computed.txt"
    done = run(log, POLICY, POLICY)
    assert (done.returncode, done.stdout) == (
        0,
        f"policy {os.sched_getscheduler(0)}\npolicy {os.SCHED_IDLE}\n",
    )
    assert log.read_text() == f"policy {os.SCHED_IDLE}\n"


GROUP = Path("/proc/self/autogroup")


def test_idle_session_has_the_lowest_priority_linux_allows(tmp_path: Path) -> None:
    ask = (
        f"from pathlib import Path; group = Path({str(GROUP)!r}); print(group.exists() and group.read_text())"
    )
    said = run(tmp_path / "log", ask, "").stdout.split()
    assert said[-1:] == (["19"] if GROUP.exists() else ["False"])


@pytest.mark.parametrize(("idle", "main", "code"), [(3, 0, 3), (0, 4, 4), (3, 4, 4), (0, 0, 0)])
def test_exit_code_is_of_the_failed_command(idle: int, main: int, code: int, tmp_path: Path) -> None:
    assert run(tmp_path / "log", f"exit({idle})", f"exit({main})").returncode == code


def test_idle_command_is_awaited(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    wait = f"print(open({str(fifo)!r}).read())"
    send = f"print('sent'); open({str(fifo)!r}, 'w').write('received')"
    assert run(tmp_path / "log", wait, send).stdout == "sent\nreceived\n"


def test_interrupt_reaches_both_commands(tmp_path: Path) -> None:
    # Found: background processes of a shell and their children ignore the signal, and waited for ever.
    heed = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    wait = heed + "try: print('up', flush=True), signal.pause()\nexcept KeyboardInterrupt: print(1)"
    python = (sys.executable, "-c", wait)
    log = tmp_path / "log"
    run_idle = [sys.executable, "-m", "tools.run_idle", str(log), *python, "--", *python]
    pipe = subprocess.PIPE
    with subprocess.Popen(run_idle, cwd=ROOT, stdout=pipe, text=True, start_new_session=True) as both:
        assert both.stdout is not None
        assert both.stdout.readline() == "up\n"
        wait_for(lambda: log.read_text() == "up\n", "the first is up")
        os.killpg(both.pid, signal.SIGINT)
        assert both.stdout.read() == "1\nup\n1\n"
    assert both.returncode == 0
