"""The demo as users start it: its output, and that no process stays after any end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jsonschema
import psutil
import pytest
from confluent_kafka.admin import AdminClient

from fleet.drills.cluster.kafka import KafkaCluster

pytestmark = pytest.mark.size("test-all")

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "schemas" / "demo.schema.json").read_text())
LIMIT_S = 240


@pytest.fixture
def start_demo(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts demos that write below `tmp_path`."""

    def start(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "fleet", "demo", "--data-dir", str(tmp_path), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    return start


def remaining_processes(folder: Path) -> list[str]:
    """Command lines of the processes of a demo in this folder."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        if str(folder) in line and process.pid != os.getpid():
            found.append(line)
    return found


def check_nothing_left(folder: Path, limit_s: float = 20.0) -> bool:
    deadline_s = time.monotonic() + limit_s
    while remaining_processes(folder):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True


def test_demo_with_an_existing_cluster_survives_one_kill(
    kafka: KafkaCluster, start_demo: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    """The demo prints one valid JSON object, exits with 0, and leaves no process and no topic."""
    started_s = time.monotonic()
    demo = start_demo("--json", "--rounds", "1", "--kill", "leader", "--brokers", kafka.bootstrap_servers)
    printed, progress = demo.communicate(timeout=LIMIT_S)
    took_ms = (time.monotonic() - started_s) * 1000
    assert demo.returncode == 0, progress
    assert printed.count("\n") == 1
    document = json.loads(printed)
    jsonschema.validate(document, SCHEMA)
    assert (document["lost"], document["duplicated"], document["out_of_order"]) == (0, 0, 0)
    assert document["received"] >= document["acknowledged"] >= 10_000
    (measured,) = document["rounds"]
    assert measured["was_leader"] is True
    assert 0 < measured["detected_ms"] <= measured["advertised_ms"] < took_ms
    assert measured["detected_ms"] <= measured["committed_ms"] < took_ms
    assert 0 < measured["producer_stall_ms"] < took_ms
    assert 0 < measured["consumer_stall_ms"] < took_ms
    assert check_nothing_left(tmp_path)
    topics = AdminClient({"bootstrap.servers": kafka.bootstrap_servers}).list_topics(timeout=20).topics
    assert not [topic for topic in topics if topic.startswith("fleet-demo-")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_demo_leaves_no_process_after_any_end(
    kafka: KafkaCluster,
    start_demo: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
    number: signal.Signals,
) -> None:
    demo = start_demo("--kill", "none", "--duration", "600", "--brokers", kafka.bootstrap_servers)
    assert demo.stderr is not None
    for line in demo.stderr:
        if "starting a producer and a consumer group" in line:
            break
    assert any(" node " in line for line in remaining_processes(tmp_path))
    demo.send_signal(number)
    printed, errors = demo.communicate(timeout=LIMIT_S)
    assert demo.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 130), errors
    assert "Traceback" not in errors
    assert printed == ""
    assert check_nothing_left(tmp_path)


def test_demo_names_brokers_that_do_not_answer(start_demo: Callable[..., subprocess.Popen[str]]) -> None:
    demo = start_demo("--brokers", "127.0.0.1:9")
    _, errors = demo.communicate(timeout=LIMIT_S)
    assert demo.returncode == 1
    assert "no Kafka broker answers at 127.0.0.1:9" in errors
    assert "Traceback" not in errors
