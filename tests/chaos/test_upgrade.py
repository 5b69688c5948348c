"""From the release before to this one and back, member by member, under load: nobody notices.

`tests/releases/` has the wheels of releases; the newest is the one that must work with what is here.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.version import Version

from fleet import __version__
from fleet.demo.kafka import KafkaCluster
from fleet.demo.local_fleet import LocalFleet
from fleet.demo.rounds import Traffic
from tests.chaos.conftest import PATIENT, Note, Stage
from tests.chaos.manager import Manager
from tests.chaos.test_rolling import STALL_LIMIT_MS, rolling_restart, stalls_ms
from tests.conftest import IMPATIENT
from tools.bootstrap import ROOT

RATE_PER_S = 120
VERSION_SAID = re.compile(r'^fleet_build_info\{.*version="([^"]+)"', re.MULTILINE)
NAMED = re.compile(r"kafka_proxy_fleet-([^-]+)-")

pytestmark = pytest.mark.timeout(600)


def wheel_before() -> tuple[Version, Path]:
    found = {
        Version(named[1]): file
        for file in (ROOT / "tests" / "releases").glob("*.whl")
        if (named := NAMED.match(file.name)) is not None
    }
    newest = max(found)
    return newest, found[newest]


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Sequence[str]]:
    """The version of the release before, and what a command is to begin with so that it is that release."""
    version, wheel = wheel_before()
    assert version < Version(__version__)
    folder = tmp_path_factory.mktemp("release")
    with ZipFile(wheel) as packed:
        packed.extractall(folder)
    return str(version), ("env", f"--chdir={folder}", f"PYTHONPATH={folder}")


@pytest.fixture
def old(kafka: KafkaCluster, tmp_path: Path, before: tuple[str, Sequence[str]]) -> Iterator[LocalFleet]:
    fleet = LocalFleet(tmp_path / "fleet", kafka.endpoints, 3, timing={**IMPATIENT, **PATIENT})
    fleet.through = dict.fromkeys(fleet.members, before[1])
    with fleet:
        fleet.await_settled(frozenset(kafka.brokers))
        yield fleet


def test_an_upgrade_is_not_noticed_and_neither_is_the_way_back(
    old: LocalFleet, stage: Stage, before: tuple[str, Sequence[str]], note: Note
) -> None:
    fleet, (version, through) = old, before
    assert versions(fleet) == {version}
    with stage(fleet, rate_per_s=RATE_PER_S) as scene, Manager(fleet, fleet.data) as manager:
        reported = scene.reported()
        for becomes, program in ((__version__, ()), (version, through)):
            fleet.through = dict.fromkeys(fleet.members, program)
            worst_ms = restart_all(fleet, manager, scene.traffic, scene.await_flow)
            assert versions(fleet) == {becomes}
            assert scene.reported() == reported
            note("an upgrade, or the way back, stalled librdkafka for", worst_ms / 1000.0)
            assert worst_ms < STALL_LIMIT_MS


def restart_all(
    fleet: LocalFleet, manager: Manager, traffic: Traffic, await_flow: Callable[[], None]
) -> float:
    """One member after the other. Returns: what stalled a producer or a group for longest."""
    since_s = time.monotonic()
    manager.restarted.clear()
    rolling_restart(fleet, manager)
    await_flow()
    assert sorted(manager.restarted) == sorted(fleet.members)
    return max(stall_ms for _, stall_ms in stalls_ms({"librdkafka": traffic}, since_s))


def versions(fleet: LocalFleet) -> set[str]:
    """As all members say them."""
    said = (VERSION_SAID.findall(fleet.get(each, "/metrics")[1].decode()) for each in fleet.members)
    return {version for found in said for version in found}
