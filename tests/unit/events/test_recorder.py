"""Which events commits and observations become."""

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
from fleet.events.recorder import RETOLD_MS, Recorder

NOW_MS = 5_000
P1, P2 = Member("p1", incarnation=3), Member("p2", incarnation=1)


class Log:
    """Commands as Raft hands them out, and a recorder that is told of them."""

    def __init__(self, *commands: Command) -> None:
        self.state = FleetState()
        self.recorder = Recorder("demo", "p2", "p2/1")
        self.number = 0
        self.told = self.tell(*commands)

    def apply(self, *commands: Command) -> list[Applied]:
        applied = []
        for command in commands:
            self.number += 1
            stamped = stamp(command, f"c{self.number}", 1000 + self.number)
            self.state, outcome = apply(self.state, stamped)
            applied.append(Applied(stamped, outcome))
        return applied

    def tell(self, *commands: Command, takeovers: Iterable[Takeover] = ()) -> list[Event]:
        applied = self.apply(*commands)
        return self.recorder.committed(applied, self.state, TakeoverLog(tuple(takeovers)), NOW_MS)


@pytest.fixture
def log() -> Log:
    owners = {1: Ownership(("p1",)), 2: Ownership(("p2",))}
    return Log(
        MemberUp(P1),
        MemberUp(P2),
        BrokersSeen((Broker(1, "kafka", 9092), Broker(2, "kafka", 9093))),
        OwnershipSet(0, owners, (), "bootstrap"),
    )


def test_each_identity_of_a_generation_is_told_of(log: Log) -> None:
    first, second = log.tell(
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


def test_what_came_to_nothing_is_not_told_of(log: Log) -> None:
    assert log.tell(OwnershipSet(0, {1: Ownership(("p2",))}), MemberUp(P1), BrokersSeen(())) == []
    applied = Applied(Unknown("bytes"), replace(log.apply(MemberUp(P1))[0].outcome, applied=True))
    assert log.recorder.committed([applied], log.state, TakeoverLog(), NOW_MS) == []


def test_members_are_told_of_as_each_command_left_them(log: Log) -> None:
    events = log.tell(
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


def test_every_member_gives_an_event_the_same_id(log: Log) -> None:
    other = Recorder("demo", "p1", "p1/9")
    command = OwnershipSet(1, {1: Ownership(("p2",))}, (), "rebalance")
    applied = log.apply(command)
    (mine,) = log.recorder.committed(applied, log.state, TakeoverLog(), NOW_MS)
    # It has just started, from a snapshot of before.
    (its,) = other.committed(applied, log.state, TakeoverLog(), NOW_MS + 7)
    assert mine.id == its.id
    assert isinstance(its, OwnershipEvent)
    assert its.before is None


def test_a_snapshot_is_where_the_next_change_begins(log: Log) -> None:
    log.apply(OwnershipSet(1, {1: Ownership(("p2",))}))
    assert log.recorder.committed([], log.state, TakeoverLog(), NOW_MS) == []
    (event,) = log.tell(OwnershipSet(2, {1: Ownership(("p1",))}))
    assert isinstance(event, OwnershipEvent)
    assert event.before == ("p2",)


def test_a_takeover_has_the_times_of_its_detection_and_its_advertisement(log: Log) -> None:
    advertised, alive = Moment(4_030, 1.03), Moment(3_940, 0.94)
    open_one = Takeover("p1", "reset", Moment(4_000, 1.0), (1,), advertised, alive=alive)
    (event,) = log.tell(OwnershipSet(1, {1: Ownership(("p2",))}, (), "takeover"), takeovers=[open_one])
    assert isinstance(event, OwnershipEvent)
    assert (event.alive_at_ms, event.detected_at_ms, event.advertised_at_ms) == (3_940, 4_000, 4_030)
    assert log.recorder.advertised(TakeoverLog((open_one,))) == []


def test_a_takeover_that_is_advertised_later_is_told_of_again(log: Log) -> None:
    open_one = Takeover("p1", "reset", Moment(4_000, 1.0), (1,), alive=Moment(3_940, 0.94))
    (event,) = log.tell(OwnershipSet(1, {1: Ownership(("p2",))}, (), "takeover"), takeovers=[open_one])
    assert isinstance(event, OwnershipEvent)
    assert (event.alive_at_ms, event.detected_at_ms, event.advertised_at_ms) == (3_940, 4_000, None)
    committed = replace(open_one, committed=Moment(NOW_MS, 2.0))
    assert log.recorder.advertised(TakeoverLog((committed,))) == []
    done = TakeoverLog((replace(committed, advertised=Moment(6_000, 3.0)),))
    assert log.recorder.advertised(done) == [replace(event, advertised_at_ms=6_000)]
    assert log.recorder.advertised(done) == []


@pytest.mark.parametrize(
    "other",
    [
        Takeover("p2", "reset", Moment(4_000, 1.0), (1,)),
        Takeover("p1", "reset", Moment(4_000, 1.0), (2,)),
        Takeover("p1", "reset", Moment(4_000, 1.0), (1,), committed=Moment(4_100, 1.1)),
    ],
    ids=["of another member", "of another identity", "of long ago"],
)
def test_a_takeover_that_has_nothing_to_do_with_a_change_is_not_put_into_it(
    log: Log, other: Takeover
) -> None:
    (event,) = log.tell(OwnershipSet(1, {1: Ownership(("p2",))}, (), "takeover"), takeovers=[other])
    assert isinstance(event, OwnershipEvent)
    assert event.detected_at_ms is None


def test_observations_are_told_of_and_have_ids_of_their_own() -> None:
    recorder = Recorder("demo", "p2", "p2/1")
    seen = Transition("p1", Liveness.UP, Liveness.SUSPECT, "reset", 1.0)
    first, second = recorder.observed([seen, seen], NOW_MS)
    assert first == LivenessEvent(
        "demo/liveness/p2/1/1", "demo", "p2", "p1", Liveness.UP, Liveness.SUSPECT, "reset", NOW_MS
    )
    assert second.id == "demo/liveness/p2/1/2"


def test_events_come_back_equal_and_go_to_the_topic_of_their_kind(log: Log) -> None:
    events = log.tell(
        OwnershipSet(1, {1: Ownership(("p2",))}, (), "drain"), DrainSet("p1", drained=True)
    ) + log.recorder.observed([Transition("p1", Liveness.UP, Liveness.SUSPECT, "reset", 1.0)], NOW_MS)
    assert [event_schema.EVENTS.decode(event_schema.EVENTS.encode(each)) for each in events] == events
    assert [event_schema.TOPICS[each.kind] for each in events] == ["ownership", "members", "members"]
    assert [event_schema.key(each) for each in events] == [b"demo/1", b"demo/p1", b"demo/p1"]


def test_what_a_later_program_has_added_to_an_event_is_ignored(log: Log) -> None:
    (event,) = log.tell(OwnershipSet(1, {1: Ownership(("p2",))}))
    with_more = event_schema.EVENTS.encode(event)[:-1] + b',"colour":"red"}'
    assert event_schema.EVENTS.decode(with_more) == event


def test_an_event_of_before_there_was_some_field_is_read(log: Log) -> None:
    (event,) = log.tell(OwnershipSet(1, {1: Ownership(("p2",))}, (), "takeover"))
    old = json.loads(event_schema.EVENTS.encode(event))
    del old["alive_at_ms"]
    assert event_schema.EVENTS.decode(json.dumps(old).encode()) == event


@pytest.mark.parametrize("value", [b"", b"{}", b'{"kind":"ownership"}', b'{"kind":"weather"}', b"\xff"])
def test_what_is_no_event_is_an_error(value: bytes) -> None:
    with pytest.raises(ValueError, match="validation error"):
        event_schema.EVENTS.decode(value)


def test_what_is_read_again_after_a_start_is_told_of_where_it_is_not_old(log: Log) -> None:
    applied = log.apply(*(OwnershipSet(each, {1: Ownership((f"p{3 - each}",))}) for each in (1, 2)))
    told = [
        len(Recorder("demo", "p1", "p1/9").committed(applied, log.state, TakeoverLog(), now_ms))
        for now_ms in (1005 + RETOLD_MS, 1006 + RETOLD_MS, 1007 + RETOLD_MS)
    ]
    assert told == [2, 1, 0]
