"""How long test files take is recorded, and a run with a limit stops in time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import timing
from tests.timing import LEFT_OUT_KEY, Durations, TimeLimit
from tools.bootstrap import ROOT
from tools.shards import UNKNOWN_FILE_S


def report(nodeid: str, duration: float, *, failed: bool = False) -> Any:
    return SimpleNamespace(nodeid=nodeid, duration=duration, failed=failed)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file of durations: nothing is measured yet, and the last commit knows some files."""
    for file in ("old.py", "cut.py", "bad.py", "new.py", "one.py", "two.py"):
        (tmp_path / file).touch()
    kept = tmp_path / "kept.json"
    kept.write_text('{"old.py": 7.0, "cut.py": 8.0, "bad.py": 9.0, "gone.py": 1.0}')
    os.utime(kept, (1.0, 1.0))
    monkeypatch.setattr(timing, "ROOT", tmp_path)
    monkeypatch.setattr(timing, "DURATIONS_FILE", kept)
    monkeypatch.setattr(timing, "MEASURED_FILE", tmp_path / "build" / "durations.json")
    return tmp_path / "build" / "durations.json"


def finish(durations: Durations, exitstatus: int = 0, keyword: str = "", *arguments: str) -> None:
    option = SimpleNamespace(keyword=keyword, markexpr="")
    session = SimpleNamespace(config=SimpleNamespace(option=option, args=list(arguments)))
    durations.pytest_sessionfinish(session, exitstatus)  # type: ignore[arg-type]


def test_durations_are_sums_by_file_of_what_ran_to_its_end(measured: Path) -> None:
    durations = Durations(Counter({"cut.py": 1}))
    for nodeid, seconds in (
        ("new.py::a", 1.0),
        ("new.py::a", 0.25),
        ("new.py::b[1]", 0.5),
        ("cut.py::a", 1.0),
    ):
        durations.pytest_runtest_logreport(report(nodeid, seconds))
    durations.pytest_runtest_logreport(report("bad.py::a", 1.0, failed=True))
    finish(durations)
    assert json.loads(measured.read_text()) == {"bad.py": 9.0, "cut.py": 8.0, "new.py": 1.8, "old.py": 7.0}


def test_durations_of_a_later_run_are_added(measured: Path) -> None:
    for file in ("one.py", "two.py"):
        durations = Durations(Counter())
        durations.pytest_runtest_logreport(report(f"{file}::a", 3.0))
        finish(durations)
    assert {"one.py": 3.0, "two.py": 3.0}.items() <= json.loads(measured.read_text()).items()


@pytest.mark.parametrize(
    ("exitstatus", "keyword", "argument"), [(2, "", ""), (5, "", ""), (0, "a", ""), (0, "", "one.py::a")]
)
def test_durations_of_files_that_ran_in_part_are_not_recorded(
    measured: Path, exitstatus: int, keyword: str, argument: str
) -> None:
    durations = Durations(Counter())
    durations.pytest_runtest_logreport(report("one.py::a", 3.0))
    finish(durations, exitstatus, keyword, argument)
    assert not measured.exists()


def test_durations_of_a_later_commit_replace_older_measurements(measured: Path) -> None:
    measured.parent.mkdir()
    measured.write_text('{"old.py": 1.0}')
    assert timing.known_durations()["old.py"] == 1.0
    os.utime(measured.parents[1] / "kept.json")
    os.utime(measured, (1.0, 1.0))
    assert timing.known_durations() == {"old.py": 7.0, "cut.py": 8.0, "bad.py": 9.0}


def limit(end_by_s: float, **expected: float) -> TimeLimit:
    return TimeLimit(end_by_s, expected, Counter())


def test_limit_lets_a_file_begin_that_ends_in_time() -> None:
    limited = limit(100.0, a=60.0, b=40.0)
    assert limited.fits("a", 0.0)
    assert limited.fits("b", 60.0)


def test_limit_leaves_out_a_late_file_and_all_after_it() -> None:
    limited = limit(100.0, a=60.0, b=41.0, c=1.0)
    assert limited.fits("a", 0.0)
    assert not limited.fits("b", 60.0)
    assert not limited.fits("c", 60.0)


def test_limit_expects_a_slow_run_to_stay_slow() -> None:
    limited = limit(2_000.0, a=500.0, b=500.0)
    assert limited.fits("a", 0.0)
    assert not limited.fits("b", 1_200.0)


def test_limit_ignores_the_start_of_kafka_when_judging_speed() -> None:
    """Found by simulation: a first file that is over at once looked two hundred times too slow."""
    limited = limit(2_000.0, a=0.3, b=300.0)
    assert limited.fits("a", 0.0)
    assert limited.fits("b", 60.0)


def test_limit_does_not_expect_a_fast_run_to_stay_fast() -> None:
    limited = limit(100.0, a=60.0, b=80.0)
    assert limited.fits("a", 0.0)
    assert not limited.fits("b", 30.0)


def test_limit_ends_a_file_that_takes_too_long() -> None:
    limited = limit(100.0, a=60.0)
    assert limited.fits("a", 0.0)
    assert limited.fits("a", 99.0)
    assert not limited.fits("a", 101.0)


def test_limit_assumes_a_duration_of_unmeasured_files() -> None:
    limited = limit(100.0)
    assert limited.fits("a", 0.0)
    assert not limited.fits("b", 100.0 - UNKNOWN_FILE_S / 2)


def test_limit_in_one_of_several_processes_knows_no_pace() -> None:
    limited = TimeLimit(2_000.0, {"a": 500.0, "b": 500.0}, Counter(), parallel=True)
    assert limited.fits("a", 0.0)
    assert limited.fits("b", 1_200.0)


class Terminal:
    """Records the lines of a terminal."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.section = self.write_line = self.lines.append


def test_limit_names_what_it_left_out_and_ends_open_fixtures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    left_out: Counter[str] = Counter()
    ended: list[object] = []
    limited = TimeLimit(100.0, {}, left_out)
    monkeypatch.setattr("time.time", lambda: 101.0)
    monkeypatch.setattr(timing, "file_of", lambda item: item.file)
    monkeypatch.setattr(timing, "tear_down", ended.append)
    monkeypatch.setattr("tools.shards.LEFT_OUT_FILE", tmp_path / "left-out.txt")
    tests = [SimpleNamespace(file=file) for file in ("a.py", "a.py", "b.py")]
    assert [limited.pytest_runtest_protocol(each) for each in tests] == [True] * 3  # type: ignore[arg-type]
    assert ended == tests[:1]
    terminal = Terminal()
    limited.pytest_terminal_summary(terminal)  # type: ignore[arg-type]
    assert terminal.lines == ["left out for lack of time", "a.py: 2", "b.py: 1"]
    assert left_out == {"a.py": 2, "b.py": 1}
    limited.pytest_sessionfinish(SimpleNamespace(config=SimpleNamespace()))  # type: ignore[arg-type]
    assert (tmp_path / "left-out.txt").read_text() == "a.py\nb.py\n"


def test_limit_adds_up_what_workers_left_out() -> None:
    worker, controller = (TimeLimit(100.0, {}, Counter({"a.py": count})) for count in (2, 1))
    config = SimpleNamespace(workerinput={}, workeroutput={})
    worker.pytest_sessionfinish(SimpleNamespace(config=config))  # type: ignore[arg-type]
    assert config.workeroutput == {LEFT_OUT_KEY: {"a.py": 2}}
    controller.pytest_testnodedown(config)
    terminal = Terminal()
    controller.pytest_terminal_summary(terminal)  # type: ignore[arg-type]
    assert terminal.lines[1:] == ["a.py: 3"]


CONFTEST = """
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, ROOT)
from tests import timing

timing.file_of = lambda item: item.path.name
timing.shards.LEFT_OUT_FILE = Path(__file__).with_name("left-out.txt")
LIMIT = timing.TimeLimit(float("inf"), {}, Counter())


def pytest_configure(config):
    config.pluginmanager.register(LIMIT)


@pytest.fixture
def time_is_up():
    LIMIT._end_by_s = 0.0


@pytest.fixture(scope="session")
def fleet():
    yield
    raise RuntimeError("the fleet did not end")
"""
SUITE = """
def test_first(fleet, time_is_up):
    pass


def test_second(fleet):
    pass
"""


@pytest.mark.parametrize("options", [(), ("--numprocesses=1",)])
def test_limit_ends_fixtures_and_reports_their_failure(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Found: if a fixture failed to end, the files that were left out were not listed."""
    (tmp_path / "conftest.py").write_text(CONFTEST.replace("ROOT", repr(str(ROOT))))
    (tmp_path / "test_suite.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", f"--rootdir={tmp_path}", *options, "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    assert "1 passed, 1 error" in done.stdout
    assert "the fleet did not end" in done.stdout
    assert "left out for lack of time" in done.stdout
    assert (tmp_path / "left-out.txt").read_text() == "test_suite.py\n"
