"""Chaos runs of a real fleet: Spark and the checker reach the same verdicts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.seeded.spark_check import differing

pytestmark = pytest.mark.size("test-all")

FIRST, RUNS = "26", 3
"""Seeds in which a member is killed, frozen, and cut off by a black hole."""
LIMIT_S = 840.0


@pytest.mark.timeout(900)
def test_spark_and_checker_agree_on_chaos_runs(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.chaos.seeded.spark_check",
        "--seed",
        FIRST,
        "--runs",
        str(RUNS),
        "--json",
    ]
    report = tmp_path / "spark-crosscheck.md"
    done = subprocess.run(
        [*command, "--report", str(report)], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["differs_from_checker"] == 0
    assert (document["gaps"], document["overlaps"]) == (0, 0)
    assert document["windows"] >= RUNS
    assert document["events"] > 10_000
    figures = [document.pop("audit"), document]
    assert [list(each) for each in figures] == [
        ["lost", "duplicated", "reordered"],
        ["events", "gaps", "overlaps", "windows", "differs_from_checker"],
    ]
    assert all(type(figure) is int for each in figures for figure in each.values())
    head, *_, together = [
        line.split(" | ") for line in report.read_text().splitlines() if line.startswith("|")
    ]
    # Metadata names a frozen member until it has been silent for a while: the observer sees that.
    assert int(together[head.index("seen missing")]) > 0


def test_differing_reports_each_difference() -> None:
    assert list(differing({"a": 1, "b": None}, {"a": 2})) == ["a: 1 and 2", "b: None and None"]
    assert list(differing({"a": 1}, {"a": 1})) == []
