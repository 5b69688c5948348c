"""Several members die at once: one survivor without a quorum, and a fleet that dies as a whole."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

from fleet.admin.documents import STATUS, StatusDocument
from fleet.drills.cluster.fleet import LocalFleet
from tests.chaos.conftest import StartLoad
from tests.chaos.harness import ADVERTISED_LIMIT_S, wait_for
from tests.chaos.trees import Tree

pytestmark = pytest.mark.size("test-all")

ROOT = Path(__file__).parents[2]
NO_QUORUM_EXIT_CODE = 3
"""The exit code of `fleet status`."""


def test_last_of_three_serves_all_brokers_and_reports_no_quorum(
    fleet: LocalFleet, start_load: StartLoad, make_topic: Callable[..., str]
) -> None:
    with start_load(fleet) as harness:
        last = harness.member("follower")
        others = [each for each in fleet.members if each != last]
        before, generation = harness.committed(last), harness.generation()
        trees = [Tree(fleet, each) for each in others]

        killed_at_s = fleet.kill(*others)
        for tree in trees:
            tree.prove_gone()

        harness.await_advertised([last], killed_at_s, ADVERTISED_LIMIT_S)
        assert set(harness.advertised()[last].values()) == {last}
        harness.await_flow()
        produce_and_consume(fleet.bootstrap([last]), make_topic())

        wait_for(lambda: not fleet.ownership(last).quorum.present, f"{last} knows that it has no quorum")
        document, answered_s = status(fleet)
        since_kill_s = answered_s - killed_at_s
        assert document.reported_by == last
        assert document.quorum.present is False
        assert 0 < document.quorum.lost_s <= since_kill_s + 1.0
        later, answered_again_s = status(fleet)
        passed_s = later.quorum.lost_s - document.quorum.lost_s
        assert 0 < passed_s <= answered_again_s - answered_s + 1.0
        # No change can be committed. The advertised owners bypass the dead members.
        assert harness.committed(last) == before
        assert fleet.ownership(last).generation == generation

        fleet.start(*others)
        fleet.await_ready()
        fleet.await_settled(harness.broker_ids)
        wait_for(harness.members_agree, "the Metadata of all members agree")
        assert harness.generation() >= generation
        assert fleet.ownership(last).staleness_s == 0


def test_fleet_killed_as_a_whole_restores_its_ownership(fleet: LocalFleet, start_load: StartLoad) -> None:
    with start_load(fleet) as harness:
        before, generation = harness.committed("p1"), harness.generation()
        trees = [Tree(fleet, each) for each in fleet.members]

        for proxy_id in fleet.members:
            fleet.freeze(proxy_id)  # at once, so that no member lives long enough to take over
        fleet.kill(*fleet.members)
        for tree in trees:
            tree.prove_gone()
        assert fleet.running == ()

        restarted_s = time.monotonic()
        fleet.start()
        fleet.await_ready()
        fleet.await_settled(harness.broker_ids)
        harness.await_flow()
        for proxy_id in fleet.members:
            assert harness.committed(proxy_id) == before
            assert fleet.ownership(proxy_id).generation >= generation
            # From the first answer on, each identity has its former owner.
            views = [view for view in harness.views(proxy_id, restarted_s) if view.at_s > restarted_s]
            moved = [view for view in views if not view.owners.items() <= before.items()]
            assert not moved, f"{proxy_id} sent clients elsewhere in between: {moved}"
            assert harness.advertised()[proxy_id] == before


def status(fleet: LocalFleet) -> tuple[StatusDocument, float]:
    """Run `fleet status --json` without a quorum. Returns: its document, the time of the answer."""
    done = subprocess.run(
        [sys.executable, "-m", "fleet", "status", "--config", str(fleet.config), "--json"],
        capture_output=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == NO_QUORUM_EXIT_CODE, done.stderr
    return STATUS.decode(done.stdout), time.monotonic()


def produce_and_consume(bootstrap_servers: str, topic: str, limit_s: float = 60.0) -> None:
    """Produce a record to every partition through one member, and consume it."""
    values = {f"{partition}".encode() for partition in range(12)}
    delivered: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": bootstrap_servers, "acks": "all"})
    for value in values:
        producer.produce(
            topic, value, partition=int(value), on_delivery=lambda error, _: delivered.append(error)
        )
    assert producer.flush(limit_s) == 0
    assert delivered == [None] * len(values)
    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    received: set[bytes] = set()

    def is_complete() -> bool:
        received.update(message.value() for message in consumer.consume(12, 0.2) if not message.error())
        return received == values

    try:
        wait_for(is_complete, "every record consumed", limit_s)
    finally:
        consumer.close()
