"""One member cannot reach one running broker. The other member can, and the other brokers are reachable.

The two members use different listeners of the brokers. Only the listener of p2 leads through Toxiproxy.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, TopicPartition

from benchmarks.plain_producer import ProducerReport, Spec
from benchmarks.repeats import SETTINGS, examine, read_rows
from fleet.admin import client
from fleet.core.model import BrokerId, Endpoint, ProxyId
from fleet.drills.cluster.fleet import LISTENER, LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.drills.cluster.spawn import end, spawn_module
from tests.chaos.conftest import PATIENT_TIMING, Note, StartLoad
from tests.chaos.harness import ChaosHarness, View, wait_for
from tests.chaos.seeded.effects import prove_black
from tests.chaos.seeded.network import Link, Toxiproxy, knock
from tests.chaos.seeded.run import toxiproxy
from tests.conftest import AWAY, AWAY_LISTENER

pytestmark = pytest.mark.size("test-all")

VICTIM, OTHER = "p2", "p1"
MOVED_LIMIT_S = 15.0
"""Five times the measurement on a quiet machine."""
RECOVERY_LIMIT_S = 30.0
LINK_INTERRUPTIONS = 4
LATENCY_MS = 100
PRODUCER_LIMIT_S = 90.0
PARTITION_COUNT = 6
"""Number of partitions: two for each broker."""
QUIET_S = 3.0
"""Longer than members must be steady before identities move for balance."""


@pytest.fixture(scope="module")
def away(
    kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LocalFleet, Toxiproxy]]:
    """Two members. p2 reaches the brokers through Toxiproxy."""
    folder = tmp_path_factory.mktemp("away")
    fleet = LocalFleet(folder / "fleet", kafka.endpoints, 2, timing=PATIENT_TIMING)
    fleet.reach_brokers_at(VICTIM, list(AWAY.values()))
    with toxiproxy(folder) as network:
        network.put_before_brokers(kafka, AWAY_LISTENER, AWAY)
        try:
            with fleet:
                yield fleet, network
        finally:
            fleet.remove_data()


def refuse(_: Toxiproxy, link: Link) -> None:
    link.proxy.disable()
    assert asyncio.run(knock(link.at, 5.0)).broken


def swallow(network: Toxiproxy, link: Link) -> None:
    network.poison([link], "timeout", {"timeout": 0}, "both")
    asyncio.run(prove_black(link))


def heal(network: Toxiproxy, link: Link) -> None:
    network.heal([link])
    link.proxy.enable()


@pytest.mark.parametrize("breaks", [refuse, swallow])
def test_only_the_identity_of_an_unreachable_broker_moves(
    away: tuple[LocalFleet, Toxiproxy],
    kafka: KafkaCluster,
    start_load: StartLoad,
    note: Note,
    breaks: Callable[[Toxiproxy, Link], None],
) -> None:
    """Found: workers dialled addresses of brokers that another member had learned, not their own."""
    fleet, network = away
    fleet.await_ready()
    give_most_identities(fleet, VICTIM, frozenset(kafka.brokers))
    wait_for(lambda: dialled_endpoints(fleet, VICTIM) == AWAY, "a way of its own", RECOVERY_LIMIT_S)
    with start_load(fleet) as harness:
        before = harness.committed(VICTIM)
        lost, *remaining = sorted(each for each, owner in before.items() if owner == VICTIM)
        (link,) = network.broker_links(lost)
        after = {**before, lost: OTHER}

        if breaks is refuse:
            interrupt_link(harness, network, link, before)

        with harness.probing_closely():
            cut_s = time.monotonic()
            breaks(network, link)
            wait_for(lambda: harness.committed(OTHER) == after, "the identity moved", MOVED_LIMIT_S)
            wait_for(lambda: all(each == after for each in harness.advertised().values()), "Metadata", 5.0)
            note("advertised after", max(views[-1].at_s for views in all_views(harness, cut_s)) - cut_s)
        harness.await_flow()
        harness.await_quiet(QUIET_S)
        assert [view.owners for view in harness.views(OTHER, cut_s)] == [before, after]
        assert remaining
        assert cannot_reach(fleet, VICTIM) == {lost}
        assert cannot_reach(fleet, OTHER) == set()

        generation, healed_s = harness.generation(), time.monotonic()
        heal(network, link)
        wait_for(lambda: not cannot_reach(fleet, VICTIM), "the broker reached again", RECOVERY_LIMIT_S)
        # The member may own the identity again, but nothing moves: the loads are even.
        harness.await_quiet(QUIET_S)
        assert harness.generation() == generation
        assert [[view.owners for view in views] for views in all_views(harness, healed_s)] == [
            [after],
            [after],
        ]


def give_most_identities(fleet: LocalFleet, proxy_id: ProxyId, broker_ids: frozenset[BrokerId]) -> None:
    """Let a member own two of three identities, so that it may lose one without a move for balance."""
    fleet.await_settled(broker_ids)
    if owned_count(fleet, proxy_id) < 2:
        urls = [f"http://{fleet.settings.member(OTHER).admin}"]
        asyncio.run(client.drain(urls, OTHER, True))
        wait_for(
            lambda: owned_count(fleet, proxy_id) == len(broker_ids),
            f"all owned by {proxy_id}",
            RECOVERY_LIMIT_S,
        )
        asyncio.run(client.drain(urls, OTHER, False))
        fleet.await_settled(broker_ids)


def owned_count(fleet: LocalFleet, proxy_id: ProxyId) -> int:
    return sum(each.committed == (proxy_id,) for each in fleet.ownership(proxy_id).identities)


def interrupt_link(
    harness: ChaosHarness, network: Toxiproxy, link: Link, owners: dict[BrokerId, ProxyId]
) -> None:
    """A link that breaks briefly from time to time causes no move."""
    since_s = time.monotonic()
    for _ in range(LINK_INTERRUPTIONS):
        refuse(network, link)
        wait_for(lambda: cannot_reach(harness.fleet, VICTIM) == {broker_of(link)}, "a broker not reached")
        heal(network, link)
        wait_for(
            lambda: not cannot_reach(harness.fleet, VICTIM), "the broker reached again", RECOVERY_LIMIT_S
        )
    assert [[view.owners for view in views] for views in all_views(harness, since_s)] == [[owners], [owners]]


def broker_of(link: Link) -> BrokerId:
    return next(broker_id for broker_id, endpoint in AWAY.items() if endpoint == link.at)


def all_views(harness: ChaosHarness, since_s: float) -> list[list[View]]:
    return [harness.views(each, since_s) for each in harness.fleet.members]


def dialled_endpoints(fleet: LocalFleet, proxy_id: ProxyId) -> dict[BrokerId, Endpoint]:
    """The addresses at which a member reaches the brokers."""
    return {each.broker_id: Endpoint(each.host, each.port) for each in fleet.ownership(proxy_id).brokers}


def cannot_reach(fleet: LocalFleet, proxy_id: ProxyId) -> set[BrokerId]:
    return {each.broker_id for each in fleet.ownership(proxy_id).brokers if each.up is False}


def test_drain_repeats_no_record_without_idempotence(
    away: tuple[LocalFleet, Toxiproxy],
    kafka: KafkaCluster,
    make_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    """Found: after its connection to one broker ended, Metadata made the producer drop the other connection.

    With a slow broker a request is always in flight: the connection to the fast broker has to wait.
    """
    fleet, network = away
    fleet.await_ready()
    give_most_identities(fleet, VICTIM, frozenset(kafka.brokers))
    wait_for(lambda: dialled_endpoints(fleet, VICTIM) == AWAY, "a way of its own", RECOVERY_LIMIT_S)
    slow, fast = sorted(
        each.broker_id for each in fleet.ownership(VICTIM).identities if VICTIM in each.committed
    )
    links = network.broker_links(slow)
    network.poison(links, "latency", {"latency": LATENCY_MS}, "out")
    topic, seen = make_topic(PARTITION_COUNT), tmp_path / "seen"
    spec = Spec(0, fleet.bootstrap(), topic, PARTITION_COUNT, 600, str(seen), dict(SETTINGS))
    producer = spawn_module(
        "benchmarks.plain_producer", json.dumps(asdict(spec)), log=tmp_path / "producer.log"
    )
    urls = [f"http://{fleet.settings.member(OTHER).admin}"]
    try:
        wait_for(
            lambda: connection_count(fleet, producer.pid, VICTIM, slow, fast) == 2,
            "a producer",
            PRODUCER_LIMIT_S,
        )
        wait_for(lambda: record_count(kafka, topic) > 2_000, "records", PRODUCER_LIMIT_S)
        asyncio.run(client.drain(urls, VICTIM, True))
        wait_for(
            lambda: connection_count(fleet, producer.pid, OTHER, slow, fast) == 2, "moves", PRODUCER_LIMIT_S
        )
        before = record_count(kafka, topic)
        wait_for(lambda: record_count(kafka, topic) > before + 1_000, "more", PRODUCER_LIMIT_S)
        assert connection_count(fleet, producer.pid, VICTIM, slow, fast) == 0
    finally:
        end([producer], 60.0)
        network.heal(links)
        asyncio.run(client.drain(urls, VICTIM, False))
    assert producer.returncode == 0
    saw = ProducerReport(**json.loads(seen.read_text()))
    found = examine(read_rows(kafka.bootstrap_servers, topic, PARTITION_COUNT), [saw], [])
    assert (found.twice, found.out_of_order, found.lost, saw.failed) == ({}, {}, 0, [])


def connection_count(fleet: LocalFleet, pid: int, proxy_id: ProxyId, *broker_ids: BrokerId) -> int:
    """Number of connections of a process to a member's identity ports."""
    member = fleet.settings.member(proxy_id).to_member(fleet.settings)
    ports = {member.endpoint(LISTENER, each) for each in broker_ids}
    found = psutil.Process(pid).net_connections("tcp")
    return sum(
        each.status == psutil.CONN_ESTABLISHED and Endpoint(*each.raddr) in ports
        for each in found
        if each.raddr
    )


def record_count(kafka: KafkaCluster, topic: str) -> int:
    """Number of records in a topic."""
    reader = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": topic})
    try:
        return sum(
            reader.get_watermark_offsets(TopicPartition(topic, each), 10.0)[1]
            for each in range(PARTITION_COUNT)
        )
    finally:
        reader.close()
