"""The observations that prove a fault, and those that do not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from fleet.admin.documents import OwnershipDocument
from fleet.core.errors import FaultNotObserved
from fleet.core.model import Liveness, MemberStatus
from fleet.drills.game_day.evidence import Glimpse, explain_missing_proof, proof_of
from fleet.drills.game_day.scenarios import Effect
from tests.unit.admin.test_rolling_restart import told

INCARNATION = 7


def saying(victim: str = "p1", **changes: Any) -> dict[str, OwnershipDocument]:
    """The other members' reports about a member."""
    members = tuple(
        replace(each, **changes) if each.proxy_id == victim else each for each in told("p2").members
    )
    return {each: told(each, members=members) for each in ("p2", "p3") if each != victim}


def glimpse(answers: Mapping[str, OwnershipDocument], silent_s: float = 9.0, **changes: Any) -> Glimpse:
    return Glimpse(
        **{
            "victim": "p1",
            "incarnation": INCARNATION,
            "silent_s": silent_s,
            "answers": answers,
            "advertised": {},
            **changes,
        }
    )


GIVEN_UP = saying(liveness=Liveness.SUSPECT)
ALONE = {each: answer for each, answer in GIVEN_UP.items() if each == "p2"}
HEARD = saying(liveness=Liveness.UP)


@pytest.mark.parametrize("effect", ["killed", "silent"])
def test_member_unheard_by_all_peers_is_dead(effect: Effect) -> None:
    assert proof_of(effect, glimpse(GIVEN_UP)) == "p1 does not answer, and is suspect or down for p2, p3"


@pytest.mark.parametrize("effect", ["killed", "silent"])
@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (glimpse(HEARD, silent_s=0.1), "p1 still answers clients, and has not restarted"),
        (glimpse(GIVEN_UP, silent_s=0.1), "p1 still answers clients, and has not restarted"),
        (glimpse(HEARD), "p1 does not answer here, but is up for p2, p3"),
        (glimpse({**HEARD, **ALONE}), "p1 does not answer here, but is up for p3"),
        (glimpse({}), "no other member answers"),
    ],
)
def test_partial_silence_proves_no_fault(effect: Effect, seen: Glimpse, why: str) -> None:
    assert proof_of(effect, seen) == ""
    assert explain_missing_proof(effect, seen) == why


def test_restarted_member_was_killed_but_not_silenced() -> None:
    back = glimpse({**HEARD, "p1": told("p1", incarnation=INCARNATION + 1)}, silent_s=0.0)
    assert proof_of("killed", back) == "p1 has already restarted"
    with pytest.raises(FaultNotObserved, match="has restarted"):
        proof_of("silent", back)
    assert (
        proof_of("killed", replace(back, answers={**HEARD, "p1": told("p1", incarnation=INCARNATION)})) == ""
    )


@pytest.mark.parametrize("effect", ["killed", "silent"])
def test_draining_member_was_not_killed(effect: Effect) -> None:
    with pytest.raises(FaultNotObserved, match="p1 drains and hands"):
        proof_of(effect, glimpse(saying(status=MemberStatus.DRAINING)))


def drained(**changes: Any) -> Glimpse:
    """p1 is drained, and p2 owns its identity."""
    identities = tuple(
        replace(each, committed=("p2",), advertised=("p2",)) if each.committed == ("p1",) else each
        for each in told("p1").identities
    )
    everybody = {**saying(drained=True), "p1": replace(saying(drained=True)["p2"], proxy_id="p1")}
    answers = {each: replace(answer, identities=identities) for each, answer in everybody.items()}
    return replace(glimpse(answers, advertised={"p2": {1: "p2", 2: "p2", 3: "p3"}}), **changes)


def test_drained_member_owns_nothing_in_any_view() -> None:
    assert proof_of("drained", drained()) == "p1 is drained and owns nothing: reported by all 3 members"
    seen = drained(advertised={"p2": {1: "p2"}, "p3": {1: "p1"}})
    assert proof_of("drained", seen) == ""
    assert explain_missing_proof("drained", seen) == "p1 still owns [1]"
    assert explain_missing_proof("drained", glimpse(saying(drained=True))) == "p1 still owns [1]"
    two = drained(answers={each: drained().answers[each] for each in ("p2", "p3")})
    assert proof_of("drained", two) == ""
    undrained = drained(
        answers={each: replace(a, members=told("p2").members) for each, a in drained().answers.items()}
    )
    assert proof_of("drained", undrained) == ""
    assert "not all members report p1 as drained" in explain_missing_proof("drained", undrained)
