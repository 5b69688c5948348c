"""Which broker each request goes to, and what a frame waits for."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import pytest

from fleet.core.errors import UnidentifiedBroker
from fleet.core.model import BrokerId
from fleet.proxy.router import (
    ANY,
    ASSUMED,
    EXACT,
    GATHER,
    INFERRED,
    LOOK_UP,
    NOT_KNOWN,
    NOTHING,
    QUIET,
    REPLACE,
    SWITCH,
    Router,
)
from fleet.proxy.routing_map import NO_BROKER, RoutingMap
from fleet.proxy.wire.api_versions import API_VERSIONS
from fleet.proxy.wire.common_versions import Versions, build_answer, build_body
from fleet.proxy.wire.merging import LIST_GROUPS
from fleet.proxy.wire.routes import GROUP, TOPIC_NAME, TRANSACTION
from fleet.proxy.wire.routing_keys import RoutingKey
from fleet.proxy.wire.verdicts import INCOMPLETE, ORDINARY
from tests.property.kafka_requests import fetch_in_rack, metadata, produce_to, string
from tests.property.wire_fleet import request

PRODUCE, FETCH, METADATA, HEARTBEAT, SASL_HANDSHAKE, DESCRIBE_CONFIGS, DESCRIBE_LOG_DIRS = (
    0,
    1,
    3,
    12,
    17,
    32,
    35,
)


@dataclass
class FakeCluster:
    """Three brokers; ``clock_s`` is the time."""

    routing: RoutingMap = field(default_factory=RoutingMap)
    versions: Versions | None = field(
        default_factory=lambda: Versions({API_VERSIONS: (0, 5), METADATA: (0, 13)})
    )
    down: set[BrokerId] = field(default_factory=set)
    clock_s: float = 100.0

    def is_known(self, broker_id: BrokerId) -> bool:
        return broker_id in (1, 2, 3)

    def is_up(self, broker_id: BrokerId) -> bool:
        return broker_id not in self.down

    def answer_api_versions(self, version: int, correlation_id: int) -> bytes | None:
        return (
            None
            if self.versions is None
            else build_answer(build_body(self.versions, version), correlation_id)
        )

    def now_s(self) -> float:
        return self.clock_s

    def leads(self, broker_id: BrokerId, topic: bytes = b"t", replicas: tuple[BrokerId, ...] = ()) -> None:
        self.routing.learn_topic(
            ((TOPIC_NAME, topic),), (broker_id,), (replicas or (broker_id,),), self.clock_s
        )

    def coordinates(self, broker_id: BrokerId, group: bytes = b"g") -> None:
        self.routing.learn_coordinator(GROUP, group, broker_id, self.clock_s)


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def router(cluster: FakeCluster, assumed: BrokerId | None = None) -> Router:
    return Router(cluster, RoutingKey(), assumed)


def fetch(topic: bytes | None = b"t") -> bytes:
    """Fetch v7. Source: FetchRequest.json"""
    topics = (
        struct.pack(">i", 0)
        if topic is None
        else struct.pack(">i", 1) + string(topic) + struct.pack(">ii", 1, 0)
    )
    return request(FETCH, 7, 1, struct.pack(">iiiibii", -1, 500, 1, 1, 0, 7, 3) + topics)


def heartbeat(group: bytes = b"g") -> bytes:
    return request(HEARTBEAT, 0, 1, string(group))


def describe_broker(broker_id: str) -> bytes:
    return request(DESCRIBE_CONFIGS, 1, 1, struct.pack(">ib", 1, 4) + string(broker_id.encode()) + b"rest")


def api_versions(node_id: int | None) -> bytes:
    if node_id is None:
        return request(API_VERSIONS, 0, 1)
    body = b"\0\5java\x044.4\0" + struct.pack(">i", node_id) + b"\0"
    return request(API_VERSIONS, 5, 1, body)


def passes(tested: Router, frame: bytes) -> int:
    """Route a frame that must pass now. Returns: where it goes."""
    assert tested.route(frame, 0, len(frame), True) == ORDINARY
    assert tested.wait == NOTHING
    return tested.upstream


def waits(tested: Router, frame: bytes) -> int:
    """Route a frame that must wait. Returns: what for."""
    assert tested.route(frame, 0, len(frame), True) == INCOMPLETE
    return tested.wait


def switch(tested: Router, frame: bytes, broker_id: BrokerId) -> None:
    """Route a frame that must wait for another broker, and switch to it."""
    assert waits(tested, frame) == SWITCH
    assert tested.next_upstream == broker_id
    tested.switched()
    assert passes(tested, frame) == broker_id


def test_request_without_key_goes_to_any_broker(cluster: FakeCluster) -> None:
    tested = router(cluster)
    assert passes(tested, metadata()) == ANY
    tested.connected(2)
    assert (tested.upstream, tested.certainty) == (2, NOT_KNOWN)


def test_first_key_is_looked_up_and_identifies_the_connection(cluster: FakeCluster) -> None:
    tested = router(cluster)
    assert waits(tested, produce_to(b"t")) == LOOK_UP
    assert (tested.kind, tested.key) == (TOPIC_NAME, b"t")
    cluster.leads(3)
    tested.answered()
    assert passes(tested, produce_to(b"t")) == 3
    assert (tested.identity, tested.certainty) == (3, INFERRED)
    assert passes(tested, metadata()) == 3


def test_fresh_entry_needs_no_look_up_and_an_old_one_does(cluster: FakeCluster) -> None:
    cluster.leads(3)
    assert passes(router(cluster), produce_to(b"t")) == 3
    cluster.clock_s += 5
    assert waits(router(cluster), produce_to(b"t")) == LOOK_UP


def test_connection_of_any_broker_switches_to_the_broker_of_the_key(cluster: FakeCluster) -> None:
    tested = router(cluster)
    passes(tested, metadata())
    tested.connected(1)
    cluster.coordinates(2)
    switch(tested, heartbeat(), 2)


def test_connection_that_has_the_broker_by_chance_stays(cluster: FakeCluster) -> None:
    tested = router(cluster)
    passes(tested, metadata())
    cluster.coordinates(2)
    assert waits(tested, heartbeat()) == SWITCH, "the broker that is dialled is not known yet"
    tested.connected(2)
    assert passes(tested, heartbeat()) == 2


def test_contradiction_is_asked_again_and_the_answer_decides(cluster: FakeCluster) -> None:
    tested = router(cluster)
    cluster.leads(1)
    assert passes(tested, produce_to(b"t")) == 1
    cluster.leads(2, b"other")
    cluster.clock_s += 5
    assert waits(tested, produce_to(b"other")) == LOOK_UP
    cluster.leads(1, b"other")  # the map was old
    tested.answered()
    assert passes(tested, produce_to(b"other")) == 1
    cluster.leads(2, b"third")
    switch(tested, produce_to(b"third"), 2)
    assert tested.identity == 2


def test_key_of_the_present_broker_needs_no_fresh_answer(cluster: FakeCluster) -> None:
    """A leader that moved is learned from the broker's error, as on a direct connection."""
    tested = router(cluster)
    cluster.leads(1)
    cluster.coordinates(1)
    passes(tested, produce_to(b"t"))
    cluster.clock_s += 500
    for frame in (produce_to(b"t"), heartbeat(), produce_to(b"t")):
        assert passes(tested, frame) == 1


def test_moved_leader_is_found_after_the_map_has_changed(cluster: FakeCluster) -> None:
    tested = router(cluster)
    cluster.leads(1)
    assert passes(tested, produce_to(b"t")) == passes(tested, produce_to(b"t")) == 1
    cluster.leads(3)
    switch(tested, produce_to(b"t"), 3)


def test_look_up_without_answer_lets_the_broker_give_the_error(cluster: FakeCluster) -> None:
    tested = router(cluster)
    assert waits(tested, produce_to(b"t")) == LOOK_UP
    tested.answered()  # the look-up failed, and the map has no entry
    assert passes(tested, produce_to(b"t")) == ANY
    assert tested.certainty == NOT_KNOWN
    tested.connected(2)
    cluster.leads(NO_BROKER)
    assert passes(tested, produce_to(b"t")) == 2


def test_identified_connection_keeps_its_broker_for_keys_without_broker(cluster: FakeCluster) -> None:
    tested = router(cluster)
    cluster.leads(1)
    passes(tested, produce_to(b"t"))
    cluster.leads(NO_BROKER)
    assert passes(tested, produce_to(b"t")) == 1


def test_broker_that_the_directory_does_not_know_is_not_dialled(cluster: FakeCluster) -> None:
    tested = router(cluster)
    cluster.leads(99)
    assert passes(tested, produce_to(b"t")) == ANY


def test_client_that_names_its_broker_is_never_asked_about_keys(cluster: FakeCluster) -> None:
    tested = router(cluster)
    assert passes(tested, api_versions(2)) == 2
    assert (tested.identity, tested.certainty) == (2, EXACT)


def test_expectation_that_no_broker_is_known_for_is_answered_by_a_broker(cluster: FakeCluster) -> None:
    assert passes(router(cluster), api_versions(99)) == ANY


@pytest.mark.parametrize("node_id", [None, -1])
def test_api_versions_without_broker_is_answered_for_all(cluster: FakeCluster, node_id: int | None) -> None:
    tested = router(cluster)
    frame = api_versions(node_id)
    assert tested.route(frame, 0, len(frame), True) == len(frame)
    version = int.from_bytes(frame[6:8], "big")
    assert (tested.take_reply(), tested.reply) == (cluster.answer_api_versions(version, 1), b"")
    assert tested.greeting == frame
    cluster.leads(3)
    assert passes(tested, produce_to(b"t")) == 3


def test_second_api_versions_goes_to_a_broker(cluster: FakeCluster) -> None:
    """Each answer takes memory, and a client need not read."""
    tested, frame = router(cluster), api_versions(None)
    assert tested.route(frame, 0, len(frame), True) == len(frame)
    tested.take_reply()
    assert passes(tested, frame) == ANY


def test_unknown_request_has_a_destination(cluster: FakeCluster) -> None:
    """The session refuses it, or lets any broker answer it."""
    tested = router(cluster)
    assert passes(tested, request(API_VERSIONS, 99, 1)) == ANY
    assert passes(router(cluster), request(999, 0, 1)) == ANY


def test_group_and_transaction_of_one_name_are_two_keys(cluster: FakeCluster) -> None:
    tested = router(cluster)
    cluster.routing.learn_coordinator(TRANSACTION, b"g", 1, cluster.clock_s)
    cluster.coordinates(2)
    assert passes(tested, request(22, 0, 1, string(b"g") + struct.pack(">i", 1))) == 1, "InitProducerId"
    switch(tested, heartbeat(), 2)


@pytest.mark.parametrize(("length", "is_asked"), [(1024, True), (1025, False), (32_000, False)])
def test_absurd_names_are_not_looked_up(cluster: FakeCluster, length: int, is_asked: bool) -> None:
    """A broker closes the connection of all look-ups for a name above 32 KB."""
    tested, frame = router(cluster), heartbeat(b"g" * length)
    assert (waits(tested, frame) == LOOK_UP) if is_asked else (passes(tested, frame) == ANY)


def test_api_versions_goes_to_a_broker_while_versions_are_unknown(cluster: FakeCluster) -> None:
    cluster.versions = None
    assert passes(router(cluster), api_versions(None)) == ANY


def test_part_of_api_versions_waits_for_the_rest(cluster: FakeCluster) -> None:
    tested, frame = router(cluster), api_versions(2)
    for end in range(14 + 6, len(frame)):
        assert tested.route(frame[:end], 0, end, True) == INCOMPLETE
        assert tested.wait == NOTHING


def test_only_identity_is_assumed_and_checked(cluster: FakeCluster) -> None:
    tested = router(cluster, assumed=1)
    assert passes(tested, api_versions(None)) == 1
    assert tested.certainty == ASSUMED
    cluster.leads(1)
    assert passes(tested, produce_to(b"t")) == 1
    cluster.leads(2, b"other")
    switch(tested, produce_to(b"other"), 2)
    assert tested.certainty == INFERRED


def test_assumed_broker_that_is_down_does_not_keep_a_bootstrap_client(cluster: FakeCluster) -> None:
    cluster.down = {1}
    assert passes(router(cluster, assumed=1), metadata()) == ANY
    tested, frame = router(cluster, assumed=1), api_versions(None)
    assert tested.route(frame, 0, len(frame), True) == len(frame), "answered for all brokers"


def test_follower_may_serve_an_assumed_connection(cluster: FakeCluster) -> None:
    cluster.leads(2, replicas=(2, 1))
    tested = router(cluster, assumed=1)
    assert passes(tested, fetch_in_rack(b"t", b"")) == 1
    switch(tested, fetch(), 2)


def test_configuration_of_a_broker_goes_to_that_broker_and_identifies_nothing(cluster: FakeCluster) -> None:
    tested = router(cluster)
    assert passes(tested, describe_broker("3")) == 3
    assert tested.certainty == NOT_KNOWN
    switch(tested, describe_broker("1"), 1)
    assert passes(tested, describe_broker("99")) == 1, "the broker's error is the right one"


def test_fetch_of_an_unknown_session_is_answered_here(cluster: FakeCluster) -> None:
    tested, frame = router(cluster), fetch(None)
    assert tested.route(frame, 0, len(frame), False) == INCOMPLETE
    assert tested.wait == QUIET
    assert tested.route(frame, 0, len(frame), True) == len(frame)
    assert struct.unpack(">iiihii", tested.take_reply()) == (18, 1, 0, 70, 0, 0)
    cluster.leads(3)
    assert passes(tested, fetch()) == 3
    assert passes(tested, fetch(None)) == 3


def test_rack_of_a_fetch_is_blanked_where_the_broker_is_inferred(cluster: FakeCluster) -> None:
    cluster.leads(3)
    tested = router(cluster)
    frame, blank = fetch_in_rack(b"t", b"a"), fetch_in_rack(b"t", b"")
    assert passes(tested, blank) == 3
    for end in range(len(frame) - 20, len(frame)):
        assert tested.route(frame[:end], 0, end, True) == INCOMPLETE
        assert (tested.wait, tested.whole_bytes) == (NOTHING, len(frame))
    assert waits(tested, frame) == REPLACE
    assert tested.replacement == blank
    exact = router(cluster, assumed=3)
    assert passes(exact, frame) == 3, "the client means the only broker of the member"


def test_log_dirs_are_rejected_until_the_broker_is_known(cluster: FakeCluster) -> None:
    tested, frame = router(cluster), request(DESCRIBE_LOG_DIRS, 1, 1, struct.pack(">i", -1))
    assert tested.route(frame, 0, len(frame), True) == len(frame)
    assert struct.unpack(">iiiihhi", tested.take_reply()) == (20, 1, 0, 1, 42, 0, 0)
    cluster.leads(3)
    passes(tested, produce_to(b"t"))
    assert passes(tested, frame) == 3


def test_groups_are_listed_by_all_brokers_until_the_broker_is_known(cluster: FakeCluster) -> None:
    tested, frame = router(cluster), request(LIST_GROUPS, 0, 1)
    assert tested.route(frame, 0, len(frame), False) == INCOMPLETE
    assert tested.wait == QUIET
    assert waits(tested, frame) == GATHER
    assert tested.request == frame
    tested.gathered(b"answer")
    assert tested.route(frame, 0, len(frame), True) == len(frame)
    assert tested.take_reply() == b"answer"
    assert waits(tested, frame) == GATHER, "each request is sent again"
    cluster.leads(3)
    passes(tested, produce_to(b"t"))
    assert passes(tested, frame) == 3


def test_credentials_need_a_known_broker(cluster: FakeCluster) -> None:
    frame = request(SASL_HANDSHAKE, 1, 1, string(b"PLAIN"))
    with pytest.raises(UnidentifiedBroker, match="use a client that sends ApiVersions v5"):
        router(cluster).route(frame, 0, len(frame), True)
    tested = router(cluster, assumed=2)
    assert passes(tested, frame) == 2
    cluster.leads(2)
    assert passes(tested, produce_to(b"t")) == 2
    cluster.leads(3, b"other")
    other = produce_to(b"other")
    with pytest.raises(
        UnidentifiedBroker, match="authenticated to broker 2, and its request is for broker 3"
    ):
        tested.route(other, 0, len(other), True)


def test_client_with_credentials_may_bootstrap_while_the_assumed_broker_is_down(cluster: FakeCluster) -> None:
    cluster.down = {2}
    tested = router(cluster, assumed=2)
    assert passes(tested, request(SASL_HANDSHAKE, 1, 1, string(b"PLAIN"))) == ANY
    assert passes(tested, metadata()) == ANY
