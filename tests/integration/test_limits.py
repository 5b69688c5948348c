"""The resources that one client can take from a member: limited, without effects on other clients."""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial

import pytest

from fleet.admin.metrics import limit_label
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.conftest import MakeFleet, MakeTopic
from tests.integration import wire
from tests.integration.clients import Load, count, wait_for
from tests.integration.metrics import scrape
from tests.integration.test_frames import identity_port
from tests.integration.test_member import leader_port
from tests.integration.wire import Connection

pytestmark = pytest.mark.size("test-all")

FLOODED, WATCHING = "p1", "p2"
BROKER = 1
MAX_CONNECTIONS = 40
FLOOD_S = 8.0
"""Several times the time until a member that does not answer probes is suspected."""
TIMING = {"suspect_after_s": 2.0, "probe_timeout_s": 1.0, "freeze_timeout_s": 10.0}


def closed_for(fleet: LocalFleet, limit: str) -> float:
    samples = scrape(fleet, FLOODED)["fleet_connections_limited_total"]
    return sum(number for labels, number in samples if labels == {"limit": limit_label(limit)})


def log_lines_of(fleet: LocalFleet, limit: str) -> list[str]:
    text = fleet.log(FLOODED).read_text(errors="replace")
    return [line for line in text.splitlines() if f"({limit}; " in line]


def is_served(connection: Connection) -> bool:
    try:
        return bool(connection.ask(wire.metadata(1)))
    except (EOFError, ConnectionError):
        return False


def takeovers(fleet: LocalFleet) -> float:
    return sum(number for _, number in scrape(fleet, WATCHING).get("fleet_takeovers_total", []))


def test_connection_flood_is_closed_and_others_notice_nothing(
    kafka: KafkaCluster, make_fleet: MakeFleet, make_topic: MakeTopic
) -> None:
    """An earlier client, and the other member's probes, are not disturbed while the member is full."""
    fleet = make_fleet(2, timing=TIMING, limits={"max_connections": MAX_CONNECTIONS})
    topic, endpoint = make_topic(), fleet.bootstrap_endpoint(FLOODED)
    generation = fleet.ownership(WATCHING).generation
    began_s = time.monotonic()
    with Load(fleet.bootstrap(), topic) as load, ExitStack() as opened:
        held = 0
        while is_served(opened.enter_context(Connection(endpoint))):
            held += 1
        assert MAX_CONNECTIONS / 2 < held < MAX_CONNECTIONS
        refused, full_s = 1, time.monotonic()
        while time.monotonic() - full_s < FLOOD_S:
            with ExitStack() as silent:
                for _ in range(300):
                    silent.enter_context(Connection(endpoint))
                with Connection(endpoint) as asking:
                    assert not is_served(asking)
                refused += 1
        wait_for(lambda: closed_for(fleet, "max_connections") >= refused, "the refused clients are counted")
        load.await_flow()
    assert load.failures == load.errors == []
    assert load.acknowledged == count(kafka.bootstrap_servers, topic)
    assert fleet.ownership(WATCHING).generation == generation
    assert takeovers(fleet) == 0
    lines = log_lines_of(fleet, "max_connections")
    assert 1 <= len(lines) <= time.monotonic() - began_s + 1
    assert all("closing the connection of client 127.0.0.1:" in each for each in lines)
    assert any("more unlogged" in each and "; 0 more" not in each for each in lines)


def test_late_client_is_closed_and_waiting_client_is_not(
    kafka: KafkaCluster, make_fleet: MakeFleet, make_topic: MakeTopic
) -> None:
    """A Fetch that waits longer than all limits, next to clients that reach each of them."""
    times = {"first_request_timeout_s": 1.0, "request_timeout_s": 2.0, "idle_timeout_s": 3.0}
    fleet, topic = make_fleet(1, limits=times), make_topic(partitions=1)
    port = leader_port(fleet, FLOODED, topic)
    begun = wire.produce_record(2, topic, 0, wire.one_record())
    with ExitStack() as opened:
        waiting, silent, slow, idle = (opened.enter_context(Connection(port)) for _ in range(4))
        waiting.send(wire.fetch(1, topic, 0, max_wait_ms=int(FLOOD_S * 1000)))
        began_s = time.monotonic()
        assert slow.ask(wire.metadata(1))
        slow.send(begun[:-1])
        assert idle.ask(wire.metadata(1))
        assert all(each.ends() for each in (silent, slow, idle))
        assert waiting.receive()[0] == 1
        assert time.monotonic() - began_s >= FLOOD_S
    for limit in times:
        wait_for(partial(closed_for, fleet, limit), "the connection is counted")
        assert (closed_for(fleet, limit), len(log_lines_of(fleet, limit))) == (1, 1)
    assert count(kafka.bootstrap_servers, topic, [0]) == 0


def test_source_has_a_limit_of_connections_and_bytes(make_fleet: MakeFleet) -> None:
    rate = 1 << 16
    fleet = make_fleet(1, limits={"max_connections_per_source": 10, "to_broker_bytes_per_second": rate})
    port = identity_port(fleet, FLOODED, BROKER)
    with ExitStack() as opened:
        held = 0
        while is_served(opened.enter_context(Connection(port))):
            held += 1
        assert held <= 10
        wait_for(lambda: closed_for(fleet, "max_connections_per_source") >= 1, "the connection is counted")
        (line,) = log_lines_of(fleet, "max_connections_per_source")
        assert "connections of 127.0.0.1 are open" in line
    small = wire.produce(1, acks=0)
    with Connection(port, source="127.9.9.8") as greedy, Connection(port, source="127.9.9.9") as other:
        began_s = time.monotonic()
        greedy.send(small * (10 * rate // len(small)) + wire.metadata(2))
        assert all(is_served(other) for _ in range(10))
        assert greedy.receive()[0] == 2
        assert time.monotonic() - began_s > 4.0
