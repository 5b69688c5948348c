"""Fixtures: one fleet for all tests that break members, whole before each test, and its clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import pytest

from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.chaos.harness import RATE_PER_S, Scene, under_load
from tests.chaos.seeded.workloads import PARTITIONS
from tests.conftest import IMPATIENT, fleets, whole_again


class Stage(Protocol):
    """Starts clients that run through a fleet; see `tests.chaos.harness`."""

    def __call__(
        self, fleet: LocalFleet, *, rate_per_s: int = RATE_PER_S
    ) -> AbstractContextManager[Scene]: ...


Note = Callable[[str, float], None]
CLIENTS = ("librdkafka", "java", "aiokafka")
ROLLING = ("a planned move stalled", "before it, what stalled")
MEASURES = (
    "advertised after",
    "committed after",
    "Metadata differed for",
    "a planned move stalled for",
    "an upgrade, or the way back, stalled librdkafka for",
    *(f"{when} {name}{who} for" for when in ROLLING for name in CLIENTS for who in ("", " group")),
    *(f"{when}the longest delivery of {name} took" for when in ("before it, ", "") for name in CLIENTS),
    "all clients served after",
    "a frozen worker was killed after",
)

# A control process restarts within two seconds, except on a busy machine.
PATIENT = {**IMPATIENT, "control_grace_s": 30.0}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--members", type=int, default=3, help="how many a fleet has that is restarted in turn")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the measurements of the tests."""
    for report in terminalreporter.getreports("passed"):
        for what, seconds in report.user_properties:
            if what in MEASURES and report.when == "call":
                terminalreporter.write_line(f"{report.nodeid}: {what} {seconds * 1000:.0f} ms")


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Note:
    """Records a measurement, in seconds, for the summary of the run."""

    def keep(what: str, seconds: float) -> None:
        assert what in MEASURES
        request.node.user_properties.append((what, seconds))

    return keep


@pytest.fixture(scope="package")
def _broken_fleet(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    with fleets(kafka, tmp_path_factory.mktemp("chaos")) as make:
        yield make(timing=PATIENT)


@pytest.fixture
def fleet(_broken_fleet: LocalFleet, kafka: KafkaCluster) -> LocalFleet:
    """Three members with (nearly) the default timing, all running, and every identity owned evenly."""
    whole = _broken_fleet
    for proxy_id in whole.running:
        whole.thaw(proxy_id)
    whole_again(whole, kafka)
    return whole


@pytest.fixture
def stage(kafka: KafkaCluster, make_topic: Callable[..., str], tmp_path: Path) -> Stage:
    """Starts clients that run through a fleet, on a topic of their own."""

    def set_up(fleet: LocalFleet, *, rate_per_s: int = RATE_PER_S) -> AbstractContextManager[Scene]:
        return under_load(fleet, kafka, make_topic(PARTITIONS), tmp_path, rate_per_s)

    return set_up
