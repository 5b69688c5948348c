"""The events of commits and of a member's observations."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

import pytest

from fleet.core import event_schema
from fleet.core.event_schema import Event, LivenessEvent, MemberEvent, OwnershipEvent
from fleet.core.liveness import Transition
from fleet.core.model import Broker, FleetState, Liveness, Member, MemberStatus, Ownership
from fleet.core.replication import Applied
from fleet.core.state import (
    BrokersSeen,
    Command,
    DrainSet,
    MemberStatusChanged,
    MemberUp,
    OwnershipSet,
    Unknown,
    apply,
    stamp,
)
from fleet.core.takeover import Moment, Takeover, TakeoverLog
from fleet.events.recorder import REPLAY_LIMIT_MS, Recorder

NOW_MS = 5_000
P1, P2 = Member("p1", incarnation=3), Member("p2", incarnation=1)


class Log:
    """Commands as Raft applies them, and a recorder of their events."""

    def __init__(self, *commands: Command) -> None:
        self.state = FleetState()
        self.recorder = Recorder("demo", "p2", "p2/1")
        self.number = 0
        self.first_events = self.commit(*commands)

    def apply(self, *commands: Command) -> list[Applied]:
        applied = []
        for command in commands:
            self.number += 1
            stamped = stamp(command, f"c{self.number}", 1000 + self.number)
            self.state, outcome = apply(self.state, stamped)
            applied.append(Applied(stamped, outcome))
        return applied

    def commit(self, *commands: Command, takeovers: Iterable[Takeover] = ()) -> list[Event]:
        applied = self.apply(*commands)
        return self.recorder.record_commit(applied, self.state, TakeoverLog(tuple(takeovers)), NOW_MS)


@pytest.fixture
def log() -> Log:
    owners = {1: Ownership(("p1",)), 2: Ownership(("p2",))}
    return Log(
        MemberUp(P1),
        MemberUp(P2),
        BrokersSeen((Broker(1, "kafka", 9092), Broker(2, "kafka", 9093))),
        OwnershipSet(0, owners, (), "bootstrap"),
    )


def test_ownership_change_gives_an_event_for_each_identity(log: Log) -> None:
    first, second = log.commit(
        OwnershipSet(1, {1: Ownership(("p2", "p1"))}, (), "join"),
        OwnershipSet(2, {1: Ownership(("p2",))}, (2,), "brokers"),
    )[::2]
    assert first == OwnershipEvent(
        id="demo/ownership/2/1",
        fleet="demo",
        told_by="p2",
        generation=2,
        broker_id=1,
        before=("p1",),
        owners=("p2", "p1"),
        reason="join",
        proposed_at_ms=1005,
        committed_at_ms=NOW_MS,
    )
    assert isinstance(second, OwnershipEvent)
    assert (second.id, second.before, second.owners) == ("demo/ownership/3/2", ("p2",), ())


def test_rejected_command_gives_no_event(log: Log) -> None:
    assert log.commit(OwnershipSet(0, {1: Ownership(("p2",))}), MemberUp(P1), BrokersSeen(())) == []
    applied = Applied(Unknown("bytes"), replace(log.apply(MemberUp(P1))[0].outcome, applied=True))
    assert log.recorder.record_commit([applied], log.state, TakeoverLog(), NOW_MS) == []


def test_member_event_has_state_after_each_command(log: Log) -> None:
    events = log.commit(
        MemberStatusChanged("p1", MemberStatus.DRAINING, 3),
        MemberStatusChanged("p1", MemberStatus.DOWN, 3),
        DrainSet("p1", drained=True),
        MemberUp(replace(P1, incarnation=4)),
    )
    assert [
        (each.incarnation, each.status, each.drained) for each in events if isinstance(each, MemberEvent)
    ] == [
        (3, MemberStatus.DRAINING, False),
        (3, MemberStatus.DOWN, False),
        (3, MemberStatus.DOWN, True),
        (4, MemberStatus.UP, True),
    ]
    assert [each.id for each in events] == [f"demo/member/c{number}" for number in range(5, 9)]


def test_event_id_is_the_same_on_every_member(log: Log) -> None:
    other = Recorder("demo", "p1", "p1/9")
    command = OwnershipSet(1, {1: Ownership(("p2",))}, (), "rebalance")
    applied = log.apply(command)
    (mine,) = log.recorder.record_commit(applied, log.state, TakeoverLog(), NOW_MS)
    # The other member has just started, from an earlier snapshot.
    (theirs,) = other.record_commit(applied, log.state, TakeoverLog(), NOW_MS + 7)
    assert mine.id == theirs.id
    assert isinstance(theirs, OwnershipEvent)
    assert theirs.before is None


def test_change_after_snapshot_has_owners_of_snapshot(log: Log) -> None:
    log.apply(OwnershipSet(1, {1: Ownership(("p2",))}))
    assert log.recorder.record_commit([], log.state, TakeoverLog(), NOW_MS) == []
    (event,) = log.commit(OwnershipSet(2, {1: Ownership(("p1",))}))
    assert isinstance(event, OwnershipEvent)
    assert event.before == ("p2",)


def test_takeover_event_has_detection_and_advertisement_times(log: Log) -> None:
    advertised, alive = Moment(4_030, 1.03), Moment(3_940, 0.94)
    open_one = Takeover("p1", "reset", Moment(4_000, 1.0), (1,), advertised, alive=alive)
    (event,) = log.commit(OwnershipSet(1, {1: Ownership(("p2",))}, (), "takeover"), takeovers=[open_one])
    assert isinstance(event, OwnershipEvent)
    assert (event.alive_at_ms, event.detected_at_ms, event.advertised_at_ms) == (3_940, 4_000, 4_030)
    assert log.recorder.record_advertisement(TakeoverLog((open_one,))) == []


def test_takeover_event_repeats_after_late_advertisement(log: Log) -> None:
    open_one = Takeover("p1", "reset", Moment(4_000, 1.0), (1,), alive=Moment(3_940, 0.94))
    (event,) = log.commit(OwnershipSet(1, {1: Ownership(("p2",))}, (), "takeover"), takeovers=[open_one])
    assert isinstance(event, OwnershipEvent)
    assert (event.alive_at_ms, event.detected_at_ms, event.advertised_at_ms) == (3_940, 4_000, None)
    committed = replace(open_one, committed=Moment(NOW_MS, 2.0))
    assert log.recorder.record_advertisement(TakeoverLog((committed,))) == []
    done = TakeoverLog((replace(committed, advertised=Moment(6_000, 3.0)),))
    assert log.recorder.record_advertisement(done) == [replace(event, advertised_at_ms=6_000)]
    assert log.recorder.record_advertisement(done) == []


@pytest.mark.parametrize(
    "other",
    [
        Takeover("p2", "reset", Moment(4_000, 1.0), (1,)),
        Takeover("p1", "reset", Moment(4_000, 1.0), (2,)),
        Takeover("p1", "reset", Moment(4_000, 1.0), (1,), committed=Moment(4_100, 1.1)),
    ],
    ids=["another member", "another identity", "already committed"],
)
def test_unrelated_takeover_does_not_change_event(log: Log, other: Takeover) -> None:
    (event,) = log.commit(OwnershipSet(1, {1: Ownership(("p2",))}, (), "takeover"), takeovers=[other])
    assert isinstance(event, OwnershipEvent)
    assert event.detected_at_ms is None


def test_transition_events_have_distinct_ids() -> None:
    recorder = Recorder("demo", "p2", "p2/1")
    seen = Transition("p1", Liveness.UP, Liveness.SUSPECT, "reset", 1.0)
    first, second = recorder.record_transitions([seen, seen], NOW_MS)
    assert first == LivenessEvent(
        "demo/liveness/p2/1/1", "demo", "p2", "p1", Liveness.UP, Liveness.SUSPECT, "reset", NOW_MS
    )
    assert second.id == "demo/liveness/p2/1/2"


def test_event_roundtrip_is_equal_and_kind_selects_topic(log: Log) -> None:
    events = log.commit(
        OwnershipSet(1, {1: Ownership(("p2",))}, (), "drain"), DrainSet("p1", drained=True)
    ) + log.recorder.record_transitions(
        [Transition("p1", Liveness.UP, Liveness.SUSPECT, "reset", 1.0)], NOW_MS
    )
    assert [event_schema.EVENTS.decode(event_schema.EVENTS.encode(each)) for each in events] == events
    assert [event_schema.TOPICS[each.kind] for each in events] == ["ownership", "members", "members"]
    assert [event_schema.key(each) for each in events] == [b"demo/1", b"demo/p1", b"demo/p1"]


def test_unknown_event_field_is_ignored(log: Log) -> None:
    (event,) = log.commit(OwnershipSet(1, {1: Ownership(("p2",))}))
    with_more = event_schema.EVENTS.encode(event)[:-1] + b',"colour":"red"}'
    assert event_schema.EVENTS.decode(with_more) == event


def test_event_without_newer_field_is_read(log: Log) -> None:
    (event,) = log.commit(OwnershipSet(1, {1: Ownership(("p2",))}, (), "takeover"))
    old = json.loads(event_schema.EVENTS.encode(event))
    del old["alive_at_ms"]
    assert event_schema.EVENTS.decode(json.dumps(old).encode()) == event


@pytest.mark.parametrize("value", [b"", b"{}", b'{"kind":"ownership"}', b'{"kind":"weather"}', b"\xff"])
def test_malformed_event_is_an_error(value: bytes) -> None:
    with pytest.raises(ValueError, match="validation error"):
        event_schema.EVENTS.decode(value)


def test_replayed_command_gives_event_unless_too_old(log: Log) -> None:
    applied = log.apply(*(OwnershipSet(each, {1: Ownership((f"p{3 - each}",))}) for each in (1, 2)))
    counts = [
        len(Recorder("demo", "p1", "p1/9").record_commit(applied, log.state, TakeoverLog(), now_ms))
        for now_ms in (1005 + REPLAY_LIMIT_MS, 1006 + REPLAY_LIMIT_MS, 1007 + REPLAY_LIMIT_MS)
    ]
    assert counts == [2, 1, 0]
