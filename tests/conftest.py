"""Fixtures of all tests: a real Kafka, fleets in front of it, and the logs to read when a test fails.

Fixtures: `kafka` (one cluster for the whole run, its brokers at 127.77.N.N and odd ports, and by a listener
that leads nowhere yet at `AWAY`), `make_fleet`
(fleets that end with the test), `make_topic` (topics that nobody else uses), `spark`.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, get_args

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.config import UpstreamSettings
from fleet.core.model import Addressing, Endpoint
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.tls.broker_credentials import KafkaAccess
from tests.chaos.harness import becomes
from tests.compatibility import Notes
from tests.examples import use_profile
from tests.integration.wire import LIMIT_S, Connection, led_partitions, metadata_of
from tests.sizes import Size, Sizes
from tests.timing import Durations, TimeLimit, is_parallel, is_xdist_worker, known_durations
from tools.bootstrap import bring_rskafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BROKERS = 3
AWAY_LISTENER = "AWAY"

# Sparks of tests live for seconds, too short for Java's second compiler to pay off. Found: with one compiler
# Java keeps 48 MB for compiled code, not 240, and the tests' shared Spark ended when they were full.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m")

MakeFleet = Callable[..., LocalFleet]
MakeTopic = Callable[..., str]

PLAINTEXT: Final = KafkaAccess(UpstreamSettings(), "")
"""Access to brokers without any security."""

_FOLDERS: list[Path] = []
SHOWN_LINES: Final = 30
"""The number of log lines to show of each member that wrote during a failed test."""


def broker_host(broker_id: int) -> str:
    """An address that differs from every proxy's, as text and as bytes."""
    return f"127.77.{broker_id}.{broker_id}"


AWAY = {broker_id: Endpoint(f"127.78.{broker_id}.{broker_id}", 9092) for broker_id in range(1, BROKERS + 1)}
"""The brokers' addresses on an additional listener. A test that uses the listener makes a route there."""


UNMISTAKABLE_PORT_BYTES: Final = range(0x80, 0xFF)
"""The allowed low bytes of a broker's ports. Tests search for ports in all traffic, and found 24063
once, as 00 00 5d ff, where an offset of 93 was followed by an epoch of -1. Small numbers and -1 are
everywhere."""


def pytest_addoption(parser: pytest.Parser) -> None:
    sizes = [each.value for each in Size]
    parser.addoption("--size", choices=sizes, help="run the tests that `make SIZE` runs")
    kinds = get_args(Addressing)
    parser.addoption("--addressing", choices=kinds, default=kinds[0], help="of the listeners of most fleets")
    parser.addoption("--end-by", type=float, metavar="UNIX_S", help="leave out what would not end by then")


def pytest_configure(config: pytest.Config) -> None:
    register, size = config.pluginmanager.register, config.getoption("size")
    _OPTIONS["addressing"] = config.getoption("addressing")
    register(Notes())
    register(Sizes(Size(size or Size.TEST_ALL)))
    use_profile(quick=size == Size.TEST)
    left_out: Counter[str] = Counter()
    if (end_by_s := config.getoption("end_by")) is not None:
        register(TimeLimit(end_by_s, known_durations(), left_out, is_parallel(config)))
    if size == Size.TEST_ALL and not is_xdist_worker(config):
        register(Durations(left_out))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Name the logs of processes that ran during a failed test, and show the end of what members wrote."""
    report = yield
    if report.failed:
        report.sections.append(("logs", "\n".join(map(str, _FOLDERS))))
        base: Path = item.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        for path in sorted(base.rglob("logs/p*.log")):
            if path.stat().st_mtime >= report.start:
                end = path.read_text(errors="replace").splitlines()[-SHOWN_LINES:]
                report.sections.append((str(path.relative_to(base)), "\n".join(end)))
    return report


AUTHORIZER: Final = MappingProxyType(
    {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
)
"""Brokers with ACLs that admit every unnamed user."""
FOLLOWERS: Final = MappingProxyType(
    {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
)
"""Consumers with a rack read from the replica in their rack."""


def make_cluster(folder: Path, **options: Any) -> KafkaCluster:
    """Prepare brokers with unmistakable addresses, not started yet."""
    while True:
        cluster = KafkaCluster(BROKERS, folder, host_of=broker_host, **options)
        ports = [broker.port for broker in cluster.brokers.values()]
        ports += [cluster.listener("CONTROLLER", broker_id).port for broker_id in cluster.brokers]
        if all(port % 256 in UNMISTAKABLE_PORT_BYTES for port in ports):
            return cluster


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three brokers. A test that stops a broker starts it again."""
    folder = tmp_path_factory.mktemp("kafka")
    options = {"more_listeners": {AWAY_LISTENER: AWAY}, "properties": {**AUTHORIZER, **FOLLOWERS}}
    with make_cluster(folder, **options) as cluster:
        _FOLDERS.append(cluster.logs)
        yield cluster


_OPTIONS: dict[str, Any] = {}
"""The options of all fleets that `fleets` makes, unless the test has others."""
IMPATIENT: Final = MappingProxyType({"rest_after_move_s": 1.0})
"""Tests wait until a fleet is whole again. Most of them have no client that needs time to settle."""


@contextmanager
def fleets(kafka: KafkaCluster, folder: Path) -> Iterator[MakeFleet]:
    """A function that makes fleets. All fleets end with the block."""
    with ExitStack() as made:

        def make(proxies: int = 3, *, name: str = "fleet", **options: Any) -> LocalFleet:
            timing = {**IMPATIENT, **options.pop("timing", {})}
            options = {**_OPTIONS, **options}
            fleet = LocalFleet(folder / name, kafka.endpoints, proxies, timing=timing, **options)
            _FOLDERS.append(fleet.logs)
            made.callback(_FOLDERS.remove, fleet.logs)
            made.callback(fleet.remove_data)
            made.enter_context(fleet)
            fleet.await_settled(frozenset(kafka.brokers))
            return fleet

        yield make


def restore_fleet(fleet: LocalFleet, kafka: KafkaCluster) -> None:
    """Restart the members that an earlier test stopped, and wait until the fleet is as before."""
    gone = [each for each in fleet.members if each not in fleet.running]
    if gone:
        fleet.start(*gone)
    fleet.await_ready()
    fleet.await_settled(frozenset(kafka.brokers))


@pytest.fixture
def make_fleet(kafka: KafkaCluster, tmp_path: Path) -> Iterator[MakeFleet]:
    """Makes fleets as `LocalFleet` does, in front of `kafka`: ready, and with evenly owned identities."""
    with fleets(kafka, tmp_path) as make:
        yield make


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark for all tests of the pipeline, because starting it takes ten seconds."""
    # Imported here, because most tests do not need Spark.
    from fleet.pipeline.streams import session

    spark = session("local[2]")
    yield spark
    spark.stop()


@pytest.fixture(scope="session")
def rskafka(pytestconfig: pytest.Config) -> Path:
    """The program around rskafka. The first build shows cargo's progress."""
    capture: Any = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        return bring_rskafka()


_NUMBERS = itertools.count(1)


def await_known(kafka: KafkaCluster, topic: str, partitions: int) -> None:
    """Wait until every running broker knows the leader of each partition.

    A client that asked another broker than the topic's creator once received the answer that the topic is
    unknown.
    """
    for endpoint in kafka.endpoints:

        def is_known(endpoint: Endpoint = endpoint) -> bool:
            try:
                with Connection(endpoint) as connection:
                    return led_partitions(connection.ask(metadata_of(1, topic))) == partitions
            except ConnectionRefusedError:
                return True

        assert becomes(is_known, LIMIT_S), f"{topic}: not known to {endpoint} within {LIMIT_S:g} s"


@pytest.fixture(scope="module")
def make_topic(kafka: KafkaCluster) -> Iterator[MakeTopic]:
    """Makes topics with unique names, directly at the brokers, for one module.

    Removed in the end: some thousand partitions of earlier tests took the brokers half a core.
    """
    made: list[str] = []
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})

    def make(partitions: int = 12, replication: int = BROKERS, **config: str) -> str:
        name = f"topic-{os.getpid()}-{next(_NUMBERS)}"
        topic = NewTopic(name, partitions, replication, config=config)
        admin.create_topics([topic])[name].result(30)
        made.append(name)
        await_known(kafka, name, partitions)
        return name

    yield make
    for deletion in admin.delete_topics(made).values() if made else ():
        deletion.result(30)
