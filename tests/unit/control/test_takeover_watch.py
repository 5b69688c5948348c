"""Records of takeovers: from which member, why, and when detected, advertised and committed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fleet.control.takeover_watch import TakeoverWatch
from fleet.core.model import BrokerId, Directory, FleetState, Ownership, ProxyId
from fleet.core.state import OwnershipSet
from fleet.core.takeover import Moment, Takeover

BEFORE = {1: ("p1",), 2: ("p2",), 3: ("p3",), 5: ("p2", "p3")}
BYPASSING_P2 = {1: ("p1",), 2: ("p3",), 3: ("p3",), 5: ("p3",)}


def state(owners: Mapping[BrokerId, tuple[ProxyId, ...]]) -> FleetState:
    return FleetState(ownership={broker_id: Ownership(each) for broker_id, each in owners.items()})


def directory(revision: int, owners: Mapping[BrokerId, tuple[ProxyId, ...]]) -> Directory:
    return Directory(revision=revision, advertised=dict(owners))


def at(seconds: float) -> Moment:
    return Moment(int(seconds * 1000), seconds)


def watch_of_p2() -> TakeoverWatch:
    """A watch that has just detected the death of p2."""
    watch = TakeoverWatch()
    watch.on_detected("p2", "reset", state(BEFORE), at(10))
    return watch


def only(watch: TakeoverWatch) -> Takeover:
    (takeover,) = watch.log.recent
    return takeover


def test_takeover_has_all_identities_of_the_member() -> None:
    assert only(watch_of_p2()) == Takeover("p2", "reset", at(10), (2, 5))


def test_member_without_identities_has_no_takeover() -> None:
    watch = TakeoverWatch()
    watch.on_detected("p4", "reset", state(BEFORE), at(10))
    assert watch.log.recent == ()


def test_death_detected_twice_is_one_takeover() -> None:
    watch = watch_of_p2()
    watch.on_detected("p2", "down", state(BEFORE), at(11))
    assert only(watch) == Takeover("p2", "reset", at(10), (2, 5))


def test_takeover_is_advertised_once_workers_have_the_directory() -> None:
    watch = watch_of_p2()
    watch.on_published(directory(6, {**BYPASSING_P2, 5: ("p2",)}))
    watch.on_published(directory(7, BYPASSING_P2))
    watch.on_published(directory(8, BYPASSING_P2))
    watch.on_applied(6, at(10.1))
    assert only(watch).advertised is None
    watch.on_applied(7, at(10.2))
    watch.on_published(directory(9, BYPASSING_P2))
    watch.on_applied(9, at(10.3))
    assert only(watch).advertised == at(10.2)
    assert watch.log.by_reason == {"reset": 1}


def test_directory_that_names_the_member_advertises_nothing() -> None:
    """This happens without another live member, or in a drain before ownership is committed."""
    watch = watch_of_p2()
    watch.on_published(directory(6, BEFORE))
    watch.on_applied(6, at(10.1))
    assert only(watch).advertised is None
    assert watch.log.by_reason == {}


def test_takeover_is_committed_once_no_identity_is_left() -> None:
    watch = watch_of_p2()
    watch.on_committed(state({**BYPASSING_P2, 5: ("p2",)}), at(10.4))
    assert only(watch).committed is None
    watch.on_committed(state(BYPASSING_P2), at(10.5))
    watch.on_committed(state(BYPASSING_P2), at(10.6))
    assert only(watch).committed == at(10.5)


def test_removed_identity_does_not_delay_the_commit() -> None:
    watch = watch_of_p2()
    watch.on_committed(state({1: ("p1",)}), at(10.5))
    assert only(watch).committed == at(10.5)


def test_advertised_and_committed_come_in_either_order() -> None:
    first, second = watch_of_p2(), watch_of_p2()
    first.on_published(directory(7, BYPASSING_P2))
    first.on_applied(7, at(11))
    first.on_committed(state(BYPASSING_P2), at(12))
    second.on_published(directory(7, BYPASSING_P2))
    second.on_committed(state(BYPASSING_P2), at(12))
    second.on_applied(7, at(11))
    assert only(first) == only(second) == Takeover("p2", "reset", at(10), (2, 5), at(11), at(12))


def test_the_next_death_of_the_same_member_is_another_takeover() -> None:
    watch = watch_of_p2()
    watch.on_published(directory(7, BYPASSING_P2))
    watch.on_applied(7, at(11))
    watch.on_committed(state(BYPASSING_P2), at(12))
    watch.on_detected("p2", "silent", state(BEFORE), at(50))
    watch.on_published(directory(9, BYPASSING_P2))
    watch.on_applied(9, at(51))
    assert [(each.reason, each.detected) for each in watch.log.recent] == [
        ("reset", at(10)),
        ("silent", at(50)),
    ]
    assert watch.log.by_reason == {"reset": 1, "silent": 1}


def test_a_member_that_is_back_before_the_commit_can_die_again() -> None:
    """This happens without a quorum: the first takeover was advertised but could not be committed."""
    watch = watch_of_p2()
    watch.on_published(directory(7, BYPASSING_P2))
    watch.on_applied(7, at(11))
    watch.on_returned("p2")
    watch.on_returned("p3")
    watch.on_detected("p2", "silent", state(BEFORE), at(50))
    watch.on_published(directory(9, BYPASSING_P2))
    watch.on_committed(state(BYPASSING_P2), at(51))
    watch.on_applied(9, at(52))
    first, second = watch.log.recent
    assert (first.advertised, first.committed) == (at(11), None)
    assert (second.reason, second.advertised, second.committed) == ("silent", at(52), at(51))


def test_return_before_the_advertisement_closes_the_takeover() -> None:
    watch = watch_of_p2()
    watch.on_published(directory(7, BYPASSING_P2))
    watch.on_returned("p2")
    watch.on_applied(7, at(11))
    assert (only(watch).advertised, watch.log.by_reason) == (None, {})


def test_two_members_that_die_together_are_two_takeovers() -> None:
    watch = watch_of_p2()
    watch.on_detected("p1", "silent", state(BEFORE), at(10.1))
    watch.on_published(directory(7, {**BYPASSING_P2, 1: ("p1",)}))
    watch.on_published(directory(8, dict.fromkeys(BEFORE, ("p3",))))
    watch.on_applied(7, at(11))
    watch.on_committed(state(BYPASSING_P2), at(12))
    of_p2, of_p1 = watch.log.recent
    assert (of_p2.advertised, of_p2.committed) == (at(11), at(12))
    assert (of_p1.broker_ids, of_p1.advertised, of_p1.committed) == ((1,), None, None)
    watch.on_applied(8, at(13))
    assert watch.log.recent[1].advertised == at(13)


def test_alive_time_is_not_after_the_detection() -> None:
    watch = TakeoverWatch()
    watch.on_detected("p2", "reset", state(BEFORE), at(10), 9.9504)
    assert only(watch).alive == Moment(9_950, 9.9504)
    watch.on_published(directory(7, BYPASSING_P2))
    watch.on_applied(7, at(11))
    watch.on_committed(state(BYPASSING_P2), at(12))
    assert only(watch).alive == Moment(9_950, 9.9504)
    # A worker of p2 was lost at 10, and a second worker has answered since.
    other = TakeoverWatch()
    other.on_detected("p2", "unreachable", state(BEFORE), at(10), 10.3)
    assert only(other).alive == at(10)


def change(number: int, owners: Mapping[BrokerId, tuple[ProxyId, ...]], *removed: BrokerId) -> OwnershipSet:
    changes = {broker_id: Ownership(each) for broker_id, each in owners.items()}
    return OwnershipSet(number, changes, removed, command_id=f"c{number}")


def test_change_is_the_command_that_moves_the_last_identity() -> None:
    """The result depends neither on the number of commands per commit nor on unrelated commands."""
    steps = (
        (change(1, {1: ("p3",)}), {**BEFORE, 1: ("p3",)}),
        (change(2, {2: ("p3",)}), {**BEFORE, 1: ("p3",), 2: ("p3",)}),
        (change(3, {}, 5), {1: ("p3",), 2: ("p3",), 3: ("p3",)}),
        (change(4, {2: ("p1",)}), {1: ("p3",), 2: ("p1",), 3: ("p3",)}),
    )
    for together in (1, 2, 4):
        watch = watch_of_p2()
        for first in range(0, len(steps), together):
            now = steps[first : first + together]
            watch.on_committed(state(now[-1][1]), at(11), [each for each, _ in now])
        assert only(watch).change == "c3"
    late = TakeoverWatch()
    late.on_detected("p2", "silent", state(steps[1][1]), at(10))
    late.on_committed(state(steps[3][1]), at(11), [each for each, _ in steps[2:]])
    assert (only(late).broker_ids, only(late).change) == ((5,), "c3")


def test_the_change_of_a_snapshot_is_not_known() -> None:
    watch = watch_of_p2()
    watch.on_committed(state(BYPASSING_P2), at(11))
    assert (only(watch).committed, only(watch).change) == (at(11), "")
    assert only(watch).trace_id("demo") != replace(only(watch), detected=at(3)).trace_id("demo")


def test_ended_takeover_is_reported_once() -> None:
    ended: list[Takeover] = []
    watch = TakeoverWatch(ended.append)
    watch.on_detected("p2", "reset", state(BEFORE), at(10))
    watch.on_detected("p1", "reset", state(BEFORE), at(10))
    watch.on_detected("p3", "reset", state(BEFORE), at(10))
    watch.on_published(directory(7, {**BYPASSING_P2, 1: ("p2",)}))
    watch.on_applied(7, at(11))
    assert ended == []
    watch.on_committed(state(BYPASSING_P2), at(12))
    assert [each.proxy_id for each in ended] == ["p2"]
    assert ended == [watch.log.recent[0]]
    watch.on_returned("p1")
    watch.on_returned("p1")
    watch.on_returned("p3")
    assert [(each.proxy_id, each.committed) for each in ended] == [("p2", at(12)), ("p1", None)], (
        "p3 was advertised all the time"
    )
