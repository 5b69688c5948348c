"""How long test files take is recorded, and a run with a limit stops in time."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import timing
from tests.timing import LEFT_OUT, Durations, TimeLimit


def report(nodeid: str, duration: float, *, failed: bool = False) -> Any:
    return SimpleNamespace(nodeid=nodeid, duration=duration, failed=failed)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where durations go; nothing was measured yet, and one file is known from the last commit."""
    (tmp_path / "kept.json").write_text('{"old.py": 7.0, "cut.py": 8.0, "bad.py": 9.0}')
    monkeypatch.setattr(timing, "KEPT", tmp_path / "kept.json")
    monkeypatch.setattr(timing, "MEASURED", tmp_path / "build" / "durations.json")
    return tmp_path / "build" / "durations.json"


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
    durations.pytest_sessionfinish()
    assert json.loads(measured.read_text()) == {"bad.py": 9.0, "cut.py": 8.0, "new.py": 1.8, "old.py": 7.0}


def test_durations_of_a_later_run_are_added(measured: Path) -> None:
    for file in ("one.py", "two.py"):
        durations = Durations(Counter())
        durations.pytest_runtest_logreport(report(f"{file}::a", 3.0))
        durations.pytest_sessionfinish()
    assert {"one.py": 3.0, "two.py": 3.0}.items() <= json.loads(measured.read_text()).items()


def limit(end_by_s: float, **expected: float) -> TimeLimit:
    return TimeLimit(end_by_s, expected, Counter())


def test_limit_lets_a_file_begin_that_ends_in_time() -> None:
    limited = limit(100.0, a=60.0, b=40.0)
    assert limited.fits("a", 0.0)
    assert limited.fits("b", 60.0)


def test_limit_leaves_out_a_file_that_would_end_late_and_all_after_it() -> None:
    limited = limit(100.0, a=60.0, b=41.0, c=1.0)
    assert limited.fits("a", 0.0)
    assert not limited.fits("b", 60.0)
    assert not limited.fits("c", 60.0)


def test_limit_expects_a_slow_run_to_stay_slow() -> None:
    limited = limit(100.0, a=20.0, b=30.0)
    assert limited.fits("a", 0.0)
    assert not limited.fits("b", 41.0)


def test_limit_does_not_expect_a_fast_run_to_stay_fast() -> None:
    limited = limit(100.0, a=60.0, b=80.0)
    assert limited.fits("a", 0.0)
    assert not limited.fits("b", 30.0)


def test_limit_ends_a_file_that_takes_too_long() -> None:
    limited = limit(100.0, a=60.0)
    assert limited.fits("a", 0.0)
    assert limited.fits("a", 99.0)
    assert not limited.fits("a", 101.0)


def test_limit_takes_files_of_unknown_length_until_the_end() -> None:
    limited = limit(100.0)
    assert limited.fits("a", 0.0)
    assert limited.fits("b", 99.9)
    assert not limited.fits("c", 100.1)


class Terminal:
    """Keeps what a terminal would show."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.section = self.write_line = self.lines.append


def test_limit_names_what_it_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    left_out: Counter[str] = Counter()
    limited = TimeLimit(100.0, {}, left_out)
    monkeypatch.setattr("time.time", lambda: 101.0)
    monkeypatch.setattr(timing, "file_of", lambda item: item.file)
    tests = [SimpleNamespace(file=file) for file in ("a.py", "a.py", "b.py")]
    assert [limited.pytest_runtest_protocol(each) for each in tests] == [True] * 3  # type: ignore[arg-type]
    terminal = Terminal()
    limited.pytest_terminal_summary(terminal)  # type: ignore[arg-type]
    assert terminal.lines == ["left out for want of time", "a.py: 2 tests", "b.py: 1 tests"]
    assert left_out == {"a.py": 2, "b.py": 1}


def test_limit_adds_up_what_workers_left_out() -> None:
    worker, controller = (TimeLimit(100.0, {}, Counter({"a.py": count})) for count in (2, 1))
    config = SimpleNamespace(workerinput={}, workeroutput={})
    worker.pytest_sessionfinish(SimpleNamespace(config=config))  # type: ignore[arg-type]
    assert config.workeroutput == {LEFT_OUT: {"a.py": 2}}
    controller.pytest_testnodedown(config)
    terminal = Terminal()
    controller.pytest_terminal_summary(terminal)  # type: ignore[arg-type]
    assert terminal.lines[1:] == ["a.py: 3 tests"]
