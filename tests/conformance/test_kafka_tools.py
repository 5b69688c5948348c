"""Kafka's own tools print the same through a fleet as directly at the brokers, and no broker's address."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.drills.cluster.kafka import KafkaCluster
from tests.conformance.kafka_tools import (
    CHANGES,
    FAILING_TOOLS,
    PARTITIONS,
    TOOLS,
    compare,
    compare_changes,
    create_idle_group,
)
from tests.conftest import MakeFleet, MakeTopic

pytestmark = pytest.mark.size("test-all")


@pytest.mark.proves("Java", "administration", "addresses")
@pytest.mark.timeout(900)
def test_every_tool_prints_the_same(
    kafka: KafkaCluster, make_fleet: MakeFleet, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """For existing objects, and for objects that the tools change."""
    topic, fleet = make_topic(PARTITIONS), make_fleet()
    create_idle_group(kafka.bootstrap_servers, topic, f"group-{topic}")
    printed = {
        **compare(kafka, fleet, topic, f"group-{topic}"),
        **compare_changes(kafka, fleet, tmp_path),
    }
    assert printed.keys() == {*TOOLS, *CHANGES}
    for name, outputs in printed.items():
        assert outputs.proxied == outputs.direct, name
        assert ("exit code 0" in outputs.direct) == (name not in FAILING_TOOLS), (name, outputs.direct)
        assert outputs.leaks == (), name
