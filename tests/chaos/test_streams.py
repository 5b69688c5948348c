"""Kafka's own example of Kafka Streams counts words exactly once during a takeover.

One run uses a classic group, the other a streams group (KIP-1071).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.chaos.coordinators import kill_proxy_of_coordinator
from tests.chaos.harness import wait_for
from tests.chaos.programs import clients_running, topics_of
from tests.integration.clients import LIMIT_S, Load, count, read_all

pytestmark = pytest.mark.size("test")

WORD_COUNT = "org.apache.kafka.streams.examples.wordcount.WordCountDemo"
STREAMS_GROUPS = "org.apache.kafka.tools.streams.StreamsGroupCommand"
READS, WRITES = "streams-plaintext-input", "streams-wordcount-output"
"""Settings of the example."""
PARTITIONS = 2
"""One transaction per second, not ten. At a load average of 50 the application could not begin its next
transaction before the brokers had ended the last one (CONCURRENT_TRANSACTIONS): no word was counted in
150 s. A direct connection to the brokers was not tried."""
START_LIMIT_S = 150.0
WORDS = (b"proxies die", b"brokers live", b"records live", b"nothing", b"is lost", b"nothing twice")


@pytest.mark.parametrize(
    "protocol",
    [
        pytest.param("classic", marks=pytest.mark.proves("Kafka Streams", "classic group")),
        pytest.param("streams", marks=pytest.mark.proves("Kafka Streams", "streams group")),
    ],
)
@pytest.mark.proves("Kafka Streams", "produce", "transactions", "takeover")
def test_every_word_is_counted_once(
    fleet: LocalFleet, kafka: KafkaCluster, tmp_path: Path, protocol: str
) -> None:
    """Check that each word's counts are 1, 2, 3 …: none is missing, repeated or out of order."""
    application = f"words-{protocol}"
    settings = {
        "application.id": application,
        "group.protocol": protocol,
        "bootstrap.servers": fleet.bootstrap(),
        "processing.guarantee": "exactly_once_v2",
        "commit.interval.ms": "1000",
        "state.dir": str(tmp_path / "state"),
    }

    def written() -> bool:
        return count(kafka.bootstrap_servers, WRITES, range(PARTITIONS)) > 0

    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    with topics_of(kafka, "streams-"), topics_of(kafka, application):
        for made in admin.create_topics([NewTopic(name, PARTITIONS, 3) for name in (READS, WRITES)]).values():
            made.result(LIMIT_S)
        with clients_running(tmp_path, WORD_COUNT, settings):
            with Load(fleet.bootstrap(), READS, PARTITIONS, 100, values=WORDS) as load:
                wait_for(written, "words that are counted", START_LIMIT_S)
                listed = kafka.tool(STREAMS_GROUPS, "--bootstrap-server", fleet.bootstrap(), "--list")
                assert (application in listed.stdout.split()) == (protocol == "streams"), listed
                kill_proxy_of_coordinator(fleet, kafka, application)
            assert load.failures == []
            read = read_all(kafka.bootstrap_servers, READS, load.acknowledged, PARTITIONS)
            words = Counter(word for each in read for word in (each.value() or b"").split())
            committed = {"isolation.level": "read_committed"}
            wrote = read_all(kafka.bootstrap_servers, WRITES, words.total(), PARTITIONS, committed)
    counts = defaultdict(list)
    for each in wrote:
        counts[each.key()].append(int.from_bytes(each.value() or b""))
    assert counts == {word: list(range(1, total + 1)) for word, total in words.items()}
