"""A member with two workers: what one finds out about a broker, both know, and neither pesters it."""

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

ME = "p1"
TRIES, TRY_FOR_S, PAUSE_S = 40, 1.5, 0.02
"""What clients do at least, and the pace of one. A worker that was not told dialled five times."""
FROZEN_LIMIT_S = 60.0
TOLD_S = 10 * PROBE_RESULT_BATCH_S
SYN, ACK = 0x02, 0x10

Couple = tuple[LocalFleet, Link]


@pytest.fixture
def couple(kafka: KafkaCluster, tmp_path: Path) -> Iterator[Couple]:
    """A member with two workers, and the one way to a broker, which nobody else takes.

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
                wait_for(lambda: upstream_up(fleet, ME) == dict.fromkeys(kafka.brokers, True), "every broker")
                (link,) = network.broker_links(DOWN)
                yield fleet, link
        finally:
            fleet.remove_data()


class Knocks:
    """Counts who asks for a connection at an address, whether anybody listens there or not."""

    def __init__(self, at: Endpoint) -> None:
        self._port = at.port
        self._raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
        self._raw.bind((at.host, 0))
        self._raw.setblocking(False)

    def count(self) -> int:
        """How many there were since the last time."""
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
def knocks(couple: Couple) -> Iterator[Knocks]:
    try:
        made = Knocks(couple[1].at)
    except PermissionError as error:
        pytest.skip(f"no raw sockets here: {error}")
    yield made
    made.close()


def test_both_workers_know_what_one_found_out(couple: Couple, knocks: Knocks) -> None:
    """Clients of both lose their connections at once; those that come then are refused, and nobody dials."""
    fleet, link = couple
    port = identity_port(fleet, ME, DOWN)
    control, *workers = processes(fleet)
    wait_for(knocks.count, "the member's probes, which are counted")

    with ExitStack() as opened:
        connections = served_by_each(port, workers, opened)
        broken_s = time.monotonic()
        link.proxy.disable()
        assert asyncio.run(knock(link.at, 5.0)).broken
        assert all(each.ends() for each in connections)
        assert time.monotonic() - broken_s < AT_ONCE_S
    await_told(fleet)

    for alone in workers:
        with stopped({control, *workers} - {alone}):
            assert_rare(knocks, port, 1)
    # The probe's back-off stood still meanwhile, at less than its limit.
    assert_rare(knocks, port, 1 + len(workers), math.ceil(math.log2(BACKOFF_LIMIT_S / PROBE_BACKOFF_FIRST_S)))

    link.proxy.enable()
    wait_for(lambda: upstream_up(fleet, ME)[DOWN], "the broker reached again")
    for alone in workers:
        with stopped(set(workers) - {alone}):
            wait_for(partial(serves_again, fleet, ME), "the broker served")
    assert processes(fleet) == [control, *workers]


def processes(fleet: LocalFleet) -> list[psutil.Process]:
    """The member's control process and its workers."""
    children = psutil.Process(fleet.pid(ME)).children()
    return sorted(children, key=lambda each: str(each.cmdline()[-2]))


def served_by_each(
    port: Endpoint, workers: Collection[psutil.Process], opened: ExitStack
) -> list[Connection]:
    """One connection to a broker through each of the workers."""
    found = []
    for alone in workers:
        with stopped(set(workers) - {alone}):
            connection = opened.enter_context(Connection(port))
            assert config_error(connection, DOWN) == 0
            found.append(connection)
    return found


@contextmanager
def stopped(idle: Collection[psutil.Process]) -> Iterator[None]:
    """Have some processes stand still: whoever comes meanwhile, comes to the others."""
    try:
        for process in idle:
            process.send_signal(signal.SIGSTOP)
        for process in idle:
            wait_for(partial(is_stopped, process), f"{process} stopped")
        yield
    finally:
        for process in idle:
            process.send_signal(signal.SIGCONT)


def await_told(fleet: LocalFleet) -> None:
    """Wait until the member has found that the broker is down, and has told its workers."""
    since_s: list[float] = []

    def told() -> bool:
        document = fleet.ownership(ME, LIMIT_S)
        if any(each.broker_id == DOWN and each.up is False for each in document.brokers):
            since_s.append(document.now_mono_s)
        return bool(since_s) and document.now_mono_s >= since_s[0] + TOLD_S

    wait_for(told, "the member knows it")


def assert_rare(knocks: Knocks, port: Endpoint, awake: int, sooner: int = 0) -> None:
    """Clients try, and try again: each is refused at once, and the broker hears little of it.

    Args:
        awake: how many processes may ask for it, each of them once in `BACKOFF_LIMIT_S`.
        sooner: how often more they may, because their back-off grows yet.
    """
    knocks.count()
    began_s, tries = time.monotonic(), 0
    while tries < TRIES or time.monotonic() < began_s + TRY_FOR_S:
        asked_s = time.monotonic()
        with Connection(port) as refused:
            refused.send(wire.metadata(1))
            assert refused.ends()
        assert time.monotonic() - asked_s < AT_ONCE_S
        tries += 1
        time.sleep(PAUSE_S)
    took_s = time.monotonic() - began_s
    assert knocks.count() <= awake * (1 + took_s / BACKOFF_LIMIT_S) + sooner
