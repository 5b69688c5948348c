"""Kafka's own tools print the same through a fleet as straight at the brokers, and no broker's address."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.drills.cluster.kafka import KafkaCluster
from tests.conformance.kafka_tools import (
    CHANGES,
    PARTITIONS,
    REFUSED,
    TOOLS,
    compare,
    compare_changes,
    leave_a_group,
)
from tests.conftest import MakeFleet, MakeTopic

pytestmark = pytest.mark.size("test-all")


@pytest.mark.proves("Java", "administration", "addresses")
@pytest.mark.timeout(900)
def test_every_tool_prints_the_same(
    kafka: KafkaCluster, make_fleet: MakeFleet, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """Of what is there, and of what they change themselves."""
    topic, fleet = make_topic(PARTITIONS), make_fleet()
    leave_a_group(kafka.bootstrap_servers, topic, f"group-{topic}")
    printed = {
        **compare(kafka, fleet, topic, f"group-{topic}"),
        **compare_changes(kafka, fleet, tmp_path),
    }
    assert printed.keys() == {*TOOLS, *CHANGES}
    for name, both in printed.items():
        assert both.through == both.straight, name
        assert ("exit code 0" in both.straight) == (name not in REFUSED), (name, both.straight)
        assert both.leaks == (), name
