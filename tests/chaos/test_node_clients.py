"""Clients in JavaScript, whose coordinator's proxy dies: an idempotent producer and a group."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.chaos.coordinators import await_protocols, kill_proxy_of_coordinator
from tests.clients.node_program import NodeProgram
from tests.integration.clients import wait_for

pytestmark = pytest.mark.size("test-all")

REJOIN_LIMIT_S = 180.0
"""With its defaults kafkajs waits until the session of its former self has ended, 30 s, or twice.
@platformatic/kafka may wait for one of 60 s."""


@pytest.mark.timeout(600)
@pytest.mark.proves("kafkajs", "produce", "classic group", "takeover")
def test_group_continues_when_its_coordinators_proxy_dies(
    fleet: LocalFleet, kafka: KafkaCluster, make_topic: Callable[..., str]
) -> None:
    """The group reads again what it had not committed, as it does when a broker dies."""
    topic = make_topic()
    with NodeProgram("kafkajs", "work", fleet.bootstrap(), topic, topic, "classic") as program:
        program.await_flow()
        await_protocols(kafka, {topic: "classic"})
        joined = len(program.events["joined"])
        kill_proxy_of_coordinator(fleet, kafka, topic)
        wait_for(lambda: len(program.events["joined"]) > joined, "the group again", REJOIN_LIMIT_S)
        program.await_flow(REJOIN_LIMIT_S)
        assert program.close(REJOIN_LIMIT_S) == 0
    program.check_records(kafka.bootstrap_servers, topic, topic)


@pytest.mark.timeout(600)
@pytest.mark.proves("@platformatic/kafka", "produce", "classic group", "takeover")
def test_every_partition_continues_with_and_without_a_rejoin(
    fleet: LocalFleet, kafka: KafkaCluster, make_topic: Callable[..., str]
) -> None:
    """A member whose stream outlives the takeover never joins again: its commits keep its session.

    An earlier test waited for it to join, and failed after 180 s in which no record was late.
    """
    topic = make_topic()
    with NodeProgram("platformatic", "work", fleet.bootstrap(), topic, topic, "classic") as program:
        program.await_flow()
        await_protocols(kafka, {topic: "classic"})
        kill_proxy_of_coordinator(fleet, kafka, topic)
        program.await_partitions(REJOIN_LIMIT_S)
        assert program.close(REJOIN_LIMIT_S) == 0
    program.check_records(kafka.bootstrap_servers, topic, topic)
