"""Members without DNS, routes or descriptors: no healthy member is suspected, and deaths are detected."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from fleet.admin.documents import OwnershipDocument
from fleet.core.model import Liveness, MemberStatus, ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.chaos.conftest import PATIENT_TIMING
from tests.chaos.harness import check_until, wait_for
from tests.chaos.seeded.effects import hears_all
from tests.chaos.seeded.local_faults import LocalFaults
from tests.chaos.seeded.schedule import LOCAL_FAULTS, Kind
from tests.conftest import IMPATIENT, restore_fleet

pytestmark = pytest.mark.size("test-all")

MEMBERS = ("p1", "p2", "p3")

FAULT_DURATION_S = 3.0
"""More than twice the time in which all members were once committed down."""


@dataclass(frozen=True)
class FaultyFleet:
    """A fleet, and the local faults of its members."""

    fleet: LocalFleet
    faults: LocalFaults


@pytest.fixture(scope="module")
def _failing(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyFleet]:
    folder = tmp_path_factory.mktemp("local-faults")
    fleet = LocalFleet(folder / "fleet", kafka.endpoints, timing={**IMPATIENT, **PATIENT_TIMING})
    faults = LocalFaults(fleet, folder / "faults")
    with fleet:
        yield FaultyFleet(fleet, faults)
    fleet.remove_data()


@pytest.fixture
def failing(_failing: FaultyFleet, kafka: KafkaCluster) -> FaultyFleet:
    restore_fleet(_failing.fleet, kafka)
    wait_for(lambda: all(hears_all(_failing.fleet.ownership(each)) for each in MEMBERS), "all links")
    return _failing


def victims_of(fleet: LocalFleet, who: str) -> tuple[ProxyId, ...]:
    if who == "all":
        return fleet.members
    leader = fleet.leader()
    assert leader is not None
    return (leader,) if who == "leader" else (next(each for each in fleet.members if each != leader),)


def suspected_members(document: OwnershipDocument | None) -> list[ProxyId]:
    """The members that a member suspects. A member that cannot accept connections is queried later."""
    members = () if document is None else document.members
    down = (Liveness.SUSPECT, MemberStatus.DOWN)
    return [each.proxy_id for each in members if each.liveness in down or each.status in down]


@pytest.mark.parametrize("who", ["leader", "follower", "all"])
@pytest.mark.parametrize("fault", sorted(LOCAL_FAULTS))
def test_local_failures_cause_no_takeover(failing: FaultyFleet, fault: Kind, who: str) -> None:
    fleet, faults = failing.fleet, failing.faults
    victims = victims_of(fleet, who)
    generation = fleet.ownership(victims[0]).generation
    failures_before = {each: faults.failures(each) for each in victims}
    began_s = time.monotonic()

    def check_no_suspicion() -> None:
        assert [suspected_members(fleet.try_ownership(each)) for each in MEMBERS] == [[], [], []]

    with faults.failing(victims, fault):
        check_until(began_s + FAULT_DURATION_S, check_no_suspicion)
    wait_for(
        lambda: all(faults.failures(each) > failures_before[each] for each in victims),
        f"{victims} have failed",
    )
    check_no_suspicion()
    for each in MEMBERS:
        document = fleet.ownership(each)
        assert [each.reason for each in document.takeovers if each.detected_mono_s > began_s] == []
        # A single member that does not reach the brokers gives its identities away.
        assert who != "all" or document.generation == generation


@pytest.mark.parametrize("fault", sorted(LOCAL_FAULTS))
def test_death_is_detected_during_local_failures(failing: FaultyFleet, fault: Kind) -> None:
    fleet = failing.fleet
    (victim,) = victims_of(fleet, "follower")
    survivors = [each for each in MEMBERS if each != victim]
    with failing.faults.failing(survivors, fault):
        fleet.kill(victim)
        if fault is not Kind.NO_DESCRIPTORS:  # without descriptors, the admin address does not answer
            wait_for(
                lambda: all(suspected_members(fleet.try_ownership(each)) == [victim] for each in survivors),
                "noticed",
            )
        else:
            check_until(time.monotonic() + FAULT_DURATION_S, lambda: None)
    wait_for(
        lambda: all(suspected_members(fleet.ownership(each)) == [victim] for each in survivors),
        "the suspicion at every survivor",
    )
    for survivor in survivors:
        (takeover,) = [each for each in fleet.ownership(survivor).takeovers if each.proxy_id == victim][-1:]
        assert takeover.reason == "silent"
