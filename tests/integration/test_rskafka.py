"""rskafka, a client in Rust: the results of a direct connection, and no addresses but the fleet's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fleet.core.model import Endpoint
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.clients.program import Output, run
from tests.clients.rskafka.program import RECOMMENDED_BACKOFF, RsKafka
from tests.conftest import MakeFleet
from tests.integration.conftest import FleetCommand
from tests.integration.drains import drain_and_undrain

pytestmark = [pytest.mark.size("test-all"), pytest.mark.timeout(600)]

MakeTopic = Callable[..., str]


def endpoint_of(endpoints: str) -> Endpoint:
    host, _, port = endpoints.rpartition(" ")[2].rpartition(":")
    return Endpoint(host, int(port))


@pytest.mark.proves("rskafka", "produce", "consume")
def test_each_record_arrives_once(
    rskafka: Path, fleet: LocalFleet, kafka: KafkaCluster, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    with RsKafka([str(rskafka), "work", fleet.bootstrap(), topic]) as program:
        program.await_flow()
        assert program.close() == 0
    assert program.check_order(kafka.bootstrap_servers, topic) == 0


@pytest.mark.proves("rskafka", "administration")
def test_topics_records_and_offsets_are_as_directly(
    rskafka: Path, fleet: LocalFleet, kafka: KafkaCluster, make_topic: MakeTopic
) -> None:
    """Records with keys, headers and times, offsets by time, removed records, and what brokers refuse."""

    def results(bootstrap: str, name: str) -> Output:
        events = run([str(rskafka), "admin", bootstrap, name])
        for event in ("broker", "dialled"):
            events.pop(event)
        return events

    name = make_topic()
    through = results(fleet.bootstrap(), f"{name}-fleet")
    assert through == results(kafka.bootstrap_servers, f"{name}-direct")
    assert through["created again"] == ["TopicAlreadyExists"]
    assert through["offset"][:3] == ["0 1", "0 2", "0 3"]
    assert len(through["record"]) == 5 * 3


@pytest.mark.proves("rskafka", "addresses")
def test_rskafka_learns_and_dials_only_fleet_addresses(
    rskafka: Path, fleet: LocalFleet, kafka: KafkaCluster, make_topic: MakeTopic
) -> None:
    """rskafka connects to the leader of each partition, and to the controller."""
    events = run([str(rskafka), "addresses", fleet.bootstrap(), make_topic()])
    owned = {each.broker_id: each.committed for each in fleet.ownership("p1").identities}
    endpoints = {int(each.partition(" ")[0]): endpoint_of(each) for each in events["broker"]}
    assert {each: (fleet.owner_of(endpoint),) for each, endpoint in endpoints.items()} == owned
    assert endpoints.keys() == kafka.brokers.keys()
    bootstrap = {endpoint_of(each) for each in fleet.bootstrap().split(",")}
    dialled = {endpoint_of(each) for each in events["dialled"]}
    assert dialled - bootstrap <= set(endpoints.values())
    assert set(endpoints.values()) <= dialled
    assert events["refused"] == ["InvalidPartitions"]


@pytest.mark.proves("rskafka", "planned move at least once")
def test_no_error_when_a_member_is_drained(
    rskafka: Path,
    kafka: KafkaCluster,
    make_fleet: MakeFleet,
    make_topic: MakeTopic,
    fleet_command: FleetCommand,
) -> None:
    topic, own, drained = make_topic(), make_fleet(), "p2"
    assert (drained,) in [each.committed for each in own.ownership("p1").identities]
    with RsKafka([str(rskafka), *RECOMMENDED_BACKOFF, "work", own.bootstrap(), topic]) as program:
        program.await_flow()
        drain_and_undrain(own, kafka, drained, program, fleet_command)
        assert program.close() == 0
    twice = program.check_order(kafka.bootstrap_servers, topic)
    print(f"{twice} of {len(program.events['acknowledged'])} records are in the log twice")
