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
from tests.chaos.conftest import PATIENT_TIMING, StartLoad
from tests.chaos.harness import RATE_PER_S, SLOW_LIMIT_S, ChaosHarness, is_fully_linked, wait_for
from tests.chaos.network import FleetNetwork, surrounded
from tests.chaos.trees import Tree
from tests.integration.test_events import read_events
from tools.bootstrap import FAKETIME

pytestmark = pytest.mark.size("test-all")

HOUR_S: Final = 3600.0
DAY_S: Final = 24 * HOUR_S
JUMPS_S: Final = {"leader": (HOUR_S, -2 * HOUR_S), "follower": (DAY_S, -DAY_S - HOUR_S)}
"""Offsets of consecutive jumps, within the certificates' validity, which begins an hour before their
creation. By default Kafka refuses records with a time more than an hour in the future."""
RECORDS_PER_JUMP: Final = 2 * RATE_PER_S
"""Number of records that are acknowledged between a jump and the next check."""
APART_S: Final = 60.0
"""Longer than reading a clock takes on a busy machine, and much shorter than a jump."""
WHOLE_LIMIT_S: Final = 30.0
CALM: Final = {
    **PATIENT_TIMING,
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
        new_file = self._file.with_suffix(".new")
        new_file.write_text(f"{ahead_s:+.0f}")
        new_file.replace(self._file)


JumpingClocks = tuple[LocalFleet, FleetNetwork, Mapping[ProxyId, Clock]]


@pytest.fixture
def jumping_clocks(kafka: KafkaCluster, tmp_path: Path) -> Iterator[JumpingClocks]:
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
    with surrounded(fleet, tmp_path) as fleet_network:
        fleet.await_settled(frozenset(kafka.brokers))
        wait_for(lambda: is_fully_linked(fleet), "every link", WHOLE_LIMIT_S)
        yield fleet, fleet_network, clocks


def test_clock_jump_causes_no_takeover(
    jumping_clocks: JumpingClocks, kafka: KafkaCluster, start_load: StartLoad
) -> None:
    """First the leader's clock jumps, then a follower's: no move and no election; new links and events work.

    Found: Kafka accepted no event of a member whose clock was more than an hour ahead, and events reported
    traffic for the length of the jump.
    """
    fleet, fleet_network, clocks = jumping_clocks
    with start_load(fleet) as harness:
        since_s, log_lines, state_before = time.monotonic(), harness.log_lines(), known_state(fleet)
        trees = {each: Tree(fleet, each).all_processes for each in fleet.members}
        assert all(has_own_clock(each) for tree in trees.values() for each in tree)
        for role, jumps_s in JUMPS_S.items():
            victim = harness.member(role)
            for jump_s in jumps_s:
                before, jumped_s = known_state(fleet), time.time()
                clocks[victim].set(clocks[victim].ahead_s + jump_s)
                do_work(harness)
                harness.check_unmoved(since_s)
                assert known_state(fleet) == before
                assert harness.log_lines() == log_lines
                for proxy_id, clock in clocks.items():
                    prove_clock(fleet, proxy_id, clock)
                all_events_arrived = partial(has_events, kafka, victim, clocks[victim], jumped_s)
                wait_for(
                    all_events_arrived, "events of the worker", every_s=0.5
                )  # a look reads the whole topic

                fleet_network.hang_up(victim)
                wait_for(
                    lambda: is_fully_linked(fleet), "links that were made with the new time", WHOLE_LIMIT_S
                )
                harness.check_unmoved(since_s)
            clocks[victim].set(0.0)
        assert {each: Tree(fleet, each).all_processes for each in fleet.members} == trees
        for proxy_id, now in known_state(fleet).items():
            assert replace(now, term=state_before[proxy_id].term) == state_before[proxy_id]
        assert harness.reported() == []


@dataclass(frozen=True, slots=True)
class KnownState:
    """The state that must not change, as one member reports it."""

    term: int
    generation: int
    owners: dict[BrokerId, tuple[ProxyId, ...]]


def known_state(fleet: LocalFleet) -> dict[ProxyId, KnownState]:
    found = {}
    for proxy_id in fleet.members:
        document = fleet.ownership(proxy_id, SLOW_LIMIT_S)
        owners = {each.broker_id: each.committed for each in document.identities}
        found[proxy_id] = KnownState(document.term, document.generation, owners)
    return found


def has_own_clock(process: psutil.Process) -> bool:
    return str(FAKETIME.resolve()) in {each.path for each in process.memory_maps()}


def do_work(harness: ChaosHarness) -> None:
    """Let clients run for a while."""
    seen = harness.workload.acknowledgements()
    before = sum(1 for _ in seen.read())
    total = before

    def has_records() -> bool:
        nonlocal total
        harness.workload.check()
        total += sum(1 for _ in seen.read())
        return total - before >= RECORDS_PER_JUMP

    wait_for(has_records, f"{RECORDS_PER_JUMP} records acknowledged")
    harness.await_flow()


def prove_clock(fleet: LocalFleet, proxy_id: ProxyId, clock: Clock) -> None:
    """Check that a member reports the time of its own clock, and the machine's monotonic clock."""
    document = fleet.ownership(proxy_id, SLOW_LIMIT_S)
    assert abs(document.now_ms / 1000.0 - clock.ahead_s - time.time()) < APART_S
    assert abs(document.now_mono_s - time.monotonic()) < APART_S


def has_events(kafka: KafkaCluster, proxy_id: ProxyId, clock: Clock, since_s: float) -> bool:
    """Whether Kafka has events with counts of a member's worker since a moment, by the member's clock."""
    traffic = [
        each for each in read_events(kafka, f"{PREFIX}traffic", TrafficEvent) if each.told_by == proxy_id
    ]
    assert all(0 < each.period_ms < APART_S * 1000.0 for each in traffic)
    by_id = {each.id: each for each in traffic}
    assert all(by_id[each.id] == each for each in traffic), "an id is of one event"
    return any(abs(each.at_ms / 1000.0 - clock.ahead_s - since_s) < APART_S for each in traffic)
