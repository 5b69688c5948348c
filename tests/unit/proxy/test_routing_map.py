"""What a worker knows of brokers and keys: newer answers replace older ones, and the maps are bounded."""

from __future__ import annotations

import pytest

from fleet.proxy import routing_map
from fleet.proxy.routing_map import FRESH_S, NO_BROKER, UNKNOWN, RoutingMap
from fleet.proxy.wire.routes import GROUP, TOPIC_ID, TOPIC_NAME, TRANSACTION

ID = bytes(range(16))
OTHER_ID = bytes(16)


def test_topic_is_found_by_name_and_by_id() -> None:
    known = RoutingMap()
    known.learn_topic(((TOPIC_NAME, b"t"), (TOPIC_ID, ID)), (3, 1), ((3, 1), (1, 2)), 10.0)
    assert known.find(TOPIC_NAME, b"t", 0) == known.find(TOPIC_ID, ID, 0) == 3
    assert known.find(TOPIC_NAME, b"t", 1) == 1
    assert known.find(TOPIC_NAME, b"t", 2) == NO_BROKER
    assert known.find(TOPIC_NAME, b"other", 0) == UNKNOWN
    assert known.is_replica(TOPIC_NAME, b"t", 1, 2)
    assert not known.is_replica(TOPIC_NAME, b"t", 1, 3)
    assert not known.is_replica(TOPIC_NAME, b"t", 2, 2)


def test_recreated_topic_replaces_the_former_one() -> None:
    known = RoutingMap()
    known.learn_topic(((TOPIC_NAME, b"t"), (TOPIC_ID, ID)), (3,), ((3,),), 10.0)
    known.learn_topic(((TOPIC_NAME, b"t"), (TOPIC_ID, OTHER_ID)), (2,), ((2,),), 11.0)
    assert known.find(TOPIC_NAME, b"t", 0) == known.find(TOPIC_ID, OTHER_ID, 0) == 2
    assert known.find(TOPIC_ID, ID, 0) == UNKNOWN


def test_id_with_the_bytes_of_a_name_is_another_key() -> None:
    known = RoutingMap()
    known.learn_topic(((TOPIC_NAME, b"payments-events1"),), (3,), ((3,),), 10.0)
    known.learn_topic(((TOPIC_ID, b"payments-events1"),), (), (), 11.0)
    assert known.find(TOPIC_NAME, b"payments-events1", 0) == 3


def test_coordinators_of_groups_and_transactions_are_separate() -> None:
    known = RoutingMap()
    known.learn_coordinator(GROUP, b"k", 1, 10.0)
    known.learn_coordinator(TRANSACTION, b"k", 2, 10.0)
    assert (known.find(GROUP, b"k", -1), known.find(TRANSACTION, b"k", -1)) == (1, 2)


def test_entries_are_fresh_for_a_moment() -> None:
    known = RoutingMap()
    known.learn_topic(((TOPIC_NAME, b"t"),), (3,), ((3,),), 10.0)
    known.learn_coordinator(GROUP, b"g", 1, 10.0)
    for kind, key in ((TOPIC_NAME, b"t"), (GROUP, b"g")):
        assert known.is_fresh(kind, key, 10.0 + FRESH_S / 2)
        assert not known.is_fresh(kind, key, 10.0 + FRESH_S)
        assert not known.is_fresh(kind, b"other", 10.0)


def test_version_changes_only_with_a_broker() -> None:
    known = RoutingMap()
    known.learn_topic(((TOPIC_NAME, b"t"),), (3,), ((3,),), 10.0)
    known.learn_coordinator(GROUP, b"g", 1, 10.0)
    before = known.version
    known.learn_topic(((TOPIC_NAME, b"t"),), (3,), ((3, 1),), 11.0)
    known.learn_coordinator(GROUP, b"g", 1, 11.0)
    assert known.version == before
    known.learn_topic(((TOPIC_NAME, b"t"),), (1,), ((3, 1),), 12.0)
    known.learn_coordinator(GROUP, b"g", 2, 12.0)
    assert known.version == before + 2


def test_failure_keeps_the_last_answer_and_counts_as_asked() -> None:
    known = RoutingMap()
    known.learn_topic(((TOPIC_NAME, b"t"),), (3,), ((3,),), 10.0)
    known.learn_coordinator(GROUP, b"g", 1, 10.0)
    for kind, key, expected in ((TOPIC_NAME, b"t", 3), (GROUP, b"g", 1), (TOPIC_ID, ID, NO_BROKER)):
        known.note_failure(kind, key, 20.0)
        assert known.find(kind, key, 0) == expected
        assert known.is_fresh(kind, key, 20.5)


@pytest.mark.parametrize(("limit", "partitions"), [("MAX_TOPICS", 1), ("MAX_PARTITIONS", 10)])
def test_oldest_topics_are_dropped(monkeypatch: pytest.MonkeyPatch, limit: str, partitions: int) -> None:
    monkeypatch.setattr(routing_map, limit, 50)
    known = RoutingMap()
    for number in range(200):
        keys = ((TOPIC_NAME, b"%d" % number), (TOPIC_ID, b"id%d" % number))
        known.learn_topic(keys, (1,) * partitions, ((1,),) * partitions, 1.0)
    held = [number for number in range(200) if known.find(TOPIC_NAME, b"%d" % number, 0) != UNKNOWN]
    assert held == list(range(200 - 50 // partitions, 200))


def test_topic_larger_than_the_limit_is_kept_until_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing_map, "MAX_PARTITIONS", 10)
    known = RoutingMap()
    known.learn_topic(((TOPIC_NAME, b"large"),), (1,) * 100, ((1,),) * 100, 1.0)
    assert known.find(TOPIC_NAME, b"large", 99) == 1
    known.learn_topic(((TOPIC_NAME, b"small"),), (2,), ((2,),), 1.0)
    assert (known.find(TOPIC_NAME, b"large", 0), known.find(TOPIC_NAME, b"small", 0)) == (UNKNOWN, 2)


def test_oldest_coordinators_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing_map, "MAX_COORDINATORS", 5)
    known = RoutingMap()
    for number in range(8):
        known.learn_coordinator(GROUP, b"%d" % number, number, 1.0)
    assert [known.find(GROUP, b"%d" % number, -1) for number in range(8)] == [UNKNOWN] * 3 + [3, 4, 5, 6, 7]
