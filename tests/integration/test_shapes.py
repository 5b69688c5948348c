"""Fleets of two and of four: they start, agree, and serve. A fleet of one is in test_nat."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.integration import wire
from tests.integration.clients import produce, read_all, wait_for
from tests.integration.conftest import PATIENT
from tests.integration.wire import Connection

pytestmark = pytest.mark.size("test-all")


@pytest.mark.parametrize(
    ("proxies", "roles", "owners"),
    [
        (2, ["follower", "leader"], {"p1", "p2"}),
        (4, ["follower", "follower", "leader", "observer"], {"p1", "p2", "p3", "p4"}),
    ],
)
def test_a_fleet_starts_agrees_and_serves(
    kafka: KafkaCluster,
    make_fleet: Callable[..., LocalFleet],
    make_topic: Callable[..., str],
    proxies: int,
    roles: list[str],
    owners: set[str],
) -> None:
    fleet = make_fleet(proxies, timing=PATIENT)
    documents = [fleet.ownership(proxy_id) for proxy_id in fleet.members]
    wait_for(
        lambda: sorted(fleet.ownership(proxy_id).role for proxy_id in fleet.members) == roles, "the roles"
    )
    assert fleet.leader() in fleet.members[:3]
    voters = documents[0].quorum.voters
    assert voters == fleet.members[:3]
    assert [each.voter for each in documents[0].members] == [each in voters for each in fleet.members]
    # More proxies than identities: an identity has several owners, so that no proxy is idle.
    assert {owner for each in documents[0].identities for owner in each.committed} == owners

    for proxy_id in fleet.members:
        topic, values = make_topic(partitions=3), [b"%02d" % number for number in range(30)]
        produce(fleet.bootstrap([proxy_id]), topic, values)
        received = read_all(fleet.bootstrap([proxy_id]), topic, len(values), partitions=3)
        assert sorted(each.value() for each in received) == values
        with Connection(fleet.bootstrap_endpoint(proxy_id)) as connection:
            table = wire.brokers_of(connection.ask(wire.metadata(1)))
        assert table.keys() == kafka.brokers.keys()
        for each in documents[0].identities:
            assert fleet.owner_of(table[each.broker_id]) in each.committed
