"""One fleet behind a NAT for all integration tests that do not change it.

Every client reaches it through relays that keep what the client receives, and each test that uses it fails if
a real broker's address is among that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome

from fleet.core.model import IdentitySpace
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.drills.cluster.nat import advertise_elsewhere
from tests.browser import WIDE, browser_log, chromium, resize
from tests.integration.relay import Recording, Relays, leaks, secrets_of

ROOT = Path(__file__).parents[2]
NAT_HOST = "127.88.9.9"

# A busy machine must not make members suspect each other: the chaos tests cover deaths.
PATIENT = {
    "suspect_after_s": 5.0,
    "overlay_ttl_s": 15.0,
    "control_grace_s": 30.0,
    "probe_interval_s": 3.0,
    "probe_timeout_s": 3.0,
    "freeze_timeout_s": 10.0,
}

Tool = Callable[..., str]
FleetCommand = Callable[..., dict[str, Any]]


@pytest.fixture(scope="package")
def _chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with chromium(tmp_path_factory.mktemp("browser") / "profile", insecure=True) as driver:
        yield driver


@pytest.fixture
def browser(_chromium: Chrome) -> Iterator[Chrome]:
    """One Chromium for all tests, which trusts any certificate: wide window, light scheme, empty log."""
    resize(_chromium, WIDE, "light")
    browser_log(_chromium)  # discard the log of the former test
    yield _chromium
    _chromium.get("about:blank")  # a live page would continue to query its member


@pytest.fixture(scope="session")
def relays() -> Iterator[Relays]:
    made = Relays()
    yield made
    made.close()


@pytest.fixture(scope="package")
def fleet(
    kafka: KafkaCluster, relays: Relays, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalFleet]:
    """Three proxies in front of `kafka`, with different bound and advertised addresses. No test kills them.

    They end with these tests: an idle fleet takes a ninth of a slow machine from all that come after.
    """
    with behind_relays(kafka, relays, tmp_path_factory.mktemp("fleet"), NAT_HOST) as running:
        yield running


@contextmanager
def behind_relays(kafka: KafkaCluster, relays: Relays, folder: Path, host: str) -> Iterator[LocalFleet]:
    """A fleet that advertises a host where relays listen."""
    running = LocalFleet(
        folder, kafka.endpoints, identities=IdentitySpace(first_id=1, count=4), timing=PATIENT
    )
    for advertised, bound in advertise_elsewhere(running, host).items():
        relays.forward(advertised, bound)
    with running:
        running.await_settled(frozenset(kafka.brokers))
        yield running
    running.remove_data()


@pytest.fixture(autouse=True)
def recorded(request: pytest.FixtureRequest) -> Iterator[Recording]:
    """Record what clients of `fleet` receive during one test: no real address may be in it."""
    if "fleet" not in request.fixturenames:
        yield Recording()
        return
    relays, kafka = request.getfixturevalue("relays"), request.getfixturevalue("kafka")
    with relays.recording() as recording:
        yield recording
    assert leaks(secrets_of(kafka), recording) == []


@pytest.fixture(scope="session")
def kafka_tool(kafka: KafkaCluster) -> Tool:
    """Run one of Kafka's command-line tools, which must succeed. Returns: its output."""

    def run(java_class: str, *arguments: str, stdin: str = "", limit_s: float = 90.0) -> str:
        done = kafka.tool(java_class, *arguments, stdin=stdin, limit_s=limit_s)
        assert done.returncode == 0, f"{java_class} failed:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


@pytest.fixture(scope="session")
def fleet_command() -> FleetCommand:
    """Run one of the fleet's commands with --json, which must succeed. Returns: its output."""

    def run(fleet: LocalFleet, *arguments: str) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "fleet", *arguments, "--config", str(fleet.config), "--json"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert done.returncode == 0, f"fleet {arguments} failed:\n{done.stdout}\n{done.stderr}"
        printed: dict[str, Any] = json.loads(done.stdout)
        return printed

    return run
