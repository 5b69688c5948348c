"""System calls of a real member, and what a compiled worker executes and allocates: no more than before."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.cluster import Stage, fleet_target
from benchmarks.instruction_counts import (
    PYTHON,
    SYSTEM_CALLS,
    WORKER,
    count_calls_per_request,
    count_compiled_worker,
    find_regressions,
    known,
    read,
)
from fleet.drills.cluster.kafka import KafkaCluster
from tests.conftest import MakeFleet

pytestmark = pytest.mark.size("test-all")


@pytest.mark.size("test")
def test_a_request_takes_no_more_system_calls_than_it_did(kafka: KafkaCluster, make_fleet: MakeFleet) -> None:
    """Two to read and two to write; what the worker tells of itself meanwhile comes on top."""
    calls = count_calls_per_request(Stage(kafka, [fleet_target(make_fleet(1))]))
    assert calls >= 4
    assert find_regressions({SYSTEM_CALLS: {"system_calls": calls}}, known()) == []


def test_compiled_worker_needs_no_more_instructions_than_before(tmp_path: Path) -> None:
    found = count_compiled_worker(tmp_path)
    # A request takes two reads and two writes: what a forwarder has to do for them, a worker has, too.
    assert (
        0.5
        < found["instructions_per_request_of_forwarder"]
        < found["instructions_per_connection_of_forwarder"]
    )
    assert found["allocations_per_request"] >= 6
    assert PYTHON not in read() or find_regressions({WORKER: found}, known()) == []
