"""The wall clock of one member jumps forwards and backwards, without any effect on the fleet."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import psutil
import pytest

from fleet.core.event_schema import TrafficEvent
from fleet.core.model import BrokerId, ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.chaos.conftest import PATIENT, Stage
from tests.chaos.harness import RATE_PER_S, SLOW_LIMIT_S, Scene, is_whole, wait_for
from tests.chaos.network import Surroundings, surrounded
from tests.chaos.trees import Tree
from tests.integration.test_events import told
from tools.bootstrap import FAKETIME

pytestmark = pytest.mark.size("test-all")

HOUR_S: Final = 3600.0
DAY_S: Final = 24 * HOUR_S
JUMPS_S: Final = {"leader": (HOUR_S, -2 * HOUR_S), "follower": (DAY_S, -DAY_S - HOUR_S)}
"""Offsets of consecutive jumps, within the certificates' validity, which begins an hour before their
creation. By default Kafka refuses records with a time more than an hour in the future."""
WORK: Final = 2 * RATE_PER_S
"""Number of records that are acknowledged between a jump and the next check."""
APART_S: Final = 60.0
"""Longer than reading a clock takes on a busy machine, and much shorter than a jump."""
WHOLE_LIMIT_S: Final = 30.0
CALM: Final = {
    **PATIENT,
    "suspect_after_s": 5.0,
    "overlay_ttl_s": 15.0,
    "probe_interval_s": 3.0,
    "probe_timeout_s": 3.0,
    "freeze_timeout_s": 10.0,
    "election_min_s": 2.0,
    "election_max_s": 4.0,
    "leader_fallback_s": 5.0,
}
"""Time-outs that a busy machine does not reach, but a jump of an hour would."""
PREFIX: Final = "events-clock."


class Clock:
    """The wall clock of a member's processes, ahead of the machine's clock by a variable offset."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.ahead_s = 0.0
        self.set(0.0)

    @property
    def through(self) -> tuple[str, ...]:
        """The command that starts a member. No other clock, and no time of a file, changes."""
        return (
            "env",
            f"LD_PRELOAD={FAKETIME}",
            f"FAKETIME_TIMESTAMP_FILE={self._file}",
            "FAKETIME_NO_CACHE=1",
            "FAKETIME_DONT_FAKE_MONOTONIC=1",
            "NO_FAKE_STAT=1",
        )

    def set(self, ahead_s: float) -> None:
        """Let the clock jump for all processes at once."""
        self.ahead_s = ahead_s
        beside = self._file.with_suffix(".new")
        beside.write_text(f"{ahead_s:+.0f}")
        beside.replace(self._file)


Jumpy = tuple[LocalFleet, Surroundings, Mapping[ProxyId, Clock]]


@pytest.fixture
def jumpy(kafka: KafkaCluster, tmp_path: Path) -> Iterator[Jumpy]:
    """Three members with clocks of their own, and secured links through Toxiproxy."""
    fleet = LocalFleet(
        tmp_path / "fleet",
        kafka.endpoints,
        timing=CALM,
        peer_tls=True,
        events={"topic_prefix": PREFIX},
    )
    clocks = {each: Clock(tmp_path / f"{each}.clock") for each in fleet.members}
    fleet.through = {each: clock.through for each, clock in clocks.items()}
    with surrounded(fleet, tmp_path) as around:
        fleet.await_settled(frozenset(kafka.brokers))
        wait_for(lambda: is_whole(fleet), "every link", WHOLE_LIMIT_S)
        yield fleet, around, clocks


def test_clock_jump_causes_no_takeover(jumpy: Jumpy, kafka: KafkaCluster, stage: Stage) -> None:
    """First the leader's clock jumps, then a follower's: no move and no election; new links and events work.

    Found: Kafka accepted no event of a member whose clock was more than an hour ahead, and events reported
    traffic for the length of the jump.
    """
    fleet, around, clocks = jumpy
    with stage(fleet) as scene:
        since_s, said, at_first = time.monotonic(), scene.said(), known(fleet)
        trees = {each: Tree(fleet, each).everyone for each in fleet.members}
        assert all(has_a_clock_of_its_own(each) for tree in trees.values() for each in tree)
        for role, jumps_s in JUMPS_S.items():
            victim = scene.member(role)
            for jump_s in jumps_s:
                before, jumped_s = known(fleet), time.time()
                clocks[victim].set(clocks[victim].ahead_s + jump_s)
                do_work(scene)
                scene.nothing_moves(since_s)
                assert known(fleet) == before
                assert scene.said() == said
                for proxy_id, clock in clocks.items():
                    prove_clock(fleet, proxy_id, clock)
                has_all_told = partial(has_told, kafka, victim, clocks[victim], jumped_s)
                wait_for(has_all_told, "events of the worker", every_s=0.5)  # a look reads the whole topic

                around.hang_up(victim)
                wait_for(lambda: is_whole(fleet), "links that were made with the new time", WHOLE_LIMIT_S)
                scene.nothing_moves(since_s)
            clocks[victim].set(0.0)
        assert {each: Tree(fleet, each).everyone for each in fleet.members} == trees
        for proxy_id, now in known(fleet).items():
            assert replace(now, term=at_first[proxy_id].term) == at_first[proxy_id]
        assert scene.reported() == []


@dataclass(frozen=True, slots=True)
class Known:
    """The state that must not change, as one member reports it."""

    term: int
    generation: int
    owners: dict[BrokerId, tuple[ProxyId, ...]]


def known(fleet: LocalFleet) -> dict[ProxyId, Known]:
    found = {}
    for proxy_id in fleet.members:
        document = fleet.ownership(proxy_id, SLOW_LIMIT_S)
        owners = {each.broker_id: each.committed for each in document.identities}
        found[proxy_id] = Known(document.term, document.generation, owners)
    return found


def has_a_clock_of_its_own(process: psutil.Process) -> bool:
    return str(FAKETIME.resolve()) in {each.path for each in process.memory_maps()}


def do_work(scene: Scene) -> None:
    """Let clients run for a while."""
    seen = scene.workload.acknowledgements()
    before = sum(1 for _ in seen.read())
    total = before

    def done() -> bool:
        nonlocal total
        scene.workload.check()
        total += sum(1 for _ in seen.read())
        return total - before >= WORK

    wait_for(done, f"{WORK} records acknowledged")
    scene.await_flow()


def prove_clock(fleet: LocalFleet, proxy_id: ProxyId, clock: Clock) -> None:
    """Check that a member reports the time of its own clock, and the machine's monotonic clock."""
    document = fleet.ownership(proxy_id, SLOW_LIMIT_S)
    assert abs(document.now_ms / 1000.0 - clock.ahead_s - time.time()) < APART_S
    assert abs(document.now_mono_s - time.monotonic()) < APART_S


def has_told(kafka: KafkaCluster, proxy_id: ProxyId, clock: Clock, since_s: float) -> bool:
    """Whether Kafka has events with counts of a member's worker since a moment, by the member's clock."""
    traffic = [each for each in told(kafka, f"{PREFIX}traffic", TrafficEvent) if each.told_by == proxy_id]
    assert all(0 < each.period_ms < APART_S * 1000.0 for each in traffic)
    by_id = {each.id: each for each in traffic}
    assert all(by_id[each.id] == each for each in traffic), "an id is of one event"
    return any(abs(each.at_ms / 1000.0 - clock.ahead_s - since_s) < APART_S for each in traffic)
