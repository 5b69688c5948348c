"""A running member in a bad network: packets to it or from it are lost, or all are slow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from fleet.core.model import ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.chaos.conftest import PATIENT, Note, Stage
from tests.chaos.harness import COMMITTED_LIMIT_S, FROZEN_LIMIT_S, Scene, hold, is_whole, wait_for
from tests.chaos.network import Surroundings, surrounded_fleet
from tests.chaos.seeded.schedule import Direction

pytestmark = pytest.mark.size("test-all")

SLOW_S = 0.3
SLOWER_S = 0.5
HOLD_S = 10.0
MOST_TERMS = 20
"""Elections: three per second while every vote came too late; five in total on a quiet machine."""
HANG_UPS = 5
QUIET_S = 2.0
WHOLE_LIMIT_S = 30.0


@pytest.fixture(scope="module")
def surrounded(
    kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LocalFleet, Surroundings]]:
    """Three members that are reachable only through Toxiproxy."""
    with surrounded_fleet(kafka, tmp_path_factory.mktemp("gray"), PATIENT) as both:
        yield both


@pytest.fixture
def gray(
    surrounded: tuple[LocalFleet, Surroundings], kafka: KafkaCluster, stage: Stage
) -> Iterator[tuple[LocalFleet, Surroundings, Scene]]:
    """The same fleet, whole before each test, with clients under load."""
    fleet, around = surrounded
    fleet.await_ready()
    fleet.await_settled(frozenset(kafka.brokers))
    wait_for(lambda: is_whole(fleet), "every link", WHOLE_LIMIT_S)
    try:
        with stage(fleet) as scene:
            yield fleet, around, scene
    finally:
        around.heal()


Gray = tuple[LocalFleet, Surroundings, Scene]


def shut_doors(around: Surroundings, victim: ProxyId) -> None:
    around.shut_doors(victim)


def silence_doors(around: Surroundings, victim: ProxyId) -> None:
    around.silence_doors(victim)
    around.prove_black(victim)


def swallow(around: Surroundings, victim: ProxyId, *, direction: Direction) -> None:
    around.swallow(victim, direction)
    around.prove_black(victim)


Fault = Callable[[Surroundings, ProxyId], None]


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
    fleet, around, scene = gray
    victim = scene.member(role)
    survivors = [each for each in fleet.members if each != victim]
    with scene.closely():
        broken_s = time.monotonic()
        breaks(around, victim)
        note("advertised after", scene.await_advertised(survivors, broken_s, FROZEN_LIMIT_S))
        limit_s = FROZEN_LIMIT_S + COMMITTED_LIMIT_S
        note("committed after", scene.await_committed(victim, survivors, broken_s, limit_s))
    around.heal()
    fleet.await_settled(scene.broker_ids)
    scene.await_flow()


def test_a_slow_member_is_not_taken_over(gray: Gray) -> None:
    """Peers and clients reach the leader with a delay of 300 ms each way, then 500 ms.

    Found: every probe was answered too late, so the others bypassed the leader. A slow follower started a new
    election before votes could arrive: 48 elections in 30 s.
    """
    fleet, around, scene = gray
    victim = scene.member("leader")
    before, generation, slow_s = scene.committed(victim), scene.generation(), time.monotonic()
    for latency_s in (SLOW_S, SLOWER_S):
        since_s, term = time.monotonic(), fleet.ownership(victim).term
        around.delay(victim, latency_s)
        around.prove_slow(victim, latency_s)
        hold(since_s + HOLD_S, partial(scene.nothing_moves, slow_s))
        around.prove_slow(victim, latency_s)
        assert fleet.ownership(victim).term - term <= MOST_TERMS
    around.heal()
    wait_for(lambda: is_whole(fleet), "every link", WHOLE_LIMIT_S)
    scene.await_flow()
    scene.nothing_moves(slow_s)
    assert scene.generation() == generation
    assert scene.committed(victim) == before


def test_occasionally_broken_links_cause_no_takeover(gray: Gray) -> None:
    fleet, around, scene = gray
    victim = scene.member("leader")
    generation, since_s, lost = scene.generation(), time.monotonic(), links_lost(fleet, victim)
    for number in range(1, HANG_UPS + 1):
        around.hang_up(victim)
        wait_for(partial(has_lost, fleet, victim, lost + 2 * number), "links that are lost")
        wait_for(lambda: is_whole(fleet), "every link", WHOLE_LIMIT_S)
        scene.nothing_moves(since_s)
    scene.await_quiet(QUIET_S)
    scene.nothing_moves(since_s)
    assert scene.generation() == generation


def links_lost(fleet: LocalFleet, proxy_id: ProxyId) -> int:
    return fleet.log(proxy_id).read_text().count(" is down: ")


def has_lost(fleet: LocalFleet, proxy_id: ProxyId, links: int) -> bool:
    return links_lost(fleet, proxy_id) >= links
