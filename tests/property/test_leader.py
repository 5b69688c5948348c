"""Fleets of members that start and die at random under a leader: always owned, soon balanced, then quiet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.control.leader import Leader
from fleet.control.reports import MemberReport
from fleet.core.model import (
    AdvertisedListener,
    Broker,
    BrokerId,
    FleetState,
    IdentitySpace,
    Liveness,
    Member,
    MemberStatus,
    ProxyId,
)
from fleet.core.state import Command, DrainSet, PinSet, apply
from tests.examples import examples

STEP_S = 0.05
QUIET_S = 12.0
GENERATIONS_PER_EVENT = 3
"""A takeover, the moves after a return, and the balance or the successors after them."""


@dataclass(frozen=True)
class Timing:
    suspect_after_s: float = 0.8
    steady_after_s: float = 2.0
    rest_after_move_s: float = 3.0
    grace_s: float = 5.0


class Life(Enum):
    ALIVE = "alive"
    STOPPING = "stopping"
    DEAD = "dead"


class World:
    """Members with perfect detectors. The first live voter leads, and a commit takes one step."""

    def __init__(self, count: int, identities: int) -> None:
        self.now_s = 10.0
        self.names = [f"p{n}" for n in range(1, count + 1)]
        self.voters = self.names[:3]
        self.brokers = tuple(Broker(n, "kafka", 9092) for n in range(1, identities + 1))
        self.unreachable: dict[ProxyId, tuple[BrokerId, ...]] = {}
        self.lives = dict.fromkeys(self.names, Life.ALIVE)
        self.suspected_by: dict[ProxyId, frozenset[ProxyId]] = dict.fromkeys(self.names, frozenset())
        """The members that each member suspects in addition to the dead ones, for its own reasons."""
        self.incarnations = dict.fromkeys(self.names, 1)
        self.state = FleetState()
        self.leader: Leader | None = None
        self.led_by: ProxyId | None = None
        self.log: list[Command] = []
        self.commands = 0

    @property
    def quorum(self) -> bool:
        return sum(self.lives[p] is not Life.DEAD for p in self.voters) > len(self.voters) // 2

    def run(self, for_s: float) -> None:
        end_s = self.now_s + for_s
        while self.now_s < end_s:
            self.now_s += STEP_S
            self._commit()
            self._lead()

    def _commit(self) -> None:
        log, self.log = self.log, []
        for command in log:
            before = self.state
            self.state, outcome = apply(before, command)
            assert outcome.reason in ("", "stale_generation", "stale_incarnation", "no_change")
            grown = self.state.generation - before.generation
            assert grown == (self.state.ownership != before.ownership)
            # An identity that had an owner always has one.
            assert self.state.ownership.keys() >= before.ownership.keys()
            assert all(ownership.owners for ownership in self.state.ownership.values())

    def _lead(self) -> None:
        leader = next((p for p in self.voters if self.lives[p] is not Life.DEAD), None)
        if not self.quorum or leader != self.led_by:
            # The proposals of the former leader are lost.
            self.log, self.led_by = [], leader if self.quorum else None
            self.leader = Leader(Timing(), self.voters, self.names)
        if self.leader is None or self.led_by is None:
            return
        dead = tuple(p for p in self.names if self.lives[p] is Life.DEAD)
        live = {p: Liveness.SUSPECT if p in dead else Liveness.UP for p in self.names}
        reports = {p: self._report(p, dead) for p in self.names if p not in dead}
        commands = self.leader.propose(self.state, reports, live, reports.keys(), self.now_s)
        self.commands += len(commands)
        self.log += commands

    def _report(self, name: ProxyId, dead: tuple[ProxyId, ...]) -> MemberReport:
        listeners = (AdvertisedListener("external", name, 9100, 9101),)
        return MemberReport(
            proxy_id=name,
            incarnation=self.incarnations[name],
            member=Member(name, listeners=listeners, identities=IdentitySpace(1, 40)),
            ready=True,
            stopping=self.lives[name] is Life.STOPPING,
            suspects=tuple(sorted({*dead, *self.suspected_by[name]})),
            brokers=self.brokers,
            unreachable=self.unreachable.get(name, ()),
        )

    def kill(self, name: ProxyId) -> None:
        self.lives[name] = Life.DEAD

    def stop(self, name: ProxyId) -> None:
        if self.lives[name] is Life.ALIVE:
            self.lives[name] = Life.STOPPING

    def start(self, name: ProxyId) -> None:
        if self.lives[name] is not Life.ALIVE:
            self.lives[name] = Life.ALIVE
            self.incarnations[name] += 1

    def restart(self, name: ProxyId) -> None:
        """Restart so fast that only the next report shows it."""
        self.lives[name] = Life.ALIVE
        self.incarnations[name] += 1

    def drain(self, name: ProxyId) -> None:
        self._operate(
            DrainSet(name, not self.state.members[name].drained) if name in self.state.members else None
        )

    def pin(self, name: ProxyId) -> None:
        self._operate(
            PinSet(1, None if 1 in self.state.pins else name) if name in self.state.members else None
        )

    def _operate(self, command: Command | None) -> None:
        if command is not None and self.quorum:
            self.log.append(command)


events = st.tuples(
    st.sampled_from(
        [World.kill, World.kill, World.stop, World.start, World.start, World.restart, World.drain]
    ),
    st.integers(0, 4),
    st.sampled_from([0.0, 0.05, 0.2, 1.0, 3.0, 6.0]),
)


@settings(max_examples=examples(60))
@given(st.integers(3, 5), st.integers(1, 9), st.lists(events, max_size=8))
def test_identities_end_balanced_on_live_members_and_rest(
    count: int, identities: int, play: list[tuple[Callable[[World, ProxyId], None], int, float]]
) -> None:
    world = World(count, identities)
    world.run(1.0)
    assert world.state.generation == 1
    for event, index, for_s in play:
        event(world, world.names[index % count])
        world.run(for_s)
    # A stopping member exits at last.
    for name, life in world.lives.items():
        if life is Life.STOPPING:
            world.kill(name)
    world.run(QUIET_S)
    assert world.state.generation <= 1 + GENERATIONS_PER_EVENT * (2 * len(play) + 1)

    if world.quorum:
        able = [p for p, m in world.state.members.items() if m.eligible]
        live = [p for p in world.names if world.lives[p] is Life.ALIVE]
        assert able == [p for p in world.state.members if p in live and not world.state.members[p].drained]
        loads = [sum(p in o.owners for o in world.state.ownership.values()) for p in able]
        if able:
            assert {p for o in world.state.ownership.values() for p in o.owners} <= set(able)
            assert max(loads) - min(loads) <= 1
    assert world.state.ownership.keys() == set(range(1, identities + 1))
    # No flapping: without events there is nothing to propose.
    commands = world.commands
    world.run(5.0)
    assert world.commands == commands


@settings(max_examples=examples(60))
@given(st.integers(3, 5), st.integers(1, 9), st.integers(0, 4))
def test_death_and_return_cost_one_generation_each(count: int, identities: int, index: int) -> None:
    world = World(count, identities)
    world.run(5.0)
    name = world.names[index % count]
    generation, before = world.state.generation, world.state.ownership
    world.kill(name)
    world.run(1.0)
    owned = any(name in o.owners for o in before.values())
    named = any(name in o.owners + o.successors for o in before.values())
    assert world.state.generation == generation + owned
    world.run(QUIET_S)
    # A member that owned nothing may still have been named as a successor.
    assert world.state.generation == generation + named
    world.start(name)
    world.run(QUIET_S)
    assert world.state.generation <= generation + named + 1
    assert world.state.members[name].status is MemberStatus.UP
    loads = [sum(p in o.owners for o in world.state.ownership.values()) for p in world.names]
    assert max(loads) - min(loads) <= 1


@settings(max_examples=examples(30))
@given(
    st.integers(3, 5),
    st.integers(1, 9),
    st.permutations(range(5)),
    st.sampled_from([0.0, 0.05, 0.1]),
    st.lists(st.sampled_from([0.0, 0.1, 1.0]), min_size=10, max_size=10),
)
def test_restarted_fleet_comes_back_with_the_same_owners(
    count: int, identities: int, order: list[int], apart_s: float, delays: list[float]
) -> None:
    world = World(count, identities)
    world.run(5.0)
    before = replace(world.state, members={})
    names = [world.names[n] for n in order if n < count]
    # Signals do not reach all members at the same moment.
    world.stop(names[0])
    world.run(apart_s)
    for name in names:
        world.stop(name)
    for name, delay_s in zip(names, delays, strict=False):
        world.run(delay_s)
        world.kill(name)
    assert replace(world.state, members={}) == before
    for name in names:
        world.start(name)
    world.run(QUIET_S)
    assert world.state.ownership == before.ownership
    assert world.state.generation == before.generation


@settings(max_examples=examples(30))
@given(st.integers(3, 5), st.integers(1, 9), st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9))))
def test_brokers_out_of_reach_and_pins_settle_as_well(
    count: int, identities: int, cuts: list[tuple[int, int]]
) -> None:
    world = World(count, identities)
    world.run(5.0)
    for index, broker_id in cuts:
        name = world.names[index % count]
        world.unreachable[name] = (*world.unreachable.get(name, ()), broker_id)
        world.pin(name)
        world.run(3.0)
    world.run(QUIET_S)
    commands = world.commands
    world.run(5.0)
    assert world.commands == commands
    for broker_id, ownership in world.state.ownership.items():
        reaching = {p for p in world.names if broker_id not in world.unreachable.get(p, ())}
        assert not reaching or set(ownership.owners) <= reaching
        pinned = world.state.pins.get(broker_id)
        assert pinned is None or pinned not in reaching or ownership.owners == (pinned,)


@settings(max_examples=examples(60))
@given(st.integers(3, 5), st.lists(st.tuples(st.integers(0, 4), st.sets(st.integers(0, 4))), max_size=12))
def test_local_failures_commit_no_heard_member_as_down(
    count: int, suspicions: list[tuple[int, set[int]]]
) -> None:
    """For any number of failing members, and any leader."""
    world = World(count, count)
    world.run(5.0)
    before = world.state
    for index, others in suspicions:
        name = world.names[index % count]
        world.suspected_by[name] = frozenset(world.names[n % count] for n in others) - {name}
        world.run(0.5)
        assert world.state == before
    for name in world.names:
        world.suspected_by[name] = frozenset(world.names) - {name}
    world.run(5.0)
    assert world.state == before
