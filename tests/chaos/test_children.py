"""Deaths of a member's child processes: the supervisor replaces them, and the fleet hardly notices."""

from __future__ import annotations

import signal
import time
from collections.abc import Collection
from contextlib import ExitStack
from functools import partial

import psutil
import pytest
from confluent_kafka.admin import AdminClient

from fleet.core.model import ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.chaos.conftest import Note, StartLoad
from tests.chaos.harness import ChaosHarness, wait_for
from tests.chaos.seeded.effects import is_gone, is_stopped
from tests.chaos.trees import Tree, try_tree

pytestmark = pytest.mark.size("test-all")

REPLACED_LIMIT_S = 30.0
QUIET_S = 2.0
FROZEN_LIMIT_S = 10.0
"""Five times `freeze_timeout_s`."""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_killed_control_process_causes_no_takeover(
    fleet: LocalFleet, start_load: StartLoad, number: signal.Signals
) -> None:
    """The victim is the leader, because its death also costs an election."""
    with start_load(fleet) as harness:
        victim = harness.member("leader")
        before, generation = harness.committed(victim), harness.generation()
        tree, log_lines = Tree(fleet, victim), harness.log_lines()
        since_s = fleet.ownership(victim).now_mono_s

        tree.control.send_signal(number)
        if number is signal.SIGSTOP:
            wait_for(partial(is_stopped, tree.control), "the control process stopped", 1.0)
        wait_for(partial(is_gone, tree.control), "the end of the control process", FROZEN_LIMIT_S)

        def is_replaced() -> bool:
            now = try_tree(fleet, victim)
            return now is not None and now.control != tree.control

        wait_for(is_replaced, "another control process", REPLACED_LIMIT_S)
        fleet.await_ready(victim)
        fleet.await_settled(harness.broker_ids)
        harness.await_flow()
        harness.await_quiet(QUIET_S)

        now = Tree(fleet, victim)
        assert (now.supervisor, now.worker) == (tree.supervisor, tree.worker)
        assert harness.generation() == generation
        for proxy_id in fleet.members:
            assert [view.owners for view in harness.views(proxy_id, since_s)] == [before]
            assert harness.committed(proxy_id) == before
            assert harness.takeover(proxy_id, victim, since_s) is None
        assert harness.log_lines() == log_lines


def test_a_frozen_worker_is_killed_and_others_serve_its_clients(
    fleet: LocalFleet, kafka: KafkaCluster, start_load: StartLoad, note: Note
) -> None:
    """The worker's event loop is blocked, and the member's other processes run."""
    with start_load(fleet) as harness:
        victim = harness.member("follower")
        survivors = [each for each in fleet.members if each != victim]
        tree, generation = Tree(fleet, victim), harness.generation()
        partitions = partitions_behind(harness, kafka, victim)

        with harness.probing_closely():
            frozen_s = time.monotonic()
            tree.worker.send_signal(signal.SIGSTOP)
            wait_for(partial(is_stopped, tree.worker), "the worker stopped", 1.0)
            wait_for(partial(is_gone, tree.worker), "the end of the frozen worker", FROZEN_LIMIT_S)
            gone_s = time.monotonic()
            note("a frozen worker was killed after", time.monotonic() - frozen_s)
            # The member at which clients with reset connections request Metadata.
            for survivor in survivors:
                wait_for(partial(has_bypassed, harness, survivor, victim, frozen_s), "an address that serves")
                note("advertised after", bypassed_at_s(harness, survivor, victim, frozen_s)[0] - frozen_s)
            # The clients move there, and not to the new worker, which has not served any client yet.
            with ExitStack() as held:
                passed = partial(records_pass, held, harness, partitions, gone_s, victim, tree.worker)
                wait_for(passed, "records through the others")
                assert harness.prober.heard_s[victim] < gone_s

        def is_replaced() -> bool:
            now = try_tree(fleet, victim)
            return now is not None and now.worker != tree.worker

        wait_for(is_replaced, "another worker", REPLACED_LIMIT_S)
        fleet.await_ready(victim)
        fleet.await_settled(harness.broker_ids)
        harness.await_flow()

        now = Tree(fleet, victim)
        assert (now.supervisor, now.control) == (tree.supervisor, tree.control)
        assert victim in harness.committed(victim).values()
        assert harness.generation() >= generation


def partitions_behind(harness: ChaosHarness, kafka: KafkaCluster, proxy_id: ProxyId) -> set[int]:
    """The partitions whose leader's identity a member owns."""
    topic = harness.workload.spec.topic
    found = AdminClient({"bootstrap.servers": kafka.bootstrap_servers}).list_topics(topic).topics[topic]
    owners = harness.committed(proxy_id)
    partitions = {each.id for each in found.partitions.values() if owners[each.leader] == proxy_id}
    assert partitions
    return partitions


def records_pass(
    held: ExitStack,
    harness: ChaosHarness,
    partitions: Collection[int],
    since_s: float,
    victim: ProxyId,
    former: psutil.Process,
) -> bool:
    """Whether a record of each partition has been acknowledged and then received since a moment.

    A replacement worker is stopped before it can serve, until the stack closes.
    """
    now = try_tree(harness.fleet, victim)
    if now is not None and now.worker != former and not is_stopped(now.worker):
        now.worker.send_signal(signal.SIGSTOP)
        held.callback(now.worker.send_signal, signal.SIGCONT)
    harness.workload.check()
    harness.traffic.refresh()
    acknowledged, received = (
        {(each.partition, each.record) for each in stream.events if each.at_s > since_s}
        for stream in (harness.traffic.acknowledged, harness.traffic.received)
    )
    return {partition for partition, _ in acknowledged & received} >= set(partitions)


def bypassed_at_s(harness: ChaosHarness, reporter: ProxyId, victim: ProxyId, since_s: float) -> list[float]:
    """The time since a moment at which a member's Metadata stopped naming another member."""
    return [view.at_s for view in harness.views(reporter, since_s) if victim not in view.owners.values()]


def has_bypassed(harness: ChaosHarness, reporter: ProxyId, victim: ProxyId, since_s: float) -> bool:
    return bool(bypassed_at_s(harness, reporter, victim, since_s))
