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
from tests.chaos.conftest import Note, StartLoad
from tests.chaos.greetings import Proof, prove_late, prove_narrow, prove_uneven
from tests.chaos.harness import ChaosHarness, check_until, is_fully_linked, wait_for
from tests.chaos.network import PeerNetwork, network
from tests.chaos.seeded.schedule import Direction

pytestmark = pytest.mark.size("test-all")

OVERLAY_TTL_S = 2.4
TIMING = {"overlay_ttl_s": OVERLAY_TTL_S, "control_grace_s": 1.0}
DIRECTORY_LIMIT_S = 1.0
"""Time limit of a busy machine to distribute and notice a directory."""
AGREE_LIMIT_S = 5 * OVERLAY_TTL_S
LINKED_LIMIT_S = 30.0
ONE_WAY_LATENCY_MS = 500
RATE_KB_S = 8
"""In a whole fleet with three brokers, 5.4 to 6.8 messages pass each link in each direction."""
BAD_FOR_S = 4.0
MAX_TERMS = 30
"""Elections in about 20 s. If votes never came in time, there would be three per second; measured: ten."""

Break = Callable[[PeerNetwork, ProxyId, ProxyId], None]


@pytest.fixture(scope="module")
def linked(
    kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LocalFleet, PeerNetwork]]:
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


def deafen_the_second(link_proxy: PeerNetwork, one: ProxyId, other: ProxyId) -> None:
    link_proxy.drop_replies(other, one)


@pytest.fixture
def links(linked: tuple[LocalFleet, PeerNetwork]) -> tuple[LocalFleet, PeerNetwork]:
    """The same fleet, whole before each test."""
    fleet, link_proxy = linked
    link_proxy.heal()
    wait_for(lambda: is_fully_linked(fleet), "every link", LINKED_LIMIT_S)
    return linked


@pytest.mark.parametrize(
    ("break_link", "with_leader"),
    [
        (PeerNetwork.swallow, True),
        (PeerNetwork.drop_replies, True),
        (deafen_the_second, True),
        (PeerNetwork.cut, False),
    ],
    ids=["silent, leader and follower", "leader deaf", "follower deaf", "closed, two followers"],
)
def test_members_without_a_link_disagree_only_briefly(
    links: tuple[LocalFleet, PeerNetwork],
    start_load: StartLoad,
    note: Note,
    break_link: Break,
    with_leader: bool,
) -> None:
    """Found: a member that did not hear a peer dialled it repeatedly, and seemed linked each time."""
    fleet, link_proxy = links
    with start_load(fleet) as harness:
        leader = harness.member("leader")
        followers = [each for each in fleet.members if each != leader]
        one, other = (leader, followers[0]) if with_leader else followers
        before, generation = harness.committed(leader), harness.generation()

        with harness.probing_closely():
            broken_s = time.monotonic()
            break_link(link_proxy, one, other)
            wait_for(lambda: suspects(harness, one, other) or suspects(harness, other, one), "a suspicion")
            wait_for(lambda: not harness.members_agree(), "Metadata that differs")
            # The member that hears nothing closes the link at last: then its peer misses it, too.
            wait_for(
                lambda: suspects(harness, one, other) and suspects(harness, other, one), "both suspicions"
            )
            both_s = time.monotonic()
            # Longer than a suspicion lasts: the second member's suspicion may change its Metadata only now.
            harness.await_quiet(1.5 * OVERLAY_TTL_S, since_s=both_s)
            wait_for(harness.members_agree, "Metadata that is the same again", AGREE_LIMIT_S + 10.0)
        assert suspects(harness, one, other) or suspects(harness, other, one)
        strayed_s = [harness.changed_s(each, before, broken_s) for each in fleet.members]
        note("Metadata differed for", max(strayed_s))
        assert 0 < max(strayed_s) <= OVERLAY_TTL_S + DIRECTORY_LIMIT_S
        for owners in harness.advertised().values():
            assert owners == before

        link_proxy.heal()
        wait_for(lambda: is_fully_linked(fleet), "every link", LINKED_LIMIT_S)
        fleet.await_settled(harness.broker_ids)
        harness.await_flow()
        assert harness.members_agree()
        # Two of three members never suspected the same member, so nothing was committed.
        assert harness.generation() == generation
        assert harness.committed(leader) == before


def suspects(harness: ChaosHarness, reporter: ProxyId, peer: ProxyId) -> bool:
    """Whether a member suspects another member."""
    document = harness.fleet.ownership(reporter)
    return any(each.proxy_id == peer and each.liveness is Liveness.SUSPECT for each in document.members)


@dataclass(frozen=True, slots=True)
class BadLink:
    """One kind of bad link.

    Args:
        toxic, attributes: Toxiproxy's names; latency in milliseconds, bandwidth in KB/s.
        proof: checks the effect on each link.
    """

    toxic: str
    attributes: dict[str, int]
    proof: Proof
    direction: Direction = "both"


BAD_LINKS = (
    BadLink("latency", {"latency": 150, "jitter": 140}, partial(prove_uneven, spread_s=0.14)),
    BadLink("bandwidth", {"rate": RATE_KB_S}, partial(prove_narrow, bytes_per_s=RATE_KB_S * 1000)),
    BadLink(
        "latency",
        {"latency": ONE_WAY_LATENCY_MS},
        partial(prove_late, latency_s=ONE_WAY_LATENCY_MS / 1000),
        "in",
    ),
    BadLink(
        "latency",
        {"latency": ONE_WAY_LATENCY_MS},
        partial(prove_late, latency_s=ONE_WAY_LATENCY_MS / 1000),
        "out",
    ),
)


def test_bad_links_cause_no_takeover(links: tuple[LocalFleet, PeerNetwork], start_load: StartLoad) -> None:
    """The leader's links are uneven, narrow, or slow in one direction (2.5 s)."""
    fleet, link_proxy = links
    with start_load(fleet) as harness:
        victim = harness.member("leader")
        before, generation, bad_s = harness.committed(victim), harness.generation(), time.monotonic()
        term = fleet.ownership(victim).term
        for bad in BAD_LINKS:
            since_s = time.monotonic()
            link_proxy.impair(victim, bad.toxic, bad.attributes, bad.direction)
            link_proxy.prove_of_links(victim, bad.proof)
            check_until(since_s + BAD_FOR_S, partial(harness.check_unmoved, bad_s))
            link_proxy.prove_of_links(victim, bad.proof)
        assert fleet.ownership(victim).term - term <= MAX_TERMS
        link_proxy.heal()
        wait_for(lambda: is_fully_linked(fleet), "every link", LINKED_LIMIT_S)
        harness.await_flow()
        harness.check_unmoved(bad_s)
        assert harness.generation() == generation
        assert harness.committed(victim) == before
