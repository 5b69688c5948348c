"""A running member in a bad network: packets to it or from it are lost, or all are slow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from fleet.core.model import ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.chaos.conftest import PATIENT_TIMING, Note, StartLoad
from tests.chaos.harness import (
    COMMITTED_LIMIT_S,
    FROZEN_LIMIT_S,
    ChaosHarness,
    check_until,
    is_fully_linked,
    wait_for,
)
from tests.chaos.network import FleetNetwork, surrounded_fleet
from tests.chaos.seeded.schedule import Direction

pytestmark = pytest.mark.size("test-all")

SLOW_S = 0.3
SLOWER_S = 0.5
HOLD_S = 10.0
MAX_TERMS = 20
"""Elections: three per second while every vote came too late; five in total on a quiet machine."""
HANG_UP_COUNT = 5
QUIET_S = 2.0
WHOLE_LIMIT_S = 30.0


@pytest.fixture(scope="module")
def surrounded(
    kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LocalFleet, FleetNetwork]]:
    """Three members that are reachable only through Toxiproxy."""
    with surrounded_fleet(kafka, tmp_path_factory.mktemp("gray"), PATIENT_TIMING) as both:
        yield both


@pytest.fixture
def gray(
    surrounded: tuple[LocalFleet, FleetNetwork], kafka: KafkaCluster, start_load: StartLoad
) -> Iterator[tuple[LocalFleet, FleetNetwork, ChaosHarness]]:
    """The same fleet, whole before each test, with clients under load."""
    fleet, fleet_network = surrounded
    fleet.await_ready()
    fleet.await_settled(frozenset(kafka.brokers))
    wait_for(lambda: is_fully_linked(fleet), "every link", WHOLE_LIMIT_S)
    try:
        with start_load(fleet) as harness:
            yield fleet, fleet_network, harness
    finally:
        fleet_network.heal()


Gray = tuple[LocalFleet, FleetNetwork, ChaosHarness]


def shut_doors(fleet_network: FleetNetwork, victim: ProxyId) -> None:
    fleet_network.shut_doors(victim)


def silence_doors(fleet_network: FleetNetwork, victim: ProxyId) -> None:
    fleet_network.silence_doors(victim)
    fleet_network.prove_black(victim)


def swallow(fleet_network: FleetNetwork, victim: ProxyId, *, direction: Direction) -> None:
    fleet_network.swallow(victim, direction)
    fleet_network.prove_black(victim)


Fault = Callable[[FleetNetwork, ProxyId], None]


@pytest.mark.parametrize(
    ("breaks", "role"),
    [
        (partial(swallow, direction="both"), "follower"),
        (partial(swallow, direction="in"), "leader"),
        (partial(swallow, direction="out"), "leader"),
        (shut_doors, "follower"),
        (silence_doors, "follower"),
    ],
    ids=["black hole", "deaf leader", "mute leader", "refuses clients", "silent to clients"],
)
def test_member_that_answers_no_peer_is_taken_over(gray: Gray, note: Note, breaks: Fault, role: str) -> None:
    """Found: with only incoming packets lost, the takeover took 1.0 to 2.0 s, depending on the probes."""
    fleet, fleet_network, harness = gray
    victim = harness.member(role)
    survivors = [each for each in fleet.members if each != victim]
    with harness.probing_closely():
        broken_s = time.monotonic()
        breaks(fleet_network, victim)
        note("advertised after", harness.await_advertised(survivors, broken_s, FROZEN_LIMIT_S))
        limit_s = FROZEN_LIMIT_S + COMMITTED_LIMIT_S
        note("committed after", harness.await_committed(victim, survivors, broken_s, limit_s))
    fleet_network.heal()
    fleet.await_settled(harness.broker_ids)
    harness.await_flow()


def test_a_slow_member_is_not_taken_over(gray: Gray) -> None:
    """Peers and clients reach the leader with a delay of 300 ms each way, then 500 ms.

    Found: every probe was answered too late, so the others bypassed the leader. A slow follower started a new
    election before votes could arrive: 48 elections in 30 s.
    """
    fleet, fleet_network, harness = gray
    victim = harness.member("leader")
    before, generation, slow_s = harness.committed(victim), harness.generation(), time.monotonic()
    for latency_s in (SLOW_S, SLOWER_S):
        since_s, term = time.monotonic(), fleet.ownership(victim).term
        fleet_network.delay(victim, latency_s)
        fleet_network.prove_slow(victim, latency_s)
        check_until(since_s + HOLD_S, partial(harness.check_unmoved, slow_s))
        fleet_network.prove_slow(victim, latency_s)
        assert fleet.ownership(victim).term - term <= MAX_TERMS
    fleet_network.heal()
    wait_for(lambda: is_fully_linked(fleet), "every link", WHOLE_LIMIT_S)
    harness.await_flow()
    harness.check_unmoved(slow_s)
    assert harness.generation() == generation
    assert harness.committed(victim) == before


def test_occasionally_broken_links_cause_no_takeover(gray: Gray) -> None:
    fleet, fleet_network, harness = gray
    victim = harness.member("leader")
    generation, since_s, lost = harness.generation(), time.monotonic(), links_lost(fleet, victim)
    for number in range(1, HANG_UP_COUNT + 1):
        fleet_network.hang_up(victim)
        wait_for(partial(has_lost_links, fleet, victim, lost + 2 * number), "lost links")
        wait_for(lambda: is_fully_linked(fleet), "every link", WHOLE_LIMIT_S)
        harness.check_unmoved(since_s)
    harness.await_quiet(QUIET_S)
    harness.check_unmoved(since_s)
    assert harness.generation() == generation


def links_lost(fleet: LocalFleet, proxy_id: ProxyId) -> int:
    return fleet.log(proxy_id).read_text().count(" is down: ")


def has_lost_links(fleet: LocalFleet, proxy_id: ProxyId, links: int) -> bool:
    return links_lost(fleet, proxy_id) >= links
