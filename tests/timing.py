"""How long test files take.

`Durations` records it. `TimeLimit` uses the record: a run with a limit stops in time, and names what it left
out.
"""

from __future__ import annotations

import fcntl
import json
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Final

import pytest

from tests.sizes import file_of
from tools.shards import KEPT, MEASURED, read_durations

LEFT_OUT: Final = "left_out"


def is_xdist_worker(config: pytest.Config) -> bool:
    """Whether this process runs tests for another one, which reports them."""
    return hasattr(config, "workerinput")


class Durations:
    """Adds what each file of this run took, its fixtures included, to build/durations.json."""

    def __init__(self, left_out: Counter[str]) -> None:
        self._left_out = left_out
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        self._seconds[file] += report.duration
        if report.failed:
            self._failed.add(file)

    def pytest_sessionfinish(self) -> None:
        MEASURED.parent.mkdir(exist_ok=True)
        with MEASURED.with_suffix(".lock").open("w") as lock:
            # Two sessions of one shard end at about the same time.
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = read_durations(MEASURED if MEASURED.exists() else KEPT)
            incomplete = self._failed | self._left_out.keys()
            known |= {file: round(s, 1) for file, s in self._seconds.items() if file not in incomplete}
            MEASURED.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")


class TimeLimit:
    """Leaves out every test file that would not end in time, and all that come after it.

    A file needs its recorded time, times how much slower than recorded this run has been so far.

    Args:    end_by_s: when the last test must have ended, as `time.time()` counts
             expected: file → seconds; a file that is missing needs none
             left_out: file → tests that were left out; it is filled here
    """

    def __init__(self, end_by_s: float, expected: Mapping[str, float], left_out: Counter[str]) -> None:
        self._end_by_s, self._expected, self._left_out = end_by_s, expected, left_out
        self._begun_s: float | None = None
        self._expected_so_far_s = 0.0
        self._file = ""
        self._over = False

    def fits(self, file: str, now_s: float) -> bool:
        """Whether a test of this file may begin now. Once the answer is no, it stays no."""
        if self._begun_s is None:
            self._begun_s = now_s
        needs_s = 0.0
        if file != self._file:
            slower = (now_s - self._begun_s) / self._expected_so_far_s if self._expected_so_far_s else 1.0
            needs_s = self._expected.get(file, 0.0)
            self._file, self._expected_so_far_s = file, self._expected_so_far_s + needs_s
            needs_s *= max(1.0, slower)
        # Tests after one that was left out would find its fixtures still set up.
        self._over = self._over or now_s + needs_s > self._end_by_s
        return not self._over

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        file = file_of(item)
        if self.fits(file, time.time()):
            return None
        self._left_out[file] += 1
        return True

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if is_xdist_worker(session.config):
            session.config.workeroutput[LEFT_OUT] = dict(self._left_out)  # type: ignore[attr-defined]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        self._left_out.update(getattr(node, "workeroutput", {}).get(LEFT_OUT, {}))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._left_out:
            terminalreporter.section("left out for want of time")
            for file, count in self._left_out.items():
                terminalreporter.write_line(f"{file}: {count} tests")
