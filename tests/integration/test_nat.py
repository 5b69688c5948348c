"""A fleet of one member behind Toxiproxy as a NAT: advertised and bound addresses differ."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from toxiproxy.server import Toxiproxy

from fleet.core.model import Endpoint, IdentitySpace
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.drills.cluster.nat import advertise_elsewhere
from fleet.drills.cluster.ports import free_ports
from fleet.drills.cluster.spawn import end, spawn
from tests.integration.clients import LIMIT_S, produce, read_all, wait_for
from tests.integration.conftest import PATIENT, ROOT

pytestmark = pytest.mark.size("test-all")

BIN = ROOT / "build" / "bin"
NAMES = ("toxiproxy-server", "server")  # as make builds it; as `go install` leaves it
HOST = "127.88.7.7"
LATENCY_MS = 300


@pytest.fixture
def toxiproxy(tmp_path: Path) -> Iterator[Toxiproxy]:
    program = next(filter(None, (shutil.which(name, path=str(BIN)) for name in NAMES)), None)
    assert program is not None, f"no Toxiproxy in {BIN}: `make test` brings it"
    (port,) = free_ports(1)
    process = spawn((program, "-host", "127.0.0.1", "-port", str(port)), tmp_path / "toxiproxy.log")
    server = Toxiproxy()
    server.update_api_consumer("127.0.0.1", port)
    try:
        wait_for(server.running, "Toxiproxy")
        yield server
    finally:
        end([process], 0.0)


def test_clients_reach_every_identity_through_toxiproxy(
    kafka: KafkaCluster, toxiproxy: Toxiproxy, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    fleet = LocalFleet(
        tmp_path / "fleet",
        kafka.endpoints,
        1,
        identities=IdentitySpace(explicit=((1, 0), (2, 5), (3, 1))),
        timing=PATIENT,
    )
    leads_to = advertise_elsewhere(fleet, HOST)
    proxies = {
        advertised: toxiproxy.create(upstream=str(bound), name=str(advertised), listen=str(advertised))
        for advertised, bound in leads_to.items()
    }
    topic, values = make_topic(), [b"%03d" % number for number in range(120)]
    with fleet:
        fleet.await_settled(frozenset(kafka.brokers))
        produce(fleet.bootstrap(), topic, values)
        received = read_all(fleet.bootstrap(), topic, len(values))
        assert sorted(each.value() for each in received) == values

        admin = AdminClient({"bootstrap.servers": fleet.bootstrap()})
        brokers = admin.list_topics(timeout=LIMIT_S).brokers.values()
        first = fleet.bootstrap_endpoint("p1").port + 1
        assert {each.id: Endpoint(each.host, each.port) for each in brokers} == {
            1: Endpoint(HOST, first),
            2: Endpoint(HOST, first + 5),
            3: Endpoint(HOST, first + 1),
        }

        # The clients also connect at the advertised addresses that they receive.
        for proxy in proxies.values():
            proxy.add_toxic(type="latency", attributes={"latency": LATENCY_MS})
        asked_s = time.monotonic()
        AdminClient({"bootstrap.servers": fleet.bootstrap()}).list_topics(timeout=LIMIT_S)
        assert time.monotonic() - asked_s >= LATENCY_MS / 1000
    fleet.remove_data()
