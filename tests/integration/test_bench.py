"""The workloads of the benchmarks that are not all requests and gigabytes, with a real member."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.connections import AT_ONCE, crowd, memory_bytes, open_files
from benchmarks.control import one_round
from benchmarks.race import run
from benchmarks.stage import Stage, of_fleet
from benchmarks.workloads import Spec
from fleet.demo.kafka import KafkaCluster
from tests.conftest import MakeFleet

MANY = 3 * AT_ONCE
FEW = 5
CROWD = {"connects_per_s", "cpu_us_per_connect", "kib_per_connection", "cpu_us_per_request"}


@pytest.fixture
def stage(kafka: KafkaCluster, make_fleet: MakeFleet) -> Stage:
    return Stage(kafka, [of_fleet(make_fleet(1))])


def test_a_crowd_comes_is_answered_and_leaves(stage: Stage) -> None:
    (target,) = stage.targets
    before = open_files(target)
    found = asyncio.run(crowd(target, MANY, memory_bytes(target)))
    assert found.keys() == CROWD
    assert all(value > 0 for value in found.values())
    assert open_files(target) <= before


def test_sparse_records_are_timed_on_their_way_to_the_consumer(stage: Stage) -> None:
    (target,) = stage.targets
    topic = stage.create_topic("sparse", (1,))
    found = run(target, Spec("sparse", target.bootstrap_servers, topic, 1, FEW))
    assert found.keys() == {"p50_us", "p99_us", "cpu_us_per_record", "member_cpu_us_per_record"}
    assert 0 < found["p50_us"] <= found["p99_us"]
    # It has waited for each record's time: the member's clockwork went on meanwhile, and was read.
    assert found["member_cpu_us_per_record"] > found["cpu_us_per_record"] > 0
    stage.delete_topic(topic)


def test_the_control_plane_commits_hands_out_and_takes_over(
    kafka: KafkaCluster, make_fleet: MakeFleet
) -> None:
    fleet, broker_ids = make_fleet(3), frozenset(kafka.brokers)
    found = one_round(fleet, broker_ids, workers=1)
    assert found.keys() == {
        "commit_ms",
        "directory_ms",
        "takeover_commit_ms_follower",
        "takeover_commit_ms_leader",
    }
    assert found.pop("directory_ms") >= 0
    assert all(value > 0 for value in found.values())
    # As it was before: nobody is drained, and everybody lives.
    fleet.await_settled(broker_ids)
    assert not any(each.drained for each in fleet.ownership(fleet.members[0]).members)
