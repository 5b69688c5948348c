"""SIGSTOP of a whole member: the member is silent, and its sockets stay open."""

from __future__ import annotations

import pytest

from fleet.core.model import ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from tests.chaos.conftest import Note, StartLoad
from tests.chaos.harness import COMMITTED_LIMIT_S, FROZEN_LIMIT_S, check_until, wait_for
from tests.chaos.trees import Tree

pytestmark = pytest.mark.size("test-all")

SHORT_FREEZE_S = 0.5
"""Longer than every election timeout, and shorter than `suspect_after_s`."""
FREEZE_COUNT = 10
HEARTBEATS_S = 0.15
"""Three times the interval between a leader's messages."""
QUIET_S = 4.0
"""Twice as long as a member must be steady before identities move to it."""


@pytest.mark.size("test")
@pytest.mark.proves("librdkafka", "silence")
def test_frozen_member_is_taken_over_and_rejoins(
    fleet: LocalFleet, start_load: StartLoad, note: Note
) -> None:
    with start_load(fleet) as harness:
        victim = harness.member("leader")
        survivors = [each for each in fleet.members if each != victim]
        before, generation = harness.committed(victim), harness.generation()
        assert victim in before.values()
        tree = Tree(fleet, victim)

        with harness.probing_closely():
            frozen_at_s = fleet.freeze(victim)
            tree.prove_stopped()
            note("advertised after", harness.await_advertised(survivors, frozen_at_s, FROZEN_LIMIT_S))
            limit_s = FROZEN_LIMIT_S + COMMITTED_LIMIT_S
            note("committed after", harness.await_committed(victim, survivors, frozen_at_s, limit_s))
        for survivor in survivors:
            after = harness.committed(survivor)
            assert victim not in after.values()
            assert [view.owners for view in harness.views(survivor, frozen_at_s)] == [before, after]
        tree.prove_stopped()  # the member was taken over because it was silent, not because it ended
        taken_over = harness.generation()
        assert taken_over > generation

        thawed_at_s = fleet.thaw(victim)
        tree.prove_running()
        fleet.await_settled(harness.broker_ids)
        settled, balanced = harness.generation(), harness.committed(victim)
        assert victim in balanced.values()
        harness.await_flow()
        harness.await_quiet(QUIET_S)

        # No flapping: one move to the returned member, which every member sees once, and no further move.
        assert harness.generation() == settled == taken_over + 1
        for reporter in survivors:
            assert [view.owners for view in harness.views(reporter, thawed_at_s)] == [after, balanced]
            assert not [t for t in fleet.ownership(reporter).takeovers if t.detected_mono_s > thawed_at_s]
        wait_for(harness.members_agree, "the Metadata of all members agree")
        tree.prove_running()


def freeze_briefly(fleet: LocalFleet, victim: ProxyId) -> None:
    """Freeze a member briefly, and run it until it has heard from the leader."""
    check_until(fleet.freeze(victim) + SHORT_FREEZE_S, lambda: None)
    heard_s = fleet.thaw(victim) + HEARTBEATS_S
    wait_for(lambda: fleet.ownership(victim).now_mono_s > heard_s, "a message of the leader")


def test_briefly_frozen_follower_does_not_become_candidate(fleet: LocalFleet) -> None:
    """The member first reads its pending messages. Found on an overloaded machine."""
    leader = fleet.leader()
    assert leader is not None
    victim = next(each for each in fleet.members if each != leader)
    term = fleet.ownership(leader).term
    for _ in range(FREEZE_COUNT):
        freeze_briefly(fleet, victim)
    assert [fleet.ownership(each).term for each in fleet.members] == [term] * len(fleet.members)
