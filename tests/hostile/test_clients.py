"""Hostile clients for a short time; `make test-long` runs 100,000 connections."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.drills.cluster.kafka import KafkaCluster
from tests.chaos.seeded.workloads import PARTITIONS
from tests.conftest import MakeTopic
from tests.hostile.run import Result, clients

pytestmark = pytest.mark.size("test-all")

SEED = 1
CONNECTIONS = 1_800


@pytest.mark.timeout(600)
def test_hostile_clients_are_closed_and_others_notice_nothing(
    kafka: KafkaCluster, make_topic: MakeTopic, tmp_path: Path
) -> None:
    result = Result(seed=SEED)
    clients(result, kafka, make_topic(PARTITIONS), tmp_path, CONNECTIONS, SEED, print)
    assert result.problems == []
    assert result.connections == CONNECTIONS
    assert {"malformed", "oversize", "truncated", "unsupported_version", "handshake"} <= result.closed.keys()
