"""franz-go, a client in Go: idempotent producers, and groups of both protocols."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest

from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.chaos.coordinators import (
    await_protocols,
    group_with_coordinator_of,
    kill_proxy_of_coordinator,
)
from tests.clients.franz.program import FranzGo

pytestmark = pytest.mark.size("test-all")


@pytest.mark.proves("franz-go", "produce", "classic group", "consumer group", "takeover")
def test_coordinator_proxy_death_loses_and_repeats_no_record(
    fleet: LocalFleet, kafka: KafkaCluster, make_topic: Callable[..., str]
) -> None:
    topics = {"classic": make_topic(), "consumer": make_topic()}
    classic = topics["classic"]
    groups = {"classic": classic, "consumer": group_with_coordinator_of(kafka, classic)}
    with ExitStack() as ending:
        clients = {}
        for protocol, topic in topics.items():
            client = FranzGo("work", fleet.bootstrap(), topic, groups[protocol], protocol)
            clients[protocol] = ending.enter_context(client)
        for client in clients.values():
            client.await_flow()
        await_protocols(kafka, {group: protocol for protocol, group in groups.items()})
        kill_proxy_of_coordinator(fleet, kafka, classic)
        for client in clients.values():
            client.await_flow()
        for client in clients.values():
            assert client.close() == 0
    for protocol, client in clients.items():
        client.check_records(kafka.bootstrap_servers, topics[protocol], groups[protocol])
