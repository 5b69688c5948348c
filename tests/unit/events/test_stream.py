"""The records of a member's events, and of the compacted copy that the leader writes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.config import EventsSettings
from fleet.core import event_schema
from fleet.core.event_schema import ConnectionEvent, OwnershipEvent, TrafficEvent
from fleet.core.liveness import Transition
from fleet.core.model import Broker, FleetState, Liveness, Member, Ownership
from fleet.core.replication import Applied
from fleet.core.state import BrokersSeen, Command, MemberUp, OwnershipSet, apply, stamp
from fleet.core.takeover import Moment, Takeover, TakeoverLog
from fleet.core.traffic import ApiTraffic
from fleet.events.spool import Spool
from fleet.events.stream import SPOOL_FILE, EventStream
from fleet.runtime.ipc import ConnectionRow, TrafficMessage, TrafficRow
from tests.conftest import PLAINTEXT

LIMIT_S = 30.0
NOW_MS = 5_000
CLOSED = TakeoverLog()


class SpooledMember:
    """A member whose records stay in a spool, because there is no Kafka."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        settings = EventsSettings(spool_bytes=1 << 20)
        self.stream = EventStream(settings, "demo", "p2", 7, folder, tuple, PLAINTEXT)
        self.state = FleetState()
        self._number = 0

    def own(self, owner: str, *, leads: bool, takeovers: TakeoverLog = CLOSED) -> None:
        """Give identity 1 another owner."""
        commands: list[Command] = [
            MemberUp(Member(owner, incarnation=1)),
            BrokersSeen((Broker(1, "kafka", 9092),)),
            OwnershipSet(self.state.generation, {1: Ownership((owner,))}, (), "takeover"),
        ]
        applied = []
        for command in commands:
            self._number += 1
            stamped = stamp(command, f"c{self._number}", NOW_MS)
            self.state, outcome = apply(self.state, stamped)
            applied.append(Applied(stamped, outcome))
        self.stream.record_commit(applied, self.state, takeovers, NOW_MS, leads=leads)

    def records(self) -> Iterator[tuple[str, OwnershipEvent]]:
        """Yield the topic and the event of each spooled ownership record."""
        self.stream.start()
        self.stream.stop(LIMIT_S)
        with Spool(self._folder / SPOOL_FILE, 1 << 20) as spool:
            for each in spool.oldest(1000):
                event = event_schema.EVENTS.decode(each.record.value)
                if isinstance(event, OwnershipEvent):
                    yield each.record.topic, event


@pytest.fixture
def member(tmp_path: Path) -> SpooledMember:
    return SpooledMember(tmp_path)


def generations(member: SpooledMember) -> list[tuple[str, int]]:
    return [(topic, event.generation) for topic, event in member.records()]


def test_compacted_copy_is_written_by_leader_only(member: SpooledMember) -> None:
    member.own("p1", leads=False)
    member.own("p2", leads=False)
    assert generations(member) == [("ownership", 1), ("ownership", 2)]


def test_new_leader_rewrites_latest_owners(member: SpooledMember) -> None:
    member.own("p1", leads=False)
    member.own("p2", leads=False)
    member.stream.record_commit((), member.state, CLOSED, NOW_MS, leads=True)
    member.stream.record_commit((), member.state, CLOSED, NOW_MS, leads=True)
    member.own("p1", leads=True)
    latest = [("ownership.latest", 2), ("ownership", 3), ("ownership.latest", 3)]
    assert generations(member) == [("ownership", 1), ("ownership", 2), *latest]


def test_late_advertisement_leaves_latest_owner_unchanged(member: SpooledMember) -> None:
    member.own("p1", leads=True)
    open_one = Takeover("p1", "reset", Moment(4_000, 1.0), (1,))
    member.own("p2", leads=True, takeovers=TakeoverLog((open_one,)))
    member.own("p3", leads=True)
    member.stream.record_advertisement(TakeoverLog((replace(open_one, advertised=Moment(6_000, 3.0)),)))
    records = list(member.records())
    assert [(topic, event.generation) for topic, event in records[-3:]] == [
        ("ownership", 3),
        ("ownership.latest", 3),
        ("ownership", 2),
    ]
    assert records[-1][1].advertised_at_ms == 6_000


def test_traffic_and_connections_go_to_their_topics(member: SpooledMember, tmp_path: Path) -> None:
    apis = {1: ApiTraffic(2, 1, 5, 6, {40: 1})}
    row = TrafficRow("inside", 1, 1, 1, 10, 20, 3, apis, {"c": 1})
    opened = ConnectionRow(8, 900, "inside", 1, True, "192.0.2.7:4", "c")
    moved = replace(opened, at_ms=950, owned=False, end="moved", open_s=0.05)
    member.stream.record_traffic(TrafficMessage("0-100-1", 1_000, 999, (row,), (opened, moved), 4, 7))
    assert list(member.records()) == []
    assert member.stream.progress.dropped == 4
    with Spool(tmp_path / SPOOL_FILE, 1 << 20) as spool:
        found = [each.record for each in spool.oldest(9)]
    assert [(each.topic, each.key) for each in found] == [
        ("traffic", b"demo/1"),
        ("connections", b"demo/1"),
        ("connections", b"demo/1"),
    ]
    traffic, first, second = (event_schema.EVENTS.decode(each.value) for each in found)
    traffic_id = "demo/p2/0-100-1/1000-7/inside/1"
    assert traffic == TrafficEvent(
        traffic_id, "demo", "p2", "inside", 1, 1_000, 999, 1, 1, 10, 20, 3, apis, {"c": 1}, 2
    )
    assert isinstance(first, ConnectionEvent)
    assert isinstance(second, ConnectionEvent)
    assert first.connection == second.connection
    assert (first.id, first.what, first.why) == ("demo/p2/0-100-1/connection/8", "opened", None)
    assert (second.id, second.what, second.why) == ("demo/p2/0-100-1/connection/8/end", "moved", "moved")
    assert (second.owned, second.open_ms, second.client_id) == (False, 50, "c")


def test_transitions_go_to_members_topic(member: SpooledMember, tmp_path: Path) -> None:
    member.stream.record_transitions([Transition("p1", Liveness.UP, Liveness.SUSPECT, "reset", 1.0)], NOW_MS)
    assert list(member.records()) == []
    with Spool(tmp_path / SPOOL_FILE, 1 << 20) as spool:
        (found,) = spool.oldest(9)
    assert (found.record.topic, found.record.key) == ("members", b"demo/p1")
