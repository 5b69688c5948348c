"""A member with two workers: both know what one of them observes of a broker, and neither overloads it."""

from __future__ import annotations

import asyncio
import math
import signal
import socket
import struct
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest

from fleet.control.broker_watch import PROBE_BACKOFF_FIRST_S, PROBE_RESULT_BATCH_S
from fleet.core.model import Endpoint
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.proxy.brokers import BACKOFF_LIMIT_S
from tests.chaos.seeded.effects import is_stopped
from tests.chaos.seeded.network import Link, knock
from tests.chaos.seeded.run import toxiproxy
from tests.conftest import AWAY, AWAY_LISTENER
from tests.integration import wire
from tests.integration.clients import LIMIT_S, wait_for
from tests.integration.conftest import PATIENT
from tests.integration.test_broker_down import AT_ONCE_S, DOWN, serves_again, upstream_up
from tests.integration.test_frames import config_error, identity_port
from tests.integration.wire import Connection

pytestmark = pytest.mark.size("test-all")

CLIENT_HOST = "p1"
MAX_ATTEMPTS, ATTEMPT_TIMEOUT_S, PAUSE_S = 40, 1.5, 0.02
"""The minimum number of requests of clients, and the pace of one. An uninformed worker dialled five times."""
FROZEN_LIMIT_S = 60.0
REPORT_TIMEOUT_S = 10 * PROBE_RESULT_BATCH_S
SYN, ACK = 0x02, 0x10

Couple = tuple[LocalFleet, Link]


@pytest.fixture
def two_workers(kafka: KafkaCluster, tmp_path: Path) -> Iterator[Couple]:
    """A member with two workers, and the only route to a broker, used by no one else.

    Its processes may be stopped for a while; its probes are as often as by default.
    """
    probes = dict.fromkeys(("probe_interval_s", "probe_timeout_s"), BACKOFF_LIMIT_S)
    timing = {**PATIENT, **probes, "freeze_timeout_s": FROZEN_LIMIT_S}
    fleet = LocalFleet(tmp_path / "fleet", tuple(AWAY.values()), 1, workers=2, timing=timing)
    with toxiproxy(tmp_path) as network:
        network.put_before_brokers(kafka, AWAY_LISTENER, AWAY)
        try:
            with fleet:
                fleet.await_settled(frozenset(kafka.brokers))
                wait_for(
                    lambda: upstream_up(fleet, CLIENT_HOST) == dict.fromkeys(kafka.brokers, True),
                    "every broker",
                )
                (link,) = network.broker_links(DOWN)
                yield fleet, link
        finally:
            fleet.remove_data()


class DroppedConnections:
    """Counts connection attempts at an address, whether or not a process listens there."""

    def __init__(self, at: Endpoint) -> None:
        self._port = at.port
        self._raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
        self._raw.bind((at.host, 0))
        self._raw.setblocking(False)

    def count(self) -> int:
        """The number of attempts since the last call."""
        found = 0
        while True:
            try:
                packet = self._raw.recv(1 << 16)
            except BlockingIOError:
                return found
            header = packet[4 * (packet[0] & 0x0F) :]
            (port,) = struct.unpack_from(">H", header, 2)
            found += port == self._port and header[13] & (SYN | ACK) == SYN

    def close(self) -> None:
        self._raw.close()


@pytest.fixture
def dropped_connections(two_workers: Couple) -> Iterator[DroppedConnections]:
    try:
        made = DroppedConnections(two_workers[1].at)
    except PermissionError as error:
        pytest.skip(f"no raw sockets here: {error}")
    yield made
    made.close()


def test_broker_state_found_by_one_worker_reaches_the_other(
    two_workers: Couple, dropped_connections: DroppedConnections
) -> None:
    """Clients of both workers lose their connections at once; later ones are refused, without a dial."""
    fleet, link = two_workers
    port = identity_port(fleet, CLIENT_HOST, DOWN)
    control, *workers = processes(fleet)
    wait_for(dropped_connections.count, "the member's probes, which are counted")

    with ExitStack() as opened:
        connections = served_by_each(port, workers, opened)
        broken_s = time.monotonic()
        link.proxy.disable()
        assert asyncio.run(knock(link.at, 5.0)).broken
        assert all(each.ends() for each in connections)
        assert time.monotonic() - broken_s < AT_ONCE_S
    await_reported(fleet)

    for alone in workers:
        with stopped({control, *workers} - {alone}):
            assert_rare(dropped_connections, port, 1)
    # The probe's back-off did not grow meanwhile, and is below its limit.
    assert_rare(
        dropped_connections,
        port,
        1 + len(workers),
        math.ceil(math.log2(BACKOFF_LIMIT_S / PROBE_BACKOFF_FIRST_S)),
    )

    link.proxy.enable()
    wait_for(lambda: upstream_up(fleet, CLIENT_HOST)[DOWN], "the broker reached again")
    for alone in workers:
        with stopped(set(workers) - {alone}):
            wait_for(partial(serves_again, fleet, CLIENT_HOST), "the broker served")
    assert processes(fleet) == [control, *workers]


def processes(fleet: LocalFleet) -> list[psutil.Process]:
    """The member's control process and its workers."""
    children = psutil.Process(fleet.pid(CLIENT_HOST)).children()
    return sorted(children, key=lambda each: str(each.cmdline()[-2]))


def served_by_each(
    port: Endpoint, workers: Collection[psutil.Process], opened: ExitStack
) -> list[Connection]:
    """Open one connection to a broker through each of the workers."""
    found = []
    for alone in workers:
        with stopped(set(workers) - {alone}):
            connection = opened.enter_context(Connection(port))
            assert config_error(connection, DOWN) == 0
            found.append(connection)
    return found


@contextmanager
def stopped(idle: Collection[psutil.Process]) -> Iterator[None]:
    """Stop some processes: new connections go to the others."""
    try:
        for process in idle:
            process.send_signal(signal.SIGSTOP)
        for process in idle:
            wait_for(partial(is_stopped, process), f"{process} stopped")
        yield
    finally:
        for process in idle:
            process.send_signal(signal.SIGCONT)


def await_reported(fleet: LocalFleet) -> None:
    """Wait until the member has detected that the broker is down, and has informed its workers."""
    since_s: list[float] = []

    def is_reported() -> bool:
        document = fleet.ownership(CLIENT_HOST, LIMIT_S)
        if any(each.broker_id == DOWN and each.up is False for each in document.brokers):
            since_s.append(document.now_mono_s)
        return bool(since_s) and document.now_mono_s >= since_s[0] + REPORT_TIMEOUT_S

    wait_for(is_reported, "the member knows the broker")


def assert_rare(dropped_connections: DroppedConnections, port: Endpoint, awake: int, sooner: int = 0) -> None:
    """Clients retry: each is refused at once, and the broker gets few connection attempts.

    Args:
        awake: how many processes may ask for it, each of them once in `BACKOFF_LIMIT_S`.
        sooner: how often more they may, because their back-off grows yet.
    """
    dropped_connections.count()
    began_s, tries = time.monotonic(), 0
    while tries < MAX_ATTEMPTS or time.monotonic() < began_s + ATTEMPT_TIMEOUT_S:
        asked_s = time.monotonic()
        with Connection(port) as refused:
            refused.send(wire.metadata(1))
            assert refused.ends()
        assert time.monotonic() - asked_s < AT_ONCE_S
        tries += 1
        time.sleep(PAUSE_S)
    took_s = time.monotonic() - began_s
    assert dropped_connections.count() <= awake * (1 + took_s / BACKOFF_LIMIT_S) + sooner
