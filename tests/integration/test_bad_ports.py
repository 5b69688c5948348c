"""A fleet whose brokers advertise an impossible port."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from fleet.core.model import BrokerId, Endpoint
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.drills.cluster.ports import free_ports
from tests.conftest import IMPATIENT
from tests.integration.clients import wait_for
from tests.integration.metrics import scrape
from tests.integration.relay import Relays
from tests.integration.test_weights import COLD, HOT, hot_pair, owners, tell

pytestmark = pytest.mark.size("test-all")

NO_PORT = 70_000
MISNAMED = 3
EVENTS = ("fleet_events_sent_total", "fleet_events_spooled", "fleet_events_dropped_total")


@dataclass
class MisnamedBrokers:
    """Relays in front of the brokers of a cluster, and the ports that Metadata names for them."""

    kafka: KafkaCluster
    fronts: dict[BrokerId, Endpoint]
    ports: dict[BrokerId, int]
    misnamed: int = 0
    """The number of times that the impossible port was sent."""
    _replaced: dict[bytes, BrokerId] = field(init=False)

    def __post_init__(self) -> None:
        brokers = self.kafka.brokers.items()
        self._replaced = {_address(each.host, each.port): broker_id for broker_id, each in brokers}

    def change(self, frame: bytes) -> bytes:
        for address, broker_id in self._replaced.items():
            named = self.ports[broker_id]
            self.misnamed += named == NO_PORT and address in frame
            frame = frame.replace(address, address[:-4] + struct.pack(">i", named))
        return frame


def _address(host: str, port: int) -> bytes:
    return host.encode() + struct.pack(">i", port)


@contextmanager
def misnamed_brokers(kafka: KafkaCluster) -> Iterator[MisnamedBrokers]:
    """Brokers behind relays at their hosts, one of them with an impossible port."""
    ports = dict(zip(kafka.brokers, free_ports(len(kafka.brokers)), strict=True))
    fronts = {each: Endpoint(kafka.brokers[each].host, port) for each, port in ports.items()}
    made = MisnamedBrokers(kafka, fronts, {**ports, MISNAMED: NO_PORT})
    relays = Relays()
    try:
        for broker_id, front in fronts.items():
            real = kafka.brokers[broker_id]
            relays.forward(front, Endpoint(real.host, real.port), made.change)
        yield made
    finally:
        relays.close()


def sample(fleet: LocalFleet, proxy_id: str, name: str) -> list[float]:
    return [value for _, value in scrape(fleet, proxy_id)[name]]


def _all_sent(sent: Callable[[], list[float]], waiting: Callable[[], list[float]]) -> bool:
    return sent() > [0] and waiting() == [0]


def test_events_and_weights_survive_an_invalid_broker_port(kafka: KafkaCluster, tmp_path: Path) -> None:
    with misnamed_brokers(kafka) as misnamed:
        fleet = LocalFleet(
            tmp_path / "fleet",
            tuple(each for broker_id, each in misnamed.fronts.items() if broker_id != MISNAMED),
            2,
            timing=IMPATIENT,
            events={"topic_prefix": "bad-ports."},
            balance={"by": "weights", "every_s": 1},
            racks=False,
        )
        with fleet:
            fleet.await_settled(frozenset(kafka.brokers) - {MISNAMED})
            before = misnamed.misnamed
            wait_for(lambda: misnamed.misnamed > before + 20, "members have read the port repeatedly")
            misnamed.ports[MISNAMED] = misnamed.fronts[MISNAMED].port
            fleet.await_settled(frozenset(kafka.brokers))

            first, hot = owners(fleet), hot_pair(fleet)
            tell(kafka, "bad-ports.", {each: HOT if each in hot else COLD for each in first})
            wait_for(lambda: owners(fleet) != first, "a rebalance by weight")
            for proxy_id in fleet.members:
                sent, waiting, dropped = (partial(sample, fleet, proxy_id, name) for name in EVENTS)
                wait_for(partial(_all_sent, sent, waiting), "events are sent, and all of them")
                assert dropped() == [0]
                assert sample(fleet, proxy_id, "fleet_thread_restarts_total") == [0, 0]
        fleet.remove_data()
