"""Choosing a victim and combining the survivors' reports, with a simulated fleet."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from fleet.core.model import BrokerId, Endpoint, ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.demo.rounds import Rounds, _last_ms
from fleet.drills.workload.clients import Workload, WorkloadSpec
from fleet.drills.workload.history import Event, HistoryReader, HistoryWriter, Record
from fleet.drills.workload.prober import Change, Prober
from fleet.drills.workload.streams import GrowingHistory

OWNERS: dict[Endpoint, ProxyId] = {Endpoint("h", number): f"p{number}" for number in range(1, 6)}


class PaperFleet:
    """A simulated fleet with running members and a leader. It only records kills."""

    def __init__(self, leader: ProxyId, *running: ProxyId) -> None:
        self.running = running
        self.led_by = leader

    def leader(self) -> ProxyId:
        return self.led_by


def rounds(folder: Path, fleet: PaperFleet, owners: dict[BrokerId, int]) -> Rounds:
    prober = Prober(dict.fromkeys(fleet.running, Endpoint("h", 0)), OWNERS.get)
    for proxy_id in fleet.running:
        prober.changes[proxy_id].append(
            Change(0.0, {at: Endpoint("h", owner) for at, owner in owners.items()})
        )
    workload = Workload(WorkloadSpec("h:1", "t", str(folder)))
    return Rounds(cast(LocalFleet, fleet), frozenset(owners), workload, prober)


async def test_kill_targets_resolve_to_members(tmp_path: Path) -> None:
    choosing = rounds(tmp_path, PaperFleet("p2", "p1", "p2", "p3"), {1: 1, 2: 2, 3: 3})
    assert await choosing.choose("leader") == ("p2", True)
    assert await choosing.choose("p2") == ("p2", True)
    assert await choosing.choose("p3") == ("p3", False)
    assert (await choosing.choose("follower"))[1] is False


async def test_aiming_probes_fast_before_the_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    aiming = rounds(tmp_path, PaperFleet("p2", "p1", "p2", "p3"), {1: 1, 2: 2, 3: 3})
    waited: list[tuple[float, bool]] = []

    async def wait(delay_s: float) -> None:
        waited.append((delay_s, aiming.prober.fast))

    monkeypatch.setattr("fleet.drills.demo.rounds.asyncio.sleep", wait)
    assert await aiming.aim("leader") == ("p2", True)
    assert waited == [(0.5, True)]


async def test_follower_without_identities_is_spared(tmp_path: Path) -> None:
    choosing = rounds(tmp_path, PaperFleet("p1", "p1", "p2", "p3"), {1: 1, 2: 1, 3: 3})
    assert await choosing.choose("follower") == ("p3", False)


async def test_follower_differs_from_the_last_victim(tmp_path: Path) -> None:
    choosing = rounds(tmp_path, PaperFleet("p3", "p1", "p2", "p3"), {1: 1, 2: 2, 3: 3})
    for last, expected in (("p1", "p2"), ("p2", "p1")):
        choosing.last_victim = last
        assert await choosing.choose("follower") == (expected, False)


def test_last_survivor_counts_and_a_missing_report_yields_none() -> None:
    assert _last_ms([10.1, 10.3, 10.2], 10.0) == pytest.approx(300)
    assert _last_ms([10.1, None], 10.0) is None
    assert _last_ms([], 10.0) is None


def test_history_flows_when_every_partition_does(tmp_path: Path) -> None:
    path = tmp_path / "x.history"
    writer, stream = HistoryWriter(path), GrowingHistory(HistoryReader(path))
    for partition, at_s in ((0, 1.0), (1, 2.0), (0, 3.0)):
        writer.append(Event(at_s, partition, Record(1, 0), 0))
    writer.flush()
    stream.refresh()
    assert stream.flows_since(1.5, 2)
    assert not stream.flows_since(2.5, 2)
    assert not stream.flows_since(0.0, 3)
    writer.append(Event(4.0, 1, Record(1, 1), 1))
    writer.close()
    stream.refresh()
    assert stream.flows_since(2.5, 2)
    assert [event.at_s for event in stream.events] == [1.0, 2.0, 3.0, 4.0]
