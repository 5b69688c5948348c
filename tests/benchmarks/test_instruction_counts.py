"""The counted cost of a frame is not above its baseline."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.instruction_counts import (
    PYTHON,
    SYSTEM_CALLS,
    WORKER,
    Case,
    cases,
    count,
    find_regressions,
    held_bytes,
    instructions,
    known,
    read,
    write,
)


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.name)
def test_frame_cost_is_not_above_the_baseline(case: Case) -> None:
    """After an intended growth: python -m benchmarks.instruction_counts --write"""
    counted = {case.name: count(case)}
    before = known()
    assert PYTHON not in read() or find_regressions(counted, before) == []


def test_baseline_exists_for_the_reference_python() -> None:
    assert read().keys() >= {"3.11", "any"}
    assert {WORKER, *(case.name for case in cases())} == read()["3.11"].keys()


def test_growth_above_a_twentieth_is_reported() -> None:
    before = {"a": {"instructions": 100.0, "held_bytes": 200.0}}
    assert find_regressions({"a": {"instructions": 105.0, "held_bytes": 90.0}}, before) == []
    (regression,) = find_regressions({"a": {"instructions": 106.0, "held_bytes": 200.0}}, before)
    assert regression == "a: instructions 106, before 100: +6%"
    (regression,) = find_regressions({"b": {"instructions": 1.0}}, before)
    assert "not counted before" in regression


def test_instructions_include_callees() -> None:
    def work(times: int) -> None:
        sum(each * each for each in range(times))

    few, more = instructions(lambda: work(10)), instructions(lambda: work(20))
    assert 0 < few < more == instructions(lambda: work(20))
    assert (instructions(lambda: work(30)) - more) == more - few


def test_held_bytes_are_the_peak_of_a_call() -> None:
    def one_after_the_other() -> None:
        for _ in range(10):
            bytes(100_000)

    assert 100_000 <= held_bytes(one_after_the_other) < 110_000


def test_written_counts_become_the_baseline(tmp_path: Path) -> None:
    path = tmp_path / "counted.json"
    write({"a": {"instructions": 1.0}, SYSTEM_CALLS: {"system_calls": 4.0}}, path)
    write({"a": {"instructions": 2.0}}, path)
    assert read(path) == {
        PYTHON: {"a": {"instructions": 2.0}},
        "any": {SYSTEM_CALLS: {"system_calls": 4.0}},
    }
    assert known(path) == {"a": {"instructions": 2.0}, SYSTEM_CALLS: {"system_calls": 4.0}}
