"""Networks between members, clients and brokers that tests can break, by Toxiproxy."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path

from fleet.control.links import Hello
from fleet.core.model import ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.chaos.greetings import Proof
from tests.chaos.seeded.effects import prove_black, time_of_answer, time_of_hanging_up
from tests.chaos.seeded.network import Link, Toxiproxy
from tests.chaos.seeded.run import toxiproxy
from tests.chaos.seeded.schedule import Direction


class PeerNetwork:
    """The links between a fleet's members, each by its two members."""

    def __init__(self, link_proxy: Toxiproxy, fleet: LocalFleet) -> None:
        self._link_proxy = link_proxy
        self._fleet = fleet
        self._pairs = list(combinations(fleet.members, 2))

    def cut(self, one: ProxyId, other: ProxyId) -> None:
        """Close a link, and refuse new connections."""
        self._link_proxy.peer_link(one, other).proxy.disable()

    def swallow(self, one: ProxyId, other: ProxyId) -> None:
        """Keep a link open, and drop all bytes in both directions."""
        self._link_proxy.poison([self._link_proxy.peer_link(one, other)], "timeout", {"timeout": 0}, "both")

    def drop_replies(self, one: ProxyId, other: ProxyId) -> None:
        """Keep a link open, and drop all bytes from the second member to the first."""
        link = self._link_proxy.peer_link(one, other)
        heard = Link(link.proxy, link.at, dials=one > other)
        self._link_proxy.poison([heard], "timeout", {"timeout": 0}, "in")

    def impair(
        self, victim: ProxyId, toxic: str, attributes: dict[str, int], direction: Direction = "both"
    ) -> None:
        """Impair a member's links to its peers."""
        self.heal()
        self._link_proxy.poison(self._link_proxy.peer_links(victim), toxic, attributes, direction)

    def heal(self) -> None:
        """Heal every link."""
        links = [self._link_proxy.peer_link(one, other) for one, other in self._pairs]
        self._link_proxy.heal(links)
        for link in links:
            link.proxy.enable()

    def prove_of_links(self, victim: ProxyId, proof: Proof) -> None:
        """Check that each of a member's links to its peers is impaired."""
        for peer in self._fleet.members:
            if peer != victim:
                dialling = max(victim, peer)
                hello = Hello("demo", dialling, self._fleet.ownership(dialling).incarnation)
                asyncio.run(_prove(proof, self._link_proxy.peer_link(victim, peer), hello))


class FleetNetwork:
    """Each member's links to the others, and its advertised addresses."""

    def __init__(self, link_proxy: Toxiproxy) -> None:
        self._link_proxy = link_proxy
        self._broken: list[Link] = []

    def swallow(self, victim: ProxyId, direction: Direction) -> None:
        """Drop all bytes between a member and its peers and clients."""
        self._poison([*self._links(victim), *self._doors(victim)], "timeout", {"timeout": 0}, direction)

    def silence_doors(self, victim: ProxyId) -> None:
        """Let a member's advertised addresses accept connections without an answer."""
        self._poison(self._doors(victim), "timeout", {"timeout": 0}, "both")

    def shut_doors(self, victim: ProxyId) -> None:
        """Let a member's advertised addresses refuse connections."""
        self._broken += self._doors(victim)
        for door in self._doors(victim):
            door.proxy.disable()

    def delay(self, victim: ProxyId, latency_s: float) -> None:
        """Delay all bytes to and from a member, in each direction."""
        self.heal()
        links = [*self._links(victim), *self._doors(victim)]
        self._poison(links, "latency", {"latency": int(latency_s * 1000)}, "both")

    def hang_up(self, victim: ProxyId) -> None:
        """Close a member's links to all others. New connections are possible at once."""
        for link in self._links(victim):
            link.proxy.disable()
            link.proxy.enable()

    def heal(self) -> None:
        """Heal every link."""
        self._link_proxy.heal(self._broken)
        for link in self._broken:
            link.proxy.enable()
        self._broken = []

    def prove_black(self, victim: ProxyId) -> None:
        """Check that a member's client addresses do not answer."""
        asyncio.run(prove_black(self._doors(victim)[0]))

    def prove_slow(self, victim: ProxyId, latency_s: float) -> None:
        """Check that a member's clients and peers wait at least this long."""
        assert asyncio.run(time_of_answer(self._doors(victim)[0])) >= 2 * latency_s
        for link in self._links(victim):
            assert asyncio.run(time_of_hanging_up(link)) >= latency_s

    def _links(self, victim: ProxyId) -> list[Link]:
        return self._link_proxy.peer_links(victim)

    def _doors(self, victim: ProxyId) -> list[Link]:
        return self._link_proxy.client_links(victim)

    def _poison(
        self, links: list[Link], toxic: str, attributes: dict[str, int], direction: Direction
    ) -> None:
        self._broken += links
        self._link_proxy.poison(links, toxic, attributes, direction)


async def _prove(proof: Proof, link: Link, hello: Hello) -> None:
    await proof(link, hello)


@contextmanager
def network(fleet: LocalFleet, folder: Path) -> Iterator[PeerNetwork]:
    """Put Toxiproxy between each pair of members. Call it before the fleet starts."""
    with toxiproxy(folder) as link_proxy:
        link_proxy.put_between_members(fleet)
        yield PeerNetwork(link_proxy, fleet)


@contextmanager
def surrounded(fleet: LocalFleet, folder: Path) -> Iterator[FleetNetwork]:
    """Start a fleet whose members are reachable only through Toxiproxy."""
    with toxiproxy(folder) as link_proxy:
        link_proxy.put_before_members(fleet)
        link_proxy.put_between_members(fleet)
        try:
            with fleet:
                yield FleetNetwork(link_proxy)
        finally:
            fleet.remove_data()


@contextmanager
def surrounded_fleet(
    kafka: KafkaCluster, folder: Path, timing: Mapping[str, float]
) -> Iterator[tuple[LocalFleet, FleetNetwork]]:
    """Three members whose addresses lead through Toxiproxy."""
    fleet = LocalFleet(folder / "fleet", kafka.endpoints, timing=timing)
    with surrounded(fleet, folder) as fleet_network:
        yield fleet, fleet_network
