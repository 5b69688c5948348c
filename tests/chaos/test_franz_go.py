"""franz-go, a client in Go: idempotent producers, and groups of both protocols."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from fleet.demo.kafka import KafkaCluster
from fleet.demo.local_fleet import LocalFleet
from tests.chaos.coordinators import (
    await_protocols,
    kill_proxy_of_coordinator,
    with_the_coordinator_of,
)
from tests.chaos.scene import wait_for
from tests.integration.clients import LIMIT_S, read_all
from tools.bootstrap import FRANZ_GO

FLOWS = 300
"""Records that come back, of which each partition gets its part."""


class FranzGo:
    """The program of `tests/clients/franz` at work, and what it has printed, by the first word."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [FRANZ_GO, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.said: dict[str, list[str]] = {"acknowledged": [], "received": [], "failed": [], "closed": []}
        self._reading = threading.Thread(target=self._read, name="franz-go")
        self._reading.start()

    def await_flow(self) -> None:
        """Wait until so many more records were acknowledged, and received."""
        wanted = {what: len(self.said[what]) + FLOWS for what in ("acknowledged", "received")}
        wait_for(lambda: all(len(self.said[what]) >= n for what, n in wanted.items()), "records", LIMIT_S)

    def close(self) -> int:
        """Have it end in order. Returns: its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(LIMIT_S)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reading.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            what, _, value = line.strip().partition(" ")
            self.said[what].append(value)


@pytest.mark.proves("franz-go", "produce", "classic group", "consumer group", "takeover")
def test_nothing_is_lost_or_repeated_when_the_proxy_of_the_coordinator_dies(
    fleet: LocalFleet, kafka: KafkaCluster, make_topic: Callable[..., str]
) -> None:
    topics = {"classic": make_topic(), "consumer": make_topic()}
    classic = topics["classic"]
    groups = {"classic": classic, "consumer": with_the_coordinator_of(kafka, classic)}
    with ExitStack() as ending:
        clients = {}
        for protocol, topic in topics.items():
            clients[protocol] = FranzGo(fleet.bootstrap(), topic, groups[protocol], protocol)
            ending.callback(clients[protocol].end)
        for client in clients.values():
            client.await_flow()
        await_protocols(kafka, {group: protocol for protocol, group in groups.items()})
        kill_proxy_of_coordinator(fleet, kafka, classic)
        for client in clients.values():
            client.await_flow()
        for client in clients.values():
            assert client.close() == 0
    for protocol, client in clients.items():
        said = client.said
        assert said["closed"] == [""]
        assert said["failed"] == []
        acknowledged = sorted(said["acknowledged"])
        log = read_all(kafka.bootstrap_servers, topics[protocol], len(acknowledged))
        assert sorted((each.value() or b"").decode() for each in log) == acknowledged
        assert sorted(said["received"]) == acknowledged
