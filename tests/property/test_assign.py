"""Ownership against naive twins: every property that ``fleet.assign`` promises, over small fleets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import combinations, product
from random import Random
from typing import Any, TypeAlias

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fleet.assign import MAX_SUCCESSORS, assign, take_over
from fleet.core.directory import advertised_owners
from fleet.core.model import (
    Broker,
    BrokerId,
    IdentitySpace,
    Member,
    MemberStatus,
    Ownership,
    ProxyId,
)
from fleet.core.weights import Weights
from tests.examples import examples

Rule: TypeAlias = Callable[..., dict[BrokerId, Ownership]]
Situation: TypeAlias = tuple[dict[ProxyId, Member], dict[BrokerId, Broker], dict[BrokerId, Ownership]]
Restricted: TypeAlias = tuple[
    dict[ProxyId, Member],
    dict[BrokerId, Broker],
    dict[BrokerId, Ownership],
    dict[BrokerId, ProxyId],
    frozenset[tuple[ProxyId, BrokerId]],
]
WEIGHTS = Weights({broker_id: (broker_id * 37 % 11) ** 2 for broker_id in range(1, 12)})
weigh: Rule = partial(assign, weights=WEIGHTS)

ALL_IDS = IdentitySpace(1, 40)
RACKS = st.sampled_from([None, "a", "b", "c"])


def member(proxy_id: ProxyId, rack: str | None = None, space: IdentitySpace = ALL_IDS) -> Member:
    return Member(proxy_id, rack=rack, identities=space)


@st.composite
def fleets(draw: st.DrawFn, most: int = 6, least: int = 1) -> dict[ProxyId, Member]:
    count = draw(st.integers(least, most))
    return {f"p{n}": member(f"p{n}", draw(RACKS)) for n in range(1, count + 1)}


@st.composite
def clusters(draw: st.DrawFn, most: int = 14, least: int = 1) -> dict[BrokerId, Broker]:
    count = draw(st.integers(least, most))
    return {n: Broker(n, "broker", 9000 + n, draw(RACKS)) for n in range(1, count + 1)}


@st.composite
def histories(
    draw: st.DrawFn, members: Mapping[ProxyId, Member], brokers: Mapping[BrokerId, Broker], owners: int = 3
) -> dict[BrokerId, Ownership]:
    """Any previous ownership: unbalanced, with missing owners, with stale successors, in any order."""
    names = st.sampled_from([*members, "gone"])
    previous: dict[BrokerId, Ownership] = {}
    for broker_id in draw(st.permutations(sorted(brokers))):
        if draw(st.booleans()):
            previous[broker_id] = Ownership(
                tuple(draw(st.lists(names, min_size=1, max_size=owners, unique=True))),
                tuple(draw(st.lists(names, max_size=3, unique=True))),
            )
    return previous


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    members, brokers = draw(fleets()), draw(clusters())
    return members, brokers, draw(histories(members, brokers))


@st.composite
def restricted(draw: st.DrawFn) -> Restricted:
    """A previous ownership with all restrictions: drained and dead members, own ports, pins, unreachable
    brokers."""
    members, brokers = draw(fleets(5)), draw(clusters(8))
    for proxy_id in members:
        members[proxy_id] = replace(
            members[proxy_id],
            identities=draw(st.sampled_from([ALL_IDS, ALL_IDS, IdentitySpace(1, 3), IdentitySpace()])),
            status=draw(st.sampled_from([MemberStatus.UP, MemberStatus.UP, MemberStatus.UP, *MemberStatus])),
            drained=draw(st.sampled_from([False, False, False, True])),
        )
    names, ids = st.sampled_from(sorted(members)), st.sampled_from(sorted(brokers))
    pins = draw(st.dictionaries(ids, names, max_size=3))
    unreachable = draw(st.frozensets(st.tuples(names, ids), max_size=6))
    if draw(st.booleans()):
        # Only one member, or none, reaches this broker.
        broker_id, reaching = draw(ids), draw(names)
        unreachable |= {(p, broker_id) for p in members if p != reaching}
    return members, brokers, draw(histories(members, brokers)), pins, unreachable


def loads(members: Mapping[ProxyId, Member], after: Mapping[BrokerId, Ownership]) -> dict[ProxyId, int]:
    return {
        p: sum(p in ownership.owners for ownership in after.values())
        for p, each in members.items()
        if each.eligible
    }


def may_own(
    broker_id: BrokerId,
    members: Mapping[ProxyId, Member],
    unreachable: frozenset[tuple[ProxyId, BrokerId]],
) -> set[ProxyId]:
    serving = {p for p, each in members.items() if each.eligible and each.serves(broker_id)}
    return {p for p in serving if (p, broker_id) not in unreachable} or serving


def removals(
    before: Mapping[BrokerId, Ownership], after: Mapping[BrokerId, tuple[ProxyId, ...]], live: set[ProxyId]
) -> int:
    """The number of live owners that lost an identity."""
    return sum(len((set(before[b].owners) & live) - set(after[b])) for b in before if b in after)


def rack_matches(
    members: Mapping[ProxyId, Member],
    brokers: Mapping[BrokerId, Broker],
    owners: Mapping[BrokerId, tuple[ProxyId, ...]],
) -> int:
    return sum(
        brokers[b].rack is not None and members[o[0]].rack == brokers[b].rack for b, o in owners.items()
    )


# -- every identity has an allowed owner ---------------------------------------------------------------------


@given(restricted(), st.sampled_from([assign, take_over, weigh]))
def test_every_identity_is_owned_by_eligible_members(case: Restricted, rule: Rule) -> None:
    members, brokers, previous, pins, unreachable = case
    after = rule(members, brokers, previous, pins, unreachable)
    for broker_id in brokers:
        allowed = may_own(broker_id, members, unreachable)
        if allowed:
            assert after[broker_id].owners
            assert set(after[broker_id].owners) <= allowed
        elif broker_id in previous:
            assert after[broker_id] == previous[broker_id]
        else:
            assert broker_id not in after
    assert after.keys() <= brokers.keys()


@given(restricted())
def test_pins_are_respected_if_the_member_may_own(case: Restricted) -> None:
    members, brokers, previous, pins, unreachable = case
    after = assign(members, brokers, previous, pins, unreachable)
    for broker_id, pinned in pins.items():
        if pinned in may_own(broker_id, members, unreachable):
            assert after[broker_id].owners == (pinned,)


@given(restricted())
def test_every_member_that_can_own_something_owns_something(case: Restricted) -> None:
    members, brokers, previous, pins, unreachable = case
    after = assign(members, brokers, previous, pins, unreachable)
    for proxy_id, load in loads(members, after).items():
        could = [
            b
            for b in brokers
            if proxy_id in (allowed := may_own(b, members, unreachable)) and pins.get(b) not in allowed
        ]
        assert load >= 1 or not could


# -- balance -------------------------------------------------------------------------------------------------


@given(situations())
def test_loads_differ_by_at_most_one(case: Situation) -> None:
    members, brokers, previous = case
    each = loads(members, assign(members, brokers, previous, {})).values()
    assert max(each) - min(each) <= 1
    assert min(each) >= 1


@settings(max_examples=examples(60))
@given(restricted())
def test_balance_within_restrictions_is_optimal(case: Restricted) -> None:
    members, brokers, _, pins, unreachable = case
    choices = {}
    for broker_id in sorted(brokers)[:5]:
        allowed = may_own(broker_id, members, unreachable)
        if allowed:
            choices[broker_id] = sorted({pins[broker_id]} if pins.get(broker_id) in allowed else allowed)
    brokers = {b: brokers[b] for b in choices}
    owning = {p for allowed in choices.values() for p in allowed}
    assume(len(owning) <= len(brokers))
    after = assign(members, brokers, {}, pins, unreachable)
    # Otherwise a member owns identities only together with others, because none can be its own alone.
    assume(all(len(ownership.owners) == 1 for ownership in after.values()))
    best = min(
        sorted((chosen.count(p) for p in owning), reverse=True) for chosen in product(*choices.values())
    )
    assert sorted((load for p, load in loads(members, after).items() if p in owning), reverse=True) == best


# -- movement ------------------------------------------------------------------------------------------------


def naive_fewest_moves(
    members: Mapping[ProxyId, Member],
    brokers: Mapping[BrokerId, Broker],
    previous: Mapping[BrokerId, Ownership],
) -> int:
    """Brute force over every balanced ownership with one owner each: the minimum number of moves."""
    return min(
        removals(previous, {b: (p,) for b, p in zip(brokers, chosen, strict=True)}, set(members))
        for chosen in product(members, repeat=len(brokers))
        if max(map(chosen.count, members)) - min(map(chosen.count, members)) <= 1
    )


@settings(max_examples=examples(80))
@given(st.data())
def test_movement_is_minimal(data: st.DataObject) -> None:
    members = data.draw(fleets(4))
    brokers = data.draw(clusters(6, least=len(members)))
    previous = data.draw(histories(members, brokers, owners=1))
    after = assign(members, brokers, previous, {})
    moved = removals(previous, {b: o.owners for b, o in after.items()}, set(members))
    assert moved == naive_fewest_moves(members, brokers, previous)


def naive_fewest_removals_with_co_owners(
    members: Mapping[ProxyId, Member],
    brokers: Mapping[BrokerId, Broker],
    previous: Mapping[BrokerId, Ownership],
) -> int:
    """Brute force over all owner sets, with the former number of owners plus one for each idle proxy."""
    names = set(members)
    kept_owners = {b: names & set(previous[b].owners) if b in previous else set() for b in brokers}
    slots = sum(max(1, len(owners)) for owners in kept_owners.values())
    slots += len(names) - len(set().union(*kept_owners.values()))
    sets = [set(s) for size in range(1, len(names) + 1) for s in combinations(sorted(names), size)]
    best = 10**9
    for chosen in product(sets, repeat=len(brokers)):
        counts = [sum(p in owners for owners in chosen) for p in names]
        if sum(counts) <= slots and min(counts) >= 1 and max(counts) - min(counts) <= 1:
            lost = sum(len(kept_owners[b] - owners) for b, owners in zip(brokers, chosen, strict=True))
            best = min(best, lost)
    return best


@settings(max_examples=examples(100))
@given(st.data())
def test_co_owners_are_shed_only_as_balance_requires(data: st.DataObject) -> None:
    brokers = data.draw(clusters(3))
    members = data.draw(fleets(4, least=len(brokers) + 1))
    previous = data.draw(histories(members, brokers, owners=data.draw(st.sampled_from([1, 3]))))
    after = assign(members, brokers, previous, {})
    moved = removals(previous, {b: o.owners for b, o in after.items()}, set(members))
    assert moved <= naive_fewest_removals_with_co_owners(members, brokers, previous)


@given(situations(), st.data())
def test_death_moves_only_identities_of_the_dead_member(case: Situation, data: st.DataObject) -> None:
    members, brokers, previous = case
    before = assign(members, brokers, previous, {})
    dead = data.draw(st.sampled_from(sorted(members)))
    after = take_over({p: m for p, m in members.items() if p != dead}, brokers, before, {})
    for broker_id, ownership in before.items():
        rest = tuple(p for p in ownership.owners if p != dead)
        if rest:
            assert after[broker_id].owners == rest
        elif len(members) > 1:
            assert len(after[broker_id].owners) == 1
    if len(members) > 1 and all(len(o.owners) == 1 for o in before.values()):
        each = loads({p: m for p, m in members.items() if p != dead}, after).values()
        assert max(each) - min(each) <= 1


@given(fleets(least=2), clusters())
def test_join_moves_identities_only_to_the_new_member(
    members: dict[ProxyId, Member], brokers: dict[BrokerId, Broker]
) -> None:
    newcomer = max(members)
    before = assign({p: m for p, m in members.items() if p != newcomer}, brokers, {}, {})
    after = assign(members, brokers, before, {})
    for broker_id, ownership in after.items():
        assert set(ownership.owners) - set(before[broker_id].owners) <= {newcomer}


@given(restricted())
def test_assign_is_idempotent(case: Restricted) -> None:
    members, brokers, previous, pins, unreachable = case
    once = assign(members, brokers, previous, pins, unreachable)
    assert assign(members, brokers, once, pins, unreachable) == once
    weighed = weigh(members, brokers, previous, pins, unreachable)
    assert weigh(members, brokers, weighed, pins, unreachable) == weighed
    taken = take_over(members, brokers, previous, pins, unreachable)
    assert take_over(members, brokers, taken, pins, unreachable) == taken
    assert take_over(members, brokers, once, pins, unreachable) == once


@given(restricted(), st.sampled_from([assign, take_over, weigh]), st.randoms())
def test_order_of_dicts_does_not_change_the_result(case: Restricted, rule: Rule, random: Random) -> None:
    members, brokers, previous, pins, unreachable = case

    def shuffled(mapping: Mapping[Any, Any]) -> dict[Any, Any]:
        keys = list(mapping)
        random.shuffle(keys)
        return {key: mapping[key] for key in keys}

    mixed = (shuffled(members), shuffled(brokers), shuffled(previous), shuffled(pins), unreachable)
    assert rule(*mixed) == rule(members, brokers, previous, pins, unreachable)


# -- racks ---------------------------------------------------------------------------------------------------


@settings(max_examples=examples(80))
@given(fleets(4), clusters(6))
def test_fresh_assignment_matches_racks_as_balance_allows(
    members: dict[ProxyId, Member], brokers: dict[BrokerId, Broker]
) -> None:
    after = assign(members, brokers, {}, {})
    best = max(
        rack_matches(members, brokers, {b: (p,) for b, p in zip(brokers, chosen, strict=True)})
        for chosen in product(members, repeat=len(brokers))
        if max(map(chosen.count, members)) - min(map(chosen.count, members)) <= 1
    )
    assert rack_matches(members, brokers, {b: o.owners for b, o in after.items()}) == best


# -- successors ----------------------------------------------------------------------------------------------


@given(restricted(), st.sampled_from([assign, take_over, weigh]))
def test_successors_are_few_different_and_able(case: Restricted, rule: Rule) -> None:
    members, brokers, previous, pins, unreachable = case
    after = rule(members, brokers, previous, pins, unreachable)
    for broker_id, ownership in after.items():
        if not may_own(broker_id, members, unreachable):
            continue
        serving = {p for p, each in members.items() if each.eligible and each.serves(broker_id)}
        assert len(set(ownership.successors)) == len(ownership.successors) <= MAX_SUCCESSORS
        assert set(ownership.successors) <= serving - set(ownership.owners)
        others = may_own(broker_id, members, unreachable) - set(ownership.owners)
        assert len(ownership.successors) >= min(MAX_SUCCESSORS, len(others))


@given(restricted(), st.sampled_from([assign, take_over, weigh]), st.booleans())
def test_the_commit_after_any_single_death_equals_the_overlay(
    case: Restricted, rule: Rule, keep_record: bool
) -> None:
    members, brokers, previous, pins, unreachable = case
    before = rule(members, brokers, previous, pins, unreachable)
    for dead in members:
        left = {p: m for p, m in members.items() if p != dead}
        # The record of a member that is committed as down stays in the state; only its status changes.
        down = {**left, dead: replace(members[dead], status=MemberStatus.DOWN)} if keep_record else left
        after = take_over(down, brokers, before, pins, unreachable)

        def live(proxy_id: ProxyId, dead: ProxyId = dead) -> bool:
            return proxy_id != dead and proxy_id in members

        for broker_id, ownership in before.items():
            overlay = advertised_owners(broker_id, ownership, live, members)
            if may_own(broker_id, left, unreachable):
                assert after[broker_id].owners == overlay
            assert advertised_owners(broker_id, after[broker_id], live, members) == overlay


@given(situations(), st.data())
def test_commit_after_successive_deaths_equals_the_overlay(case: Situation, data: st.DataObject) -> None:
    members, brokers, previous = case
    ownership = assign(members, brokers, previous, {})
    for dead in data.draw(st.permutations(sorted(members)))[:-1]:
        before, ownership = ownership, {}
        members = {p: m for p, m in members.items() if p != dead}
        ownership = take_over(members, brokers, before, {})
        for broker_id in before:
            overlay = advertised_owners(broker_id, before[broker_id], members.__contains__, members)
            assert ownership[broker_id].owners == overlay
