"""Deaths inside a member: its supervisor replaces what died, and the fleet hardly notices."""

from __future__ import annotations

import signal
from functools import partial

from fleet.chaos.proofs import is_gone, is_stopped
from fleet.demo.local_fleet import LocalFleet
from tests.chaos.conftest import Stage
from tests.chaos.scene import wait_for
from tests.chaos.trees import Tree, try_tree

REPLACED_LIMIT_S = 30.0
QUIET_S = 2.0
FROZEN_LIMIT_S = 7.5
"""Five times `freeze_timeout_s`."""


def test_a_killed_control_process_is_replaced_and_nobody_takes_over(fleet: LocalFleet, stage: Stage) -> None:
    """Of the leader, because that also costs an election."""
    with stage(fleet) as scene:
        victim = scene.member("leader")
        before, generation = scene.committed(victim), scene.generation()
        tree, said = Tree(fleet, victim), scene.said()
        since_s = fleet.ownership(victim).now_mono_s

        tree.control.send_signal(signal.SIGKILL)
        wait_for(partial(is_gone, tree.control), "the end of the control process", 5.0)

        def replaced() -> bool:
            now = try_tree(fleet, victim)
            return now is not None and now.control != tree.control

        wait_for(replaced, "another control process", REPLACED_LIMIT_S)
        fleet.await_ready(victim)
        fleet.await_settled(scene.broker_ids)
        scene.await_flow()
        scene.await_quiet(QUIET_S)

        now = Tree(fleet, victim)
        assert (now.supervisor, now.worker) == (tree.supervisor, tree.worker)
        assert scene.generation() == generation
        for proxy_id in fleet.members:
            assert [view.owners for view in scene.views(proxy_id, since_s)] == [before]
            assert scene.committed(proxy_id) == before
            assert scene.takeover(proxy_id, victim, since_s) is None
        assert scene.said() == said


def test_a_frozen_worker_is_killed_and_replaced(fleet: LocalFleet, stage: Stage) -> None:
    with stage(fleet) as scene:
        victim = scene.member("follower")
        tree, generation = Tree(fleet, victim), scene.generation()

        tree.worker.send_signal(signal.SIGSTOP)
        wait_for(partial(is_stopped, tree.worker), "the worker stopped", 1.0)
        wait_for(partial(is_gone, tree.worker), "the end of the frozen worker", FROZEN_LIMIT_S)

        def replaced() -> bool:
            now = try_tree(fleet, victim)
            return now is not None and now.worker != tree.worker

        wait_for(replaced, "another worker", REPLACED_LIMIT_S)
        fleet.await_ready(victim)
        fleet.await_settled(scene.broker_ids)
        scene.await_flow()

        now = Tree(fleet, victim)
        assert (now.supervisor, now.control) == (tree.supervisor, tree.control)
        assert victim in scene.committed(victim).values()
        assert scene.generation() >= generation
