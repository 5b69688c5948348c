"""Whether a game day can begin, and the choice of the victim."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from fleet.admin.documents import OwnershipDocument
from fleet.core.errors import AdminError, FleetError, GameDayError
from fleet.drills.game_day.plan import Options, Plan, announcement, make_plan
from tests.unit.admin.test_rolling_restart import URLS, fleet, told

KILL = Options("leader-kill", {"inject-command": "kill {proxy_id}"})
DRAIN = Options("drain")


def everywhere(**changes: object) -> dict[str, OwnershipDocument | FleetError]:
    """Equal answers of all members."""
    return {each: told(each, **changes) for each in URLS}


def without_p2() -> dict[str, OwnershipDocument | FleetError]:
    """A fleet in which p2 is drained and p3 owns two identities."""
    known = tuple(replace(each, drained=each.proxy_id == "p2") for each in told("p1").members)
    identities = tuple(
        replace(each, committed=("p3",), advertised=("p3",)) if each.broker_id == 2 else each
        for each in told("p1").identities
    )
    return everywhere(members=known, identities=identities)


def with_voters(*voters: str) -> dict[str, OwnershipDocument | FleetError]:
    return everywhere(quorum=replace(told("p1").quorum, voters=voters))


def test_leader_kill_chooses_the_leader() -> None:
    plan = make_plan(fleet(p1=told("p1", incarnation=44)), KILL, 0.8)
    assert (plan.victim, plan.was_leader, plan.incarnation) == ("p1", True, 44)
    assert plan.takeover_limit_s == pytest.approx(2.8)
    assert make_plan(fleet(), replace(KILL, takeover_limit_s=9.0), 0.8).takeover_limit_s == 9.0


def test_follower_with_most_identities_is_chosen() -> None:
    assert make_plan(fleet(), DRAIN, 0.8).victim in ("p2", "p3")
    assert make_plan(without_p2(), DRAIN, 0.8).victim == "p3"


def test_operator_may_choose_another_member() -> None:
    plan = make_plan(fleet(), replace(KILL, member="p3"), 0.8)
    assert (plan.victim, plan.was_leader) == ("p3", False)


def test_restart_and_watch_have_no_victim() -> None:
    assert make_plan(fleet(), Options("watch"), 0.8).victim is None


@pytest.mark.parametrize(
    ("answers", "options", "why"),
    [
        (fleet(p2=AdminError("refused")), KILL, "whole and at rest: p2 does not answer: refused"),
        (
            everywhere(brokers=tuple(replace(each, up=each.broker_id != 2) for each in told("p1").brokers)),
            KILL,
            "p1 reports broker 2 as down",
        ),
        (everywhere(brokers=()), KILL, "no broker has been seen yet"),
        (with_voters("p1", "p2"), KILL, "2 voters have no quorum"),
        (without_p2(), replace(DRAIN, member="p2"), "it owns no identity that could move"),
    ],
)
def test_game_day_does_not_begin_on_an_unfit_fleet(
    answers: dict[str, OwnershipDocument | FleetError], options: Options, why: str
) -> None:
    with pytest.raises(GameDayError, match=why):
        make_plan(answers, options, 0.8)


def test_member_without_a_vote_may_be_killed_with_two_voters() -> None:
    assert make_plan(with_voters("p1", "p2"), replace(KILL, member="p3"), 0.8).victim == "p3"


def test_game_day_needs_two_members_that_carry_traffic() -> None:
    known = tuple(replace(each, drained=each.proxy_id != "p1") for each in told("p1").members)
    alone = everywhere(
        members=known,
        identities=tuple(
            replace(each, committed=("p1",), advertised=("p1",), pinned_to=None)
            for each in told("p1").identities
        ),
    )
    with pytest.raises(GameDayError, match="run at least two members that carry traffic"):
        make_plan(alone, KILL, 0.8)
    with pytest.raises(GameDayError, match="no member but the leader"):
        make_plan(alone, DRAIN, 0.8)


def test_unreachable_fleet_is_an_admin_error() -> None:
    with pytest.raises(AdminError, match="no member answered"):
        make_plan({"p1": AdminError("gone")}, KILL, 0.8)


@pytest.mark.parametrize(("count", "replicas", "in_sync"), [(1, 1, 1), (2, 2, 1), (3, 3, 2), (7, 3, 2)])
def test_partition_leaders_are_spread_evenly(count: int, replicas: int, in_sync: int) -> None:
    plan = Plan("demo", None, False, 0, tuple(range(101, 101 + count)), 3.0)
    assert len(plan.assignment) == plan.partitions
    assert set(Counter(each[0] for each in plan.assignment).values()) == {2}
    assert all(len(set(each)) == replicas for each in plan.assignment)
    assert plan.min_in_sync == in_sync


def test_plan_is_announced_to_the_operator() -> None:
    said = "\n".join(announcement(make_plan(fleet(), KILL, 0.8), KILL))
    for part in (
        "leader-kill on fleet demo",
        "6 partitions, 3 replicas each, 180 records per second",
        "deleted at the end",
        "p1, the Raft leader, for 10 s",
        "within 2.8 s",
        "--inject-command: kill {proxy_id}",
    ):
        assert part in said
