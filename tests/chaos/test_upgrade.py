"""Upgrade from the previous release, and downgrade, member by member under load; a takeover in between."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from packaging.version import Version

from fleet import __version__
from fleet.cli import journal_files
from fleet.core.model import ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests import previous_release
from tests.chaos.conftest import PATIENT_TIMING, Note, StartLoad
from tests.chaos.harness import ADVERTISED_LIMIT_S, COMMITTED_LIMIT_S, SLOW_LIMIT_S, ChaosHarness
from tests.chaos.manager import Manager
from tests.chaos.test_rolling import STALL_LIMIT_MS, await_calm, rolling_restart, stalls_ms
from tests.conftest import IMPATIENT

BUILD_INFO_PATTERN = re.compile(r'^fleet_build_info\{.*version="([^"]+)"', re.MULTILINE)

pytestmark = [pytest.mark.size("test-all"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Sequence[str]]:
    """The version of the previous release, and the command that runs this release."""
    folder = tmp_path_factory.mktemp("release")
    version = previous_release.unpack_into(folder)
    assert Version(version) < Version(__version__)
    return version, ("env", f"--chdir={folder}", f"PYTHONPATH={folder}")


@pytest.fixture
def old(kafka: KafkaCluster, tmp_path: Path, before: tuple[str, Sequence[str]]) -> Iterator[LocalFleet]:
    fleet = LocalFleet(tmp_path / "fleet", kafka.endpoints, 3, timing={**IMPATIENT, **PATIENT_TIMING})
    fleet.through = dict.fromkeys(fleet.members, before[1])
    with fleet:
        fleet.await_settled(frozenset(kafka.brokers))
        yield fleet


def test_clients_do_not_notice_an_upgrade_or_a_downgrade(
    old: LocalFleet, start_load: StartLoad, before: tuple[str, Sequence[str]], note: Note
) -> None:
    """Between the steps an old member dies: one member of each version must agree on the owners."""
    fleet, (version, through) = old, before
    assert versions(fleet) == {version}
    assert not any(fleet.settings.member(each).private_dir.exists() for each in fleet.members)
    with start_load(fleet) as harness, Manager(fleet, fleet.data) as manager:
        first = next(each for each in fleet.members if each != harness.member("leader"))
        others = [each for each in fleet.members if each != first]
        restart_as(harness, manager, [first], (), note)
        assert versions(fleet) == {version, __version__}
        check_takeover(harness, max(others, key=lambda each: each == harness.member("leader")))
        restart_as(harness, manager, others, (), note)
        assert versions(fleet) == {__version__}
        files = {each: private_files(fleet, each) for each in fleet.members}
        restart_as(harness, manager, fleet.members, through, note)
        assert versions(fleet) == {version}
        for each in fleet.members:
            assert private_files(fleet, each) == files[each], "the member uses other files"
            assert fleet.ownership(each).raft_error is None
        restart_as(harness, manager, [first], (), note)
        assert private_files(fleet, first) == files[first]


def restart_as(
    harness: ChaosHarness, manager: Manager, members: Sequence[ProxyId], program: Sequence[str], note: Note
) -> None:
    """Change the version of one member after the other, without an error or a long stall."""
    fleet, traffics = harness.fleet, {"librdkafka": harness.traffic}
    since_s, reported = await_calm(traffics, note), harness.reported()
    fleet.through |= dict.fromkeys(members, program)
    manager.restarted.clear()
    rolling_restart(fleet, manager, members)
    harness.await_flow()
    assert sorted(manager.restarted) == sorted(members)
    assert harness.reported() == reported
    worst_ms = max(stall_ms for _, stall_ms in stalls_ms(traffics, since_s))
    note("an upgrade, or the way back, stalled librdkafka for", worst_ms / 1000.0)
    assert worst_ms < STALL_LIMIT_MS


def check_takeover(harness: ChaosHarness, victim: ProxyId) -> None:
    """Check that survivors bypass a killed member and commit the change, and that the member returns."""
    fleet = harness.fleet
    survivors = [each for each in fleet.members if each != victim]
    killed_at_s = fleet.kill(victim)
    harness.await_advertised(survivors, killed_at_s, ADVERTISED_LIMIT_S)
    harness.await_committed(victim, survivors, killed_at_s, COMMITTED_LIMIT_S)
    harness.await_flow()
    fleet.start(victim)
    fleet.await_ready(victim)
    fleet.await_settled(harness.broker_ids)
    harness.await_flow()


def private_files(fleet: LocalFleet, proxy_id: ProxyId) -> Path:
    """The folder of a member's Raft files, in either version. Checks that only the user can read them."""
    member = fleet.settings.member(proxy_id)
    assert member.private_dir.stat().st_mode & 0o077 == 0
    assert (member.data_dir / "raft").is_symlink()
    assert journal_files.check(fleet.settings, proxy_id).survey.last_index > 0
    return (member.data_dir / "raft").resolve(strict=True)


def versions(fleet: LocalFleet) -> set[str]:
    """The versions that the members run."""
    pages = (fleet.get(each, "/metrics", SLOW_LIMIT_S)[1].decode() for each in fleet.members)
    return {version for page in pages for version in BUILD_INFO_PATTERN.findall(page)}
