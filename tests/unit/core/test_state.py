"""Examples of each command on the replicated state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet.core.model import Broker, FleetState, IdentitySpace, Member, MemberStatus, Ownership
from fleet.core.state import (
    MAX_COMMAND_BYTES,
    RECENT_COMMANDS,
    BrokerGone,
    BrokersSeen,
    Command,
    DrainSet,
    MemberStatusChanged,
    MemberUp,
    OwnershipSet,
    PinSet,
    Unknown,
    apply,
    decode,
    decode_state,
    encode,
    encode_state,
    split_ownership,
    stamp,
)

P1 = Member("p1", rack="a", identities=IdentitySpace(1, 16), incarnation=7)
P2 = Member("p2", identities=IdentitySpace(1, 16), incarnation=8)
STATE = FleetState(
    generation=4,
    members={"p1": P1, "p2": P2},
    brokers={1: Broker(1, "kafka", 9092)},
    ownership={1: Ownership(("p1",), ("p2",))},
)


def applied(state: FleetState, *commands: Command | Unknown) -> FleetState:
    for command in commands:
        state, outcome = apply(state, command)
        assert outcome.applied, outcome
        assert outcome.generation == state.generation
    return state


def refused(state: FleetState, command: Command | Unknown) -> str:
    after, outcome = apply(state, command)
    assert not outcome.applied
    assert outcome.generation == state.generation
    assert replace(after, recent_commands=state.recent_commands) == state
    return outcome.reason


def test_a_member_comes_up_whatever_its_record_says() -> None:
    state = applied(FleetState(), MemberUp(replace(P1, status=MemberStatus.DOWN, drained=True)))
    assert state.members == {"p1": P1}
    assert refused(state, MemberUp(P1)) == "no_change"


def test_a_drain_survives_a_restart() -> None:
    state = applied(STATE, DrainSet("p1", True), MemberUp(replace(P1, incarnation=9)))
    assert state.members["p1"].drained
    assert state.members["p1"].incarnation == 9
    assert not applied(state, DrainSet("p1", False)).members["p1"].drained
    assert refused(STATE, DrainSet("p1", False)) == "no_change"
    assert refused(STATE, DrainSet("nobody", True)) == "unknown_member"


def test_status_change_applies_to_one_incarnation() -> None:
    state = applied(STATE, MemberStatusChanged("p1", MemberStatus.DOWN, 7))
    assert state.members["p1"].status is MemberStatus.DOWN
    assert refused(STATE, MemberStatusChanged("p1", MemberStatus.DOWN, 6)) == "stale_incarnation"
    assert refused(STATE, MemberStatusChanged("p3", MemberStatus.DOWN, 6)) == "unknown_member"
    assert refused(STATE, MemberStatusChanged("p1", MemberStatus.UP, 7)) == "no_change"


def test_brokers_are_added_moved_and_removed() -> None:
    moved = Broker(1, "elsewhere", 9092, "r")
    state = applied(STATE, BrokersSeen((moved, Broker(2, "kafka", 9093))))
    assert state.brokers == {1: moved, 2: Broker(2, "kafka", 9093)}
    assert refused(state, BrokersSeen((moved,))) == "no_change"
    assert refused(state, BrokersSeen((Broker(-1, "bootstrap", 1),))) == "invalid"
    assert applied(state, BrokerGone(2)).brokers == {1: moved}
    assert refused(state, BrokerGone(3)) == "no_change"


def test_ownership_is_set_against_one_generation() -> None:
    change = OwnershipSet(4, {1: Ownership(("p2",)), 2: Ownership(("p1", "p2"))})
    state = applied(STATE, change)
    assert state.generation == 5
    assert state.ownership == change.changes
    assert refused(state, change) == "stale_generation"
    assert refused(STATE, replace(change, expected_generation=5)) == "stale_generation"
    assert applied(state, OwnershipSet(5, {}, removed=(1,))).ownership == {2: Ownership(("p1", "p2"))}


@pytest.mark.parametrize(
    ("changes", "removed", "reason"),
    [
        ({1: Ownership(())}, (), "invalid"),
        ({1: Ownership(("p1", "p1"))}, (), "invalid"),
        ({1: Ownership(("p1",))}, (1,), "invalid"),
        ({1: Ownership(("p3",))}, (), "unknown_member"),
        ({1: Ownership(("p1",), ("p3",))}, (), "unknown_member"),
        ({1: Ownership(("p1",), ("p2",))}, (), "no_change"),
        ({}, (), "no_change"),
        ({}, (2,), "no_change"),
    ],
)
def test_invalid_ownership_is_refused(
    changes: dict[int, Ownership], removed: tuple[int, ...], reason: str
) -> None:
    assert refused(STATE, OwnershipSet(4, changes, removed)) == reason


def test_pins_are_set_and_lifted() -> None:
    state = applied(STATE, PinSet(1, "p2"))
    assert state.pins == {1: "p2"}
    assert refused(state, PinSet(1, "p2")) == "no_change"
    assert refused(state, PinSet(1, "p9")) == "unknown_member"
    assert applied(state, PinSet(1, None)).pins == {}
    assert refused(STATE, PinSet(1, None)) == "no_change"


def test_a_repeated_command_has_no_effect() -> None:
    drain, undrain = DrainSet("p1", True, "a"), DrainSet("p1", False, "b")
    state = applied(STATE, drain, undrain)
    assert refused(state, drain) == "repeated"
    # Not even if it had no effect the first time.
    idle, outcome = apply(STATE, undrain)
    assert outcome.reason == "no_change"
    assert refused(applied(idle, replace(drain, command_id="c")), undrain) == "repeated"


def test_only_the_last_ids_are_remembered() -> None:
    state = STATE
    for n in range(RECENT_COMMANDS + 1):
        state = applied(state, DrainSet("p1", n % 2 == 0, str(n)))
    assert len(state.recent_commands) == RECENT_COMMANDS
    assert refused(state, DrainSet("p1", False, "1")) == "repeated"
    assert apply(state, DrainSet("p1", False, "0"))[1].applied


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"kind":"weights_set"}',
        b'{"kind":"member_up"}',
        b'{"kind":"drain_set","proxy_id":3,"drained":{}}',
        b'{"kind":"pin_set","broker_id":"x","proxy_id":null}',
    ],
)
def test_invalid_bytes_in_the_log_are_ignored(garbage: bytes) -> None:
    unknown = decode(garbage)
    assert isinstance(unknown, Unknown)
    assert len(unknown.detail) < 500
    assert refused(STATE, unknown) == "unknown_command"


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        3,
        "member_up",
        MemberUp(None),  # type: ignore[arg-type]
        DrainSet([], True),  # type: ignore[arg-type]
        DrainSet("p1", True, ["id"]),  # type: ignore[arg-type]
        OwnershipSet(4, None),  # type: ignore[arg-type]
        OwnershipSet(4, {1: None}),  # type: ignore[dict-item]
        BrokersSeen(None),  # type: ignore[arg-type]
        BrokerGone([]),  # type: ignore[arg-type]
        MemberStatusChanged("p1", "sleeping", 7),  # type: ignore[arg-type]
    ],
)
def test_commands_of_the_wrong_types_are_refused(wrong: Any) -> None:
    assert refused(STATE, wrong) == "invalid"


def test_a_command_may_carry_fields_of_a_later_version() -> None:
    assert decode(b'{"kind":"broker_gone","broker_id":1,"weight":2}') == BrokerGone(1)


def test_commands_are_stamped_by_the_proposer() -> None:
    assert stamp(BrokerGone(1), "id", 5) == BrokerGone(1, "id", 5)


def test_a_command_of_64_kib_is_not_encoded() -> None:
    fits = BrokersSeen((Broker(1, "", 1),))
    room = MAX_COMMAND_BYTES - len(encode(fits))
    assert len(encode(BrokersSeen((Broker(1, "h" * room, 1),)))) == 64 * 1024 - 1
    with pytest.raises(ValueError, match="65536 bytes"):
        encode(BrokersSeen((Broker(1, "h" * (room + 1), 1),)))


def test_a_large_change_is_split_into_generations() -> None:
    names = [f"proxy-with-a-rather-long-name-{n}" for n in range(4)]
    state = FleetState(members={p: Member(p) for p in names}, ownership={9999: Ownership((names[0],))})
    changes = {n: Ownership((names[n % 4],), tuple(names[:3])) for n in range(3000)}
    parts = split_ownership(0, changes, (9999,), "rebalance")
    assert len(parts) > 5
    state = applied(state, *(decode(encode(stamp(p, f"{n:064}", 2**53))) for n, p in enumerate(parts)))
    assert state.ownership == changes
    assert state.generation == len(parts)


def test_a_small_change_is_one_command_and_none_is_none() -> None:
    changes = {1: Ownership(("p2",))}
    assert split_ownership(4, changes, (3, 2), "drain") == [OwnershipSet(4, changes, (2, 3), "drain")]
    assert split_ownership(4, {}) == []


def test_identity_above_the_limit_cannot_be_split() -> None:
    with pytest.raises(ValueError, match="identity 1 "):
        split_ownership(0, {1: Ownership(("p" * 70_000,))})


def test_the_state_survives_a_snapshot() -> None:
    state = applied(STATE, PinSet(1, "p2", "id"))
    assert decode_state(encode_state(state)) == state
    with pytest.raises(ValueError, match="JSON"):
        decode_state(b"\x80")
