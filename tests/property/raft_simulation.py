"""The real library with our journal, snapshots and guards, under a simulated clock, network and disk.

A schedule is a seed. The seed chooses the fleet (three voters and an observer, or five voters), the state (a
list of all applied commands, or the fleet's real state machine under ownership commands), and the faults and
their times: links that break, stall in one direction or deliver late, partitions, pauses, crashes of a
process, power cuts that discard unflushed data and tear a running write, and disks that refuse a write.
Voters
are reset, emptied, restored from an earlier copy of their folder without notice, or continue with a journal
that an earlier release has written in between. At the end everything heals.

Checked throughout: one leader per term, the same command at an index wherever it is applied, and generations
that only grow. Checked at the end: equal states, which a naive twin makes of all commands in order.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pysyncobj.syncobj as library
import pytest
from pysyncobj.node import Node

import fleet.raft.journal as journal_module
import fleet.raft.memory as memory_module
import fleet.raft.snapshot as snapshot_module
from fleet.core.errors import JournalError, JournalForgot
from fleet.core.model import Broker, FleetState, Member, Ownership, ProxyId
from fleet.core.state import (
    BrokersSeen,
    Command,
    MemberUp,
    OwnershipSet,
    apply,
    decode,
    encode,
    stamp,
)
from fleet.raft import files
from fleet.raft.identity import IDENTITY_BYTES, NO_IDENTITY, Standing
from fleet.raft.journal import FIRST_FRAME, Journal
from fleet.raft.machine import LogSettings
from fleet.raft.memory import VoterMemory
from fleet.raft.rejoin import MARK, write_mark
from fleet.raft.storage import Replica
from fleet.raft.transport import MemberTransport

STEP_S = 0.005
HEALING_STEPS = 6000
DISK_FAULT = os.strerror(errno.ENOSPC)


class PowerCut(Exception):
    """The machine lost its power in the middle of a flush."""


@dataclass(frozen=True)
class Outcome:
    """The result of a schedule: only its counts if no promise was broken."""

    seed: int
    violations: tuple[str, ...]
    counts: Counter[str]


class CommandLists:
    """Commands are numbers, and the state is the list of all that were applied: it shows what snapshots do to
    it.
    """

    def command(self, number: int, _chance: random.Random, _state: FleetState) -> bytes:
        return b"%06d" % number

    def apply(self, state: FleetState, command: bytes) -> FleetState:
        return FleetState(recent_commands=(*state.recent_commands, command.decode()))


class OwnershipCommands:
    """Commands are the fleet's own, for its own state machine; many come too late, and must be refused
    alike.
    """

    def __init__(self, members: tuple[ProxyId, ...]) -> None:
        self._members = members

    def command(self, number: int, chance: random.Random, state: FleetState) -> bytes:
        kind = chance.random()
        made: Command
        if kind < 0.1:
            made = MemberUp(Member(chance.choice(self._members), incarnation=number))
        elif kind < 0.2:
            made = BrokersSeen((Broker(chance.randrange(9), "kafka", chance.randrange(9000, 9100)),))
        else:
            owner = Ownership((chance.choice(self._members),))
            made = OwnershipSet(state.generation, {chance.randrange(9): owner})
        return encode(stamp(made, f"c{number}", number))

    def apply(self, state: FleetState, command: bytes) -> FleetState:
        return apply(state, decode(command))[0]


@dataclass(frozen=True)
class Loss:
    """A voter to empty or restore as soon as all others know the end of its journal.

    Args: leader: the member to crash with the voter, so that the remaining members lack the newest entries.
    """

    victim: ProxyId
    how: str
    not_before: float = 0.0
    leader: ProxyId | None = None


class SimulatedMember:
    """One member: a crash loses its memory, and its folder stays."""

    def __init__(self, simulation: Simulation, me: ProxyId, folder: Path) -> None:
        self.simulation = simulation
        self.me = me
        self.state = FleetState()
        self.awaited: set[bytes] = set()
        self.replica: Replica | None = None
        self.folder = folder
        self.forgot = False
        """Whether the voter was emptied or restored, and has not caught up since."""

    def open(self) -> None:
        voters, observers = self.simulation.voters, self.simulation.observers
        settings = LogSettings(self.me, self.me in voters, self.folder / "snapshot", 0.05, 0.2, 0.4, 0.5, 20)
        transport = MemberTransport(self.me, voters, observers, self._send)
        self.state = FleetState()
        self.replica = Replica(settings, transport, lambda: self.state, self._restore, self._apply)
        self.replica.tick()

    def crash(self) -> None:
        self.awaited.clear()
        if self.replica is not None:
            self.replica.close()
            self.replica = None

    @property
    def leads(self) -> bool:
        return self.replica is not None and self.replica.log.role == "leader"

    @property
    def marked(self) -> bool:
        return (self.folder / MARK).exists()

    @property
    def forgetful(self) -> bool:
        return self.marked or self.forgot

    @property
    def copy(self) -> Path:
        """The copy of an earlier state of its folder."""
        return self.folder.with_name(f"{self.me}-copy")

    def _send(self, peer: ProxyId, payload: bytes) -> None:
        self.simulation.network.send(self.me, peer, payload)

    def _restore(self, state: FleetState) -> None:
        self.state = state

    def _apply(self, command: bytes) -> None:
        before = self.state
        self.state = self.simulation.machine.apply(before, command)
        if self.state.generation < before.generation:
            self.simulation.violations.append(f"{self.me}: generation {before.generation} became less")
        if self.replica is not None:
            self.simulation.applied(self, self.replica.log.raftLastApplied + 1, command)


@dataclass
class Network:
    """Links with delays, that break (losing what is under way) and stall in one direction.

    A link keeps the order of what it carries, as TCP does; what came by different links arrives in any order.
    In a loose network also one link's messages overtake one another, and some come twice.
    """

    simulation: Simulation
    loose: bool
    up: set[frozenset[ProxyId]] = field(default_factory=set)
    queues: dict[tuple[ProxyId, ProxyId], deque[tuple[float, bytes]]] = field(default_factory=dict)
    stalled_until: dict[tuple[ProxyId, ProxyId], float] = field(default_factory=dict)
    broken_until: dict[frozenset[ProxyId], float] = field(default_factory=dict)
    latency_s: dict[ProxyId, float] = field(default_factory=dict)
    """The additional latency of a member's links, in each direction."""

    def send(self, source: ProxyId, target: ProxyId, payload: bytes) -> None:
        if frozenset((source, target)) not in self.up:
            return
        chance, queue = self.simulation.random, self.queues.setdefault((source, target), deque())
        arrival = self.simulation.now + chance.uniform(0.0005, 0.01)
        arrival += self.latency_s.get(source, 0.0) + self.latency_s.get(target, 0.0)
        queue.append((max(arrival, queue[-1][0]) if queue else arrival, payload))
        if self.loose and chance.random() < 0.02:
            self.simulation.counts["reordered"] += 1
            place = chance.randrange(len(queue))
            queue[place], queue[-1] = (queue[place][0], payload), (queue[-1][0], queue[place][1])
            if chance.random() < 0.5:
                queue.append((queue[-1][0] + chance.choice((0.01, 0.2)), payload))

    def connect_all(self) -> None:
        members = self.simulation.members
        for one, other in self.simulation.pairs:
            pair = frozenset((one, other))
            if pair in self.up:
                continue
            both = members[one].replica, members[other].replica
            if both[0] is None or both[1] is None or self.simulation.now < self.broken_until.get(pair, 0.0):
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
            lost = self.queues.pop((source, target), ())
            self.simulation.counts["messages lost"] += len(lost)
            self.stalled_until.pop((source, target), None)
            replica = self.simulation.members[source].replica
            if replica is not None:
                replica.transport.link_down(target)

    def due(self, target: ProxyId) -> list[tuple[ProxyId, bytes]]:
        now = self.simulation.now
        arrived = []
        for source in self.simulation.members:
            queue = self.queues.get((source, target))
            if not queue or self.stalled_until.get((source, target), 0.0) > now:
                continue
            while queue and queue[0][0] <= now:
                arrived.append((source, queue.popleft()[1]))
        return arrived


class Disk:
    """Files of which a power cut keeps the flushed bytes, and some of the unflushed bytes."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._flushed: dict[int, tuple[int, bytes]] = {}
        self.refuses = 0.0
        self.cuts = 0.0

    def write_all(self, descriptor: int, data: bytes) -> None:
        try:
            self._refuse_sometimes()
        except OSError:
            files.write_all(descriptor, data[: len(data) // 2])
            raise
        files.write_all(descriptor, data)

    def replace(self, path: Path, data: bytes) -> int:
        self._refuse_sometimes()
        self.cut_sometimes()
        descriptor = files.replace(path, data)
        self._note_flushed(descriptor)
        return descriptor

    def flush(self, descriptor: int) -> None:
        self.cut_sometimes()
        self._note_flushed(descriptor)

    def cut_sometimes(self) -> None:
        if self._simulation.random.random() < self.cuts:
            raise PowerCut

    def _note_flushed(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        self._flushed[status.st_ino] = (status.st_size, os.pread(descriptor, journal_module.FIRST_FRAME, 0))

    def cut_power(self, folder: Path) -> None:
        """Discard what a crash of the machine may discard of a journal."""
        path, counts = folder / "journal", self._simulation.counts
        if not path.exists():
            return
        status = path.stat()
        kept_bytes, header = self._flushed.get(status.st_ino, (status.st_size, b""))
        counts["power cuts"] += 1
        with path.open("r+b") as file:
            file.write(header)  # the commit index is not flushed
            if kept_bytes < status.st_size:
                counts["torn writes"] += 1
                file.truncate(self._simulation.random.randint(kept_bytes, status.st_size))

    def _refuse_sometimes(self) -> None:
        if self._simulation.random.random() < self.refuses:
            self._simulation.counts["refused writes"] += 1
            raise OSError(errno.ENOSPC, DISK_FAULT)


class Simulation:
    def __init__(self, seed: int, folder: Path) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.now = 1000.0
        self.counts: Counter[str] = Counter()
        five = seed % 5 == 0
        self.voters: tuple[ProxyId, ...] = ("p1", "p2", "p3") + (("p4", "p5") if five else ())
        self.observers: tuple[ProxyId, ...] = () if five else ("p4",)
        self.ids = self.voters + self.observers
        self.pairs = [(one, two) for one in self.ids for two in self.ids if one < two]
        self.machine: CommandLists | OwnershipCommands = (
            OwnershipCommands(self.ids) if seed % 2 else CommandLists()
        )
        self.network = Network(self, loose=seed % 3 == 0)
        self.disk = Disk(self)
        self.at_index: dict[int, bytes] = {}
        self.leaders: dict[int, ProxyId] = {}
        self.violations: list[str] = []
        self.down_until: dict[ProxyId, float] = {}
        self.paused_until: dict[ProxyId, float] = {}
        self.awaited_loss: Loss | None = None
        self.members = {me: SimulatedMember(self, me, folder / me) for me in self.ids}

    def applied(self, member: SimulatedMember, index: int, command: bytes) -> None:
        before = self.at_index.setdefault(index, command)
        if before != command:
            self.violations.append(f"{member.me}: {command!r} at index {index}, elsewhere {before!r}")
        if command in member.awaited:
            member.awaited.discard(command)
            self.counts["acknowledged"] += 1

    def run(self, faulty_steps: int, cuts: float) -> None:
        for member in self.members.values():
            member.open()
        self.disk.refuses, self.disk.cuts = 0.001, cuts
        for _ in range(faulty_steps):
            self._faults()
            self._step_and_propose()
        self.heal_and_compare()

    def run_quietly(self, steps: int) -> None:
        """Continue without faults, except those that the caller makes."""
        for _ in range(steps):
            self._step_and_propose()

    def heal_and_compare(self) -> None:
        self._heal()
        self._compare()
        self.counts["elections"] = len(self.leaders)

    def _step_and_propose(self) -> None:
        self.step()
        if self.random.random() < 0.1:
            self._propose()

    def step(self) -> None:
        self.now += STEP_S
        for me, member in self.members.items():
            if member.replica is None and self.now >= self.down_until.get(me, 0.0):
                self.counts["restarts"] += 1
                self._guarded(member, member.open)
        self.network.connect_all()
        for me, member in self.members.items():
            if member.replica is not None and self.now >= self.paused_until.get(me, 0.0):
                self._guarded(member, partial(self._turn, member))

    def _turn(self, member: SimulatedMember) -> None:
        assert member.replica is not None
        marked = member.replica.transport.rejoin is not None
        for source, payload in self.network.due(member.me):
            member.replica.transport.receive(source, payload)
        member.replica.tick()
        if marked and member.replica.transport.rejoin is None:
            self.counts["rejoined"] += 1
            member.forgot = False
        if member.replica.log.role == "leader":
            term = member.replica.log.raftCurrentTerm
            if self.leaders.setdefault(term, member.me) != member.me:
                self.violations.append(f"{member.me} and {self.leaders[term]} lead in term {term}")

    def _guarded(self, member: SimulatedMember, action: Callable[[], None]) -> None:
        try:
            action()
        except PowerCut:
            self.crash(member.me, self.random.choice((0.02, 0.3)), power=True)
        except JournalForgot:
            self.counts["distrusted"] += 1
            self.crash(member.me, 0.02)
        except JournalError as error:
            if DISK_FAULT not in str(error):
                self.violations.append(f"{member.me}: {error}")
            self.crash(member.me, self.random.choice((0.02, 0.3)))

    def _faults(self) -> None:
        chance, choice = self.random.random, self.random.choice
        if chance() < 0.012:
            one, other = self.random.sample(self.ids, 2)
            self.counts["broken links"] += 1
            self.network.disconnect(one, other, self.now + choice((0.01, 0.1, 0.5, 2.0)))
        if chance() < 0.012:
            source, target = self.random.sample(self.ids, 2)
            self.counts["one-way stalls"] += 1
            self.network.stalled_until[source, target] = self.now + choice((0.1, 0.3, 0.8, 2.5))
        if chance() < 0.001:
            self._partition(self.now + choice((0.3, 1.0, 2.0)))
        if chance() < 0.004:
            self.counts["pauses"] += 1
            self.paused_until[choice(self.ids)] = self.now + choice((0.1, 0.4, 1.0))
        if chance() < 0.003:
            self.counts["crashes"] += 1
            self.crash(choice(self.ids), choice((0.02, 0.2, 1.0)), power=chance() < 0.5)
        if chance() < 0.0005:
            self._reset(choice(self.voters))
        if chance() < 0.002:
            self._copy(choice(self.voters))
        if chance() < 0.001:
            self._await_loss()
        if self.awaited_loss is not None:
            self._forget(self.awaited_loss)
        if chance() < 0.0005 and not any(self.members[each].forgetful for each in self.voters):
            self.erase(choice(self.voters), choice((0.02, 0.2, 1.0)))

    def _partition(self, until: float) -> None:
        self.counts["partitions"] += 1
        side = set(self.random.sample(self.ids, self.random.randrange(1, len(self.ids))))
        for one, other in self.pairs:
            if (one in side) != (other in side):
                self.network.disconnect(one, other, until)

    def crash(self, me: ProxyId, for_s: float, power: bool = False) -> None:
        for other in self.ids:
            if other != me:
                self.network.disconnect(me, other, self.now)
        self.members[me].crash()
        if power:
            self.disk.cut_power(self.members[me].folder)
        self.down_until[me] = self.now + for_s

    def _reset(self, me: ProxyId) -> None:
        """Reset journals as `fleet journal reset` does, as often as the fleet can lose voters, and no
        oftener."""
        if not self._may_forget_more():
            return
        self.counts["resets"] += 1
        self.crash(me, self.random.choice((0.02, 0.2)))
        folder = self.members[me].folder
        shutil.rmtree(folder)
        folder.mkdir()
        write_mark(folder, f"reset-{self.random.getrandbits(32):x}")

    def _may_forget_more(self) -> bool:
        return sum(self.members[each].forgetful for each in self.voters) < (len(self.voters) - 1) // 2

    def _copy(self, me: ProxyId) -> None:
        """Copy the present content of a member's folder, as a backup does."""
        member = self.members[me]
        if not member.folder.exists() or member.forgetful:
            return
        shutil.rmtree(member.copy, ignore_errors=True)
        shutil.copytree(member.folder, member.copy)

    def erase(self, me: ProxyId, for_s: float) -> None:
        """Leave a voter's folder as an earlier release does: all promises kept, and no id.

        What it remembers of the others is not used after that: nobody may have forgotten meanwhile.
        """
        self.crash(me, for_s)
        journal = self.members[me].folder / "journal"
        if not journal.exists():
            return
        self.counts["erased"] += 1
        with journal.open("r+b") as file:
            file.seek(FIRST_FRAME - IDENTITY_BYTES)
            file.write(NO_IDENTITY)
        (self.members[me].folder / memory_module.FILE).unlink(missing_ok=True)

    def _await_loss(self) -> None:
        """Choose the voter to lose: any voter, or one of a majority that alone has the newest entries."""
        how = self.random.choice(("restored", "emptied"))
        leader = next((me for me in self.voters if self.members[me].leads), None)
        if leader is None or self.random.random() < 0.3:
            self.awaited_loss = Loss(self.random.choice(self.voters), how)
            return
        followers = [me for me in self.voters if me != leader]
        victim = self.random.choice(followers)
        for each in followers:
            if each != victim:
                self.network.stalled_until[leader, each] = self.now + 0.5
        self.awaited_loss = Loss(victim, how, self.now + self.random.uniform(0.05, 0.2), leader)

    def _forget(self, loss: Loss) -> None:
        """Empty a voter's folder, or restore it from a copy, once all others know how far its journal is.

        What nobody else knows of cannot be missed by anybody: ADR 38.
        """
        me, how, member = loss.victim, loss.how, self.members[loss.victim]
        if self.now < loss.not_before:
            return
        standing = self._on_disk(member)
        others = [each for each in self.voters if each != me]
        if standing is None or not all(self._knows(each, me, standing) for each in others):
            return
        self.awaited_loss = None
        copied = _read_standing(me, member.copy) if how == "restored" else None
        loses = how == "emptied" or (copied is not None and _promises(copied) != _promises(standing))
        if not loses or member.forgetful or not self._may_forget_more():
            return
        self.crash(me, self.random.choice((0.02, 0.2)))
        self.counts[how] += 1
        shutil.rmtree(member.folder)
        if how == "restored":
            member.copy.rename(member.folder)
        member.forgot = True
        if loss.leader is not None:
            self.crash(loss.leader, self.random.choice((0.3, 1.0)))

    def _on_disk(self, member: SimulatedMember) -> Standing | None:
        """The end of the journal of a running member; None while a part of it is not on disk yet."""
        journal = None if member.replica is None else member.replica.journal
        return None if journal is None or journal.pending else journal.standing

    def _knows(self, other: ProxyId, me: ProxyId, standing: Standing) -> bool:
        """Whether another voter has on disk what this voter has promised."""
        replica = self.members[other].replica
        if replica is None:
            memory = VoterMemory(self.members[other].folder / memory_module.FILE, [me])
        else:
            assert replica.transport.memory is not None
            memory = replica.transport.memory
        known = memory.newest(me)
        return not memory.is_changed and known is not None and _promises(known) == _promises(standing)

    def _propose(self) -> None:
        member = self.members[self.random.choice(self.ids)]
        if member.replica is not None and member.replica.log.leader is not None:
            self.counts["commands"] += 1
            command = self.machine.command(self.counts["commands"], self.random, member.state)
            member.awaited.add(command)
            member.replica.log.submit(command)

    # The end: everything heals, one more command is committed, and all are equal.

    def _heal(self) -> None:
        self.disk.refuses = self.disk.cuts = 0.0
        self.down_until.clear()
        self.paused_until.clear()
        self.network.loose = False
        self.network.stalled_until.clear()
        self.network.broken_until.clear()
        before = self.counts["acknowledged"]
        for step in range(HEALING_STEPS):
            self.step()
            if step % 100 == 0 and self.counts["acknowledged"] == before:
                self._propose()
            if self.counts["acknowledged"] > before and step % 20 == 0 and self._agreed():
                return
        self.violations.append(f"not healed within {HEALING_STEPS * STEP_S:g} s")

    def _agreed(self) -> bool:
        logs = [member.replica.log for member in self.members.values() if member.replica is not None]
        ends = {(log.last_log_index, log.raftLastApplied) for log in logs}
        whole = len(logs) == len(self.ids) and not any(member.marked for member in self.members.values())
        return whole and len(ends) == 1 and all(last == applied for last, applied in ends)

    def _compare(self) -> None:
        twin = FleetState()
        for index in sorted(self.at_index):
            twin = self.machine.apply(twin, self.at_index[index])
        for member in self.members.values():
            if member.state != twin:
                self.violations.append(f"{member.me}: its state is not that of all commands in order")
            member.crash()


def _read_standing(me: ProxyId, folder: Path) -> Standing | None:
    """The end of the journal in a folder; None without a usable journal."""
    try:
        store = snapshot_module.SnapshotStore(
            folder / "snapshot", FleetState, lambda _state: None, lambda _last: False
        )
        return Journal(folder / "journal", me, store.base, writable=False).standing
    except JournalError:
        return None


def _promises(standing: Standing) -> tuple[object, ...]:
    """All promises of a voter, without its incarnation."""
    ends = standing.term, standing.voted_for, standing.last_term, standing.last_index
    return standing.identity, *ends


@contextmanager
def simulated(simulation: Simulation) -> Iterator[pytest.MonkeyPatch]:
    """Let the library and our files use the simulation's clock, randomness and disk."""
    with pytest.MonkeyPatch.context() as patch:
        # The library keeps nodes in sets: their order must not depend on the hash seed of this process.
        patch.setattr(Node, "__hash__", lambda node: zlib.crc32(node.id.encode()))
        patch.setattr(os, "fsync", lambda _descriptor: None)
        patch.setattr(os, "fdatasync", simulation.disk.flush)
        patch.setattr(library, "monotonicTime", lambda: simulation.now)
        patch.setattr(library, "random", random.Random(simulation.seed + 1_000_000))
        patch.setattr(journal_module, "write_all", simulation.disk.write_all)
        patch.setattr(journal_module, "replace", simulation.disk.replace)
        patch.setattr(snapshot_module, "replace", simulation.disk.replace)
        patch.setattr(memory_module, "replace", simulation.disk.replace)
        _count(simulation.counts, patch)
        yield patch


def _count(counts: Counter[str], patch: pytest.MonkeyPatch) -> None:
    cut, written = journal_module.Journal.deleteEntriesFrom, snapshot_module.SnapshotStore.serialize
    install = snapshot_module.SnapshotStore.install

    def deleteEntriesFrom(journal: journal_module.Journal, position: int) -> None:
        counts["truncations"] += position < len(journal)
        cut(journal, position)

    def serialize(store: snapshot_module.SnapshotStore, data: tuple[object, ...], id: int) -> None:
        counts["snapshots written"] += 1
        written(store, data, id)  # type: ignore[arg-type]

    def _install(store: snapshot_module.SnapshotStore, encoded: bytes) -> bool:
        installed = install(store, encoded)
        counts["snapshots installed"] += installed
        return installed

    patch.setattr(journal_module.Journal, "deleteEntriesFrom", deleteEntriesFrom)
    patch.setattr(snapshot_module.SnapshotStore, "serialize", serialize)
    patch.setattr(snapshot_module.SnapshotStore, "install", _install)


def simulate(
    seed: int,
    folder: Path,
    steps: int = 4000,
    cuts: float = 0.002,
    without: Callable[[pytest.MonkeyPatch], None] | None = None,
) -> Outcome:
    """Play one schedule in a folder of its own; the same one each time.

    Args:
        cuts: the chance of a power cut at each flush.
        without: takes a guard away.
    """
    simulation = Simulation(seed, folder)
    with simulated(simulation) as patch:
        if without is not None:
            without(patch)
        try:
            simulation.run(steps, cuts)
        except Exception as error:
            simulation.violations.append(f"{type(error).__name__}: {error}")
        finally:
            for member in simulation.members.values():
                member.crash()
    return Outcome(seed, tuple(simulation.violations), simulation.counts)
