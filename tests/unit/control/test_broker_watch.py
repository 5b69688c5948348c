"""The brokers that a member knows, their reachability, and when changes are reported."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock

import pytest

from fleet.config.settings import ListenerSettings, MemberSettings, Settings, Timing
from fleet.control import broker_watch
from fleet.control.broker_watch import BrokerWatch
from fleet.core.errors import NoMetadata
from fleet.core.model import Broker, Endpoint, IdentitySpace
from fleet.runtime.outbound import Resolver
from fleet.tls.broker_credentials import KafkaAccess
from fleet.tls.brokers import BrokerTls

BOOTSTRAP = Endpoint("bootstrap", 9092)
B1, B2, B3 = (Broker(broker_id, f"kafka-{broker_id}", 9092, "a") for broker_id in (1, 2, 3))
MOVED_B2 = Broker(2, "kafka-2", 9999, "a")
QUICK = Timing(
    broker_refresh_s=0.02,
    probe_interval_s=0.01,
    heartbeat_s=0.01,
    probe_timeout_s=7.0,
    upstream_connect_timeout_s=9.0,
)
NEVER_S = 1e6
SELDOM = Timing(broker_refresh_s=0.01, probe_interval_s=NEVER_S)
LIMIT_S = 20.0


def settings(timing: Timing = QUICK) -> Settings:
    return Settings("demo", (BOOTSTRAP,), IdentitySpace(1, 8), {}, timing)


@dataclass
class Cluster:
    """A fake network: the brokers in Metadata, and the brokers that answer probes."""

    why: str = "it is not there"
    refuses: bool = False
    listed: tuple[Broker, ...] = ()
    up: set[Endpoint] = field(default_factory=set)
    asked: list[tuple[Endpoint, ...]] = field(default_factory=list)
    probed: list[Endpoint] = field(default_factory=list)
    serves_anonymous_clients: bool = False
    timeouts: set[tuple[str, float]] = field(default_factory=set)

    async def discover(
        self, servers: Iterable[Endpoint], access: KafkaAccess, timeout_s: float
    ) -> tuple[Broker, ...]:
        self.asked.append(tuple(servers))
        self.timeouts.add(("discover", timeout_s))
        if not self.listed:
            raise NoMetadata(self.why, refused=self.refuses)
        return self.listed

    async def probe_broker(
        self,
        endpoint: Endpoint,
        timeout_s: float,
        tls: BrokerTls | None,
        resolver: Resolver,
        *,
        serves_anonymous_clients: bool,
        on_versions: Callable[[bytes], None] | None,
    ) -> str | None:
        self.probed.append(endpoint)
        if on_versions is not None:
            on_versions(b"%d" % endpoint.port)
        self.serves_anonymous_clients = serves_anonymous_clients
        self.timeouts.add(("probe", timeout_s))
        return None if endpoint in self.up else self.why


@dataclass
class Changes:
    count: int = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(broker_watch, "discover", made.discover)
    monkeypatch.setattr(broker_watch, "probe_broker", made.probe_broker)
    return made


def at(broker: Broker) -> Endpoint:
    return Endpoint(broker.host, broker.port)


@contextlib.asynccontextmanager
async def running(watch: BrokerWatch) -> AsyncIterator[None]:
    task = asyncio.create_task(watch.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 (what a task has come to is waited for)
            await asyncio.sleep(0.002)


async def rounds(cluster: Cluster, number: int = 3) -> None:
    """Wait for ``number`` more queries of the cluster, and as many probes of every broker."""
    asked, probed = len(cluster.asked) + number, len(cluster.probed) + 8 * number
    await until(lambda: len(cluster.asked) >= asked and len(cluster.probed) >= probed)


# ---- confirmed and committed brokers


def test_known_broker_is_no_change() -> None:
    changes = Changes()
    watch = BrokerWatch(settings(), changes)
    watch.confirm([B1, B2])
    assert changes.count == 1
    watch.confirm([B2])
    assert changes.count == 1
    watch.confirm([MOVED_B2])
    assert changes.count == 2
    assert watch.known == {1: B1, 2: MOVED_B2}


def test_confirmed_brokers_are_not_the_clusters_list() -> None:
    watch = BrokerWatch(settings(), Changes())
    watch.confirm([B1, B2])
    assert watch.listed == ()
    assert watch.reachable == {}
    assert watch.unreachable == ()


def test_committed_broker_is_added_but_known_address_stays() -> None:
    changes = Changes()
    watch = BrokerWatch(settings(), changes)
    watch.confirm([MOVED_B2])
    watch.on_brokers_committed({2: B2}, {2: B2, 3: B3})
    assert watch.known == {2: MOVED_B2, 3: B3}
    assert changes.count == 2
    watch.on_brokers_committed({2: B2, 3: B3}, {2: B2, 3: B3})
    assert changes.count == 2


@pytest.mark.parametrize(("host", "port"), [("kafka-1", 0), ("kafka-1", 65536), ("kafka\n1", 9092)])
def test_invalid_committed_address_is_ignored(host: str, port: int) -> None:
    watch = BrokerWatch(settings(), Changes())
    watch.on_brokers_committed({}, {1: Broker(1, host, port), 2: B2})
    assert watch.known == {2: B2}
    assert [server.host for server in watch.servers] == [BOOTSTRAP.host, B2.host]


async def test_newly_committed_address_counts_until_discovery(cluster: Cluster) -> None:
    watch = BrokerWatch(settings(), Changes())
    watch.confirm([B2])
    watch.on_brokers_committed({2: B2}, {2: MOVED_B2})
    assert watch.known == {2: MOVED_B2}
    # This member reaches the broker by another listener than the other members.
    cluster.listed = (B2,)
    async with running(watch):
        await rounds(cluster)
    assert watch.known == {2: B2}


# ---- discovery


async def test_discovery_asks_bootstrap_servers_and_listed_brokers(
    cluster: Cluster,
) -> None:
    cluster.listed = (B2, B1)
    watch = BrokerWatch(settings(), Changes())
    async with running(watch):
        await rounds(cluster)
    assert cluster.asked[0] == (BOOTSTRAP,)
    assert set(cluster.asked[-1]) == {BOOTSTRAP, at(B1), at(B2)}
    assert watch.listed == (B1, B2)
    assert cluster.timeouts == {("discover", 9.0), ("probe", 7.0)}


async def test_a_broker_that_has_left_is_known_and_not_listed(cluster: Cluster) -> None:
    """The fleet decides from the list whether a broker was removed; clients may still dial it."""
    cluster.listed = (B1, B2)
    watch = BrokerWatch(settings(), Changes())
    async with running(watch):
        await until(lambda: watch.listed == (B1, B2))
        cluster.listed = (B1,)
        await until(lambda: watch.listed == (B1,))
    assert watch.known == {1: B1, 2: B2}


async def test_failed_discovery_removes_no_broker(cluster: Cluster) -> None:
    cluster.listed = (B1, B2)
    changes = Changes()
    watch = BrokerWatch(settings(), changes)
    async with running(watch):
        await until(lambda: changes.count == 2)
        assert watch.listed == (B1, B2)
        assert watch.unreachable == (1, 2)
        before = changes.count
        cluster.listed = ()
        await rounds(cluster)
    assert watch.listed == (B1, B2)
    assert changes.count == before


async def test_unlisted_brokers_count_while_they_answer_probes(cluster: Cluster) -> None:
    """The cluster requires credentials, and the member has none. Only clients' responses name brokers."""
    cluster.up = {at(B1), at(B2)}
    watch = BrokerWatch(settings(), Changes())
    watch.confirm([B1, B2, B3])
    async with running(watch):
        await until(lambda: watch.listed == (B1, B2) and watch.unreachable == (3,))
        cluster.up = {at(B2), at(B3)}
        await until(lambda: watch.listed == (B2, B3))
        # After its first answer, the cluster's list counts.
        cluster.listed = (B1,)
        await until(lambda: watch.listed == (B1,))


async def test_repeated_problem_is_logged_once(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    watch = BrokerWatch(settings(), Changes())
    async with running(watch):
        await until(lambda: len(cluster.asked) >= 3)
        watch.confirm([B1])
        await rounds(cluster)
        cluster.why = "it is somebody else"
        await until(lambda: "somebody else" in caplog.text)
        cluster.up, cluster.listed = {at(B1)}, (B1,)
        await until(lambda: "again" in caplog.text)
    assert [each.getMessage() for each in caplog.records] == [
        "discovery failed, no server listed the brokers: it is not there",
        "broker 1 at kafka-1:9092 cannot be reached: it is not there",
        "discovery failed, no server listed the brokers: it is somebody else",
        "broker 1 at kafka-1:9092 is reachable again",
    ]


async def test_disagreeing_servers_do_not_cause_more_discovery(cluster: Cluster) -> None:
    """Found: each change of an address caused the next query."""
    watch = BrokerWatch(settings(Timing(broker_refresh_s=NEVER_S, probe_interval_s=NEVER_S)), Changes())
    cluster.listed, cluster.up = (B2,), {at(B2), at(MOVED_B2)}
    async with running(watch):
        await until(lambda: watch.reachable == {2: True})
        for number in range(3):
            cluster.listed = (B2,) if number % 2 else (MOVED_B2,)
            watch.on_brokers_seen(cluster.listed)
            await until(lambda number=number: len(cluster.asked) >= number + 2)  # type: ignore[misc]
        asked = len(cluster.asked)
        await asyncio.sleep(0.5)
        assert len(cluster.asked) == asked


async def test_absent_cluster_is_asked_once_a_client_waits(
    cluster: Cluster,
) -> None:
    """Found: an unreachable cluster was treated like a refusing one, and asked once a minute."""
    watch = BrokerWatch(settings(Timing(broker_refresh_s=NEVER_S, probe_interval_s=NEVER_S)), Changes())
    watch.on_brokers_committed({}, {1: B1})
    async with running(watch):
        await until(lambda: cluster.asked)
        cluster.listed = (B1, B2)
        watch.on_brokers_requested([2])
        await until(lambda: watch.listed == (B1, B2))


async def test_unreachable_broker_causes_discovery(cluster: Cluster) -> None:
    watch = BrokerWatch(settings(Timing(broker_refresh_s=NEVER_S, probe_interval_s=0.01)), Changes())
    cluster.listed, cluster.up = (B2,), {at(B2)}
    async with running(watch):
        await until(lambda: watch.reachable == {2: True})
        cluster.listed, cluster.up = (MOVED_B2,), {at(MOVED_B2)}
        await until(lambda: watch.known == {2: MOVED_B2} and watch.reachable == {2: True})


async def test_a_moved_broker_is_known_at_its_new_address_only(cluster: Cluster) -> None:
    cluster.listed = (B1, B2)
    cluster.up = {at(B1), at(MOVED_B2)}
    watch = BrokerWatch(settings(), Changes())
    async with running(watch):
        await until(lambda: watch.unreachable == (2,))
        cluster.listed = (B1, MOVED_B2)
        await until(lambda: watch.reachable == {1: True, 2: True})
    assert watch.listed == (B1, MOVED_B2)


@pytest.mark.parametrize(
    ("found", "timing"),
    [
        ((), Timing(broker_refresh_s=NEVER_S, probe_interval_s=0.01)),
        ((B1,), Timing(broker_refresh_s=0.01, probe_interval_s=NEVER_S)),
    ],
)
async def test_discovery_retries_soon_until_brokers_are_known(
    cluster: Cluster, found: tuple[Broker, ...], timing: Timing
) -> None:
    cluster.listed = found
    async with running(BrokerWatch(settings(timing), Changes())):
        await until(lambda: len(cluster.asked) >= 3)


async def test_discovery_backs_off_while_metadata_is_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each query may appear as a failed authentication in a broker's log."""
    slept: list[float] = []
    sleep = asyncio.sleep

    async def record_delay(delay_s: float) -> None:
        slept.append(delay_s)
        await sleep(0)

    monkeypatch.setattr(broker_watch, "NO_METADATA_MAX_INTERVAL_S", 600.0)
    watch = BrokerWatch(settings(Timing(broker_refresh_s=100.0, probe_interval_s=NEVER_S)), Changes())
    cluster.refuses = True
    watch.confirm([B1])
    with mock.patch.object(asyncio, "sleep", record_delay):
        task = asyncio.create_task(watch.run())
        while len(cluster.asked) < 6:
            await sleep(0)
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert [each for each in slept if each >= 100.0][:5] == [100.0, 200.0, 400.0, 600.0, 600.0]


# ---- reachability


async def test_reachability_is_reported_only_on_change(cluster: Cluster) -> None:
    cluster.listed = (B1, B2, B3)
    cluster.up = {at(B1), at(B3)}
    changes = Changes()
    watch = BrokerWatch(settings(), changes)
    async with running(watch):
        await until(lambda: changes.count == 2)  # the list, and its reachability
        assert watch.reachable == {1: True, 2: False, 3: True}
        assert watch.unreachable == (2,)
        await rounds(cluster)
        assert changes.count == 2
        cluster.up = {at(B1), at(B2)}
        await until(lambda: watch.unreachable == (3,))
        await until(lambda: changes.count > 2)


async def test_the_first_probe_follows_as_soon_as_a_broker_is_known(cluster: Cluster) -> None:
    """/readyz waits for the probe, so it must not wait an interval because no broker was known at first."""
    timing = Timing(broker_refresh_s=0.01, probe_interval_s=NEVER_S, heartbeat_s=0.01)
    watch = BrokerWatch(settings(timing), Changes())
    async with running(watch):
        await until(lambda: cluster.asked)
        assert watch.reachable == {}
        cluster.up = {at(B1)}
        watch.confirm([B1])
        await until(lambda: watch.reachable == {1: True})


async def test_lost_broker_alone_is_probed_immediately(cluster: Cluster) -> None:
    cluster.listed, cluster.up = (B1, B2), {at(B1), at(B2)}
    watch = BrokerWatch(settings(SELDOM), Changes())
    async with running(watch):
        await until(lambda: watch.reachable == {1: True, 2: True})
        cluster.up = {at(B2)}
        watch.on_brokers_lost([1, 9])
        await until(lambda: watch.unreachable == (1,))
    assert cluster.probed.count(at(B2)) == 1


def of_one_member(listener: ListenerSettings) -> Settings:
    member = MemberSettings(
        "p1", None, True, False, Endpoint("127.0.0.1", 1), Endpoint("127.0.0.1", 2), Path(), 1, (listener,)
    )
    return replace(settings(), members={"p1": member})


EXTERNAL = ListenerSettings("external", "0.0.0.0", 9092, 9100, "proxy-1.example", 9292, 9300)


@pytest.mark.parametrize(
    "listener", [EXTERNAL, replace(EXTERNAL, is_shared=True, broker_host="b{broker_id}.example")]
)
async def test_versions_are_collected_for_shared_listeners_only(
    cluster: Cluster, listener: ListenerSettings
) -> None:
    cluster.listed, cluster.up = (B1, B2), {at(B1), at(B2)}
    watch = BrokerWatch(of_one_member(listener), Changes(), "p1")
    async with running(watch):
        await until(lambda: watch.reachable == {1: True, 2: True})
        expected = {each.broker_id: b"%d" % each.port for each in (B1, B2)} if listener.is_shared else {}
        assert watch.api_versions == expected


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("proxy-1.example", 9292),
        ("Proxy-1.Example.", 9301),
        ("127.0.0.1", 9092),
        ("localhost", 9107),
        ("::1", 9100),
    ],
)
async def test_broker_that_advertises_the_fleet_is_not_dialled(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, host: str, port: int
) -> None:
    """Found: a member dialled itself until it had no files left."""
    misled = Broker(2, host, port)
    cluster.listed, cluster.up = (B1, misled), {at(B1)}
    watch = BrokerWatch(of_one_member(EXTERNAL), Changes(), "p1")
    async with running(watch):
        await until(lambda: watch.reachable == {1: True} and len(cluster.asked) > 3)
        assert watch.known == {1: B1}
        assert watch.listed == (B1,)
        assert at(misled) not in {*cluster.probed, *watch.servers}
        message = watch.troubles[2]
        assert message.startswith(
            f"broker 2 advertises an address of the fleet: {host}:{port} is listener external of p1"
        )
        assert caplog.messages.count(message) == 1
        elsewhere = Broker(2, "kafka-2", 9092)
        cluster.listed, cluster.up = (B1, elsewhere), {at(B1), at(elsewhere)}
        await until(lambda: watch.known == {1: B1, 2: elsewhere} and 2 not in watch.troubles)


async def test_problem_of_a_removed_broker_disappears(cluster: Cluster) -> None:
    cluster.listed, cluster.up = (B1, Broker(2, "proxy-1.example", 9292)), {at(B1)}
    watch = BrokerWatch(of_one_member(EXTERNAL), Changes(), "p1")
    async with running(watch):
        await until(lambda: 2 in watch.troubles)
        cluster.listed = (B1,)
        await until(lambda: not watch.troubles)


@pytest.mark.parametrize(
    ("host", "port"), [("proxy-1.example", 9092), ("127.0.0.1", 9108), ("kafka-2", 9092)]
)
async def test_other_ports_of_the_same_machine_are_brokers(cluster: Cluster, host: str, port: int) -> None:
    broker = Broker(2, host, port)
    cluster.listed = (broker,)
    watch = BrokerWatch(of_one_member(EXTERNAL), Changes(), "p1")
    async with running(watch):
        await until(lambda: watch.known == {2: broker})


async def test_broker_without_a_port_is_logged_once(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    b77 = Broker(77, "kafka-77", 9092)
    cluster.listed, cluster.up = (B1, b77), {at(B1), at(b77)}
    watch = BrokerWatch(of_one_member(EXTERNAL), Changes(), "p1")
    message = "broker 77 has no port on listener external: widen `identities`"
    async with running(watch):
        await until(lambda: len(cluster.asked) > 3 and watch.reachable.get(77))
        assert watch.troubles == {77: message}
    assert caplog.messages.count(message) == 1


@pytest.mark.parametrize("refuses", [False, True])
async def test_probes_ask_more_where_anonymous_clients_are_served(cluster: Cluster, refuses: bool) -> None:
    cluster.refuses, cluster.listed, cluster.up = refuses, () if refuses else (B1,), {at(B1)}
    watch = BrokerWatch(settings(), Changes())
    watch.on_brokers_committed({}, {1: B1})
    async with running(watch):
        await until(lambda: len(cluster.probed) > 5)
    assert cluster.serves_anonymous_clients is not refuses


async def test_probes_of_a_dead_broker_back_off_until_it_answers(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_watch, "PROBE_BACKOFF_FIRST_S", 0.001)
    cluster.listed = (B1,)
    watch = BrokerWatch(settings(SELDOM), Changes())
    times_s: list[float] = []

    async def probe_broker(
        endpoint: Endpoint,
        timeout_s: float,
        tls: BrokerTls | None,
        resolver: Resolver,
        *,
        serves_anonymous_clients: bool,
        on_versions: Callable[[bytes], None] | None,
    ) -> str | None:
        times_s.append(asyncio.get_running_loop().time())
        watch.on_brokers_lost([1])  # further losses do not hasten the next probe
        return await cluster.probe_broker(
            endpoint,
            timeout_s,
            tls,
            resolver,
            serves_anonymous_clients=serves_anonymous_clients,
            on_versions=on_versions,
        )

    monkeypatch.setattr(broker_watch, "probe_broker", probe_broker)
    async with running(watch):
        await until(lambda: len(times_s) == 8)
        waits_s = [after - before for before, after in itertools.pairwise(times_s)]
        assert all(wait_s >= 0.001 * 2**number for number, wait_s in enumerate(waits_s))
        cluster.up = {at(B1)}
        await until(lambda: watch.reachable == {1: True})


async def test_a_broker_at_a_new_address_is_asked_at_once(cluster: Cluster) -> None:
    cluster.listed, cluster.up = (B2,), {at(B2)}
    watch = BrokerWatch(settings(SELDOM), Changes())
    async with running(watch):
        await until(lambda: watch.reachable == {2: True})
        cluster.listed = (MOVED_B2,)
        await until(lambda: watch.unreachable == (2,))
    assert cluster.probed[-1] == at(MOVED_B2)
