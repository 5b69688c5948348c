"""The overlay for any state and any suspicions: the same on every member, and without avoidable dead ends."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fleet.core.directory import build, pick
from fleet.core.model import Broker, FleetState, IdentitySpace, Member, MemberStatus, Ownership

NAMES = ["p1", "p2", "p3", "p4", "p5"]
SPACES = st.sampled_from([IdentitySpace(1, 8), IdentitySpace(1, 8), IdentitySpace(1, 2), IdentitySpace()])
ORDERS = st.lists(st.sampled_from([*NAMES, "gone"]), unique=True)


@st.composite
def states(draw: st.DrawFn) -> FleetState:
    members = {
        name: Member(
            name,
            identities=draw(SPACES),
            status=draw(st.sampled_from([MemberStatus.UP, MemberStatus.UP, *MemberStatus])),
            drained=draw(st.booleans()),
        )
        for name in draw(st.lists(st.sampled_from(NAMES), unique=True))
    }
    ownership = {
        n: Ownership(tuple(draw(ORDERS.filter(bool))), tuple(draw(ORDERS)[:3]))
        for n in draw(st.sets(st.integers(1, 6)))
    }
    brokers = {n: Broker(n, "kafka", 9092) for n in draw(st.sets(st.integers(1, 6)))}
    return FleetState(generation=3, members=members, ownership=ownership, brokers=brokers)


suspicions = st.sets(st.sampled_from(NAMES))


@given(states(), suspicions)
def test_members_that_suspect_the_same_advertise_the_same(state: FleetState, suspects: set[str]) -> None:
    up = {p for p, m in state.members.items() if m.status is not MemberStatus.DOWN} - suspects
    views = [build(state, suspects, state.members[p], 1).advertised for p in up]
    for broker_id in state.ownership:
        assert len({view[broker_id] for view in views}) <= 1


@given(states(), suspicions, st.sampled_from(NAMES))
def test_suspects_are_not_advertised_while_a_live_member_exists(
    state: FleetState, suspects: set[str], me: str
) -> None:
    member = state.members.get(me, Member(me, identities=IdentitySpace(1, 8)))
    directory = build(state, suspects, member, 1)
    live = {p for p, m in state.members.items() if m.status is not MemberStatus.DOWN} - suspects | {me}
    for broker_id, owners in directory.advertised.items():
        assert owners
        able = {p for p in live & state.members.keys() if state.members[p].serves(broker_id)}
        if able:
            assert set(owners) <= live
        committed = state.ownership.get(broker_id)
        if committed is not None and live & set(committed.owners):
            assert set(owners) == live & set(committed.owners)


@given(states(), suspicions, st.sampled_from(NAMES))
def test_every_identity_is_advertised_and_commits_are_the_state(
    state: FleetState, suspects: set[str], me: str
) -> None:
    directory = build(state, suspects, Member(me, identities=IdentitySpace(1, 8)), 5)
    assert directory.advertised.keys() == state.ownership.keys() | state.brokers.keys()
    assert directory.committed == {b: o.owners for b, o in state.ownership.items()}
    assert (directory.generation, directory.revision) == (3, 5)
    assert directory.members.keys() == state.members.keys() | {me}


@given(states(), st.sampled_from(NAMES))
def test_without_suspicions_the_committed_owners_are_advertised(state: FleetState, me: str) -> None:
    state = replace(state, members={p: replace(m, status=MemberStatus.UP) for p, m in state.members.items()})
    directory = build(state, frozenset(), Member(me, identities=IdentitySpace(1, 8)), 1)
    for broker_id, ownership in state.ownership.items():
        known = tuple(p for p in ownership.owners if p in state.members or p == me)
        assert not known or directory.advertised[broker_id] == known


@given(st.lists(st.text(min_size=1, max_size=5), min_size=2, unique=True), st.binary())
def test_a_pick_depends_on_neither_order_nor_losers(owners: list[str], key: bytes) -> None:
    picked = pick(tuple(owners), key)
    assert picked in owners
    assert pick(tuple(reversed(owners)), key) == picked
    for loser in owners:
        if loser != picked:
            assert pick(tuple(p for p in owners if p != loser), key) == picked
