"""kafka-python: the results of a direct connection, and no addresses but the fleet's."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fleet.core.model import Endpoint
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.clients.kafka_python.program import KafkaPython, run
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


def endpoint_of(answers: str) -> Endpoint:
    host, _, port = answers.rpartition(" ")[2].rpartition(":")
    return Endpoint(host, int(port))


@pytest.mark.proves("kafka-python", "addresses")
def test_client_knows_only_fleet_addresses(fleet: LocalFleet, kafka: KafkaCluster) -> None:
    events = run("addresses", fleet.bootstrap())
    found = {int(each.partition(" ")[0]): endpoint_of(each) for each in events["broker"]}
    owned = {each.broker_id: each.committed for each in fleet.ownership("p1").identities}
    assert {each: (fleet.owner_of(endpoint),) for each, endpoint in found.items()} == owned
    assert found.keys() == kafka.brokers.keys()


@pytest.mark.proves("kafka-python", "administration", "addresses")
def test_the_quorum_is_described_without_addresses(
    fleet: LocalFleet, kafka: KafkaCluster, recorded: Recording
) -> None:
    """DescribeQuorum v2 names the controllers' addresses."""
    through, direct = run("quorum", fleet.bootstrap()), run("quorum", kafka.bootstrap_servers)
    assert through["voter"] == direct["voter"] == [str(each) for each in kafka.brokers]
    assert {endpoint_of(each).port for each in direct["node"]} == {
        kafka.listener("CONTROLLER", each).port for each in kafka.brokers
    }
    hidden = {kafka.listener("CONTROLLER", each) for each in kafka.brokers}
    assert not hidden & {endpoint_of(each) for each in through["node"]}


@pytest.mark.proves("kafka-python", "administration", "addresses")
def test_administration_has_the_results_of_a_direct_connection(
    fleet: LocalFleet, kafka: KafkaCluster, make_topic: MakeTopic
) -> None:
    group = make_topic()
    with KafkaPython("work", kafka.bootstrap_servers, group, group, "classic") as program:
        program.await_flow()
        assert program.close() == 0
    through, direct = (
        run("admin", bootstrap, f"{group}-{name}", group)
        for name, bootstrap in (("fleet", fleet.bootstrap()), ("direct", kafka.bootstrap_servers))
    )
    hidden, addresses = through.pop("advertised"), direct.pop("advertised")
    assert through == direct
    assert through["retention"] == ["604800000", "123456789"]
    assert through["group"] == ["['consumer']"]
    assert "127.77." in addresses[0]
    assert "127.77." not in hidden[0]


@pytest.mark.proves("kafka-python", "transactions")
def test_transactions_commit_abort_and_fence_as_without_fleet(
    fleet: LocalFleet, kafka: KafkaCluster, make_topic: MakeTopic
) -> None:
    def outcome(bootstrap: str) -> tuple[Output, list[str]]:
        topic = make_topic()
        events = run("transact", bootstrap, topic, topic, str(TRANSACTIONS))
        committed = {"isolation.level": "read_committed"}
        log = read_all(bootstrap, topic, len(events["committed"]), config=committed)
        return events, sorted((each.value() or b"").decode() for each in log)

    through, direct = outcome(fleet.bootstrap()), outcome(kafka.bootstrap_servers)
    assert through == direct
    events, read = through
    assert (len(events["committed"]), len(events["aborted"])) == (5 * PARTITIONS, 4 * PARTITIONS)
    assert read == sorted(events["committed"])
    assert events["fenced"] == ["refused"]


@pytest.mark.timeout(600)
@pytest.mark.proves("kafka-python", "produce", "classic group", "planned move")
def test_no_error_when_the_member_of_the_coordinator_is_drained(
    kafka: KafkaCluster,
    make_fleet: MakeFleet,
    make_topic: MakeTopic,
    fleet_command: FleetCommand,
) -> None:
    topic, own = make_topic(), make_fleet()
    with KafkaPython("work", own.bootstrap(), topic, topic, "classic") as program:
        drain_owner_of_coordinator(own, kafka, topic, program, fleet_command)
        assert program.close() == 0
    program.check_records(kafka.bootstrap_servers, topic, topic)
