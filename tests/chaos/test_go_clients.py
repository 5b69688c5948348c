"""kafka-go and sarama, clients in Go, whose coordinator's proxy dies, or is drained.

kafka-go asks for its coordinator on a new connection each time, and has no idempotent writer. The writer
sends a record again where its connection has ended, so the log may have the record twice. Both libraries'
groups read on from what they have committed, so a group may be given a record twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from fleet.admin.client import admin_urls, drain
from fleet.demo.kafka import KafkaCluster
from fleet.demo.local_fleet import LocalFleet
from fleet.model import ProxyId
from tests.chaos.coordinators import (
    await_protocols,
    kill_proxy_of_coordinator,
    owner_of_coordinator,
)
from tests.clients.go_program import GoProgram
from tests.clients.program import judge_group
from tools.bootstrap import KAFKA_GO, SARAMA

pytestmark = pytest.mark.size("test-all")

RESUMED_LIMIT_S = 10.0
WATCH_S = 12.0
"""After a death or a drain: longer than the limit, and than three heartbeats of either client (3 s each)."""
MakeTopic = Callable[..., str]


@contextmanager
def drained(fleet: LocalFleet, kafka: KafkaCluster, group: str) -> Iterator[ProxyId]:
    """The owner of a group's coordinator owns nothing meanwhile."""
    victim = owner_of_coordinator(fleet, kafka, group)
    others = [each for each in fleet.members if each != victim]
    urls = [admin_urls(fleet.settings)[each] for each in others]
    asyncio.run(drain(urls, victim, True))
    try:
        fleet.await_settled(frozenset(kafka.brokers), others)
        yield victim
    finally:
        asyncio.run(drain(urls, victim, False))


def watch(client: GoProgram, since_s: float) -> None:
    """See to it that every partition is read on, and that the group commits, in time."""
    time.sleep(max(0.0, since_s + WATCH_S - time.monotonic()))
    client.await_partitions()
    until_s = time.monotonic()
    assert client.longest_pause_s("received", since_s, until_s) <= RESUMED_LIMIT_S
    if client.said["committed"]:  # sarama commits without a word
        assert client.longest_wait_s("committed", since_s, until_s) <= RESUMED_LIMIT_S


@pytest.mark.proves("kafka-go", "classic group", "takeover at least once")
def test_kafka_go_resumes_when_its_coordinators_proxy_dies(
    fleet: LocalFleet, kafka: KafkaCluster, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    with GoProgram(KAFKA_GO, "work", fleet.bootstrap(), topic, topic) as client:
        client.await_partitions()
        await_protocols(kafka, {topic: "classic"})
        since_s = time.monotonic()
        kill_proxy_of_coordinator(fleet, kafka, topic)
        watch(client, since_s)
        assert client.close() == 0
    client.judge_loss(kafka.bootstrap_servers, topic)
    judge_group(kafka.bootstrap_servers, topic, topic)


@pytest.mark.proves("kafka-go", "classic group", "planned move at least once")
def test_kafka_go_resumes_when_its_coordinators_proxy_is_drained(
    fleet: LocalFleet, kafka: KafkaCluster, make_topic: MakeTopic
) -> None:
    """Found by kafka-go: new connections were told for ten minutes that there is no coordinator."""
    topic = make_topic()
    with GoProgram(KAFKA_GO, "work", fleet.bootstrap(), topic, topic) as client:
        client.await_partitions()
        await_protocols(kafka, {topic: "classic"})
        since_s = time.monotonic()
        with drained(fleet, kafka, topic):
            watch(client, since_s)
            assert client.close() == 0
    assert client.said["refused"] == []
    client.judge_loss(kafka.bootstrap_servers, topic)
    judge_group(kafka.bootstrap_servers, topic, topic)


@pytest.mark.proves("sarama", "produce", "classic group", "takeover at least once")
def test_sarama_goes_on_when_its_coordinators_proxy_dies(
    fleet: LocalFleet, kafka: KafkaCluster, make_topic: MakeTopic
) -> None:
    """Its producer is idempotent: no record is in the log twice."""
    topic = make_topic()
    with GoProgram(SARAMA, "work", fleet.bootstrap(), topic, topic) as client:
        client.await_partitions()
        await_protocols(kafka, {topic: "classic"})
        since_s = time.monotonic()
        kill_proxy_of_coordinator(fleet, kafka, topic)
        watch(client, since_s)
        assert client.close() == 0
    assert client.said["refused"] == []
    client.judge_log(kafka.bootstrap_servers, topic)
    judge_group(kafka.bootstrap_servers, topic, topic)


@pytest.mark.proves("sarama", "classic group", "planned move at least once")
def test_sarama_goes_on_when_its_coordinators_proxy_is_drained(
    fleet: LocalFleet, kafka: KafkaCluster, make_topic: MakeTopic
) -> None:
    """Its error channel has the end of a connection, `reported` here: docs/clients.md says so."""
    topic = make_topic()
    with GoProgram(SARAMA, "work", fleet.bootstrap(), topic, topic) as client:
        client.await_partitions()
        await_protocols(kafka, {topic: "classic"})
        since_s = time.monotonic()
        with drained(fleet, kafka, topic):
            watch(client, since_s)
            assert client.close() == 0
    assert client.said["refused"] == []
    client.judge_log(kafka.bootstrap_servers, topic)
    judge_group(kafka.bootstrap_servers, topic, topic)
