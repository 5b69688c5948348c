"""Clients at work and a takeover with brokers of several releases, and no broker's address leaks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.chaos.harness import (
    ADVERTISED_LIMIT_S,
    COMMITTED_LIMIT_S,
    await_flow,
    clients_running,
    under_load,
)
from tests.chaos.seeded.workloads import PARTITIONS, Client
from tests.conformance.catalogue import CASES, REFUSED
from tests.conformance.real import Comparison
from tests.conformance.releases import NEWEST, RELEASES, ReleaseSetup, advertised, cluster, release_setup
from tests.integration.clients import LIMIT_S, read_all
from tests.integration.relay import Recording, leaks, secrets_of
from tools.bootstrap import OLDER_KAFKAS

pytestmark = [pytest.mark.size("test-all"), pytest.mark.timeout(900)]
PRODUCER = "org.apache.kafka.tools.ProducerPerformance"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
RECORD_COUNT = 300
RATE_PER_S = 60


OLDEST_RELEASE = OLDER_KAFKAS[0]
LONG_TEST = pytest.mark.size("test-long")
older = pytest.mark.parametrize("setup", OLDER_KAFKAS, indirect=True)
"""The older releases; other tests cover the newest one."""


@pytest.fixture(scope="module")
def setup(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReleaseSetup]:
    """A fleet per release. The newest release uses the brokers that all tests share."""
    folder = tmp_path_factory.mktemp("fleet")
    if request.param == NEWEST:
        with release_setup(NEWEST, request.getfixturevalue("kafka"), folder) as release:
            yield release
    else:
        with (
            cluster(request.param, tmp_path_factory.mktemp("kafka")) as kafka,
            release_setup(request.param, kafka, folder) as release,
        ):
            yield release


@pytest.fixture(autouse=True)
def recorded(setup: ReleaseSetup) -> Iterator[Recording]:
    """Record what clients receive during a test: the fleet's addresses, and no broker's."""
    with setup.relays.recording() as recording:
        yield recording
    assert recording.contains(setup.fleet.bootstrap_endpoint("p1").host.encode())
    assert leaks(secrets_of(setup.kafka), recording) == []


def make_topic(setup: ReleaseSetup, name: str, partitions: int) -> str:
    name = f"{name}-{os.getpid()}"
    admin = AdminClient({"bootstrap.servers": setup.fleet.bootstrap()})
    admin.create_topics([NewTopic(name, partitions, 3)])[name].result(LIMIT_S)
    return name


@pytest.mark.proves("librdkafka", "takeover", "Kafka 3.9", "Kafka 4.0")
@pytest.mark.proves("Java", "takeover", "Kafka 3.9", "Kafka 4.0")
@pytest.mark.parametrize(
    "setup",
    [
        OLDEST_RELEASE,
        *(pytest.param(each, marks=LONG_TEST) for each in OLDER_KAFKAS if each != OLDEST_RELEASE),
    ],
    indirect=True,
)
def test_takeover_loses_no_record_of_any_client(setup: ReleaseSetup, tmp_path: Path) -> None:
    """librdkafka and the newest Java client: idempotent, transactional, in groups of both protocols."""
    fleet, kafka = setup.fleet, setup.kafka
    names = ["java", "transactional", *(["kip848"] if setup.has_new_groups else [])]
    clients = [
        Client(
            name,
            fleet.bootstrap(),
            make_topic(setup, name, PARTITIONS),
            tmp_path / name,
            rate_per_s=RATE_PER_S,
        )
        for name in names
    ]
    topic = make_topic(setup, "idempotent", PARTITIONS)
    with (
        under_load(fleet, kafka, topic, tmp_path, RATE_PER_S) as harness,
        clients_running(clients, kafka, silent=False),
    ):
        victim = harness.member("leader")
        survivors = [each for each in fleet.members if each != victim]
        assert victim in harness.committed(survivors[0]).values()
        with harness.probing_closely():
            killed_at_s = fleet.kill(victim)
            harness.await_advertised(survivors, killed_at_s, ADVERTISED_LIMIT_S)
            harness.await_committed(victim, survivors, killed_at_s, COMMITTED_LIMIT_S)
        harness.await_flow()
        await_flow(clients)
        fleet.start(victim)
        fleet.await_ready(victim)
        fleet.await_settled(harness.broker_ids)


@pytest.mark.proves("Java", "transactions", "Kafka 3.9", "Kafka 4.0")
@older
def test_java_commits_transactions_as_the_release_does(setup: ReleaseSetup) -> None:
    """With transactions version 2 each transaction ends an epoch of its producer; before, the epoch stays."""
    topic = make_topic(setup, "committed", 12)
    bootstrap = ("--bootstrap-server", setup.fleet.bootstrap())
    properties = ("--producer-props", f"bootstrap.servers={setup.fleet.bootstrap()}")
    process = setup.kafka.tool(
        PRODUCER,
        *("--topic", topic, "--transactional-id", topic, "--transaction-duration-ms", "200"),
        *("--num-records", str(RECORD_COUNT), "--record-size", "100", "--throughput", "200"),
        *properties,
    )
    assert process.returncode == 0, process.stderr
    described = setup.kafka.tool(TRANSACTIONS, *bootstrap, "describe", "--transactional-id", topic)
    names, values = (line.split("\t") for line in described.stdout.splitlines() if "\t" in line)
    state = {name.strip(): value.strip() for name, value in zip(names, values, strict=False)}
    assert state["TransactionState"] == "CompleteCommit"
    assert (int(state["ProducerEpoch"]) >= 3) == setup.has_transactions_2
    committed = {"isolation.level": "read_committed"}
    assert len(read_all(setup.fleet.bootstrap(), topic, RECORD_COUNT, config=committed)) == RECORD_COUNT


@pytest.mark.parametrize("setup", RELEASES, indirect=True)
def test_every_answer_equals_the_direct_one(setup: ReleaseSetup) -> None:
    comparison = Comparison(setup.kafka, advertised(setup.fleet), CASES)
    outcome = comparison.run()
    assert outcome.differences == []
    assert outcome.leaks == []
    assert comparison.ranges.keys() - comparison.without_error <= REFUSED.keys()
