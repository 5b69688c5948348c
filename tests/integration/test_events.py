"""Events of a real fleet on their way to a real Kafka, which may be unreachable."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeVar

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from fleet.core import event_schema
from fleet.core.event_schema import ConnectionEvent, LivenessEvent, OwnershipEvent, TrafficEvent
from fleet.core.model import Endpoint, Liveness
from fleet.core.traffic import ConnectionEnd
from fleet.drills.cluster.fleet import LISTENER
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.drills.cluster.ports import free_ports
from fleet.events.publisher import EXPENDABLE_LIMIT_RECORDS, QUEUE_LIMIT_RECORDS, Publisher
from fleet.events.spool import Record, Spool
from fleet.events.topics import TOPICS
from fleet.runtime.ipc import BOOTSTRAP
from tests.conftest import PLAINTEXT, MakeFleet, MakeTopic
from tests.integration import wire
from tests.integration.clients import LIMIT_S, Load, leaders, produce, read_all, wait_for
from tests.integration.conftest import FleetCommand
from tests.integration.metrics import scrape
from tests.integration.relay import Relays
from tests.integration.test_frames import identity_port
from tests.integration.wire import Connection

pytestmark = pytest.mark.size("test-all")

EventT = TypeVar("EventT")

ROOM = 8 << 20
PRODUCE, FETCH = 0, 1
RECORDS = [b"%0100d" % number for number in range(400)]
BROKER = 1
ENDS: Final[Mapping[ConnectionEnd, bytes]] = MappingProxyType(
    {
        "refused": b"\xff" * 32,
        # A request of four bytes cannot hold the claimed number of topics: the broker closes the connection.
        "broker": wire.request(wire.METADATA, 1, 2, struct.pack(">i", 1 << 20)),
    }
)
"""The reason of a closed connection, and the client software that the client has named."""


def records(first: int, count: int) -> list[Record]:
    return [
        Record("members", b"p%d" % (number % 5), b"%06d" % number) for number in range(first, first + count)
    ]


@contextmanager
def publisher(prefix: str, servers: Callable[[], tuple[Endpoint, ...]], folder: Path) -> Iterator[Publisher]:
    made = Publisher("test-events", servers, PLAINTEXT, prefix, folder / "spool", ROOM)
    made.start()
    try:
        yield made
    finally:
        made.stop(LIMIT_S)


def values(kafka: KafkaCluster, topic: str, expected: int) -> list[bytes]:
    return [each.value() or b"" for each in read_all(kafka.bootstrap_servers, topic, expected, partitions=3)]


def test_events_arrive_in_the_order_of_their_keys(kafka: KafkaCluster, tmp_path: Path) -> None:
    with publisher("events-a.", lambda: kafka.endpoints, tmp_path) as made:
        made.put(records(0, 2000))
        wait_for(lambda: made.progress.sent == 2000, "all records are sent")
        assert (made.progress.waiting, made.progress.dropped, made.progress.trouble) == (0, 0, "")
    arrived = values(kafka, "events-a.members", 2000)
    for key in range(5):
        own_values = [value for value in arrived if int(value) % 5 == key]
        assert own_values == [each.value for each in records(0, 2000) if each.key == b"p%d" % key]
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    described = admin.list_topics(timeout=LIMIT_S).topics
    for topic in TOPICS:
        name = f"events-a.{topic.name}"
        assert len(described[name].partitions) == topic.partitions
        assert all(len(each.replicas) == 3 for each in described[name].partitions.values())
        resource = ConfigResource(ResourceType.TOPIC, name)
        config = admin.describe_configs([resource])[resource].result(LIMIT_S)
        assert {each: config[each].value for each in topic.config} == dict(topic.config)


def test_events_wait_on_disk_across_a_restart_without_kafka(kafka: KafkaCluster, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    front = Endpoint("127.0.0.1", port)
    with publisher("events-b.", lambda: (front,), tmp_path) as made:
        made.put(records(0, 100))
        wait_for(
            lambda: made.progress.waiting == 100 and made.progress.trouble,
            "the clients wait, and the log says so",
        )
    with publisher("events-b.", lambda: (front,), tmp_path) as made:
        made.put(records(100, 100))
        wait_for(lambda: made.progress.waiting == 200, "all of them wait")
        relays = Relays()
        relays.forward(front, kafka.endpoints[0])
        try:
            wait_for(lambda: made.progress.sent == 200, "the events are sent once Kafka is available")
        finally:
            relays.close()
        assert made.progress.trouble == ""
    assert sorted(values(kafka, "events-b.members", 200)) == [each.value for each in records(0, 200)]


def test_flood_of_events_is_dropped_and_counted_without_blocking(tmp_path: Path) -> None:
    made = Publisher("test-events", tuple, PLAINTEXT, "events-c.", tmp_path / "spool", ROOM)
    made.put(records(0, QUEUE_LIMIT_RECORDS + 7))
    made.start()
    try:
        wait_for(lambda: made.progress.waiting == QUEUE_LIMIT_RECORDS, "the first events are stored")
        assert made.progress.dropped == 7
    finally:
        made.stop(LIMIT_S)


def test_expendable_events_leave_room_for_the_others(tmp_path: Path) -> None:
    made = Publisher("test-events", tuple, PLAINTEXT, "events-g.", tmp_path / "spool", ROOM)
    made.put(Record("traffic", None, b"%d" % number) for number in range(QUEUE_LIMIT_RECORDS))
    made.put(records(0, QUEUE_LIMIT_RECORDS - EXPENDABLE_LIMIT_RECORDS + 1))
    made.start()
    try:
        wait_for(
            lambda: made.progress.waiting == QUEUE_LIMIT_RECORDS, "the first events of each topic are stored"
        )
        assert made.progress.dropped == QUEUE_LIMIT_RECORDS - EXPENDABLE_LIMIT_RECORDS + 1
    finally:
        made.stop(LIMIT_S)


@pytest.mark.parametrize("spoilt", [True, False])
def test_failing_disk_is_retried(tmp_path: Path, spoilt: bool) -> None:
    path = tmp_path / "spool"
    if spoilt:
        path.mkdir()
    made = Publisher("test-events", tuple, PLAINTEXT, "events-d.", path, ROOM)
    made.start()
    try:
        made.put(records(0, 3))
        if spoilt:
            wait_for(lambda: "spool" in made.progress.trouble, "the reported error of the spool")
            path.rmdir()
        wait_for(lambda: made.progress.waiting == 3, "the events are stored at last")
    finally:
        made.stop(LIMIT_S)
    with Spool(path, ROOM) as spool:
        assert [each.record for each in spool.oldest(9)] == records(0, 3)


def test_fleet_writes_events_of_its_takeovers(kafka: KafkaCluster, make_fleet: MakeFleet) -> None:
    fleet = make_fleet(events={"topic_prefix": "events-e."})
    leader = fleet.leader()
    assert leader is not None
    owned = {each.broker_id for each in fleet.ownership(leader).identities if each.committed == (leader,)}
    killed_ms = time.time_ns() // 1_000_000
    fleet.kill(leader)
    gone_ms = time.time_ns() // 1_000_000
    fleet.await_settled(frozenset(kafka.brokers), fleet.running)
    witness = fleet.running[0]
    committed = fleet.ownership(witness)
    generations = range(1, committed.generation + 1)

    def read_events() -> list[OwnershipEvent]:
        found = (event_schema.EVENTS.decode(each) for each in everything(kafka, "events-e.ownership"))
        return [each for each in found if isinstance(each, OwnershipEvent)]

    wait_for(
        lambda: (
            {each.generation for each in read_events()} == set(generations)
            and all(
                {each.told_by for each in read_events() if each.generation == generation}
                >= set(fleet.running)
                for generation in generations
            )
        ),
        "the survivors report every generation",
    )
    events = read_events()
    for generation in generations:
        versions = {(each.id, each.owners) for each in events if each.generation == generation}
        assert len(versions) == len({event_id for event_id, _ in versions}), "all tell the same"
    taken_over = [
        each
        for each in events
        if each.told_by == witness and each.before == (leader,) and each.committed_at_ms >= killed_ms
    ]
    assert {each.broker_id for each in taken_over} == owned
    for event in taken_over:
        assert event.reason == "takeover"
        assert event.detected_at_ms is not None
        assert event.alive_at_ms is not None
        assert event.alive_at_ms <= gone_ms
        assert killed_ms <= event.detected_at_ms <= event.committed_at_ms
    assert all(
        any(each.id == event.id and each.advertised_at_ms is not None for each in events)
        for event in taken_over
    )
    suspected = [
        each
        for each in map(event_schema.EVENTS.decode, everything(kafka, "events-e.members"))
        if isinstance(each, LivenessEvent) and each.proxy_id == leader and each.after is Liveness.SUSPECT
    ]
    assert {each.told_by for each in suspected} == set(fleet.running)

    def latest() -> dict[int, tuple[str, ...]]:
        found = (event_schema.EVENTS.decode(each) for each in everything(kafka, "events-e.ownership.latest"))
        return {each.broker_id: each.owners for each in found if isinstance(each, OwnershipEvent)}

    wait_for(
        lambda: latest() == {each.broker_id: each.committed for each in committed.identities},
        "the compacted copy has the owners of now",
    )


def test_fleet_writes_events_of_its_traffic(
    kafka: KafkaCluster, make_fleet: MakeFleet, make_topic: MakeTopic, fleet_command: FleetCommand
) -> None:
    """As many requests and bytes as the metrics count, each connection once, and the reason of its end."""
    fleet = make_fleet(events={"topic_prefix": "events-f."})
    topic = make_topic()
    for _ in range(3):
        # One request for each record, and one read for each request: fewer reads might all be unsampled.
        alone = {"batch.num.messages": 1, "max.in.flight": 1}
        produce(fleet.bootstrap(), topic, RECORDS, **alone, **{"client.id": "teller"})
    read_all(fleet.bootstrap(), topic, 3 * len(RECORDS), config={"client.id": "reader"})

    def counted(name: str, **labels: str) -> float:
        samples = (each for proxy_id in fleet.members for each in scrape(fleet, proxy_id)[name])
        return sum(value for found, value in samples if labels.items() <= found.items())

    def figures() -> tuple[dict[str, int], dict[str, float]]:
        """The counts of the events, and the counts of the metrics."""
        events = read_events(kafka, "events-f.traffic", TrafficEvent)
        sums: dict[str, int] = {}
        for api, api_key in (("Produce", PRODUCE), ("Fetch", FETCH)):
            sums[api] = sum(each.apis[api_key].requests for each in events if api_key in each.apis)
        for direction in ("to_broker", "to_client"):
            sums[direction] = sum(getattr(each, f"bytes_{direction}") for each in events)
        counts = {
            name: counted("fleet_requests_total", api=name)
            if name in ("Produce", "Fetch")
            else counted("fleet_bytes_total", direction=name)
            for name in sums
        }
        return sums, counts

    def all_reported() -> bool:
        """Both lag behind the traffic, and may agree on an earlier state."""
        sums, counts = figures()
        return sums == counts and sums["Produce"] >= 3 * len(RECORDS)

    wait_for(all_reported, "every request and every byte")
    traffic = read_events(kafka, "events-f.traffic", TrafficEvent)
    assert len({each.id for each in traffic}) == len(traffic)
    assert {each.listener for each in traffic} == {LISTENER}
    assert {each.broker_id for each in traffic} == {*leaders(kafka, topic), BOOTSTRAP}
    produced = [each.apis[PRODUCE] for each in traffic if PRODUCE in each.apis]
    sampled = sum(each.sampled for each in produced)
    assert 0 < sampled < sum(each.requests for each in produced)
    assert sum(sum(each.latency.values()) for each in produced) == sampled
    assert sum(each.request_bytes for each in produced) > sampled * len(RECORDS[0])
    assert "teller" in {name for each in traffic for name in each.clients}

    def connections() -> dict[str, list[ConnectionEvent]]:
        found: dict[str, list[ConnectionEvent]] = {}
        for each in read_events(kafka, "events-f.connections", ConnectionEvent):
            if each.client_id in ("teller", "reader"):
                found.setdefault(each.connection, []).append(each)
        return found

    wait_for(lambda: all(len(each) == 2 for each in connections().values()), "every end of a connection")
    assert {each.what for both in connections().values() for each in both} == {"opened", "closed"}
    assert all(each.owned for both in connections().values() for each in both)

    endpoint = identity_port(fleet, "p1", BROKER)
    own_values = partial(raw_connections, kafka, "events-f.connections")
    owners = {each.broker_id: each.committed for each in fleet.ownership("p1").identities}
    for number, (why, bad) in enumerate(ENDS.items(), 1):
        with Connection(endpoint) as connection:
            assert connection.ask(wire.metadata(1))
            connection.send(bad)
            assert connection.ends()
        ended = partial(lambda number: len(own_values()) == 2 * number, number)
        wait_for(ended, f"the end of a connection: {why}")
    assert {each.why: each.what for each in own_values()} == {None: "opened"} | dict.fromkeys(ENDS, "cut")
    assert {(each.told_by, each.broker_id, each.owned) for each in own_values()} == {
        ("p1", BROKER, "p1" in owners[BROKER])
    }

    (moved,) = (each.broker_id for each in fleet.ownership("p1").identities if each.committed == ("p2",))
    with Load(fleet.bootstrap(), make_topic()):
        fleet_command(fleet, "drain", "p2")
        wait_for(
            lambda: any(
                (each.what, each.why, each.told_by, each.broker_id, each.owned)
                == ("moved", "moved", "p2", moved, False)
                for each in read_events(kafka, "events-f.connections", ConnectionEvent)
            ),
            "a connection that was moved",
        )


def raw_connections(kafka: KafkaCluster, topic: str) -> list[ConnectionEvent]:
    return [
        each
        for each in read_events(kafka, topic, ConnectionEvent)
        if each.client_id == wire.CLIENT_ID.decode()
    ]


def read_events(kafka: KafkaCluster, topic: str, kind: type[EventT]) -> list[EventT]:
    """The events of one kind in a topic."""
    return [
        each for each in map(event_schema.EVENTS.decode, everything(kafka, topic)) if isinstance(each, kind)
    ]


def everything(kafka: KafkaCluster, topic: str) -> list[bytes]:
    """All records of a topic so far; none if the topic does not exist yet."""
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "unused", "enable.auto.commit": False}
    )
    try:
        partitions = consumer.list_topics(topic, LIMIT_S).topics[topic].partitions
        places = [TopicPartition(topic, each, 0) for each in partitions]
        ends = {each.partition: consumer.get_watermark_offsets(each, LIMIT_S)[1] for each in places}
        consumer.assign(places)
        found: list[bytes] = []
        while len(found) < sum(ends.values()):
            found += [each.value() or b"" for each in consumer.consume(100, 0.2) if each.error() is None]
        return found
    finally:
        consumer.close()
