"""Examples of advertised owners."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from fleet.core.directory import advertised_owners, build, pick
from fleet.core.model import (
    AdvertisedListener,
    Broker,
    FleetState,
    IdentitySpace,
    Member,
    MemberStatus,
    Ownership,
)

SPACE = IdentitySpace(1, 16)
MEMBERS = {f"p{n}": Member(f"p{n}", identities=SPACE, incarnation=n) for n in range(1, 6)}
BROKERS = {n: Broker(n, "kafka", 9090 + n) for n in (1, 2, 3)}
STATE = FleetState(
    generation=7,
    members=MEMBERS,
    brokers=BROKERS,
    ownership={
        1: Ownership(("p1",), ("p2", "p3", "p4")),
        2: Ownership(("p2", "p4"), ("p3", "p1", "p5")),
        3: Ownership(("p3",), ("p1", "p2", "p4")),
    },
)
ME = MEMBERS["p1"]


def status(state: FleetState, proxy_id: str, **changes: Any) -> FleetState:
    return replace(state, members={**state.members, proxy_id: replace(state.members[proxy_id], **changes)})


def advertised(
    suspects: set[str], state: FleetState = STATE, me: Member | None = ME
) -> dict[int, tuple[str, ...]]:
    return dict(build(state, suspects, me, 1).advertised)


def test_without_suspects_the_owners_are_advertised() -> None:
    directory = build(STATE, set(), ME, 3)
    assert directory.advertised == directory.committed == {1: ("p1",), 2: ("p2", "p4"), 3: ("p3",)}
    assert (directory.generation, directory.revision, directory.suspects) == (7, 3, ())


def test_a_dead_owner_is_advertised_at_its_first_live_successor() -> None:
    assert advertised({"p3"})[3] == ("p1",)
    assert advertised({"p3", "p4"})[3] == ("p1",)
    directory = build(STATE, {"p3", "p1"}, MEMBERS["p2"], 1)
    assert directory.advertised[3] == ("p2",)
    assert directory.committed[3] == ("p3",)
    assert directory.suspects == ("p1", "p3")


def test_of_several_owners_the_live_ones_stay() -> None:
    assert advertised({"p2"})[2] == ("p4",)
    assert advertised({"p2", "p4"})[2] == ("p3",)


def test_members_agree_beyond_the_successors() -> None:
    dead = {"p1", "p2", "p3", "p4"}
    assert advertised(dead, me=MEMBERS["p5"]) == {1: ("p5",), 2: ("p5",), 3: ("p5",)}
    state = replace(STATE, ownership={n: Ownership(("p1",)) for n in range(1, 17)})
    views = {tuple(sorted(advertised({"p1"}, state, MEMBERS[p]).items())) for p in ("p2", "p3", "p4", "p5")}
    assert len(views) == 1
    stand_ins = Counter(owners[0] for owners in dict(views.pop()).values())
    assert len(stand_ins) == 4
    assert max(stand_ins.values()) <= 9


def test_a_successor_that_may_not_own_is_passed_over() -> None:
    assert advertised({"p3"}, status(STATE, "p1", drained=True), MEMBERS["p2"])[3] == ("p2",)
    assert advertised({"p3"}, status(STATE, "p1", identities=IdentitySpace(1, 2)), MEMBERS["p2"])[3] == (
        "p2",
    )


def test_drained_member_is_advertised_as_the_last_resort() -> None:
    state = status(STATE, "p5", drained=True)
    assert advertised({"p1", "p2", "p3", "p4"}, state, MEMBERS["p5"])[1] == ("p5",)
    # Rendezvous hashing prefers an eligible member.
    bare = replace(state, ownership={n: Ownership(("p1",)) for n in range(1, 17)})
    assert ("p5",) not in advertised({"p1"}, bare, MEMBERS["p2"]).values()


def test_draining_owner_is_advertised_until_the_move() -> None:
    state = status(STATE, "p3", status=MemberStatus.DRAINING)
    assert advertised(set(), state)[3] == ("p3",)


def test_member_committed_down_is_bypassed_without_suspicion() -> None:
    assert advertised(set(), status(STATE, "p3", status=MemberStatus.DOWN))[3] == ("p1",)


def test_a_member_never_suspects_itself() -> None:
    assert advertised({"p1"})[1] == ("p1",)
    assert advertised(set(), status(STATE, "p1", status=MemberStatus.DOWN))[1] == ("p1",)
    assert build(STATE, {"p1"}, ME, 1).suspects == ()


def test_committed_owners_stay_without_live_members() -> None:
    assert advertised(set(MEMBERS), me=None) == {1: ("p1",), 2: ("p2", "p4"), 3: ("p3",)}
    assert advertised_owners(1, STATE.ownership[1], lambda _: False, MEMBERS) == ("p1",)


def test_broker_known_from_traffic_alone_is_advertised_here() -> None:
    seen = {4: Broker(4, "kafka", 9094)}
    directory = build(STATE, set(), MEMBERS["p2"], 1, seen)
    assert directory.advertised[4] == ("p2",)
    assert 4 not in directory.committed
    assert directory.brokers == {**BROKERS, 4: seen[4]}


def test_own_view_of_a_broker_address_takes_precedence() -> None:
    """Found: control probed this address, but its workers dialled the committed one."""
    seen = {1: Broker(1, "another-listener", 9092)}
    assert build(STATE, set(), MEMBERS["p2"], 1, seen).brokers == {**BROKERS, **seen}


def test_identity_without_a_local_port_is_advertised_elsewhere() -> None:
    # The current configuration of this member counts, not its committed record.
    small = replace(ME, identities=IdentitySpace(1, 3))
    seen = {n: Broker(n, "kafka", 9090 + n) for n in (*range(4, 17), 99)}
    directory = build(STATE, set(), small, 1, seen)
    assert {directory.advertised[n][0] for n in range(4, 17)} == {"p2", "p3", "p4", "p5"}
    # No member has a port for this identity.
    assert 99 not in directory.advertised


def test_first_directory_has_this_member() -> None:
    directory = build(FleetState(), set(), ME, 1, BROKERS)
    assert directory.advertised == {1: ("p1",), 2: ("p1",), 3: ("p1",)}
    assert directory.members == {"p1": ME}


def test_own_addresses_are_configured_and_status_is_committed() -> None:
    listeners = (AdvertisedListener("external", "new", 1, 2),)
    me = replace(ME, listeners=listeners, incarnation=99)
    state = status(STATE, "p1", drained=True)
    assert build(state, set(), me, 1).members["p1"] == replace(me, drained=True)


def test_clients_are_spread_over_owners_and_stay_where_they_are() -> None:
    owners = ("p1", "p2", "p3")
    keys = [f"10.0.{n // 250}.{n % 250}".encode() for n in range(3000)]
    picked = {key: pick(owners, key) for key in keys}
    assert all(850 < count < 1150 for count in Counter(picked.values()).values())
    assert all(pick(("p3", "p1"), key) == owner for key, owner in picked.items() if owner != "p2")
    assert pick(("p2",), b"") == "p2"
    # Every member and every version must pick the same.
    assert [pick(owners, key) for key in keys[:6]] == ["p2", "p2", "p2", "p2", "p1", "p3"]
