"""kafka-python, whose coordinator's proxy dies: an idempotent producer and a group."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.chaos.coordinators import await_protocols, kill_proxy_of_coordinator
from tests.clients.kafka_python.program import KafkaPython

pytestmark = pytest.mark.size("test-all")


@pytest.mark.timeout(600)
@pytest.mark.proves("kafka-python", "produce", "classic group", "takeover")
def test_nothing_is_lost_when_the_proxy_of_the_coordinator_dies(
    fleet: LocalFleet, kafka: KafkaCluster, make_topic: Callable[..., str]
) -> None:
    topic = make_topic()
    with KafkaPython("work", fleet.bootstrap(), topic, topic, "classic") as program:
        program.await_flow()
        await_protocols(kafka, {topic: "classic"})
        kill_proxy_of_coordinator(fleet, kafka, topic)
        program.await_flow()
        assert program.close() == 0
    program.check_records(kafka.bootstrap_servers, topic, topic)
