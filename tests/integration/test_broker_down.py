"""A real broker dies behind the fleet: its clients are refused at once, and other clients notice nothing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.integration import wire
from tests.integration.clients import produce, read_all, wait_for
from tests.integration.test_frames import config_error, identity_port
from tests.integration.wire import Connection

pytestmark = pytest.mark.size("test")

AT_ONCE_S = 3.0
"""Less than `upstream_connect_timeout_s`: the fleet forwards the refusal without waiting for the limit."""
DOWN = 3


@pytest.fixture
def restore_fleet(kafka: KafkaCluster, fleet: LocalFleet) -> Iterator[None]:
    """Restores brokers and fleet."""
    yield
    kafka.await_ready()
    wait_for(
        lambda: upstream_up(fleet, "p1") == dict.fromkeys(kafka.brokers, True), "the broker reached again"
    )
    fleet.await_settled(frozenset(kafka.brokers))


def upstream_up(fleet: LocalFleet, proxy_id: str) -> dict[int, bool | None]:
    return {each.broker_id: each.up for each in fleet.ownership(proxy_id, 20).brokers}


@pytest.mark.usefixtures("restore_fleet")
def test_dead_broker_closes_only_its_own_port_and_comes_back(
    fleet: LocalFleet, kafka: KafkaCluster, make_topic: Callable[..., str]
) -> None:
    topic, values = make_topic(partitions=6), [b"%02d" % number for number in range(60)]
    owners = {each.broker_id: each.committed for each in fleet.ownership("p1").identities}
    with (
        Connection(identity_port(fleet, "p1", DOWN)) as old,
        Connection(identity_port(fleet, "p1", 1)) as other,
    ):
        assert config_error(old, DOWN) == config_error(other, 1) == 0
        killed_s = time.monotonic()
        kafka.kill(DOWN)
        assert old.ends()
        assert time.monotonic() - killed_s < AT_ONCE_S
        assert config_error(other, 1) == 0

    for proxy_id in fleet.members:
        asked_s = time.monotonic()
        with Connection(identity_port(fleet, proxy_id, DOWN)) as refused:
            refused.send(wire.metadata(1))
            assert refused.ends()
        assert time.monotonic() - asked_s < AT_ONCE_S
        for broker_id in kafka.brokers.keys() - {DOWN}:
            with Connection(identity_port(fleet, proxy_id, broker_id)) as served:
                assert config_error(served, broker_id) == 0
        with Connection(fleet.bootstrap_endpoint(proxy_id)) as bootstrap:
            assert bootstrap.ask(wire.metadata(1))
        wait_for(partial(knows_that_it_is_down, fleet, proxy_id), f"{proxy_id} knows the change")
        assert fleet.is_ready(proxy_id)
    # The identity still has an owner, and no other identity has moved.
    now = {each.broker_id: each.committed for each in fleet.ownership("p1").identities}
    assert {each: now[each] for each in (1, 2)} == {each: owners[each] for each in (1, 2)}
    assert now[DOWN] != ()
    produce(fleet.bootstrap(), topic, values)

    kafka.start_broker(DOWN)
    for proxy_id in fleet.members:
        wait_for(partial(serves_again, fleet, proxy_id), f"broker {DOWN} through {proxy_id}")
    received = read_all(fleet.bootstrap(), topic, len(values), partitions=6)
    assert sorted(each.value() for each in received) == values


def knows_that_it_is_down(fleet: LocalFleet, proxy_id: str) -> bool:
    return upstream_up(fleet, proxy_id)[DOWN] is False


def serves_again(fleet: LocalFleet, proxy_id: str) -> bool:
    try:
        with Connection(identity_port(fleet, proxy_id, DOWN)) as connection:
            return config_error(connection, DOWN) == 0
    except (EOFError, ConnectionError):
        return False


BOOTSTRAPS = 8
FROZEN_S = 7.0
"""Longer than a worker keeps what it observed itself."""


@pytest.mark.usefixtures("restore_fleet")
def test_a_broker_that_is_frozen_gets_no_bootstrap_connection(fleet: LocalFleet, kafka: KafkaCluster) -> None:
    """Found: the frozen broker's kernel accepted connections, and half of all clients waited in vain."""
    os.kill(kafka.pid(DOWN), signal.SIGSTOP)
    try:
        for proxy_id in fleet.members:
            wait_for(partial(knows_that_it_is_down, fleet, proxy_id), f"{proxy_id} knows the change")
        until_s = time.monotonic() + FROZEN_S
        wait_for(lambda: time.monotonic() > until_s, "time has passed")
        for proxy_id in fleet.members:
            for number in range(BOOTSTRAPS):
                with Connection(fleet.bootstrap_endpoint(proxy_id)) as bootstrap:
                    asked_s = time.monotonic()
                    assert bootstrap.ask(wire.metadata(number))
                    assert time.monotonic() - asked_s < AT_ONCE_S
            assert upstream_up(fleet, proxy_id)[DOWN] is False
    finally:
        os.kill(kafka.pid(DOWN), signal.SIGCONT)
