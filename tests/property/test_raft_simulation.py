"""The real library with our journal, snapshots and guards, under a simulated clock, network and disk with
random faults.

Three promises are checked throughout: one leader a term; the same command at an index on every member; a
command that was reported as applied is never lost.
"""

from __future__ import annotations

import errno
import os
import random
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import pysyncobj.syncobj as library
import pytest

import fleet.raft.journal as journal_module
import fleet.raft.snapshot as snapshot_module
from fleet.errors import JournalError
from fleet.model import FleetState, ProxyId
from fleet.raft import files
from fleet.raft.machine import LogSettings
from fleet.raft.storage import Replica
from fleet.raft.transport import MemberTransport

VOTERS = ("p1", "p2", "p3")
OBSERVERS = ("p4",)
MEMBERS = VOTERS + OBSERVERS
STEP_S = 0.005


class SimulatedMember:
    """One member: what is in memory is gone with a crash, what is in its folder stays."""

    def __init__(self, simulation: Simulation, me: ProxyId, folder: Path) -> None:
        self.simulation = simulation
        self.me = me
        self.state = FleetState()
        self.awaited: set[str] = set()
        self.replica: Replica | None = None
        self.folder = folder

    def open(self) -> None:
        settings = LogSettings(self.me, self.me in VOTERS, self.folder / "snapshot", 0.05, 0.2, 0.4, 0.5, 20)
        transport = MemberTransport(self.me, VOTERS, OBSERVERS, self._send)
        self.state = FleetState()
        self.replica = Replica(settings, transport, lambda: self.state, self._restore, self._apply)
        self.replica.tick()

    def crash(self) -> None:
        self.awaited.clear()
        if self.replica is not None:
            self.replica.close()
            self.replica = None

    def _send(self, peer: ProxyId, payload: bytes) -> None:
        self.simulation.network.send(self.me, peer, payload)

    def _restore(self, state: FleetState) -> None:
        self.state = state

    def _apply(self, command: bytes) -> None:
        text = command.decode()
        # The state is the list of all that was applied, so that it shows what snapshots do to it.
        self.state = FleetState(recent_commands=(*self.state.recent_commands, text))
        index = self.replica.log.raftLastApplied + 1 if self.replica is not None else 0
        self.simulation.applied(self, index, text)


@dataclass
class Network:
    """FIFO links with delays, that break (losing what is under way) and stall in one direction."""

    simulation: Simulation
    up: set[frozenset[ProxyId]] = field(default_factory=set)
    queues: dict[tuple[ProxyId, ProxyId], deque[tuple[float, bytes]]] = field(default_factory=dict)
    stalled_until: dict[tuple[ProxyId, ProxyId], float] = field(default_factory=dict)
    broken_until: dict[frozenset[ProxyId], float] = field(default_factory=dict)

    def send(self, source: ProxyId, target: ProxyId, payload: bytes) -> None:
        if frozenset((source, target)) not in self.up:
            return
        queue = self.queues.setdefault((source, target), deque())
        arrival = self.simulation.now + self.simulation.random.uniform(0.0005, 0.01)
        queue.append((max(arrival, queue[-1][0]) if queue else arrival, payload))

    def connect_all(self) -> None:
        members = self.simulation.members
        for one in MEMBERS:
            for other in MEMBERS:
                pair = frozenset((one, other))
                both = members[one].replica, members[other].replica
                if one >= other or pair in self.up or both[0] is None or both[1] is None:
                    continue
                if self.simulation.now < self.broken_until.get(pair, 0.0):
                    continue
                self.up.add(pair)
                both[0].transport.link_up(other)
                both[1].transport.link_up(one)

    def disconnect(self, one: ProxyId, other: ProxyId, until: float) -> None:
        pair = frozenset((one, other))
        self.broken_until[pair] = max(until, self.broken_until.get(pair, 0.0))
        if pair not in self.up:
            return
        self.up.discard(pair)
        for source, target in ((one, other), (other, one)):
            self.queues.pop((source, target), None)
            self.stalled_until.pop((source, target), None)
            replica = self.simulation.members[source].replica
            if replica is not None:
                replica.transport.link_down(target)

    def due(self, target: ProxyId) -> list[tuple[ProxyId, bytes]]:
        now = self.simulation.now
        arrived = []
        for source in MEMBERS:
            queue = self.queues.get((source, target))
            if not queue or self.stalled_until.get((source, target), 0.0) > now:
                continue
            while queue and queue[0][0] <= now:
                arrived.append((source, queue.popleft()[1]))
        return arrived


class Simulation:
    def __init__(self, seed: int, folder: Path) -> None:
        self.random = random.Random(seed)
        self.now = 1000.0
        self.network = Network(self)
        self.at_index: dict[int, str] = {}
        self.leaders: dict[int, ProxyId] = {}
        self.acknowledged: set[str] = set()
        self.violations: list[str] = []
        self.disk_fails = 0.0
        self.commands = 0
        self.down_until: dict[ProxyId, float] = {}
        self.paused_until: dict[ProxyId, float] = {}
        self.members = {me: SimulatedMember(self, me, folder / me) for me in MEMBERS}
        for member in self.members.values():
            member.open()

    def applied(self, member: SimulatedMember, index: int, text: str) -> None:
        before = self.at_index.setdefault(index, text) if index else text
        if before != text:
            self.violations.append(f"{member.me}: {text} at index {index}, elsewhere {before}")
        if text in member.awaited:
            member.awaited.discard(text)
            self.acknowledged.add(text)

    def run(self, faulty_steps: int, quiet_steps: int) -> None:
        for _ in range(faulty_steps):
            self.disk_fails = 0.0005
            self._faults()
            self._step()
            if self.random.random() < 0.1:
                self._propose()
        self.disk_fails = 0.0
        self.down_until.clear()
        self.paused_until.clear()
        self.network.stalled_until.clear()
        self.network.broken_until.clear()
        for _ in range(quiet_steps):
            self._step()

    def _step(self) -> None:
        self.now += STEP_S
        for me, member in self.members.items():
            if member.replica is None and self.now >= self.down_until.get(me, 0.0):
                self._guarded(member, member.open)
        self.network.connect_all()
        for me, member in self.members.items():
            if member.replica is not None and self.now >= self.paused_until.get(me, 0.0):
                self._guarded(member, lambda member=member: self._turn(member))

    def _turn(self, member: SimulatedMember) -> None:
        assert member.replica is not None
        for source, payload in self.network.due(member.me):
            member.replica.transport.receive(source, payload)
        member.replica.tick()
        if member.replica.log.role == "leader":
            term = member.replica.log.raftCurrentTerm
            if self.leaders.setdefault(term, member.me) != member.me:
                self.violations.append(f"{member.me} and {self.leaders[term]} lead in term {term}")

    def _guarded(self, member: SimulatedMember, action) -> None:  # type: ignore[no-untyped-def]
        try:
            action()
        except JournalError as error:
            if os.strerror(errno.ENOSPC) not in str(error):
                self.violations.append(f"{member.me}: {error}")
            self._crash(member.me, self.random.choice((0.02, 0.3)))

    def _faults(self) -> None:
        chance, choice = self.random.random, self.random.choice
        if chance() < 0.012:
            one, other = self.random.sample(MEMBERS, 2)
            self.network.disconnect(one, other, self.now + choice((0.01, 0.1, 0.5, 2.0)))
        if chance() < 0.012:
            source, target = self.random.sample(MEMBERS, 2)
            self.network.stalled_until[source, target] = self.now + choice((0.1, 0.3, 0.8))
        if chance() < 0.004:
            self.paused_until[choice(MEMBERS)] = self.now + choice((0.1, 0.4, 1.0))
        if chance() < 0.003:
            self._crash(choice(MEMBERS), choice((0.02, 0.2, 1.0)))

    def _crash(self, me: ProxyId, for_s: float) -> None:
        for other in MEMBERS:
            if other != me:
                self.network.disconnect(me, other, self.now)
        self.members[me].crash()
        self.down_until[me] = self.now + for_s

    def _propose(self) -> None:
        member = self.members[self.random.choice(MEMBERS)]
        if member.replica is not None and member.replica.log.leader is not None:
            self.commands += 1
            text = f"{self.commands:06d}"
            member.awaited.add(text)
            member.replica.log.submit(text.encode())

    def fail_sometimes(self) -> None:
        if self.random.random() < self.disk_fails:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def simulate(seed: int, folder: Path, patch: pytest.MonkeyPatch, steps: int = 6000) -> Simulation:
    patch.setattr(os, "fsync", lambda _descriptor: None)
    patch.setattr(os, "fdatasync", lambda _descriptor: None)
    holder: list[Simulation] = []
    patch.setattr(library, "monotonicTime", lambda: holder[0].now if holder else 1000.0)
    patch.setattr(library, "random", random.Random(seed + 1_000_000))

    def write_all(descriptor: int, data: bytes) -> None:
        try:
            holder[0].fail_sometimes()
        except OSError:
            files.write_all(descriptor, data[: len(data) // 2])
            raise
        files.write_all(descriptor, data)

    def replace(path: Path, data: bytes) -> int:
        if holder:
            holder[0].fail_sometimes()
        return files.replace(path, data)

    patch.setattr(journal_module, "write_all", write_all)
    patch.setattr(journal_module, "replace", replace)
    patch.setattr(snapshot_module, "replace", replace)
    # The first voters open before any fault.
    simulation = Simulation.__new__(Simulation)
    holder.append(simulation)
    simulation.now, simulation.disk_fails, simulation.random = 1000.0, 0.0, random.Random(seed)
    simulation.__init__(seed, folder)  # type: ignore[misc]
    simulation.run(steps, 1200)
    return simulation


@pytest.mark.parametrize("seed", range(12))
def test_no_fault_makes_members_differ_or_lose_what_was_acknowledged(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation = simulate(seed, tmp_path, monkeypatch)
    final = {me: member.state.recent_commands for me, member in simulation.members.items()}
    for member in simulation.members.values():
        member.crash()

    assert simulation.violations == []
    assert len(simulation.acknowledged) > 100
    assert len(simulation.leaders) > 3
    assert len(set(final.values())) == 1
    assert simulation.acknowledged <= set(final["p1"])
