"""`tools.run_idle`: two commands at a time, of which one gives way."""

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


def run(log: Path, patient: str, urgent: str) -> subprocess.CompletedProcess[str]:
    python = (sys.executable, "-c")
    beside = (sys.executable, "-m", "tools.run_idle", str(log))
    command = [*beside, *python, patient, "--", *python, urgent]
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


@pytest.mark.parametrize(("patient", "urgent", "code"), [(3, 0, 3), (0, 4, 4), (3, 4, 4), (0, 0, 0)])
def test_either_may_fail(patient: int, urgent: int, code: int, tmp_path: Path) -> None:
    assert run(tmp_path / "log", f"exit({patient})", f"exit({urgent})").returncode == code


def test_the_first_is_waited_for(tmp_path: Path) -> None:
    told = tmp_path / "told"
    os.mkfifo(told)
    wait = f"print(open({str(told)!r}).read())"
    tell = f"print('told'); open({str(told)!r}, 'w').write('seen')"
    assert run(tmp_path / "log", wait, tell).stdout == "told\nseen\n"


def test_an_interrupt_reaches_both(tmp_path: Path) -> None:
    # Found: what a shell has put into the background ignores it, and so do its children, who waited for ever.
    heed = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    wait = heed + "try: print('up', flush=True), signal.pause()\nexcept KeyboardInterrupt: print(1)"
    python = (sys.executable, "-c", wait)
    log = tmp_path / "log"
    beside = [sys.executable, "-m", "tools.run_idle", str(log), *python, "--", *python]
    pipe = subprocess.PIPE
    with subprocess.Popen(beside, cwd=ROOT, stdout=pipe, text=True, start_new_session=True) as both:
        assert both.stdout is not None
        assert both.stdout.readline() == "up\n"
        wait_for(lambda: log.read_text() == "up\n", "the first is up")
        os.killpg(both.pid, signal.SIGINT)
        assert both.stdout.read() == "1\nup\n1\n"
    assert both.returncode == 0
