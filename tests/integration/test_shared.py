"""A fleet with one port for all brokers: requests say which broker a connection is for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleet.core.model import BrokerId, Endpoint, ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.conftest import MakeTopic, fleets
from tests.integration import wire
from tests.integration.clients import produce, read_all
from tests.integration.conftest import PATIENT
from tests.integration.wire import Connection

VALUES = [b"%03d" % number for number in range(600)]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(1, id="one member", marks=pytest.mark.size("test-all")),
        pytest.param(3, id="three members", marks=pytest.mark.size("test")),
    ],
)
def shared(
    kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[LocalFleet]:
    with fleets(kafka, tmp_path_factory.mktemp("fleet")) as make:
        yield make(request.param, addressing="shared", timing=PATIENT)


def advertised(at: Endpoint) -> dict[BrokerId, Endpoint]:
    """The brokers in the Metadata that a member gives."""
    with Connection(at) as connection:
        return wire.brokers_of(connection.ask(wire.metadata(1)))


def owners(fleet: LocalFleet) -> dict[BrokerId, ProxyId]:
    return {each.broker_id: each.committed[0] for each in fleet.ownership("p1").identities}


def test_brokers_have_names_of_their_own_at_the_port_of_their_owner(shared: LocalFleet) -> None:
    expected = {
        broker_id: Endpoint(
            f"127.88.{owner.removeprefix('p')}.{broker_id}", shared.bootstrap_endpoint(owner).port
        )
        for broker_id, owner in owners(shared).items()
    }
    for proxy_id in shared.members:
        assert advertised(shared.bootstrap_endpoint(proxy_id)) == expected


@pytest.mark.proves("librdkafka", "shared port")
def test_librdkafka_produces_and_consumes(shared: LocalFleet, make_topic: MakeTopic) -> None:
    topic = make_topic()
    produce(shared.bootstrap(), topic, VALUES)
    assert sorted(each.value() for each in read_all(shared.bootstrap(), topic, len(VALUES))) == VALUES
