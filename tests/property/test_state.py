"""The replicated state under any sequence of commands, sensible or not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fleet.core.model import Broker, FleetState, IdentitySpace, Member, MemberStatus, Ownership
from fleet.core.state import (
    RECENT_COMMANDS,
    BrokerGone,
    BrokersSeen,
    Command,
    DrainSet,
    MemberStatusChanged,
    MemberUp,
    Outcome,
    OwnershipSet,
    PinSet,
    Unknown,
    apply,
    decode,
    decode_state,
    encode,
    encode_state,
    split_ownership,
)

names = st.sampled_from(["p1", "p2", "p3", ""])
ids = st.integers(-1, 4)
stamps = {
    "command_id": st.text(st.sampled_from("abc"), max_size=3),
    "proposed_at_ms": st.integers(0, 2**53),
}
members = st.builds(
    Member,
    proxy_id=names,
    rack=st.none() | st.text(max_size=3),
    identities=st.builds(IdentitySpace, st.integers(0, 3), st.integers(0, 3)),
    status=st.sampled_from(MemberStatus),
    drained=st.booleans(),
    incarnation=st.integers(0, 3),
)
brokers = st.builds(Broker, ids, st.text(max_size=5), st.integers(0, 65535), st.none() | st.text(max_size=3))
ownerships = st.builds(
    Ownership,
    st.lists(names, max_size=3).map(tuple),
    st.lists(names, max_size=3).map(tuple),
)
ownership_sets = st.builds(
    OwnershipSet,
    st.integers(0, 6),
    st.dictionaries(ids, ownerships, max_size=3),
    st.lists(ids, max_size=2).map(tuple),
    st.sampled_from(["bootstrap", "takeover", "drain", "join", "pin", "rebalance", "brokers"]),
    **stamps,
)
commands: st.SearchStrategy[Command] = st.one_of(
    st.builds(MemberUp, members, **stamps),
    st.builds(MemberStatusChanged, names, st.sampled_from(MemberStatus), st.integers(0, 3), **stamps),
    st.builds(DrainSet, names, st.booleans(), **stamps),
    st.builds(BrokersSeen, st.lists(brokers, max_size=3).map(tuple), **stamps),
    st.builds(BrokerGone, ids, **stamps),
    st.builds(PinSet, ids, st.none() | names, **stamps),
    ownership_sets,
)


class Replicas(RuleBasedStateMachine):
    """One replica that applies commands, and one that gets them as bytes and restarts from snapshots."""

    def __init__(self) -> None:
        super().__init__()
        self.state = self.twin = FleetState()

    def step(self, command: Command | Unknown) -> Outcome:
        before = self.state
        self.state, outcome = apply(before, command)
        assert outcome.generation == self.state.generation
        assert outcome.applied == (outcome.reason == "")
        # The generation counts the changes of ownership: one for each, and none for other changes.
        changed = self.state.ownership != before.ownership
        assert self.state.generation == before.generation + changed
        if not outcome.applied:
            assert replace(self.state, recent_commands=before.recent_commands) == before
        if changed:
            assert isinstance(command, OwnershipSet)
            assert command.expected_generation == before.generation
        return outcome

    @rule(command=commands)
    def apply_any(self, command: Command) -> None:
        outcome = self.step(command)
        self.twin, of_twin = apply(self.twin, decode(encode(command)))
        assert of_twin == outcome

    @rule(changes=st.dictionaries(ids, ownerships.filter(lambda o: o.owners), max_size=3))
    def change_ownership(self, changes: dict[int, Ownership]) -> None:
        self.apply_any(OwnershipSet(self.state.generation, changes))

    @rule(command=commands.filter(lambda c: c.command_id))
    def repeat(self, command: Command) -> None:
        self.apply_any(command)
        assert self.step(command).reason in {"repeated", "invalid"}

    @rule(garbage=st.binary(max_size=30))
    def garble(self, garbage: bytes) -> None:
        assert self.step(decode(garbage)).reason == "unknown_command"

    @rule()
    def restart_twin(self) -> None:
        self.twin = decode_state(encode_state(self.twin))

    @invariant()
    def replicas_agree(self) -> None:
        assert self.twin == self.state

    @invariant()
    def state_is_sound(self) -> None:
        for proxy_id, member in self.state.members.items():
            assert member.proxy_id == proxy_id != ""
        for ownership in self.state.ownership.values():
            assert ownership.owners
            assert len(set(ownership.owners)) == len(ownership.owners)
            assert set(ownership.owners + ownership.successors) <= self.state.members.keys()
        assert set(self.state.pins.values()) <= self.state.members.keys()
        assert len(self.state.recent_commands) <= RECENT_COMMANDS


TestReplicas = Replicas.TestCase


@given(commands)
def test_a_command_survives_the_log(command: Command) -> None:
    assert decode(encode(command)) == command


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda each: st.lists(each)), commands
)
def test_apply_is_total(junk: Any, command: Command) -> None:
    for value in (junk, *(replace(command, **{field: junk}) for field in command.__slots__)):
        state, outcome = apply(FleetState(), value)
        assert state.generation == outcome.generation <= 1


@given(
    st.dictionaries(
        st.integers(0, 500), st.builds(Ownership, st.just(("p1",)), st.lists(names, max_size=3).map(tuple))
    ),
    st.sets(st.integers(501, 600)),
    st.integers(700, 5000),
)
def test_a_split_change_is_the_same_change(
    changes: dict[int, Ownership], removed: set[int], limit_bytes: int
) -> None:
    parts = split_ownership(7, changes, removed, "join", limit_bytes)
    assert [part.expected_generation for part in parts] == list(range(7, 7 + len(parts)))
    assert {b: o for part in parts for b, o in part.changes.items()} == changes
    assert sorted(b for part in parts for b in part.removed) == sorted(removed)
    assert all(part.changes or part.removed for part in parts)
    for part in parts:
        assert len(encode(replace(part, command_id="x" * 80, proposed_at_ms=2**62))) <= limit_bytes
