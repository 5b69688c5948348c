"""Brokers that advertise names, with a name server that does not answer for one of them."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import pytest

from fleet.core.model import BrokerId, Endpoint
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.drills.cluster.ports import free_ports
from tests.integration import wire
from tests.integration.clients import wait_for
from tests.integration.name_server import NameServer, SilentPort
from tests.integration.relay import Relays
from tests.integration.test_frames import config_error, identity_port
from tests.integration.wire import Connection

pytestmark = pytest.mark.size("test-all")

HEALTHY_ID, SILENT_ID, SILENT_AT_FIRST = 1, 2, 3
SERVER = "127.77.53.53"
SILENT = "127.0.0.1"
"""glibc sorts this address first: it is nearest to this machine's source address (RFC 6724, rule 9)."""
DELAY_LIMIT_S = 2.0
"""Time limit for an answer of a broker whose name resolves.

Formerly the answer took 4 s and more while another name hung, and never came if the first address was silent.
The goal is 0.25 s.
"""
QUESTIONS = 6
"""Questions about a hanging name. A look-up asks four times in 10 s: for two kinds of addresses, twice."""


@dataclass
class NamedFleet:
    """Args: fleet: one member, in front of brokers with names; names: of the brokers."""

    fleet: LocalFleet
    server: NameServer
    names: dict[BrokerId, str]

    def log(self) -> str:
        return self.fleet.log("p1").read_text()


def _name(broker_id: BrokerId, host: str) -> str:
    """A name as long as the address that it replaces in frames."""
    return f"kafka-{broker_id}.".ljust(len(host), "t")


@pytest.fixture(scope="module")
def named_fleet(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamedFleet]:
    folder = tmp_path_factory.mktemp("names")
    ports = dict(zip(kafka.brokers, free_ports(len(kafka.brokers)), strict=True))
    names = {each: _name(each, broker.host) for each, broker in kafka.brokers.items()}
    hosts = {each: broker.host for each, broker in kafka.brokers.items()}
    addresses = {
        names[HEALTHY_ID]: [hosts[HEALTHY_ID]],
        names[SILENT_ID]: [],
        names[SILENT_AT_FIRST]: [SILENT, hosts[SILENT_AT_FIRST]],
    }

    def rename(frame: bytes) -> bytes:
        for broker_id, broker in kafka.brokers.items():
            real = broker.host.encode() + struct.pack(">i", broker.port)
            frame = frame.replace(real, names[broker_id].encode() + struct.pack(">i", ports[broker_id]))
        return frame

    with ExitStack() as stack:
        relays = Relays()
        stack.callback(relays.close)
        for broker_id, broker in kafka.brokers.items():
            front = Endpoint(broker.host, ports[broker_id])
            relays.forward(front, Endpoint(broker.host, broker.port), rename)
        stack.enter_context(SilentPort((SILENT, ports[SILENT_AT_FIRST])))
        server = stack.enter_context(NameServer(SERVER, addresses))
        fleet = LocalFleet(folder / "fleet", (Endpoint(names[HEALTHY_ID], ports[HEALTHY_ID]),), 1)
        fleet.through["p1"] = server.through(folder)
        stack.callback(fleet.remove_data)
        stack.enter_context(fleet)
        fleet.await_ready()
        wait_for(lambda: len(fleet.ownership("p1").brokers) == len(kafka.brokers), "all brokers are known")
        yield NamedFleet(fleet, server, names)


def _answer_s(named_fleet: NamedFleet, broker_id: BrokerId) -> float:
    """Seconds until a new client receives a broker's answer."""
    began_s = time.monotonic()
    with Connection(identity_port(named_fleet.fleet, "p1", broker_id)) as connection:
        assert config_error(connection, broker_id) == 0
    return time.monotonic() - began_s


def test_name_that_hangs_delays_clients_of_no_other_broker(named_fleet: NamedFleet) -> None:
    """Found: new connections to healthy brokers took 4 s, every 6 s, while one name hung."""
    before = named_fleet.server.asked[named_fleet.names[SILENT_ID]]
    longest_s, refused = 0.0, 0
    while named_fleet.server.asked[named_fleet.names[SILENT_ID]] < before + QUESTIONS:
        with suppress(EOFError, ConnectionError):
            with Connection(identity_port(named_fleet.fleet, "p1", SILENT_ID)) as connection:
                connection.send(wire.request(wire.API_VERSIONS, 0, 1))
                longest_s = max(longest_s, _answer_s(named_fleet, HEALTHY_ID))
                connection.receive()
            raise AssertionError("a broker without an address has answered")
        refused += 1
    assert longest_s < DELAY_LIMIT_S
    assert refused > 0
    expected_line = f"broker {SILENT_ID} at {named_fleet.names[SILENT_ID]}"
    assert any(expected_line in each and "no address for" in each for each in named_fleet.log().splitlines())


def test_time_limits_leave_no_unread_exception(named_fleet: NamedFleet) -> None:
    """Found: ten lines "Future exception was never retrieved" in 30 s, with a traceback each."""
    before = named_fleet.server.asked[named_fleet.names[SILENT_ID]]
    wait_for(
        lambda: named_fleet.server.asked[named_fleet.names[SILENT_ID]] > before + QUESTIONS,
        "a look-up has failed",
    )
    log = named_fleet.log()
    assert "never retrieved" not in log
    assert "Traceback" not in log
    assert len([each for each in log.splitlines() if named_fleet.names[SILENT_ID] in each]) < 20


def test_silent_first_address_of_a_name_delays_nobody(named_fleet: NamedFleet) -> None:
    """Found: the fleet never tried any other address of a name."""
    assert _answer_s(named_fleet, SILENT_AT_FIRST) < DELAY_LIMIT_S
    wait_for(lambda: _is_up(named_fleet, SILENT_AT_FIRST), "the probe reaches the broker, too")
    assert not any(
        named_fleet.names[SILENT_AT_FIRST] in each and "cannot be reached" in each
        for each in named_fleet.log().splitlines()
    )


def _is_up(named_fleet: NamedFleet, broker_id: BrokerId) -> bool:
    up = {each.broker_id: each.up for each in named_fleet.fleet.ownership("p1").brokers}
    return up[broker_id] is True
