"""A fleet of one member in front of scripted brokers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fleet.core.model import BrokerId, Endpoint, IdentitySpace
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.ports import free_ports
from tests.conformance.exchange import Brokers, Conformance
from tests.conftest import broker_host
from tools.gen_tables import DEFINITIONS, Message, read_jar

SEED = 20


def definitions() -> list[Message]:
    """Every API that brokers serve, of the newest definitions that there are."""
    (jar,) = DEFINITIONS.glob("*.jar")
    return read_jar(jar)


@dataclass(frozen=True)
class Ground:
    """Scripted brokers, the fleet in front of them, and what it advertises for each."""

    brokers: Brokers
    bootstrap: Endpoint
    advertised: Mapping[BrokerId, Endpoint]

    def through_the_fleet(self, unknown: float = 0.0) -> Conformance:
        """Args: unknown: see ``Conformance``."""
        ports: dict[BrokerId | None, Endpoint] = {None: self.bootstrap} | dict(self.advertised)
        return Conformance(self.brokers, ports, self.advertised, SEED, unknown)

    def without_a_fleet(self) -> Conformance:
        """As a client that knows the brokers, to see that a leak would be found."""
        there = self.brokers.endpoints
        return Conformance(self.brokers, {None: there[1]} | dict(there), self.advertised, SEED)


@contextmanager
def ground(folder: Path, messages: list[Message]) -> Iterator[Ground]:
    """All of it, for as long as the context lasts."""
    hosts = {broker_id: broker_host(broker_id) for broker_id in (1, 2, 3)}
    endpoints = {each: Endpoint(host, free_ports(1, (host,))[0]) for each, host in hosts.items()}
    brokers = Brokers(messages, endpoints)
    fleet = LocalFleet(
        folder, list(endpoints.values()), 1, identities=IdentitySpace(first_id=1, count=len(endpoints))
    )
    with fleet:
        fleet.await_settled(frozenset(endpoints))
        member = fleet.settings.member("p1").to_member(fleet.settings)
        advertised = {
            each: endpoint
            for each in endpoints
            if (endpoint := member.endpoint("external", each)) is not None
        }
        yield Ground(brokers, fleet.bootstrap_endpoint("p1"), advertised)
    fleet.remove_data()
    brokers.close()
