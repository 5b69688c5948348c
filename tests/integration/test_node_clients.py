"""Clients in JavaScript: the results of a direct connection, and no addresses but the fleet's."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fleet.core.model import Endpoint
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.clients.node_program import NodeProgram, run
from tests.clients.program import PARTITIONS, Output
from tests.conftest import MakeFleet
from tests.integration.clients import read_all
from tests.integration.conftest import FleetCommand
from tests.integration.drains import drain_owner_of_coordinator
from tests.integration.relay import Recording

pytestmark = pytest.mark.size("test-all")

MakeTopic = Callable[..., str]
TRANSACTIONS = 9
"""Transactions with a record in each of twelve partitions. Five are committed, including the last one."""
FENCED = {"47", "90"}
"""INVALID_PRODUCER_EPOCH, PRODUCER_FENCED. Source: Errors.java"""


@pytest.mark.parametrize(
    "client",
    [
        pytest.param("kafkajs", marks=pytest.mark.proves("kafkajs", "addresses")),
        pytest.param("platformatic", marks=pytest.mark.proves("@platformatic/kafka", "addresses")),
    ],
)
def test_client_knows_only_fleet_addresses(client: str, fleet: LocalFleet, kafka: KafkaCluster) -> None:
    for proxy_id in fleet.members:
        events = run(client, "addresses", fleet.bootstrap([proxy_id]))
        found = dict(line.split(" ") for line in events["broker"])
        assert {int(each) for each in found} == kafka.brokers.keys()
        owned = {str(each.broker_id): each.committed for each in fleet.ownership(proxy_id).identities}
        for broker_id, address in found.items():
            host, _, port = address.rpartition(":")
            assert (fleet.owner_of(Endpoint(host, int(port))),) == owned[broker_id]


@pytest.mark.parametrize(
    "client",
    [
        pytest.param("kafkajs", marks=pytest.mark.proves("kafkajs", "administration", "addresses")),
        pytest.param(
            "platformatic", marks=pytest.mark.proves("@platformatic/kafka", "administration", "addresses")
        ),
    ],
)
def test_administration_has_the_results_of_a_direct_connection(
    client: str, fleet: LocalFleet, kafka: KafkaCluster, make_topic: MakeTopic, recorded: Recording
) -> None:
    group = make_topic()
    with NodeProgram(client, "work", kafka.bootstrap_servers, group, group, "classic") as program:
        program.await_flow()
        assert program.close() == 0
    through, direct = (
        run(client, "admin", bootstrap, f"{group}-{name}", group)
        for name, bootstrap in (("fleet", fleet.bootstrap()), ("direct", kafka.bootstrap_servers))
    )
    hidden, addresses = through.pop("advertised"), direct.pop("advertised")
    assert through == direct
    assert through["retention"] == ["604800000", "123456789"]
    assert through["group"] == ["consumer"]
    assert len(through["offsets"][0].split(",")) == PARTITIONS
    assert "127.77." in addresses[0]
    assert "127.77." not in hidden[0]
    assert recorded.contains(b"advertised.listeners")


@pytest.mark.parametrize(
    "client",
    [
        pytest.param("kafkajs", marks=pytest.mark.proves("kafkajs", "transactions")),
        pytest.param("platformatic", marks=pytest.mark.proves("@platformatic/kafka", "transactions")),
    ],
)
def test_transactions_commit_abort_and_fence_as_without_fleet(
    client: str, fleet: LocalFleet, kafka: KafkaCluster, make_topic: MakeTopic
) -> None:
    def outcome(bootstrap: str) -> tuple[Output, dict[str, list[str]]]:
        topic = make_topic()
        events = run(client, "transact", bootstrap, topic, topic, str(TRANSACTIONS))
        expected = {
            "read_committed": len(events["committed"]),
            "read_uncommitted": len(events["committed"]) + len(events["aborted"]),
        }
        read = {
            isolation: sorted(
                (each.value() or b"").decode()
                for each in read_all(bootstrap, topic, records, config={"isolation.level": isolation})
            )
            for isolation, records in expected.items()
        }
        return events, read

    through, direct = outcome(fleet.bootstrap()), outcome(kafka.bootstrap_servers)
    assert through == direct
    events, read = through
    assert (len(events["committed"]), len(events["aborted"])) == (5 * PARTITIONS, 4 * PARTITIONS)
    assert read["read_committed"] == sorted(events["committed"])
    assert read["read_uncommitted"] == sorted(events["committed"] + events["aborted"])
    assert len(events["fenced"]) == (client == "kafkajs")
    assert set(events["fenced"]) <= FENCED


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "client",
    [
        pytest.param(
            "kafkajs", marks=pytest.mark.proves("kafkajs", "produce", "classic group", "planned move")
        ),
        pytest.param(
            "platformatic",
            marks=pytest.mark.proves("@platformatic/kafka", "produce", "classic group", "planned move"),
        ),
    ],
)
def test_no_error_when_the_member_of_the_coordinator_is_drained(
    client: str,
    kafka: KafkaCluster,
    make_fleet: MakeFleet,
    make_topic: MakeTopic,
    fleet_command: FleetCommand,
) -> None:
    topic, own = make_topic(), make_fleet()
    with NodeProgram(client, "work", own.bootstrap(), topic, topic, "classic") as program:
        drain_owner_of_coordinator(own, kafka, topic, program, fleet_command)
        assert program.close() == 0
    program.check_records(kafka.bootstrap_servers, topic, topic)
    assert program.events["crashed"] == []
