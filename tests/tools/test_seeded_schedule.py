"""Plans of faults: the same for the same seed, and every kind of fault in some of them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tests.chaos.seeded.results import Results
from tests.chaos.seeded.schedule import (
    CHOSEN,
    FIRST_SEED,
    GENTLE,
    HEAVY,
    LENGTH_S,
    OTHER_WORKLOADS,
    SHAPES,
    Kind,
    chosen,
    plan_of,
)
from tests.chaos.seeded.workloads import KINDS

SEEDS = range(400)
RESULTS = Path(__file__).resolve().parents[2] / "docs" / "reliability.jsonl"


def test_the_same_seed_gives_the_same_plan() -> None:
    assert [plan_of(seed) for seed in SEEDS] == [plan_of(seed) for seed in SEEDS]
    assert len({plan_of(seed).faults for seed in SEEDS}) == len(SEEDS)


def test_every_kind_target_and_direction_comes_up() -> None:
    faults = [fault for seed in SEEDS for fault in plan_of(seed).faults]
    assert {fault.kind for fault in faults} == set(Kind) == set(SHAPES)
    for kind, shape in SHAPES.items():
        assert {fault.target for fault in faults if fault.kind is kind} == set(shape.targets)
        directions = {fault.direction for fault in faults if fault.kind is kind}
        assert directions == ({"both", "in", "out"} if shape.one_way else {"both"})


def test_kept_results_are_of_the_plans_their_seeds_have() -> None:
    known = Results(RESULTS)
    results = [(plan, result) for plan in map(plan_of, SEEDS) if (result := known.clean(plan)) is not None]
    assert results
    for plan, result in results:
        assert sorted(result.faults) == sorted(fault.kind for fault in plan.faults), plan.name
        assert set(result.noticed) == set(plan.workloads), plan.name


def test_a_kind_that_came_later_is_drawn_by_later_seeds_alone() -> None:
    for kind, first in FIRST_SEED.items():
        drawn = [seed for seed in SEEDS if any(fault.kind is kind for fault in plan_of(seed).faults)]
        assert drawn
        assert min(drawn) >= first


def test_exact_clients_are_always_present_and_others_alternate() -> None:
    plans = [plan_of(seed).workloads for seed in SEEDS]
    assert all(workloads[0] == "idempotent" and len(set(workloads)) == 3 for workloads in plans)
    assert {name for workloads in plans for name in workloads[1:]} == set(OTHER_WORKLOADS)
    assert not any(set(workloads) >= HEAVY for workloads in plans)


def test_half_of_the_fleets_have_links_over_tls() -> None:
    secured = [plan_of(seed).secured for seed in SEEDS]
    assert 0.4 < sum(secured) / len(secured) < 0.6


def test_every_fourth_fleet_has_five_members() -> None:
    members = [plan_of(seed).members for seed in SEEDS]
    assert set(members) == {3, 5}
    assert 0.2 < members.count(5) / len(members) < 0.3


def test_chosen_plans_have_each_kind_of_client_between_them() -> None:
    assert {name for each in CHOSEN for name in chosen(each).workloads} == set(KINDS)
    assert set(KINDS) == {"idempotent", *OTHER_WORKLOADS}


def test_harsh_faults_do_not_overlap() -> None:
    for plan in map(plan_of, SEEDS):
        harsh = [fault for fault in plan.faults if fault.kind not in GENTLE]
        assert harsh
        assert list(plan.faults) == sorted(plan.faults, key=lambda fault: fault.at_s)
        for fault, after in pairwise(harsh):
            assert fault.at_s + SHAPES[fault.kind].room_s <= after.at_s + 0.05
        assert harsh[-1].at_s + SHAPES[harsh[-1].kind].room_s <= LENGTH_S


def test_brokers_fail_in_a_plan_that_ends_one() -> None:
    assert chosen("broker-kill").brokers_fail
    assert chosen("broker-restarts").brokers_fail
    assert not chosen("leader-kill").brokers_fail


@pytest.mark.parametrize("name", CHOSEN)
def test_chosen_plans_are_long_enough_for_their_faults(name: str) -> None:
    plan = chosen(name)
    assert plan.name == name
    assert all(fault.at_s + fault.duration_s < plan.length_s for fault in plan.faults)
