"""Lost hosts: the kernel drops all packets of a member, without a reset or a refusal."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from fleet.core.model import Endpoint
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.chaos.cables import Cables, Unavailable
from tests.chaos.conftest import PATIENT_TIMING, Note, StartLoad
from tests.chaos.harness import FROZEN_LIMIT_S, check_until, is_fully_linked, wait_for
from tests.chaos.seeded.network import Knock, knock
from tests.integration import wire
from tests.integration.metrics import scrape
from tests.integration.wire import Connection

pytestmark = pytest.mark.size("test-all")

SILENT_S = 1.0
VANISHED = "the host stopped answering without closing the connection (vanished_timeout_s; "
VANISHED_TIMEOUT_S = 8.0
LOSES_ONE_IN = 20
LOSES_FOR_S = 15.0
WHOLE_LIMIT_S = 30.0


@pytest.fixture
def fleet(kafka: KafkaCluster, tmp_path: Path) -> LocalFleet:
    """Three members before their start."""
    limits = {"vanished_timeout_s": VANISHED_TIMEOUT_S}
    return LocalFleet(
        tmp_path / "cables", kafka.endpoints, timing=PATIENT_TIMING, peer_tls=True, limits=limits
    )


@pytest.fixture
def cables(fleet: LocalFleet, kafka: KafkaCluster) -> Iterator[Cables]:
    """The cables of the running fleet."""
    with ExitStack() as stack:
        try:
            laid = stack.enter_context(Cables(fleet))
        except Unavailable as error:
            pytest.skip(f"no network namespaces here: {error}")
        stack.callback(fleet.remove_data)
        stack.enter_context(fleet)
        fleet.await_settled(frozenset(kafka.brokers))
        yield laid


@pytest.mark.size("test")
def test_unplugged_member_is_advertised_elsewhere(
    fleet: LocalFleet, cables: Cables, kafka: KafkaCluster, start_load: StartLoad, note: Note
) -> None:
    with start_load(fleet) as harness, harness.probing_closely():
        for role in ("leader", "follower"):
            victim = harness.member(role)
            survivors = [each for each in fleet.members if each != victim]
            address = fleet.bootstrap_endpoint(victim)
            with socket.create_connection((address.host, address.port)) as connected:
                pulled_s = cables.pull(victim)
                try:
                    took_s = harness.await_advertised(survivors, pulled_s, FROZEN_LIMIT_S)
                    prove_silent(address, connected)
                finally:
                    cables.plug(victim)
            note("advertised after", took_s)
            fleet.await_ready()
            fleet.await_settled(frozenset(kafka.brokers))
            harness.await_flow()


def test_vanished_client_is_counted_reported_and_disconnected(fleet: LocalFleet, cables: Cables) -> None:
    """Half-open connections. Found in a review: connections that the kernel gave up were not counted."""
    victim = fleet.members[0]
    log = fleet.log(victim)
    with Connection(fleet.bootstrap_endpoint(victim)) as vanishing:
        vanishing.ask(wire.metadata(1))
        since_s = cables.pull(victim)
        try:
            wait_for(lambda: VANISHED in log.read_text(), "a line in the log", 5 * VANISHED_TIMEOUT_S)
            # The members' probes are clients, too. Their time limit may have started earlier.
            wait_for(
                lambda: time.monotonic() > since_s + 2 * VANISHED_TIMEOUT_S, "all", 5 * VANISHED_TIMEOUT_S
            )
        finally:
            cables.plug(victim)
        fleet.await_ready()
        closed = scrape(fleet, victim)["fleet_connections_limited_total"]
        (vanished,) = [number for labels, number in closed if labels["limit"] == "vanished_timeout"]
        assert 1 <= log.read_text().count(VANISHED) <= vanished
        with pytest.raises((EOFError, ConnectionResetError)):
            vanishing.ask(wire.metadata(2))


def test_packet_loss_causes_no_takeover(fleet: LocalFleet, cables: Cables, start_load: StartLoad) -> None:
    """Every member loses random packets of peers, brokers and clients. TCP retransmits them."""
    wait_for(lambda: is_fully_linked(fleet), "every link", WHOLE_LIMIT_S)
    with start_load(fleet) as harness:
        before, generation = harness.committed(fleet.members[0]), harness.generation()
        since_s = time.monotonic()
        with cables.losing(LOSES_ONE_IN):
            check_until(since_s + LOSES_FOR_S, partial(harness.check_unmoved, since_s))
            harness.await_flow()
            harness.check_unmoved(since_s)
            lost = cables.lost()
        assert all(packets > LOSES_FOR_S for packets in lost.values()), lost
        assert harness.generation() == generation
        assert harness.committed(fleet.members[0]) == before


def prove_silent(address: Endpoint, connected: socket.socket) -> None:
    """Check that new and existing connections get no answer, no refusal and no reset."""
    assert asyncio.run(knock(address, SILENT_S)) == Knock(None)
    connected.settimeout(SILENT_S)
    connected.sendall(bytes(4))
    with pytest.raises(TimeoutError):
        connected.recv(1)
