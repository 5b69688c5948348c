"""One fleet for all integration tests that leave it as they find it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from fleet.demo.kafka import KafkaCluster
from fleet.demo.local_fleet import LocalFleet

Tool = Callable[..., str]


@pytest.fixture(scope="session")
def fleet(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    """Three proxies in front of `kafka`, undisturbed: for tests that kill nobody."""
    running = LocalFleet(tmp_path_factory.mktemp("fleet"), kafka.endpoints)
    with running:
        running.await_settled(frozenset(kafka.brokers))
        yield running
    running.remove_data()


@pytest.fixture(scope="session")
def kafka_tool(kafka: KafkaCluster) -> Tool:
    """Runs one of Kafka's own command-line tools, which must succeed; returns what it printed."""

    def run(java_class: str, *arguments: str, stdin: str = "", limit_s: float = 90.0) -> str:
        done = kafka.tool(java_class, *arguments, stdin=stdin, limit_s=limit_s)
        assert done.returncode == 0, f"{java_class} failed:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run
