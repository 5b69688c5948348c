"""kafka-go and sarama, clients in Go, whose coordinator's proxy dies, or is drained.

kafka-go looks its coordinator up on a new connection each time, and has no idempotent writer. The writer
sends a record again after its connection has ended, so the log may have the record twice. The groups of
both libraries resume at their committed offsets, so a group may receive a record twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from fleet.admin.client import admin_urls, drain
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.chaos.coordinators import (
    await_protocols,
    kill_proxy_of_coordinator,
    owner_of_coordinator,
)
from tests.clients.go_program import GoProgram
from tests.clients.program import check_group_committed
from tools.bootstrap import KAFKA_GO, SARAMA

pytestmark = pytest.mark.size("test-all")

RESUMED_LIMIT_S = 10.0
WATCH_S = 12.0
"""After a death or a drain. Longer than the limit and than three heartbeats, of 3 s each in both clients."""
MakeTopic = Callable[..., str]
Fault = Callable[[LocalFleet, KafkaCluster, str], AbstractContextManager[None]]
"""A fault of the member that owns the coordinator of a group, for the length of a context."""


@contextmanager
def killed(fleet: LocalFleet, kafka: KafkaCluster, group: str) -> Iterator[None]:
    """Kill the owner of a group's coordinator. The member stays dead after the context."""
    kill_proxy_of_coordinator(fleet, kafka, group)
    yield


@contextmanager
def drained(fleet: LocalFleet, kafka: KafkaCluster, group: str) -> Iterator[None]:
    """Drain the owner of a group's coordinator, and undrain the member after the context."""
    victim = owner_of_coordinator(fleet, kafka, group)
    others = [each for each in fleet.members if each != victim]
    urls = [admin_urls(fleet.settings)[each] for each in others]
    asyncio.run(drain(urls, victim, True))
    try:
        fleet.await_settled(frozenset(kafka.brokers), others)
        yield
    finally:
        asyncio.run(drain(urls, victim, False))


def watch(client: GoProgram, since_s: float) -> None:
    """Require that the group reads every partition again, and commits again, in time."""
    time.sleep(max(0.0, since_s + WATCH_S - time.monotonic()))
    client.await_partitions()
    until_s = time.monotonic()
    assert client.longest_pause_s("received", since_s, until_s) <= RESUMED_LIMIT_S
    if client.events["committed"]:  # the program around sarama reports no commits
        assert client.longest_wait_s("committed", since_s, until_s) <= RESUMED_LIMIT_S


def resumed(program: Path, fleet: LocalFleet, kafka: KafkaCluster, topic: str, fault: Fault) -> GoProgram:
    """Run a client through a fault. Require that it resumes in time, and commits the whole topic.

    Returns: the client, which has closed. The caller judges its records.
    """
    with GoProgram(program, "work", fleet.bootstrap(), topic, topic) as client:
        client.await_partitions()
        await_protocols(kafka, {topic: "classic"})
        since_s = time.monotonic()
        with fault(fleet, kafka, topic):
            watch(client, since_s)
            assert client.close() == 0
    check_group_committed(kafka.bootstrap_servers, topic, topic)
    return client


@pytest.mark.proves("kafka-go", "classic group", "takeover at least once")
def test_kafka_go_resumes_when_its_coordinators_proxy_dies(
    fleet: LocalFleet, kafka: KafkaCluster, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    client = resumed(KAFKA_GO, fleet, kafka, topic, killed)
    client.check_loss(kafka.bootstrap_servers, topic)


@pytest.mark.proves("kafka-go", "classic group", "planned move at least once")
def test_kafka_go_resumes_when_its_coordinators_proxy_is_drained(
    fleet: LocalFleet, kafka: KafkaCluster, make_topic: MakeTopic
) -> None:
    """kafka-go found a bug: for ten minutes, new connections were answered that no coordinator exists."""
    topic = make_topic()
    client = resumed(KAFKA_GO, fleet, kafka, topic, drained)
    assert client.events["refused"] == []
    client.check_loss(kafka.bootstrap_servers, topic)


@pytest.mark.proves("sarama", "produce", "classic group", "takeover at least once")
def test_sarama_continues_when_its_coordinators_proxy_dies(
    fleet: LocalFleet, kafka: KafkaCluster, make_topic: MakeTopic
) -> None:
    """The producer is idempotent: the log has no record twice."""
    topic = make_topic()
    client = resumed(SARAMA, fleet, kafka, topic, killed)
    assert client.events["refused"] == []
    client.check_log(kafka.bootstrap_servers, topic)


@pytest.mark.proves("sarama", "classic group", "planned move at least once")
def test_sarama_continues_when_its_coordinators_proxy_is_drained(
    fleet: LocalFleet, kafka: KafkaCluster, make_topic: MakeTopic
) -> None:
    """The program prints "reported" when a connection ends: see the error channel in docs/clients.md."""
    topic = make_topic()
    client = resumed(SARAMA, fleet, kafka, topic, drained)
    assert client.events["refused"] == []
    client.check_log(kafka.bootstrap_servers, topic)
