"""The Java client's newer groups, of KIP-848 and KIP-932, and its idempotent producer, in a takeover."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.chaos.coordinators import await_protocols, kill_proxy_of_coordinator
from tests.chaos.harness import await_flow, clients_running
from tests.chaos.seeded.workloads import PARTITIONS, Client

pytestmark = pytest.mark.size("test-all")

RATE_PER_S = 60


@pytest.mark.proves("Java", "produce", "consumer group", "share group", "takeover")
def test_groups_outlive_the_proxy_of_a_coordinator(
    fleet: LocalFleet, kafka: KafkaCluster, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    newer, share = (
        Client(
            kind,
            fleet.bootstrap(),
            make_topic(PARTITIONS),
            tmp_path / kind,
            rate_per_s=RATE_PER_S,
            group_protocol="consumer",
        )
        for kind in ("java", "share")
    )
    clients = (newer, share)
    with clients_running(clients, kafka, silent=False):
        await_protocols(kafka, {newer.topic: "consumer"})
        kill_proxy_of_coordinator(fleet, kafka, newer.topic)
        await_flow(clients)
