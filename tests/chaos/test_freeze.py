"""SIGSTOP of one whole member: it is silent, and its sockets stay open."""

from __future__ import annotations

import pytest

from fleet.core.model import ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from tests.chaos.conftest import Note, Stage
from tests.chaos.harness import COMMITTED_LIMIT_S, FROZEN_LIMIT_S, hold, wait_for
from tests.chaos.trees import Tree

pytestmark = pytest.mark.size("test-all")

MOMENT_S = 0.5
"""Longer than any election timeout, and shorter than it takes to be suspected."""
TIMES = 10
BEATS_S = 0.15
"""Three times as long as between two messages of a leader."""
QUIET_S = 4.0
"""Twice as long as a member must be steady before identities move to it."""


@pytest.mark.size("test")
@pytest.mark.proves("librdkafka", "silence")
def test_a_frozen_member_is_taken_over_and_taken_in_again(
    fleet: LocalFleet, stage: Stage, note: Note
) -> None:
    with stage(fleet) as scene:
        victim = scene.member("leader")
        survivors = [each for each in fleet.members if each != victim]
        before, generation = scene.committed(victim), scene.generation()
        assert victim in before.values()
        tree = Tree(fleet, victim)

        with scene.closely():
            frozen_at_s = fleet.freeze(victim)
            tree.prove_stopped()
            note("advertised after", scene.await_advertised(survivors, frozen_at_s, FROZEN_LIMIT_S))
            limit_s = FROZEN_LIMIT_S + COMMITTED_LIMIT_S
            note("committed after", scene.await_committed(victim, survivors, frozen_at_s, limit_s))
        for survivor in survivors:
            after = scene.committed(survivor)
            assert victim not in after.values()
            assert [view.owners for view in scene.views(survivor, frozen_at_s)] == [before, after]
        tree.prove_stopped()  # still: it has been taken over because it was silent, not because it ended
        taken_over = scene.generation()
        assert taken_over > generation

        thawed_at_s = fleet.thaw(victim)
        tree.prove_running()
        fleet.await_settled(scene.broker_ids)
        settled, balanced = scene.generation(), scene.committed(victim)
        assert victim in balanced.values()
        scene.await_flow()
        scene.await_quiet(QUIET_S)

        # No flapping: one move to take it in, which every member has seen once, and nothing after it.
        assert scene.generation() == settled == taken_over + 1
        for teller in survivors:
            assert [view.owners for view in scene.views(teller, thawed_at_s)] == [after, balanced]
            assert not [t for t in fleet.ownership(teller).takeovers if t.detected_mono_s > thawed_at_s]
        wait_for(scene.agreed, "the Metadata of all members agree")
        tree.prove_running()


def stand_still(fleet: LocalFleet, victim: ProxyId) -> None:
    """For a moment; and then run for as long as it takes to hear of the leader."""
    hold(fleet.freeze(victim) + MOMENT_S, lambda: None)
    heard_s = fleet.thaw(victim) + BEATS_S
    wait_for(lambda: fleet.ownership(victim).now_mono_s > heard_s, "it has heard of the leader")


def test_briefly_frozen_follower_does_not_become_candidate(fleet: LocalFleet) -> None:
    """It reads first what it was sent meanwhile; found by members that waited for a CPU of a full machine."""
    leader = fleet.leader()
    assert leader is not None
    victim = next(each for each in fleet.members if each != leader)
    term = fleet.ownership(leader).term
    for _ in range(TIMES):
        stand_still(fleet, victim)
    assert [fleet.ownership(each).term for each in fleet.members] == [term] * len(fleet.members)
