"""Distributed Kafka Connect copies lines from file to topic to file, exactly once, in a takeover."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.drills.cluster.ports import free_ports
from tests.chaos.coordinators import kill_proxy_of_coordinator
from tests.chaos.harness import wait_for
from tests.chaos.programs import clients_running, topics_of
from tests.integration.clients import LIMIT_S, read_all

pytestmark = pytest.mark.size("test")

WORKER = "org.apache.kafka.connect.cli.ConnectDistributed"
CONVERTER = "org.apache.kafka.connect.storage.StringConverter"
START_LIMIT_S = 120.0
LINES_PER_S = 200
MIN_LINES = 400


class ConnectClient:
    """A request to a worker, and its answer."""

    def __init__(self, port: int) -> None:
        self.listener = f"http://127.0.0.1:{port}"

    def get(self, path: str) -> Any:
        """The answer; None if there is no worker or no result yet."""
        try:
            with urllib.request.urlopen(self.listener + path, timeout=LIMIT_S) as answer:
                return json.load(answer)
        except (urllib.error.URLError, ConnectionError):
            return None

    def connect(self, name: str, config: Mapping[str, str]) -> None:
        body = json.dumps({"name": name, "config": {**config, "tasks.max": "1"}}).encode()
        request = urllib.request.Request(
            f"{self.listener}/connectors", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            assert answer.status == 201

    def is_running(self, name: str) -> bool:
        """Whether the connector's only task is running."""
        status = self.get(f"/connectors/{name}/status")
        return status is not None and [task["state"] for task in status["tasks"]] == ["RUNNING"]


class Writer:
    """A file that grows line by line, in a thread of its own."""

    def __init__(self, path: Path) -> None:
        self.written = 0
        self._path = path
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="writer")

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _work(self) -> None:
        with self._path.open("w") as file:
            while not self._stopping.wait(1 / LINES_PER_S):
                file.write(f"line {self.written}\n")
                file.flush()
                self.written += 1


@pytest.mark.proves("Kafka Connect", "produce", "classic group", "transactions", "takeover")
def test_every_line_arrives_once_and_in_order(
    fleet: LocalFleet, kafka: KafkaCluster, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    source, sink, topic = tmp_path / "source", tmp_path / "sink", make_topic(partitions=1)
    prefix = f"connect-{topic}"
    (port,) = free_ports(1, ("127.0.0.1",))
    rest = ConnectClient(port)
    settings = {
        "bootstrap.servers": fleet.bootstrap(),
        "group.id": prefix,
        "key.converter": CONVERTER,
        "value.converter": CONVERTER,
        "config.storage.topic": f"{prefix}-config",
        "offset.storage.topic": f"{prefix}-offsets",
        "offset.storage.partitions": "3",
        "status.storage.topic": f"{prefix}-status",
        "status.storage.partitions": "3",
        "exactly.once.source.support": "enabled",
        "consumer.isolation.level": "read_committed",
        "offset.flush.interval.ms": "1000",
        "plugin.discovery": "service_load",
        "listeners": rest.listener,
    }

    def received() -> int:
        return sink.read_bytes().count(b"\n") if sink.exists() else 0

    with topics_of(kafka, prefix), clients_running(tmp_path, WORKER, settings) as worker:

        def is_up() -> bool:
            assert worker.poll() is None, f"the worker has ended: {tmp_path / 'program.log'}"
            return rest.get("/connectors") is not None

        with Writer(source) as writer:
            wait_for(is_up, "a worker of Connect", START_LIMIT_S)
            assert rest.get("/")["kafka_cluster_id"] == kafka.cluster_id()
            ways = {"FileStreamSource": (source, "topic"), "FileStreamSink": (sink, "topics")}
            for name, (file, setting) in ways.items():
                rest.connect(name, {"connector.class": name, "file": str(file), setting: topic})
                wait_for(partial(rest.is_running, name), name, LIMIT_S)
            wait_for(lambda: received() >= MIN_LINES, "lines", LIMIT_S)
            kill_proxy_of_coordinator(fleet, kafka, prefix)
            until = writer.written + MIN_LINES
            wait_for(lambda: received() >= until, "lines that were written after the takeover", LIMIT_S)
        wait_for(lambda: received() >= writer.written, "all lines", LIMIT_S)
        assert all(map(rest.is_running, ways))
    lines = source.read_bytes().splitlines()
    log = read_all(
        kafka.bootstrap_servers, topic, len(lines), 1, config={"isolation.level": "read_committed"}
    )
    assert [each.value() for each in log] == lines
    assert sink.read_bytes().splitlines() == lines
