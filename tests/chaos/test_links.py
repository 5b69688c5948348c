"""Broken or bad links between three running members."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pytest

from fleet.core.model import Liveness, ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.chaos.conftest import Note, Stage
from tests.chaos.greetings import Proof, prove_late, prove_narrow, prove_uneven
from tests.chaos.harness import Scene, hold, is_whole, wait_for
from tests.chaos.network import Network, network
from tests.chaos.seeded.schedule import Direction

pytestmark = pytest.mark.size("test-all")

OVERLAY_TTL_S = 2.4
TIMING = {"overlay_ttl_s": OVERLAY_TTL_S, "control_grace_s": 1.0}
LATE_S = 1.0
"""Time limit of a busy machine to distribute and notice a directory."""
AGREE_LIMIT_S = 5 * OVERLAY_TTL_S
LINKED_LIMIT_S = 30.0
ONE_WAY_MS = 500
RATE_KB_S = 8
"""In a whole fleet with three brokers, 5.4 to 6.8 messages pass each link in each direction."""
BAD_FOR_S = 4.0
MOST_TERMS = 30
"""Elections in about 20 s. If votes never came in time, there would be three per second; measured: ten."""

Break = Callable[[Network, ProxyId, ProxyId], None]


@pytest.fixture(scope="module")
def linked(
    kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LocalFleet, Network]]:
    """Three members with links that tests can break."""
    folder = tmp_path_factory.mktemp("links")
    fleet = LocalFleet(folder / "fleet", kafka.endpoints, timing=TIMING)
    with network(fleet, folder) as links:
        try:
            with fleet:
                fleet.await_settled(frozenset(kafka.brokers))
                yield fleet, links
        finally:
            fleet.remove_data()


def deafen_the_second(between: Network, one: ProxyId, other: ProxyId) -> None:
    between.deafen(other, one)


@pytest.fixture
def links(linked: tuple[LocalFleet, Network]) -> tuple[LocalFleet, Network]:
    """The same fleet, whole before each test."""
    fleet, between = linked
    between.heal()
    wait_for(lambda: is_whole(fleet), "every link", LINKED_LIMIT_S)
    return linked


@pytest.mark.parametrize(
    ("break_link", "with_leader"),
    [
        (Network.swallow, True),
        (Network.deafen, True),
        (deafen_the_second, True),
        (Network.cut, False),
    ],
    ids=["silent, leader and follower", "leader deaf", "follower deaf", "closed, two followers"],
)
def test_members_without_a_link_disagree_only_briefly(
    links: tuple[LocalFleet, Network], stage: Stage, note: Note, break_link: Break, with_leader: bool
) -> None:
    """Found: a member that did not hear a peer dialled it repeatedly, and seemed linked each time."""
    fleet, between = links
    with stage(fleet) as scene:
        leader = scene.member("leader")
        followers = [each for each in fleet.members if each != leader]
        one, other = (leader, followers[0]) if with_leader else followers
        before, generation = scene.committed(leader), scene.generation()

        with scene.closely():
            broken_s = time.monotonic()
            break_link(between, one, other)
            wait_for(lambda: suspects(scene, one, other) or suspects(scene, other, one), "a suspicion")
            wait_for(lambda: not scene.agreed(), "Metadata that differs")
            # The member that hears nothing closes the link at last: then its peer misses it, too.
            wait_for(lambda: suspects(scene, one, other) and suspects(scene, other, one), "both suspicions")
            both_s = time.monotonic()
            # Longer than a suspicion lasts: the second member's suspicion may change its Metadata only now.
            scene.await_quiet(1.5 * OVERLAY_TTL_S, since_s=both_s)
            wait_for(scene.agreed, "Metadata that is the same again", AGREE_LIMIT_S + 10.0)
        assert suspects(scene, one, other) or suspects(scene, other, one)
        strayed_s = [scene.strayed_s(each, before, broken_s) for each in fleet.members]
        note("Metadata differed for", max(strayed_s))
        assert 0 < max(strayed_s) <= OVERLAY_TTL_S + LATE_S
        for owners in scene.advertised().values():
            assert owners == before

        between.heal()
        wait_for(lambda: is_whole(fleet), "every link", LINKED_LIMIT_S)
        fleet.await_settled(scene.broker_ids)
        scene.await_flow()
        assert scene.agreed()
        # Two of three members never suspected the same member, so nothing was committed.
        assert scene.generation() == generation
        assert scene.committed(leader) == before


def suspects(scene: Scene, reporter: ProxyId, peer: ProxyId) -> bool:
    """Whether a member suspects another member."""
    document = scene.fleet.ownership(reporter)
    return any(each.proxy_id == peer and each.liveness is Liveness.SUSPECT for each in document.members)


@dataclass(frozen=True, slots=True)
class Bad:
    """One kind of bad link.

    Args:
        toxic, attributes: Toxiproxy's names; latency in milliseconds, bandwidth in KB/s.
        proof: checks the effect on each link.
    """

    toxic: str
    attributes: dict[str, int]
    proof: Proof
    direction: Direction = "both"


BADS = (
    Bad("latency", {"latency": 150, "jitter": 140}, partial(prove_uneven, spread_s=0.14)),
    Bad("bandwidth", {"rate": RATE_KB_S}, partial(prove_narrow, bytes_per_s=RATE_KB_S * 1000)),
    Bad("latency", {"latency": ONE_WAY_MS}, partial(prove_late, latency_s=ONE_WAY_MS / 1000), "in"),
    Bad("latency", {"latency": ONE_WAY_MS}, partial(prove_late, latency_s=ONE_WAY_MS / 1000), "out"),
)


def test_bad_links_cause_no_takeover(links: tuple[LocalFleet, Network], stage: Stage) -> None:
    """The leader's links are uneven, narrow, or slow in one direction (2.5 s)."""
    fleet, between = links
    with stage(fleet) as scene:
        victim = scene.member("leader")
        before, generation, bad_s = scene.committed(victim), scene.generation(), time.monotonic()
        term = fleet.ownership(victim).term
        for bad in BADS:
            since_s = time.monotonic()
            between.worsen(victim, bad.toxic, bad.attributes, bad.direction)
            between.prove_of_links(victim, bad.proof)
            hold(since_s + BAD_FOR_S, partial(scene.nothing_moves, bad_s))
            between.prove_of_links(victim, bad.proof)
        assert fleet.ownership(victim).term - term <= MOST_TERMS
        between.heal()
        wait_for(lambda: is_whole(fleet), "every link", LINKED_LIMIT_S)
        scene.await_flow()
        scene.nothing_moves(bad_s)
        assert scene.generation() == generation
        assert scene.committed(victim) == before
