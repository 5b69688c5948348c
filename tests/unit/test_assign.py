"""Examples of ownership. The properties are in tests/property/test_assign.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from fleet.assign import MAX_SUCCESSORS, assign, take_over
from fleet.core.model import Broker, IdentitySpace, Member, MemberStatus, Ownership

SPACE = IdentitySpace(1, 16)


def members(*names: str, **racks: str) -> dict[str, Member]:
    return {name: Member(name, rack=racks.get(name), identities=SPACE) for name in names}


def brokers(count: int, racks: str = "") -> dict[int, Broker]:
    return {n: Broker(n, "kafka", 9092, racks[n - 1] if racks else None) for n in range(1, count + 1)}


def owners(ownership: dict[int, Ownership]) -> dict[int, tuple[str, ...]]:
    return {broker_id: each.owners for broker_id, each in ownership.items()}


def test_three_brokers_on_three_proxies_get_one_each() -> None:
    assert owners(assign(members("p1", "p2", "p3"), brokers(3), {}, {})) == {
        1: ("p1",),
        2: ("p2",),
        3: ("p3",),
    }


def test_a_fresh_assignment_follows_the_racks() -> None:
    fleet = members("p1", "p2", "p3", p1="c", p2="a", p3="b")
    assert owners(assign(fleet, brokers(3, "abc"), {}, {})) == {1: ("p2",), 2: ("p3",), 3: ("p1",)}


def test_racks_do_not_come_before_balance() -> None:
    fleet = members("p1", "p2", p1="a", p2="b")
    after = assign(fleet, brokers(4, "aaaa"), {}, {})
    assert [o.owners for o in after.values()].count(("p1",)) == 2


def test_an_orphan_goes_to_its_first_successor_that_is_left() -> None:
    before = {
        1: Ownership(("p1",), ("p2", "p3")),
        2: Ownership(("p2",)),
        3: Ownership(("p3",)),
        4: Ownership(("p3",)),
    }
    assert owners(take_over(members("p3", "p4"), brokers(4), before, {}))[1] == ("p3",)


def test_an_orphan_without_successors_goes_to_the_least_loaded() -> None:
    before = {1: Ownership(("p1",)), 2: Ownership(("p2",)), 3: Ownership(("p3",)), 4: Ownership(("p3",))}
    assert owners(take_over(members("p2", "p3"), brokers(4), before, {}))[1] == ("p2",)


def test_take_over_does_not_balance() -> None:
    before = {n: Ownership(("p1",)) for n in range(1, 5)}
    assert owners(take_over(members("p1", "p2"), brokers(4), before, {})) == owners(before)


def test_a_join_gets_its_share_and_nothing_else_moves() -> None:
    before = assign(members("p1", "p2"), brokers(6), {}, {})
    after = assign(members("p1", "p2", "p3"), brokers(6), before, {})
    moved = [b for b in before if before[b].owners != after[b].owners]
    assert len(moved) == 2
    assert {after[b].owners for b in moved} == {("p3",)}
    assert {before[b].owners for b in moved} == {("p1",), ("p2",)}


def test_spare_proxy_joins_the_identity_with_fewest_owners() -> None:
    after = assign(members("p1", "p2", "p3", "p4", "p5"), brokers(2), {}, {})
    assert sorted(len(o.owners) for o in after.values()) == [2, 3]
    assert sorted(p for o in after.values() for p in o.owners) == ["p1", "p2", "p3", "p4", "p5"]


def test_a_co_owner_that_dies_is_only_removed() -> None:
    before = assign(members("p1", "p2", "p3"), brokers(2), {}, {})
    assert owners(before) == {1: ("p1", "p3"), 2: ("p2",)}
    after = take_over(members("p1", "p2"), brokers(2), before, {})
    assert owners(after) == {1: ("p1",), 2: ("p2",)}
    after = take_over(members("p1", "p3"), brokers(2), before, {})
    assert after[1].owners == ("p1", "p3")
    assert after[2].owners == (before[2].successors[0],)


def test_a_drained_or_draining_member_keeps_nothing() -> None:
    fleet = members("p1", "p2", "p3")
    before = assign(fleet, brokers(3), {}, {})
    for gone in (replace(fleet["p1"], drained=True), replace(fleet["p1"], status=MemberStatus.DRAINING)):
        after = take_over({**fleet, "p1": gone}, brokers(3), before, {})
        assert after[1].owners == (before[1].successors[0],)
        assert all("p1" not in o.owners + o.successors for o in after.values())


def test_owners_stay_without_an_eligible_member() -> None:
    fleet = members("p1", "p2")
    before = assign(fleet, brokers(3), {}, {})
    down = {p: replace(m, status=MemberStatus.DOWN) for p, m in fleet.items()}
    assert take_over(down, brokers(3), before, {}) == before
    assert assign(down, brokers(3), before, {}) == before
    assert assign({}, brokers(3), {}, {}) == {}


def test_a_pin_moves_its_identity_and_balance_makes_up_for_it() -> None:
    fleet = members("p1", "p2")
    before = assign(fleet, brokers(4), {}, {})
    assert before[1].owners == ("p1",)
    after = assign(fleet, brokers(4), before, {1: "p2"})
    assert after[1].owners == ("p2",)
    assert sorted(o.owners for o in after.values()) == [("p1",), ("p1",), ("p2",), ("p2",)]


@pytest.mark.parametrize("rule", [assign, take_over])
def test_a_member_that_cannot_reach_a_broker_does_not_own_it(
    rule: Callable[..., dict[int, Ownership]],
) -> None:
    fleet = members("p1", "p2")
    before = assign(fleet, brokers(2), {}, {})
    assert rule(fleet, brokers(2), before, {}, frozenset({("p1", 1)}))[1].owners == ("p2",)
    # If no member reaches the broker, any member may own the identity.
    assert rule(fleet, brokers(2), before, {}, frozenset({("p1", 1), ("p2", 1)})) == before


def test_a_pin_to_a_member_that_cannot_reach_the_broker_waits() -> None:
    fleet = members("p1", "p2")
    assert assign(fleet, brokers(2), {}, {1: "p1"}, frozenset({("p1", 1)}))[1].owners == ("p2",)


def test_a_witness_owns_nothing_and_does_not_count() -> None:
    fleet = {**members("p1", "p2"), "w": Member("w")}
    after = assign(fleet, brokers(2), {}, {})
    assert owners(after) == {1: ("p1",), 2: ("p2",)}
    assert all("w" not in o.successors for o in after.values())


def test_balance_is_found_through_a_chain_where_ports_differ() -> None:
    # p3 can take only identity 1, which p2 owns. p1 has too many identities, and can give only to p2.
    fleet = {
        "p1": Member("p1", identities=IdentitySpace(1, 5)),
        "p2": Member("p2", identities=IdentitySpace(1, 3)),
        "p3": Member("p3", identities=IdentitySpace(1, 1)),
    }
    before = {1: Ownership(("p2",)), 2: Ownership(("p1",)), 3: Ownership(("p1",)), 4: Ownership(("p1",))}
    after = owners(assign(fleet, brokers(4), before, {}))
    assert after[1] == ("p3",)
    assert sorted(after.values()) == [("p1",), ("p1",), ("p2",), ("p3",)]


def test_simultaneous_deaths_have_different_successors() -> None:
    names = [f"p{n}" for n in range(1, 9)]
    after = assign(members(*names), brokers(8), {}, {})
    assert len({o.successors[0] for o in after.values()}) >= 4


def test_identities_of_removed_brokers_are_left_out() -> None:
    before = assign(members("p1", "p2"), brokers(3), {}, {})
    assert take_over(members("p1", "p2"), brokers(2), before, {}).keys() == {1, 2}


def test_newcomer_gets_identities_in_a_wrong_rack_first() -> None:
    fleet = members("p1", "p2", "p3", p1="a", p2="b", p3="c")
    before = {n: Ownership(("p1",) if n <= 3 else ("p2",)) for n in range(1, 7)}
    after = owners(assign(fleet, brokers(6, "aabbba"), before, {}))
    assert after == {1: ("p1",), 2: ("p1",), 3: ("p3",), 4: ("p2",), 5: ("p2",), 6: ("p3",)}


def test_newcomer_gets_identities_of_its_rack_among_equals() -> None:
    fleet = members("p1", "p2", p2="c")
    before = {n: Ownership(("p1",)) for n in range(1, 5)}
    after = owners(assign(fleet, brokers(4, "acbc"), before, {}))
    assert after == {1: ("p1",), 2: ("p2",), 3: ("p1",), 4: ("p2",)}


def test_racks_do_not_unbalance_a_take_over() -> None:
    fleet = members("p1", "p2", "p3", "p4", p1="a", p2="a", p3="a", p4="b")
    before = assign(fleet, brokers(16, "a" * 16), {}, {})
    for dead in fleet:
        left = {p: m for p, m in fleet.items() if p != dead}
        after = list(owners(take_over(left, brokers(16, "a" * 16), before, {})).values())
        assert sorted(after.count((p,)) for p in left) == [5, 5, 6]


def test_identities_pinned_to_a_dead_member_are_spread() -> None:
    fleet = members("p1", "p2", "p3")
    before = assign(fleet, brokers(4), {}, {n: "p1" for n in range(1, 5)})
    assert set(owners(before).values()) == {("p1",)}
    after = list(owners(take_over(members("p2", "p3"), brokers(4), before, {})).values())
    assert sorted(after) == [("p2",), ("p2",), ("p3",), ("p3",)]


def test_sole_member_that_reaches_a_broker_has_a_successor() -> None:
    fleet = members("p1", "p2", "p3")
    cut = frozenset({("p2", 1), ("p3", 1)})
    before = assign(fleet, brokers(6), {}, {}, cut)
    assert before[1].owners == ("p1",)
    assert len(before[1].successors) >= 1
    after = list(owners(take_over(members("p2", "p3"), brokers(6), before, {}, cut)).values())
    assert sorted(after) == [("p2",)] * 3 + [("p3",)] * 3


def test_death_keeps_the_successors_of_most_identities() -> None:
    names = [f"p{n}" for n in range(1, 41)]
    fleet = {name: Member(name, identities=IdentitySpace(1, 400)) for name in names}
    before = assign(fleet, brokers(400), {}, {})
    del fleet["p7"]
    after = take_over(fleet, brokers(400), before, {})
    assert sum(before[n].successors[0] != after[n].successors[0] for n in after) < 200


def test_identity_has_all_successors_although_owner_is_next() -> None:
    # The search covers the fewest sufficient candidates: with one fewer, some got two successors.
    names = [f"p{n}" for n in range(1, 21)]
    space = IdentitySpace(1, 400)
    many = {name: Member(name, identities=space) for name in names}
    for each in assign(many, brokers(400), {}, {}).values():
        assert len(each.owners) == 1
        assert len(set(each.successors) - set(each.owners)) == MAX_SUCCESSORS
