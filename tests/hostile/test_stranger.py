"""A stranger attacks a member for twenty seconds, or for ten minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleet.drills.cluster.kafka import KafkaCluster
from tests.conftest import broker_host
from tests.hostile.run import PATIENT_TIMING
from tests.hostile.stranger import Result, run
from tests.hostile.strangers import MIXED

SEED = 1
MAX_SENT_DIFFERENCE = 0.5
"""The allowed difference between the bytes of two crowds in a run of seconds."""


def run_stranger(folder: Path, **options: Any) -> Result:
    """Let a stranger attack a fleet in front of three brokers. ``options`` is passed to `run`."""
    with KafkaCluster(3, folder / "kafka", host_of=broker_host) as kafka:
        return run(kafka, folder / "run", seed=SEED, say=print, **options)


@pytest.mark.size("test-all")
@pytest.mark.timeout(600)
def test_stranger_plays_every_trick_and_nobody_is_suspected(tmp_path: Path) -> None:
    result = run_stranger(
        tmp_path,
        seconds=20,
        connections=100,
        bytes_per_s=40,
        turns=1,
        focus=MIXED,
        judges_cost=False,
        timing=PATIENT_TIMING,
    )
    assert result.problems == result.suspected == []
    alone, twins, strangers = result.turns
    assert len(strangers.opened) == 21
    assert {"twin: broker", "twin: bootstrap", "twin: tls", "twin: http"} == twins.opened.keys()
    assert twins.failed == 0
    assert sum(twins.opened.values()) <= 110, "the fleet closed connections of well-formed clients"
    assert twins.most_open >= 95
    assert abs(strangers.sent_bytes_per_s / twins.sent_bytes_per_s - 1) < MAX_SENT_DIFFERENCE
    assert all(each.acknowledged_ms.p99 and each.delivered_ms.p99 for each in (alone, twins, strangers))
    assert result.p99_ratio > 0


@pytest.mark.size("test-long")
@pytest.mark.timeout(1_800)
def test_stranger_costs_less_than_twice_the_latency_and_64_mb(tmp_path: Path) -> None:
    """Regression: 1,000 clients that each left a little of a response unread made a member hold 121 MB."""
    result = run_stranger(tmp_path, seconds=600, connections=1_000, bytes_per_s=20, turns=5)
    assert result.problems == []
