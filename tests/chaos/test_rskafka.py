"""rskafka with records in flight when a member dies."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.chaos.trees import Tree
from tests.clients.rskafka.program import RECOMMENDED_BACKOFF, RsKafka

pytestmark = [pytest.mark.size("test-all"), pytest.mark.timeout(600)]

RESUMED_LIMIT_S = 10.0
VICTIM = "p2"


@pytest.mark.parametrize("options", [(), RECOMMENDED_BACKOFF], ids=["default", "recommended"])
@pytest.mark.proves("rskafka", "produce", "consume", "takeover at least once")
def test_each_partition_continues_when_a_member_dies(
    options: tuple[str, ...],
    rskafka: Path,
    fleet: LocalFleet,
    kafka: KafkaCluster,
    make_topic: Callable[..., str],
) -> None:
    """rskafka has no idempotent producer: a record whose answer is lost may be in the log twice."""
    topic = make_topic()
    assert (VICTIM,) in [each.committed for each in fleet.ownership("p1").identities]
    with RsKafka([str(rskafka), *options, "work", fleet.bootstrap(), topic]) as program:
        program.await_flow()
        tree = Tree(fleet, VICTIM)
        since_s = time.monotonic()
        fleet.kill(VICTIM)
        tree.prove_gone()
        program.await_partitions()
        until_s = time.monotonic()
        assert program.close() == 0
    for what in ("acknowledged", "received"):
        assert program.longest_pause_s(what, since_s, until_s) <= RESUMED_LIMIT_S
    program.check_order(kafka.bootstrap_servers, topic)
