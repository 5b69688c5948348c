"""System calls of a real member: no more than before; a compiled worker is in `tests/compiled`."""

from __future__ import annotations

from benchmarks.counted import (
    SYSTEM_CALLS,
    calls_per_request,
    grown,
    known,
)
from benchmarks.stage import Stage, of_fleet
from fleet.demo.kafka import KafkaCluster
from tests.conftest import MakeFleet


def test_a_request_takes_no_more_system_calls_than_it_did(kafka: KafkaCluster, make_fleet: MakeFleet) -> None:
    """Two to read and two to write; what the worker tells of itself meanwhile comes on top."""
    calls = calls_per_request(Stage(kafka, [of_fleet(make_fleet(1))]))
    assert calls >= 4
    assert grown({SYSTEM_CALLS: {"system_calls": calls}}, known()) == []
