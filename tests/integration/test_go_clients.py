"""kafka-go and sarama, clients in Go, behind the fleet: records, groups, administration, transactions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fleet.core.model import Endpoint
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.clients.go_program import GoProgram, run
from tests.clients.program import Output
from tests.integration.clients import read_all
from tools.bootstrap import KAFKA_GO, SARAMA

pytestmark = pytest.mark.size("test-all")

MakeTopic = Callable[..., str]
TRANSACTIONS = 5
"""Transactions with a record in each of twelve partitions. Three are committed, including the last one."""
HIDDEN = {"listeners", "advertised.listeners", "controller.quorum.voters"}
"""The settings of a broker that contain addresses, and that the fleet empties."""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(KAFKA_GO, marks=pytest.mark.proves("kafka-go", "produce", "classic group")),
        pytest.param(SARAMA, marks=pytest.mark.proves("sarama", "produce", "classic group")),
    ],
)
def test_a_group_is_given_each_record_once_and_commits(
    fleet: LocalFleet, kafka: KafkaCluster, make_topic: MakeTopic, program: Path
) -> None:
    topic = make_topic()
    with GoProgram(program, "work", fleet.bootstrap(), topic, topic) as client:
        client.await_flow()
        assert client.close() == 0
    client.check_records(kafka.bootstrap_servers, topic, topic)
    assert [client.events[event] for event in ("refused", "interrupted", "reported")] == [[], [], []]


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(KAFKA_GO, marks=pytest.mark.proves("kafka-go", "administration")),
        pytest.param(SARAMA, marks=pytest.mark.proves("sarama", "administration")),
    ],
)
def test_administration_has_the_results_of_a_direct_connection(
    fleet: LocalFleet, kafka: KafkaCluster, make_topic: MakeTopic, program: Path
) -> None:
    group = make_topic()
    with GoProgram(program, "work", kafka.bootstrap_servers, group, group) as client:
        client.await_flow()
        assert client.close() == 0

    def results(bootstrap: str, topic: str) -> Output:
        events = run(program, "admin", bootstrap, topic, group)
        assert "retention.ms=3600000" in events[f"config of {topic}"]
        return {
            event.replace(topic, "TOPIC"): sorted(value.replace(topic, "TOPIC") for value in values)
            for event, values in events.items()
        }

    directly = results(kafka.bootstrap_servers, f"made-directly-{group}")
    through = results(fleet.bootstrap(), f"made-through-the-fleet-{group}")
    # The fleet removes only the settings with addresses from a broker's configuration.
    broker = dict(map(_setting, directly["config of 1"]))
    assert {name for name, value in broker.items() if "127.77." in value} == HIDDEN
    directly["config of 1"] = sorted(
        f"{name}={'' if name in HIDDEN else value}" for name, value in broker.items()
    )
    assert through == directly
    assert sorted(through["broker"]) == ["1", "2", "3"]
    assert through["offset"] != []


def _setting(line: str) -> tuple[str, str]:
    name, _, value = line.partition("=")
    return name, value


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(KAFKA_GO, marks=pytest.mark.proves("kafka-go", "addresses")),
        pytest.param(SARAMA, marks=pytest.mark.proves("sarama", "addresses")),
    ],
)
def test_go_client_learns_only_the_owners_addresses(
    fleet: LocalFleet, kafka: KafkaCluster, make_topic: MakeTopic, program: Path
) -> None:
    """The same ids as directly, each at its owner's address. Brokers name any of them as the controller."""
    topic = make_topic()
    owners = fleet.owners()
    directly = run(program, "addresses", kafka.bootstrap_servers, topic, topic)
    through = run(program, "addresses", fleet.bootstrap(), topic, topic)
    for event in ("broker", "leader", "replica", "coordinator", "transaction coordinator"):
        ids = [
            sorted(broker_id for broker_id, _ in map(_place, events[event])) for events in (directly, through)
        ]
        assert ids[0] == ids[1], event
    assert {broker_id for broker_id, _ in map(_place, through["broker"])} == kafka.brokers.keys()
    for broker_id, endpoint in (_place(value) for values in through.values() for value in values):
        assert fleet.owner_of(endpoint) == owners[broker_id]


def _place(value: str) -> tuple[int, Endpoint]:
    broker_id, _, address = value.partition(" ")
    host, _, port = address.rpartition(":")
    return int(broker_id), Endpoint(host, int(port))


@pytest.mark.proves("sarama", "transactions")
def test_sarama_commits_aborts_and_is_fenced(
    fleet: LocalFleet, kafka: KafkaCluster, make_topic: MakeTopic
) -> None:
    """The last records of each partition are committed: a reader of these has received all before them."""
    other, topic = make_topic(), make_topic()
    directly = run(SARAMA, "transact", kafka.bootstrap_servers, other, other, str(TRANSACTIONS))

    def values(isolation: str, expected: int) -> list[str]:
        read = read_all(fleet.bootstrap(), topic, expected, config={"isolation.level": isolation})
        return sorted((each.value() or b"").decode() for each in read)

    events = run(SARAMA, "transact", fleet.bootstrap(), topic, topic, str(TRANSACTIONS))
    committed, aborted = sorted(events["committed"]), events["aborted"]
    assert (len(committed), len(aborted)) == (3 * 12, 2 * 12)
    assert events == directly
    assert events["fenced"] == ["90"]  # PRODUCER_FENCED. Source: Errors.java
    assert values("read_committed", len(committed)) == committed
    all_values = sorted(committed + aborted)
    assert values("read_uncommitted", len(all_values)) == all_values
