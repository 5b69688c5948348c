"""Fixtures: one fleet for all tests that break members, whole before each test, and its clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import pytest

from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.chaos.harness import RATE_PER_S, ChaosHarness, under_load
from tests.chaos.seeded.workloads import PARTITIONS
from tests.conftest import IMPATIENT, fleets, restore_fleet


class StartLoad(Protocol):
    """Starts clients that run through a fleet; see `tests.chaos.harness`."""

    def __call__(
        self, fleet: LocalFleet, *, rate_per_s: int = RATE_PER_S
    ) -> AbstractContextManager[ChaosHarness]: ...


Note = Callable[[str, float], None]
CLIENT_NAMES = ("librdkafka", "java", "aiokafka")
RESTART_PHASES = ("a planned move stalled", "before it, what stalled")
MEASUREMENT_NAMES = (
    "advertised after",
    "committed after",
    "Metadata differed for",
    "a planned move stalled for",
    "an upgrade, or the way back, stalled librdkafka for",
    *(
        f"{when} {name}{role} for"
        for when in RESTART_PHASES
        for name in CLIENT_NAMES
        for role in ("", " group")
    ),
    *(f"{when}the longest delivery of {name} took" for when in ("before it, ", "") for name in CLIENT_NAMES),
    "all clients served after",
    "a frozen worker was killed after",
)

# A control process restarts within two seconds, except on a busy machine.
PATIENT_TIMING = {**IMPATIENT, "control_grace_s": 30.0}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--members", type=int, default=3, help="how many a fleet has that is restarted in turn")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the measurements of the tests."""
    for report in terminalreporter.getreports("passed"):
        for name, seconds in report.user_properties:
            if name in MEASUREMENT_NAMES and report.when == "call":
                terminalreporter.write_line(f"{report.nodeid}: {name} {seconds * 1000:.0f} ms")


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Note:
    """Records a measurement, in seconds, for the summary of the run."""

    def record(name: str, seconds: float) -> None:
        assert name in MEASUREMENT_NAMES
        request.node.user_properties.append((name, seconds))

    return record


@pytest.fixture(scope="package")
def _shared_fleet(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    with fleets(kafka, tmp_path_factory.mktemp("chaos")) as make:
        yield make(timing=PATIENT_TIMING)


@pytest.fixture
def fleet(_shared_fleet: LocalFleet, kafka: KafkaCluster) -> LocalFleet:
    """Three members with (nearly) the default timing, all running, and every identity owned evenly."""
    shared_fleet = _shared_fleet
    for proxy_id in shared_fleet.running:
        shared_fleet.thaw(proxy_id)
    restore_fleet(shared_fleet, kafka)
    return shared_fleet


@pytest.fixture
def start_load(kafka: KafkaCluster, make_topic: Callable[..., str], tmp_path: Path) -> StartLoad:
    """Starts clients that run through a fleet, on a topic of their own."""

    def start(fleet: LocalFleet, *, rate_per_s: int = RATE_PER_S) -> AbstractContextManager[ChaosHarness]:
        return under_load(fleet, kafka, make_topic(PARTITIONS), tmp_path, rate_per_s)

    return start
