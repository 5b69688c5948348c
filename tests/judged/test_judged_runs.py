"""Chaos runs of a real fleet: Spark finds what the checker finds."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from fleet.chaos.spark import differing

FIRST, RUNS = "26", 3
"""Seeds with a member that is killed, one that is frozen, and one in a black hole."""
LIMIT_S = 840.0


@pytest.mark.timeout(900)
def test_spark_and_the_checker_agree_on_runs_of_a_real_fleet() -> None:
    command = [sys.executable, "-m", "fleet.chaos.spark", "--seed", FIRST, "--runs", str(RUNS), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["differs_from_checker"] == 0
    assert (document["gaps"], document["overlaps"]) == (0, 0)
    assert document["windows"] >= RUNS
    # Who is frozen is asked for until it has been silent for long: that is seen, and has to be told.
    assert 0 < document["seen_missing"] == len(document["before_ms"])
    assert document["events"] > 10_000


def test_a_difference_is_one() -> None:
    assert list(differing({"a": 1, "b": None}, {"a": 2})) == ["a: 1 and 2", "b: None and None"]
    assert list(differing({"a": 1}, {"a": 1})) == []
