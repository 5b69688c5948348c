"""Brokers of several releases behind a fleet: clients at work, a takeover, and no broker's address."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.chaos.harness import (
    ADVERTISED_LIMIT_S,
    COMMITTED_LIMIT_S,
    at_work,
    await_flow,
    under_load,
)
from tests.chaos.seeded.workloads import PARTITIONS, Client
from tests.conformance.catalogue import CASES, REFUSED
from tests.conformance.real import Comparison
from tests.conformance.releases import NEWEST, RELEASES, Site, advertised, cluster, site
from tests.integration.clients import LIMIT_S, read_all
from tests.integration.relay import Recording, leaks, secrets_of
from tools.bootstrap import OLDER_KAFKAS

pytestmark = [pytest.mark.size("test-all"), pytest.mark.timeout(900)]
PRODUCER = "org.apache.kafka.tools.ProducerPerformance"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
RECORDS = 300
RATE_PER_S = 60


OLDEST = OLDER_KAFKAS[0]
LONG = pytest.mark.size("test-long")
older = pytest.mark.parametrize("there", OLDER_KAFKAS, indirect=True)
"""What other tests do with the newest."""


@pytest.fixture(scope="module")
def there(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Brokers of one release after the other; those of the newest are everybody's."""
    folder = tmp_path_factory.mktemp("fleet")
    if request.param == NEWEST:
        with site(NEWEST, request.getfixturevalue("kafka"), folder) as made:
            yield made
    else:
        with (
            cluster(request.param, tmp_path_factory.mktemp("kafka")) as kafka,
            site(request.param, kafka, folder) as made,
        ):
            yield made


@pytest.fixture(autouse=True)
def recorded(there: Site) -> Iterator[Recording]:
    """All that clients receive in the course of one test: the fleet's addresses, and no broker's."""
    with there.relays.recording() as recording:
        yield recording
    assert recording.contains(there.fleet.bootstrap_endpoint("p1").host.encode())
    assert leaks(secrets_of(there.kafka), recording) == []


def make_topic(there: Site, name: str, partitions: int) -> str:
    name = f"{name}-{os.getpid()}"
    admin = AdminClient({"bootstrap.servers": there.fleet.bootstrap()})
    admin.create_topics([NewTopic(name, partitions, 3)])[name].result(LIMIT_S)
    return name


@pytest.mark.proves("librdkafka", "takeover", "Kafka 3.9", "Kafka 4.0")
@pytest.mark.proves("Java", "takeover", "Kafka 3.9", "Kafka 4.0")
@pytest.mark.parametrize(
    "there",
    [
        OLDEST,
        *(pytest.param(each, marks=LONG) for each in OLDER_KAFKAS if each != OLDEST),
    ],
    indirect=True,
)
def test_a_takeover_loses_nothing_of_any_client(there: Site, tmp_path: Path) -> None:
    """Of librdkafka and the newest Java client: idempotent, transactional, in groups of both protocols."""
    fleet, kafka = there.fleet, there.kafka
    names = ["java", "transactional", *(["kip848"] if there.has_new_groups else [])]
    others = [
        Client(
            name,
            fleet.bootstrap(),
            make_topic(there, name, PARTITIONS),
            tmp_path / name,
            rate_per_s=RATE_PER_S,
        )
        for name in names
    ]
    topic = make_topic(there, "idempotent", PARTITIONS)
    with (
        under_load(fleet, kafka, topic, tmp_path, RATE_PER_S) as scene,
        at_work(others, kafka, silent=False),
    ):
        victim = scene.member("leader")
        survivors = [each for each in fleet.members if each != victim]
        assert victim in scene.committed(survivors[0]).values()
        with scene.closely():
            killed_at_s = fleet.kill(victim)
            scene.await_advertised(survivors, killed_at_s, ADVERTISED_LIMIT_S)
            scene.await_committed(victim, survivors, killed_at_s, COMMITTED_LIMIT_S)
        scene.await_flow()
        await_flow(others)
        fleet.start(victim)
        fleet.await_ready(victim)
        fleet.await_settled(scene.broker_ids)


@pytest.mark.proves("Java", "transactions", "Kafka 3.9", "Kafka 4.0")
@older
def test_java_commits_transactions_as_the_release_does(there: Site) -> None:
    """With version 2 each transaction ends an epoch of its producer; before, one lasted for all of them."""
    topic = make_topic(there, "committed", 12)
    bootstrap = ("--bootstrap-server", there.fleet.bootstrap())
    properties = ("--producer-props", f"bootstrap.servers={there.fleet.bootstrap()}")
    done = there.kafka.tool(
        PRODUCER,
        *("--topic", topic, "--transactional-id", topic, "--transaction-duration-ms", "200"),
        *("--num-records", str(RECORDS), "--record-size", "100", "--throughput", "200"),
        *properties,
    )
    assert done.returncode == 0, done.stderr
    described = there.kafka.tool(TRANSACTIONS, *bootstrap, "describe", "--transactional-id", topic)
    names, values = (line.split("\t") for line in described.stdout.splitlines() if "\t" in line)
    state = {name.strip(): value.strip() for name, value in zip(names, values, strict=False)}
    assert state["TransactionState"] == "CompleteCommit"
    assert (int(state["ProducerEpoch"]) >= 3) == there.has_transactions_2
    committed = {"isolation.level": "read_committed"}
    assert len(read_all(there.fleet.bootstrap(), topic, RECORDS, config=committed)) == RECORDS


@pytest.mark.parametrize("there", RELEASES, indirect=True)
def test_every_answer_means_what_it_means_straight(there: Site) -> None:
    comparison = Comparison(there.kafka, advertised(there.fleet), CASES)
    outcome = comparison.run()
    assert outcome.differences == []
    assert outcome.leaks == []
    assert comparison.ranges.keys() - comparison.without_error <= REFUSED.keys()
