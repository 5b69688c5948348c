"""Leaders move under load. Brokers name the new leaders to clients, with addresses of the fleet only.

A leader moves once every partition has acknowledged something since the move before. Where leaders move
faster, librdkafka's idempotent producer loses and repeats records, on Kafka alone as well (in 2 of 113 runs
straight at the brokers, of 12 moves in 3 s each): it takes NOT_LEADER_OR_FOLLOWER for "not persisted", and a
broker that knows nothing of a producer accepts any first sequence number of it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, TopicPartition

from fleet.core.model import Endpoint
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.conformance.real import NO_ID, Request, Route, fetch_request, produce_request
from tests.conformance.releases import advertised
from tests.conformance.scripted import definitions
from tests.integration.clients import Load, wait_for
from tests.integration.clients import count as records_in
from tests.integration.conftest import NAT_HOST, behind_relays
from tests.integration.relay import Recording, Relays, leaks, secrets_of

pytestmark = pytest.mark.size("test-all")

PARTITIONS: Final = 3
MOVES: Final = 4
DISTANT_HOST: Final = "127.188.109.109"
PRODUCE, FETCH, SHARED = range(10, 14), range(16, 19), range(1, 3)
"""Versions whose answers name the new leader (KIP-951)."""
UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER, FENCED_LEADER_EPOCH = 3, 6, 74
MakeTopic = Callable[..., str]


@pytest.fixture
def route(fleet: LocalFleet) -> Iterator[Route]:
    connected_route = Route(advertised(fleet), definitions())
    yield connected_route
    connected_route.close()


def topic_named(topic: str) -> Request:
    return Request({"Topics": [{"TopicId": NO_ID, "Name": topic}]})


class Mover:
    """Moves the leader of every partition of a topic to the next of its replicas, through the fleet."""

    def __init__(self, route: Route, topic: str) -> None:
        self._route = route
        self._topic = topic
        self._replicas = {each["PartitionIndex"]: each["ReplicaNodes"] for each in self._partitions()}

    def leaders(self) -> dict[int, int]:
        return {each["PartitionIndex"]: each["LeaderId"] for each in self._partitions()}

    def epochs(self) -> dict[int, int]:
        return {each["PartitionIndex"]: each["LeaderEpoch"] for each in self._partitions()}

    def move(self) -> None:
        """Move all leaders. Returns when each partition has a new leader."""
        self._replicas = {each: [*others, first] for each, (first, *others) in self._replicas.items()}
        partitions = [
            {"PartitionIndex": each, "Replicas": replicas} for each, replicas in self._replicas.items()
        ]
        topics = [{"Name": self._topic, "Partitions": partitions}]
        self._route.answer("AlterPartitionReassignments", 0, Request({"TimeoutMs": 30_000, "Topics": topics}))
        target_leaders = {each: replicas[0] for each, replicas in self._replicas.items()}

        def moved() -> bool:
            elected = [{"Topic": self._topic, "Partitions": list(self._replicas)}]
            request_fields = {"ElectionType": 0, "TopicPartitions": elected, "TimeoutMs": 30_000}
            self._route.answer("ElectLeaders", 2, Request(request_fields))
            return self.leaders() == target_leaders

        wait_for(moved, f"{self._topic} led by {target_leaders}")

    def _partitions(self) -> list[dict[str, Any]]:
        answer = self._route.answer("Metadata", 12, topic_named(self._topic))
        found: list[dict[str, Any]] = answer["Topics"][0]["Partitions"]
        return found


@pytest.fixture(scope="module")
def led_topic(fleet: LocalFleet, make_topic: MakeTopic) -> Iterator[tuple[Mover, str]]:
    """A topic under load whose leaders can be moved."""
    topic, route = make_topic(PARTITIONS), Route(advertised(fleet), definitions())
    with Load(fleet.bootstrap(), topic, PARTITIONS) as load:
        yield Mover(route, topic), topic
    route.close()
    assert load.failures == load.errors == []


def has_leaders_addresses(recording: Recording, nat_host: str = NAT_HOST) -> bool:
    """Whether an answer has ended with addresses: one tagged field, 0, with an array of nodes."""
    host = bytes((len(nat_host) + 1,)) + nat_host.encode()
    pattern = rb"\x01\x00.[\x02-\x04]\x00\x00\x00[\x01-\x03]" + re.escape(host)
    streams = [bytes(each) for each in list(recording.streams.values())]
    return any(re.search(pattern, each, re.DOTALL) for each in streams)


def blanked(recording: Recording) -> bool:
    """Whether an answer has ended with padding instead: one unknown tagged field of zeros."""
    streams = [bytes(each) for each in list(recording.streams.values())]
    found = (re.finditer(rb"\x01[\x7e\x7f]([\x10-\x7f])(\x00+)", each) for each in streams)
    return any(len(each[2]) >= each[1][0] for each in chain.from_iterable(found))


@pytest.fixture
def distant_fleet(kafka: KafkaCluster, relays: Relays, tmp_path: Path) -> Iterator[LocalFleet]:
    """Like `fleet`, with an advertised host that is longer than the brokers' hosts."""
    with behind_relays(kafka, relays, tmp_path, DISTANT_HOST) as connected_route:
        yield connected_route


def test_producer_learns_the_new_leader(
    fleet: LocalFleet, kafka: KafkaCluster, relays: Relays, route: Route, make_topic: MakeTopic
) -> None:
    topic = make_topic(PARTITIONS)
    mover = Mover(route, topic)
    with relays.recording() as recording, Load(fleet.bootstrap(), topic, PARTITIONS) as load:

        def has_new_leader() -> bool:
            mover.move()
            load.await_flow()
            return has_leaders_addresses(recording)

        for _ in range(MOVES):
            has_new_leader()

        wait_for(has_new_leader, "who leads instead", 120.0)
    assert load.failures == load.errors == []
    assert load.acknowledged == records_in(kafka.bootstrap_servers, topic, range(PARTITIONS))


def test_consumer_learns_the_new_leader(
    fleet: LocalFleet, kafka: KafkaCluster, relays: Relays, route: Route, make_topic: MakeTopic
) -> None:
    """The other producer knows the brokers: the recording has answers to Fetch only."""
    topic = make_topic(PARTITIONS)
    with relays.recording() as recording:
        follow(fleet, kafka, Mover(route, topic), topic, lambda: has_leaders_addresses(recording))


def test_consumer_retries_where_the_fleets_addresses_do_not_fit(
    distant_fleet: LocalFleet, kafka: KafkaCluster, relays: Relays, route: Route, make_topic: MakeTopic
) -> None:
    """The addresses are longer than the brokers': padding replaces them, and the client requests Metadata."""
    topic = make_topic(PARTITIONS)
    with relays.recording() as recording:
        follow(distant_fleet, kafka, Mover(route, topic), topic, lambda: blanked(recording))
    assert not has_leaders_addresses(recording, DISTANT_HOST)
    assert leaks(secrets_of(kafka), recording) == []


def follow(
    fleet: LocalFleet, kafka: KafkaCluster, mover: Mover, topic: str, seen: Callable[[], bool]
) -> None:
    """Consume every record once, while leaders move until a condition holds."""
    consumer = Consumer(
        {"bootstrap.servers": fleet.bootstrap(), "group.id": topic, "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, each, 0) for each in range(PARTITIONS)])
    received: list[tuple[int, int]] = []

    def receive() -> int:
        for message in consumer.consume(500, 0.2):
            assert message.error() is None, message.error()
            received.append((message.partition(), message.offset()))
        return len(received)

    try:
        with Load(kafka.bootstrap_servers, topic, PARTITIONS) as load:

            def has_moved_everywhere() -> bool:
                mover.move()
                load.await_flow()
                receive()
                return seen()

            wait_for(receive, "the first records")
            for _ in range(MOVES):
                has_moved_everywhere()
            wait_for(has_moved_everywhere, "what an answer says of who leads instead", 120.0)
        wait_for(lambda: receive() >= load.acknowledged, "every record")
    finally:
        consumer.close()
    assert load.failures == load.errors == []
    assert len(received) == len(set(received)) == load.acknowledged


@pytest.mark.parametrize(
    ("api", "version"), [*(("Produce", each) for each in PRODUCE), *(("Fetch", each) for each in FETCH)]
)
def test_every_version_names_the_new_leader_by_fleet_address(
    fleet: LocalFleet, route: Route, led_topic: tuple[Mover, str], api: str, version: int
) -> None:
    """Sent to brokers that have just led."""
    mover, topic = led_topic
    topic_id = route.answer("Metadata", 12, topic_named(topic))["Topics"][0]["TopicId"]
    before, epochs = mover.leaders(), mover.epochs()
    mover.move()
    for partition, leader in mover.leaders().items():
        old = before[partition]
        request = (
            produce_request(topic, topic_id, partition, old)
            if api == "Produce"
            else fetch_request(topic, topic_id, partition, old, epochs[partition])
        )

        def names_new_leader(request: Request = request, leader: int = leader) -> bool:
            """A broker learns a moment later that it no longer leads."""
            answer = route.answer(api, version, request)
            nodes = {
                each["NodeId"]: Endpoint(each["Host"], each["Port"])
                for each in answer.get("NodeEndpoints", ())
            }
            assert nodes.items() <= route.endpoints.items()
            ((result,),) = (
                each.get("PartitionResponses") or each["Partitions"] for each in answer["Responses"]
            )
            return result["ErrorCode"] in (NOT_LEADER, FENCED_LEADER_EPOCH) and nodes.keys() == {leader}

        wait_for(names_new_leader, f"{api} v{version}: broker {old} names leader {leader}")


@pytest.mark.parametrize("version", SHARED)
def test_share_consumer_learns_the_new_leader(
    fleet: LocalFleet, route: Route, led_topic: tuple[Mover, str], version: int
) -> None:
    """With ShareFetch. A broker that has just led answers ShareAcknowledge with an unknown partition."""
    mover, topic = led_topic
    topic_id = route.answer("Metadata", 12, topic_named(topic))["Topics"][0]["TopicId"]
    member = {"GroupId": f"{topic}-{version}", "MemberId": str(uuid.uuid4())}
    asked_for = Request({"KeyType": 0, "CoordinatorKeys": [member["GroupId"]]})
    joining = {**member, "MemberEpoch": 0, "RackId": None, "SubscribedTopicNames": [topic]}

    def joined() -> bool:
        (found,) = route.answer("FindCoordinator", 6, asked_for)["Coordinators"]
        if found["ErrorCode"]:
            return False
        return bool(
            route.answer("ShareGroupHeartbeat", 1, Request(joining, found["NodeId"]))["ErrorCode"] == 0
        )

    wait_for(joined, f"{member['GroupId']} has a member")
    partition, old = next(iter(mover.leaders().items()))
    epochs = count()

    def ask(api: str, batches: Sequence[dict[str, Any]]) -> tuple[int, dict[int, Endpoint]]:
        """The partition's error, and the named brokers."""
        limits = {"MaxWaitMs": 100, "MinBytes": 0, "MaxBytes": 1 << 20, "MaxRecords": 1, "BatchSize": 1}
        partitions = [{"PartitionIndex": partition, "AcknowledgementBatches": batches}]
        topics = [{"TopicId": topic_id, "Partitions": partitions}]
        request_fields = {**member, **limits, "ShareSessionEpoch": next(epochs), "Topics": topics}
        answer = route.answer(api, version, Request(request_fields, old))
        assert answer["ErrorCode"] == 0, answer
        errors = [each["ErrorCode"] for topic in answer["Responses"] for each in topic["Partitions"]]
        nodes = {each["NodeId"]: Endpoint(each["Host"], each["Port"]) for each in answer["NodeEndpoints"]}
        assert nodes.items() <= route.endpoints.items()
        return max(errors, default=0), nodes

    ask("ShareFetch", [])
    mover.move()
    leader = mover.leaders()[partition]

    def names_new_leader() -> bool:
        error, nodes = ask("ShareFetch", [])
        return error == NOT_LEADER and nodes.keys() == {leader}

    wait_for(names_new_leader, f"ShareFetch v{version}: broker {old} names leader {leader}")
    accepted = {"FirstOffset": 0, "LastOffset": 0, "AcknowledgeTypes": [1]}
    assert ask("ShareAcknowledge", [accepted]) == (UNKNOWN_TOPIC_OR_PARTITION, {})
