"""`tools.beside`: two commands at a time, of which one gives way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.bootstrap import ROOT

POLICY = "import os; print('policy', os.sched_getscheduler(0))"


def run(log: Path, patient: str, urgent: str, *options: str) -> subprocess.CompletedProcess[str]:
    python = (sys.executable, "-c")
    beside = (sys.executable, "-m", "tools.beside", *options, str(log))
    command = [*beside, *python, patient, "--", *python, urgent]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


def test_the_first_gives_way_to_the_second_and_is_told_of_at_the_end(tmp_path: Path) -> None:
    log = tmp_path / "not" / "there" / "computed.txt"
    done = run(log, POLICY, POLICY)
    assert (done.returncode, done.stdout) == (
        0,
        f"policy {os.sched_getscheduler(0)}\npolicy {os.SCHED_IDLE}\n",
    )
    assert log.read_text() == f"policy {os.SCHED_IDLE}\n"


def test_it_may_get_a_part_of_what_others_want_too(tmp_path: Path) -> None:
    ask = "import os; print(os.nice(0), os.sched_getscheduler(0))"
    mine, policy = os.nice(0), os.sched_getscheduler(0)
    said = run(tmp_path / "log", ask, ask, "--nice", "5").stdout
    assert said == f"{mine} {policy}\n{mine + 5} {policy}\n"


@pytest.mark.parametrize(("patient", "urgent", "code"), [(3, 0, 3), (0, 4, 4), (3, 4, 4), (0, 0, 0)])
def test_either_may_fail(patient: int, urgent: int, code: int, tmp_path: Path) -> None:
    assert run(tmp_path / "log", f"exit({patient})", f"exit({urgent})").returncode == code


def test_the_first_is_waited_for(tmp_path: Path) -> None:
    told = tmp_path / "told"
    wait = f"import os, time\nwhile not os.path.exists({str(told)!r}): time.sleep(0.01)\nprint('seen')"
    assert run(tmp_path / "log", wait, f"open({str(told)!r}, 'w'); print('told')").stdout == "told\nseen\n"
