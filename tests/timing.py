"""How long test files take.

`Durations` records it. `TimeLimit` uses the record: a run with a limit stops in time, and names what it left
out.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Final

import pytest

from tests.sizes import file_of
from tools import shards
from tools.bootstrap import ROOT
from tools.shards import DURATIONS_FILE, MEASURED_FILE, UNKNOWN_FILE_S, read_durations

OUTPUT: Final = "left_out"
START_UP_S: Final = 120.0
"""The first minutes of a run start Kafka and fleets: they say little about how slow the machine is."""


def is_xdist_worker(config: pytest.Config) -> bool:
    """Whether this process runs tests for another one, which reports them."""
    return hasattr(config, "workerinput")


def is_parallel(config: pytest.Config) -> bool:
    """Whether several processes share the tests of this session."""
    return is_xdist_worker(config) or bool(config.getoption("numprocesses", None))


def known_durations() -> dict[str, float]:
    """File → seconds: as committed, and as measured here since then. Files that are gone are left out."""
    known = read_durations(DURATIONS_FILE)
    if MEASURED_FILE.exists() and (
        not DURATIONS_FILE.exists() or MEASURED_FILE.stat().st_mtime > DURATIONS_FILE.stat().st_mtime
    ):
        known |= read_durations(MEASURED_FILE)
    return {file: seconds for file, seconds in known.items() if (ROOT / file).exists()}


class Durations:
    """Adds what each file of this run took, its fixtures included, to build/durations.json.

    Args: left_out: file → tests that did not run for lack of time
    """

    def __init__(self, left_out: Counter[str]) -> None:
        self._left_out = left_out
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        self._seconds[file] += report.duration
        if report.failed:
            self._failed.add(file)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        option = session.config.option
        chosen = option.keyword or option.markexpr or any("::" in each for each in session.config.args)
        if chosen or exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return  # files that ran in part say nothing of how long they take
        incomplete = self._failed | self._left_out.keys()
        taken = {file: round(s, 1) for file, s in self._seconds.items() if file not in incomplete}
        MEASURED_FILE.parent.mkdir(exist_ok=True)
        with MEASURED_FILE.with_suffix(".lock").open("w") as lock:
            # Two sessions of one shard end at about the same time.
            fcntl.flock(lock, fcntl.LOCK_EX)
            fresh = MEASURED_FILE.with_suffix(".new")
            fresh.write_text(json.dumps(dict(sorted((known_durations() | taken).items())), indent=1) + "\n")
            os.replace(fresh, MEASURED_FILE)


class TimeLimit:
    """Leaves out every test file that would not end in time, and all tests after it.

    A file needs its recorded time, times how much slower than recorded this session has been so far.

    Args:    end_by_s: when the last test must have ended, as `time.time()` counts
             expected: file → seconds
             left_out: file → tests that were left out; it is filled here
             parallel: whether other processes run tests of the same files
    """

    def __init__(
        self, end_by_s: float, expected: Mapping[str, float], left_out: Counter[str], parallel: bool = False
    ) -> None:
        self._end_by_s, self._expected, self._left_out = end_by_s, expected, left_out
        self._parallel = parallel
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
            needs_s = self._expected.get(file, UNKNOWN_FILE_S)
            slower = (now_s - self._begun_s + START_UP_S) / (self._expected_so_far_s + START_UP_S)
            self._file, self._expected_so_far_s = file, self._expected_so_far_s + needs_s
            needs_s *= 1.0 if self._parallel else max(1.0, slower)
        # Tests after one that was left out would find its fixtures still set up.
        self._over = self._over or now_s + needs_s > self._end_by_s
        return not self._over

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        file, was_over = file_of(item), self._over
        if self.fits(file, time.time()):
            return None
        if not was_over:
            tear_down(item)
        self._left_out[file] += 1
        return True

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if is_xdist_worker(session.config):
            session.config.workeroutput[OUTPUT] = dict(self._left_out)  # type: ignore[attr-defined]
        elif self._left_out:
            shards.note_left_out(self._left_out)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        self._left_out.update(getattr(node, "workeroutput", {}).get(OUTPUT, {}))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._left_out:
            terminalreporter.section("left out for lack of time")
            for file, count in self._left_out.items():
                terminalreporter.write_line(f"{file}: {count}")


def tear_down(item: pytest.Item) -> None:
    """End the fixtures of the tests before this one, which still count on it; a failure is reported."""
    state = item.session._setupstate
    call = pytest.CallInfo.from_call(lambda: state.teardown_exact(None), "teardown")
    report = pytest.TestReport.from_item_and_call(item, call)
    if report.failed:
        item.ihook.pytest_runtest_logreport(report=report)
