"""Requests for a group's coordinator after a move: librdkafka gets help, and no other client is refused."""

from __future__ import annotations

from functools import partial

import pytest

from fleet.drills.cluster.kafka import KafkaCluster
from tests.chaos.coordinators import coordinator
from tests.conftest import MakeFleet
from tests.integration import wire
from tests.integration.clients import LIMIT_S, wait_for
from tests.integration.conftest import FleetCommand
from tests.integration.wire import Connection

pytestmark = pytest.mark.size("test-all")

GROUP = "asked-for"
QUESTIONS = 10


def test_client_on_new_connections_is_answered_after_a_drain(
    kafka: KafkaCluster, make_fleet: MakeFleet, fleet_command: FleetCommand
) -> None:
    """Found with kafka-go: for ten minutes, new connections received the answer that no coordinator
    exists."""
    fleet = make_fleet()
    expected = coordinator(kafka, GROUP)
    owner = fleet.owners()[expected]

    def coordinator_named_by(proxy_id: str, software: str | None = None) -> int | None:
        with Connection(fleet.bootstrap_endpoint(proxy_id)) as connection:
            if software is not None:
                connection.ask(wire.named(1, software))
            return wire.coordinator_of(connection.ask(wire.find_coordinator(2, GROUP)))

    def moved(proxy_id: str) -> bool:
        owners = {each.broker_id: each.advertised for each in fleet.ownership(proxy_id).identities}
        return owner not in owners[expected]

    fleet_command(fleet, "drain", owner)
    for proxy_id in fleet.members:
        wait_for(partial(moved, proxy_id), f"{proxy_id} knows", LIMIT_S)
        assert [coordinator_named_by(proxy_id) for _ in range(QUESTIONS)] == [expected] * QUESTIONS
        assert coordinator_named_by(proxy_id, "kafka-go") == expected
        assert coordinator_named_by(proxy_id, "librdkafka") is None
