"""SIGKILL of one member: the others take over, no identity moves twice, and its return is unnoticed."""

from __future__ import annotations

import time
from functools import partial

import pytest

from fleet.core.model import ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from tests.chaos.conftest import Note, StartLoad
from tests.chaos.harness import ADVERTISED_LIMIT_S, COMMITTED_LIMIT_S, ChaosHarness, wait_for
from tests.chaos.trees import Tree

pytestmark = pytest.mark.size("test")

MOVE_STALL_LIMIT_MS = 5000.0
CALM_S = 1.0


@pytest.mark.proves("librdkafka", "produce", "classic group", "takeover")
@pytest.mark.parametrize("role", ["follower", "leader"])
def test_survivors_take_over_and_the_member_returns(
    fleet: LocalFleet, start_load: StartLoad, note: Note, role: str
) -> None:
    with start_load(fleet) as harness:
        victim = harness.member(role)
        survivors = [each for each in fleet.members if each != victim]
        before, generation = harness.committed(survivors[0]), harness.generation()
        assert victim in before.values()
        tree = Tree(fleet, victim)

        with harness.probing_closely():
            killed_at_s = fleet.kill(victim)
            tree.prove_gone()
            note("advertised after", harness.await_advertised(survivors, killed_at_s, ADVERTISED_LIMIT_S))
            note(
                "committed after", harness.await_committed(victim, survivors, killed_at_s, COMMITTED_LIMIT_S)
            )
        for survivor in survivors:
            wait_for(
                partial(is_reported_in_order, harness, survivor, victim, killed_at_s),
                "a takeover reported in order",
            )
        harness.await_flow()
        for survivor in survivors:
            after = harness.committed(survivor)
            assert victim not in after.values()
            assert {each for each in after if after[each] != before[each]} == {
                each for each in before if before[each] == victim
            }
            # One step: the committed owner is the advertised one, so no identity moves twice.
            assert [view.owners for view in harness.views(survivor, killed_at_s)] == [before, after]
            assert fleet.ownership(survivor).generation > generation

        returns_quietly(harness, victim, note)


def is_reported_in_order(
    harness: ChaosHarness, reporter: ProxyId, victim: ProxyId, killed_at_s: float
) -> bool:
    """Whether a member reports the takeover: detected after the kill, and then advertised."""
    takeover = harness.takeover(reporter, victim, killed_at_s)
    return (
        takeover is not None
        and takeover.advertised_mono_s is not None
        and killed_at_s <= takeover.detected_mono_s <= takeover.advertised_mono_s
    )


def is_calm(harness: ChaosHarness) -> bool:
    """Whether librdkafka has reported no error for a while."""
    reported = harness.reported()
    return not reported or time.monotonic() - float(reported[-1].split()[0]) > CALM_S


def returns_quietly(harness: ChaosHarness, victim: ProxyId, note: Note) -> None:
    """A restarted member gets its share of identities, and clients do not notice it."""
    fleet = harness.fleet
    # A takeover may end before a client retries the dead member.
    wait_for(partial(is_calm, harness), "clients that have no more to say of the death")
    generation, started_s, reported = harness.generation(), time.monotonic(), harness.reported()
    fleet.start(victim)
    fleet.await_ready(victim)
    fleet.await_settled(harness.broker_ids)
    harness.await_flow()
    for reporter in fleet.members:
        owners = list(harness.committed(reporter).values())
        assert victim in owners
        loads = [owners.count(each) for each in fleet.members]
        assert max(loads) - min(loads) <= 1
    assert harness.generation() > generation
    assert harness.reported() == reported
    stall_ms, _ = harness.traffic.stalls_ms(started_s, time.monotonic())
    note("a planned move stalled for", stall_ms / 1000.0)
    assert stall_ms < MOVE_STALL_LIMIT_MS
