"""The worker's own requests to brokers: few for many clients, and an end for each of them."""

from __future__ import annotations

import asyncio
import struct
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest

from fleet.core.model import Broker, BrokerId
from fleet.proxy import lookups
from fleet.proxy.brokers import Upstreams
from fleet.proxy.gatherings import Gatherings
from fleet.proxy.lookups import KeyLookups
from fleet.proxy.routing_map import NO_BROKER, RoutingMap
from fleet.proxy.wire.merging import LIST_GROUPS
from fleet.proxy.wire.routes import GROUP, TOPIC_ID, TOPIC_NAME, TRANSACTION
from tests.conformance.exchange import request_form, response_form, response_frame
from tests.conformance.messages import Reader, Values, encode
from tests.conformance.scripted import definitions
from tests.property.wire_fleet import request

API_VERSIONS, METADATA, FIND_COORDINATOR = 18, 3, 10
MESSAGES = {each.api_key: each for each in definitions()}
PATIENT_S, HASTY_S = 30.0, 0.2
ID_OF_A = uuid.UUID(int=10)


@dataclass
class FakeBroker:
    """Leads partition 0 of each topic, and coordinates each group whose name does not begin with "no"."""

    newest: dict[int, int] = field(default_factory=lambda: {METADATA: 13, FIND_COORDINATOR: 6})
    broker_id: BrokerId = 7
    is_silent: bool = False
    requests: Counter[int] = field(default_factory=Counter)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    groups: tuple[str, ...] = ()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                frame = await reader.readexactly(size)
                key, version, correlation_id, client_id_bytes = struct.unpack_from(">hhih", frame)
                self.requests[key] += 1
                if self.is_silent:
                    continue
                message, form = MESSAGES[key], request_form(MESSAGES[key], version)
                values = Reader(frame[10 + client_id_bytes + form.flexible :]).message(form)
                body = encode(response_form(message, version), self.answer(key, version, values))
                writer.write(response_frame(message, version, correlation_id, body))
        except (EOFError, ConnectionError, asyncio.CancelledError):
            writer.close()

    def answer(self, key: int, version: int, values: Values) -> Values:
        if key == API_VERSIONS:
            ranges = [
                {"ApiKey": each, "MinVersion": 0, "MaxVersion": newest}
                for each, newest in self.newest.items()
            ]
            return {"ErrorCode": 0, "ApiKeys": ranges}
        if key == LIST_GROUPS:
            groups = [{"GroupId": each, "ProtocolType": "consumer"} for each in self.groups]
            return {"ErrorCode": 0, "Groups": groups}
        if key == FIND_COORDINATOR:
            found = [self.coordinator(each) for each in values.get("CoordinatorKeys", [values.get("Key")])]
            return {"ThrottleTimeMs": 0, "ErrorMessage": None, **found[0], "Coordinators": found}
        topics = [
            {
                "ErrorCode": 0,
                "Name": each["Name"] or "a",
                "TopicId": uuid.uuid5(uuid.NAMESPACE_DNS, each["Name"]) if each["Name"] else ID_OF_A,
                "IsInternal": False,
                "Partitions": [self.partition()],
                "TopicAuthorizedOperations": 0,
            }
            for each in values["Topics"]
        ]
        head = {"ThrottleTimeMs": 0, "Brokers": [], "ClusterId": "c", "ControllerId": 1}
        return {**head, "Topics": topics, "ClusterAuthorizedOperations": 0}

    def coordinator(self, key: str) -> Values:
        error_code = 15 if key.startswith("no") else 0
        return {
            "Key": key,
            "NodeId": -1 if error_code else self.broker_id,
            "Host": "",
            "Port": -1,
            "ErrorCode": error_code,
            "ErrorMessage": None,
        }

    def partition(self) -> Values:
        replicas = {"ReplicaNodes": [self.broker_id, 8], "IsrNodes": [], "OfflineReplicas": []}
        return {"ErrorCode": 0, "PartitionIndex": 0, "LeaderId": self.broker_id, "LeaderEpoch": 0, **replicas}


@asynccontextmanager
async def serving(*brokers: FakeBroker) -> AsyncIterator[Upstreams]:
    """Brokers, and a worker's view of them: all are up."""
    servers = [await asyncio.start_server(each.serve, "127.0.0.1", 0) for each in brokers]
    upstreams = Upstreams(())
    ports = [each.sockets[0].getsockname()[1] for each in servers]
    upstreams.commit(
        {
            each.broker_id: Broker(each.broker_id, "127.0.0.1", port)
            for each, port in zip(brokers, ports, strict=True)
        }
    )
    upstreams.note_reachable({each.broker_id: True for each in brokers}, 0.0)
    try:
        yield upstreams
    finally:
        for server in servers:
            server.close()
        for writer in (writer for each in brokers for writer in each.writers):
            writer.close()


async def ask(tested: KeyLookups, *keys: tuple[int, bytes]) -> None:
    """Ask for keys, and wait for all answers."""
    loop = asyncio.get_running_loop()
    answers = [loop.create_future() for _ in keys]
    for (kind, key), answer in zip(keys, answers, strict=True):
        tested.ask(kind, key, partial(answer.set_result, None))
    async with asyncio.timeout(PATIENT_S):
        await asyncio.gather(*answers)


async def test_all_kinds_of_keys_are_found() -> None:
    broker, routing = FakeBroker(), RoutingMap()
    async with serving(broker) as upstreams:
        tested = KeyLookups(routing, upstreams, None, PATIENT_S)
        await ask(
            tested,
            (TOPIC_NAME, b"t"),
            (TOPIC_ID, ID_OF_A.bytes),
            (GROUP, b"g"),
            (TRANSACTION, b"x"),
            (GROUP, b"no"),
        )
        tested.stop()
    assert routing.find(TOPIC_NAME, b"t", 0) == routing.find(TOPIC_ID, ID_OF_A.bytes, 0) == 7
    assert routing.is_replica(TOPIC_NAME, b"t", 0, 8)
    assert routing.find(GROUP, b"g", -1) == routing.find(TRANSACTION, b"x", -1) == 7
    assert routing.find(GROUP, b"no", -1) == NO_BROKER


async def test_old_broker_gets_old_requests() -> None:
    broker, routing = FakeBroker({METADATA: 9, FIND_COORDINATOR: 3}), RoutingMap()
    async with serving(broker) as upstreams:
        tested = KeyLookups(routing, upstreams, None, PATIENT_S)
        await ask(tested, (TOPIC_NAME, b"t"), (TOPIC_ID, ID_OF_A.bytes), (GROUP, b"g"), (GROUP, b"h"))
        tested.stop()
    assert (
        routing.find(TOPIC_NAME, b"t", 0)
        == routing.find(GROUP, b"g", -1)
        == routing.find(GROUP, b"h", -1)
        == 7
    )
    assert routing.find(TOPIC_ID, ID_OF_A.bytes, 0) == NO_BROKER, "no version before 12 has topic ids"
    assert broker.requests[FIND_COORDINATOR] == 2


async def test_ten_thousand_clients_on_a_hundred_topics_cause_few_requests() -> None:
    broker, routing = FakeBroker(), RoutingMap()
    async with serving(broker) as upstreams:
        tested = KeyLookups(routing, upstreams, None, PATIENT_S)
        await ask(tested, *((TOPIC_NAME, b"t%d" % (number % 100)) for number in range(10_000)))
        tested.stop()
    assert all(routing.find(TOPIC_NAME, b"t%d" % number, 0) == 7 for number in range(100))
    assert tested.requests == broker.requests[METADATA] <= 3


async def test_many_keys_are_asked_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "MAX_BATCH_KEYS", 10)
    broker, routing = FakeBroker(), RoutingMap()
    async with serving(broker) as upstreams:
        tested = KeyLookups(routing, upstreams, None, PATIENT_S)
        await ask(tested, *((GROUP, b"g%d" % number) for number in range(95)))
        tested.stop()
    assert all(routing.find(GROUP, b"g%d" % number, -1) == 7 for number in range(95))
    assert broker.requests[FIND_COORDINATOR] == 10


async def test_connection_that_the_broker_closed_is_opened_again() -> None:
    broker, routing = FakeBroker(), RoutingMap()
    async with serving(broker) as upstreams:
        tested = KeyLookups(routing, upstreams, None, PATIENT_S)
        await ask(tested, (GROUP, b"g"))
        broker.writers.pop().close()
        await ask(tested, (GROUP, b"h"))
        tested.stop()
    assert routing.find(GROUP, b"h", -1) == 7
    assert broker.requests[API_VERSIONS] == 2


@pytest.mark.parametrize("newest", [{}, {METADATA: 8, FIND_COORDINATOR: 6}])
async def test_broker_without_the_versions_is_reported_once(
    caplog: pytest.LogCaptureFixture, newest: dict[int, int]
) -> None:
    broker, routing = FakeBroker(newest), RoutingMap()
    async with serving(broker) as upstreams:
        tested = KeyLookups(routing, upstreams, None, PATIENT_S)
        await ask(tested, (GROUP, b"g"))
        await ask(tested, (GROUP, b"h"))
        tested.stop()
    assert routing.find(GROUP, b"g", -1) == NO_BROKER
    (line,) = (each for each in caplog.messages if "which brokers keys belong to" in each)
    assert "API key 3 has versions 0 to" in line


async def test_silent_broker_is_given_up() -> None:
    broker, routing = FakeBroker(is_silent=True), RoutingMap()
    routing.learn_coordinator(GROUP, b"known", 3, 0.0)
    async with serving(broker) as upstreams:
        tested = KeyLookups(routing, upstreams, None, HASTY_S)
        await ask(tested, (GROUP, b"known"), (TOPIC_NAME, b"t"))
        tested.stop()
    assert routing.find(GROUP, b"known", -1) == 3, "an old answer is better than none"
    assert routing.find(TOPIC_NAME, b"t", 0) == NO_BROKER
    assert broker.requests[API_VERSIONS] == lookups.MAX_ATTEMPTS


async def test_without_brokers_each_key_has_an_end() -> None:
    routing = RoutingMap()
    tested = KeyLookups(routing, Upstreams(()), None, PATIENT_S)
    await ask(tested, (GROUP, b"g"))
    assert routing.find(GROUP, b"g", -1) == NO_BROKER


async def gather(tested: Gatherings) -> bytes:
    answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    tested.ask(request(LIST_GROUPS, 0, 1), answer.set_result)
    async with asyncio.timeout(PATIENT_S):
        return await answer


async def test_groups_of_all_brokers_are_listed() -> None:
    brokers = [FakeBroker(broker_id=each, groups=(f"g{each}", "both")) for each in (1, 2)]
    async with serving(*brokers) as upstreams:
        answer = await gather(Gatherings(upstreams, None, PATIENT_S))
        form = response_form(MESSAGES[LIST_GROUPS], 0)
        found = Reader(answer[8:]).message(form)["Groups"]
        assert sorted(each["GroupId"] for each in found) == ["both", "both", "g1", "g2"]


async def test_groups_are_not_listed_without_one_of_the_brokers() -> None:
    brokers = [FakeBroker(broker_id=1), FakeBroker(broker_id=2, is_silent=True)]
    async with serving(*brokers) as upstreams:
        assert await gather(Gatherings(upstreams, None, HASTY_S)) == b""
        upstreams.note_reachable({1: True, 2: False}, 0.0)
        assert await gather(Gatherings(upstreams, None, PATIENT_S)), "a broker that is down has no groups"
