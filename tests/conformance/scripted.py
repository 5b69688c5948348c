"""A fleet of one member in front of scripted brokers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fleet.core.model import Addressing, BrokerId, Endpoint, IdentitySpace
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.ports import free_ports
from tests.conformance.exchange import Brokers, Conformance
from tests.conftest import broker_host
from tools.gen_tables import DEFINITIONS, Message, read_jar

SEED = 20


def definitions() -> list[Message]:
    """Read every API that brokers serve, from the newest definitions."""
    (jar,) = DEFINITIONS.glob("*.jar")
    return read_jar(jar)


@dataclass(frozen=True)
class ScriptedSetup:
    """Scripted brokers, the fleet in front of them, and the endpoint that it advertises for each."""

    brokers: Brokers
    bootstrap: Endpoint
    advertised: Mapping[BrokerId, Endpoint]
    is_shared: bool = False

    def through_fleet(self, unknown: float = 0.0) -> Conformance:
        """Args: unknown: see ``Conformance``."""
        ports: dict[BrokerId | None, Endpoint] = {None: self.bootstrap} | dict(self.advertised)
        return Conformance(self.brokers, ports, self.advertised, SEED, unknown, is_shared=self.is_shared)

    def direct_to_brokers(self) -> Conformance:
        """Bypass the fleet, to show that the checks find leaks."""
        setup = self.brokers.endpoints
        return Conformance(self.brokers, {None: setup[1]} | dict(setup), self.advertised, SEED)


@contextmanager
def scripted_setup(
    folder: Path, messages: list[Message], addressing: Addressing = "identity_ports"
) -> Iterator[ScriptedSetup]:
    """Run scripted brokers and a fleet for the duration of the context."""
    hosts = {broker_id: broker_host(broker_id) for broker_id in (1, 2, 3)}
    endpoints = {each: Endpoint(host, free_ports(1, (host,))[0]) for each, host in hosts.items()}
    brokers = Brokers(messages, endpoints)
    fleet = LocalFleet(
        folder,
        list(endpoints.values()),
        1,
        identities=IdentitySpace(first_id=1, count=len(endpoints)),
        addressing=addressing,
    )
    with fleet:
        fleet.await_settled(frozenset(endpoints))
        member = fleet.settings.member("p1").to_member(fleet.settings)
        advertised = {
            each: endpoint
            for each in endpoints
            if (endpoint := member.endpoint("external", each)) is not None
        }
        bootstrap = fleet.bootstrap_endpoint("p1")
        yield ScriptedSetup(brokers, bootstrap, advertised, addressing == "shared")
    fleet.remove_data()
    brokers.close()
