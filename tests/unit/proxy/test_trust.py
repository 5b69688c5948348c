"""An address in a passing response is no evidence: no process dials, lists, commits or logs in at it."""

from __future__ import annotations

import asyncio
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.config import Timing
from fleet.control.broker_watch import (
    DISCOVERY_MAX_INTERVAL_S,
    MAX_UNCONFIRMED_BROKERS_LOGGED,
    BrokerWatch,
)
from fleet.core.model import Broker, is_address
from fleet.proxy.addresses import AddressSource
from tests.unit.control.test_broker_watch import (
    B1,
    B2,
    BOOTSTRAP,
    NEVER_S,
    SELDOM,
    Changes,
    Cluster,
    at,
    cluster,
    rounds,
    running,
    settings,
    until,
)
from tests.unit.proxy.test_addresses import DIRECTORY

__all__ = ["cluster"]

EVIL = Broker(2, "evil.example", 9220)
MOVED_B1 = Broker(1, "evil.example", 9220, "a")


# ---- in a worker


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("evil.example", 0),
        ("evil.example", 65536),
        ("evil.example", -1),
        ("", 9092),
        ("a b", 9092),
        ("a\n", 9092),
    ],
)
def test_undialable_seen_address_is_not_reported(host: str, port: int) -> None:
    seen: list[Broker] = []
    source = AddressSource(DIRECTORY, "external", "a", seen.append)
    source.book.client(b"k").report_address(5, host, port, None, True)
    assert seen == []


@pytest.mark.parametrize(
    ("host", "is_good"),
    [
        ("kafka-1", True),
        ("kafka_1.internal", True),
        ("localhost.", True),
        ("10.0.0.1", True),
        ("::1", True),
        ("fe80::1%eth0", True),
        ("a" * 63 + ".example", True),
        ("a" * 64 + ".example", False),
        ("a..b", False),
        (".", False),
        ("", False),
        ("\x1b[31m", False),
        ("fe80::1%\n", False),
        ("10.0.0.1%evil", False),
        ("fe80::1%" + "a" * 16, False),
        ("k\u00e4fka", False),
        ("a/b", False),
        ("a:b", False),
    ],
)
def test_address_is_a_host_name_or_an_ip_address(host: str, is_good: bool) -> None:
    assert is_address(host, 9092) is is_good


@given(st.text(st.sampled_from("aZ0-_.:%[]é\n"), max_size=70), st.integers(-(2**31), 2**31 - 1))
def test_every_address_that_is_accepted_can_be_looked_up(host: str, port: int) -> None:
    if is_address(host, port):
        assert host.isprintable()
        host.encode("idna")  # like getaddrinfo
        socket.getaddrinfo("127.0.0.1", port, flags=socket.AI_NUMERICHOST)
        assert 0 < port < 65536


# ---- in control


async def test_seen_address_is_not_known_listed_probed_or_asked(cluster: Cluster) -> None:
    """Workers and their file, reports and so Raft, events and weights use only these brokers."""
    cluster.listed, cluster.up = (B1,), {at(B1), at(EVIL), at(MOVED_B1)}
    watch = BrokerWatch(settings(), Changes())
    async with running(watch):
        await until(lambda: watch.reachable == {1: True})
        watch.on_brokers_seen([EVIL, MOVED_B1])
        await rounds(cluster)
        assert watch.known == {1: B1}
        assert watch.listed == (B1,)
        assert watch.reachable == {1: True}
        assert watch.unreachable == ()
        assert watch.servers == [BOOTSTRAP, at(B1)]
    assert set(cluster.probed) == {at(B1)}
    assert {server for servers in cluster.asked for server in servers} == {BOOTSTRAP, at(B1)}


async def test_seen_address_changes_nothing(cluster: Cluster) -> None:
    changes = Changes()
    watch = BrokerWatch(settings(), changes)
    watch.confirm([B1])
    watch.on_brokers_seen([EVIL, MOVED_B1])
    assert changes.count == 1


async def test_seen_address_asks_the_cluster_with_backoff(
    cluster: Cluster,
) -> None:
    cluster.listed = (B1,)
    timing = Timing(broker_refresh_s=NEVER_S, probe_interval_s=NEVER_S)
    watch = BrokerWatch(settings(timing), Changes())
    loop = asyncio.get_running_loop()
    async with running(watch):
        await until(lambda: watch.listed == (B1,))
        began_s = loop.time()
        for count in range(2, 6):
            watch.on_brokers_seen([EVIL])
            await until(lambda count=count: len(cluster.asked) >= count)  # type: ignore[misc]
        assert loop.time() - began_s >= 0.1 + 0.2 + 0.4
        cluster.listed = (B1, B2)
        watch.on_brokers_seen([EVIL])
        await until(lambda: watch.listed == (B1, B2))
        assert loop.time() - began_s <= 20 * DISCOVERY_MAX_INTERVAL_S


async def test_known_address_in_a_response_asks_nothing(cluster: Cluster) -> None:
    cluster.listed = (B1,)
    timing = Timing(broker_refresh_s=NEVER_S, probe_interval_s=NEVER_S)
    watch = BrokerWatch(settings(timing), Changes())
    async with running(watch):
        await until(lambda: watch.listed == (B1,) and not watch.discovery_requested.is_set())
        watch.on_brokers_seen([B1])
        assert not watch.discovery_requested.is_set()


async def test_unknown_broker_is_requested_until_it_is_known(cluster: Cluster) -> None:
    cluster.listed = (B1,)
    watch = BrokerWatch(settings(Timing(broker_refresh_s=NEVER_S, probe_interval_s=NEVER_S)), Changes())
    async with running(watch):
        await until(lambda: watch.listed == (B1,))
        watch.on_brokers_requested([1, 2])
        await until(lambda: len(cluster.asked) >= 3)
        cluster.listed = (B1, B2)
        await until(lambda: watch.listed == (B1, B2))
        assert watch.awaited_until_s == {}


async def test_refusing_cluster_is_not_asked_more_often(cluster: Cluster) -> None:
    """Each request may be a failed login."""
    cluster.refuses = True
    watch = BrokerWatch(settings(Timing(broker_refresh_s=NEVER_S, probe_interval_s=NEVER_S)), Changes())
    watch.confirm([B1])
    async with running(watch):
        await until(lambda: len(cluster.asked) == 1 and watch.no_metadata)
        watch.on_brokers_seen([EVIL])
        watch.on_brokers_requested([2])
        await asyncio.sleep(0.3)
    assert len(cluster.asked) == 1


async def test_without_metadata_only_configured_addresses_count(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The operator configured the addresses; traffic only shows which broker has which address."""
    cluster.refuses = True
    watch = BrokerWatch(settings(SELDOM), Changes())
    named = Broker(7, BOOTSTRAP.host.upper(), BOOTSTRAP.port)
    async with running(watch):
        await until(lambda: watch.no_metadata)
        watch.on_brokers_seen([EVIL, named, Broker(8, BOOTSTRAP.host, BOOTSTRAP.port + 1)])
        watch.on_brokers_seen([EVIL])
        assert watch.known == {7: named}
        for number in range(2 * MAX_UNCONFIRMED_BROKERS_LOGGED):
            watch.on_brokers_seen([Broker(9, f"evil-{number}.example", 9092)])
    lines = [each for each in caplog.messages if "ignored: " in each]
    assert lines[0] == "broker 2 ignored: evil.example:9220 is not in bootstrap_servers"
    assert len(lines) == MAX_UNCONFIRMED_BROKERS_LOGGED
