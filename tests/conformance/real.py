"""Sends the same requests directly to real brokers and through a fleet, and compares the responses.

The requests cover every API and version that the brokers offer through the fleet; ``catalogue`` makes them. A
response through the fleet must equal what ``messages.for_client`` makes of the direct one, except for what
differs between any two requests: see ``NORMALIZATIONS``.
"""

from __future__ import annotations

import os
import socket
import struct
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from fleet.core.model import BrokerId, Endpoint
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.proxy.wire.api_versions import APIS_WITH_BROKER_MINIMUM
from tests.conformance.exchange import (
    API_VERSIONS,
    ENDPOINTS,
    Outcome,
    empty_message,
    read_frame,
    request_form,
    request_frame,
    response_form,
)
from tests.conformance.messages import Form, Reader, Values, encode, for_client
from tests.conformance.scripted import definitions
from tests.integration.relay import secrets_of
from tests.integration.wire import one_record
from tools.gen_tables import Message, Range, offered

SOCKET_TIMEOUT_S: Final = 60.0
MAX_ATTEMPTS: Final = 8
"""Attempts before a difference counts: each broker learns of a change a moment later."""
ATTEMPT_PAUSE_S: Final = 0.25

_CLOCK_TIME = "the time it was"
_RANDOM_VALUE = "random each time"
_BROKER_ACTIVITY = "goes on while brokers are at work"
NORMALIZATIONS: Final[Mapping[str, str]] = {
    "*.ThrottleTimeMs": "depends on the quotas at that moment",
    "Metadata.ControllerId": "any broker, because controllers are hidden from clients",
    "DescribeCluster.ControllerId": "any broker, because controllers are hidden from clients",
    "*.ClientHost": "the source of a request: the fleet",
    "*.MemberId": _RANDOM_VALUE,
    "JoinGroup.Leader": _RANDOM_VALUE,
    "*.ProducerId": "assigned one by one",
    "ApiVersions.FinalizedFeaturesEpoch": _BROKER_ACTIVITY,
    "DescribeQuorum.HighWatermark": _BROKER_ACTIVITY,
    "DescribeQuorum.LogEndOffset": _BROKER_ACTIVITY,
    "DescribeQuorum.LastFetchTimestamp": _CLOCK_TIME,
    "DescribeQuorum.LastCaughtUpTimestamp": _CLOCK_TIME,
    "DescribeTransactions.TransactionStartTimeMs": _CLOCK_TIME,
    "DescribeLogDirs.TotalBytes": "the machine's disk, which other programs use",
    "DescribeLogDirs.UsableBytes": "the machine's disk, which other programs use",
    "GetTelemetrySubscriptions.ClientInstanceId": _RANDOM_VALUE,
    "CreateTopics.TopicId": _RANDOM_VALUE,
}
"""Maps API and field to the reason why a difference is ignored. For addresses see ``messages.for_client``.

The names of objects that an attempt made for itself (``CaseContext.own_objects``) are replaced in both
responses.
"""


NO_ID: Final = uuid.UUID(int=0)
ABSENT_VALUES: Final = ("", -1, None, NO_ID)
"""Values that mean that something does not exist. They stay distinct from values that exist."""


class Route:
    """Connections to each broker over one route, and the requests over them."""

    def __init__(self, endpoints: Mapping[BrokerId, Endpoint], messages: Iterable[Message]) -> None:
        self.endpoints = endpoints
        self.messages = {each.name: each for each in messages}
        self._open: dict[BrokerId, socket.socket] = {}
        self._last_correlation_id = 0

    def send(self, broker_id: BrokerId, name: str, version: int, values: Values) -> bytes | None:
        """Send a request and return the response frame; None if the connection was closed."""
        message = self.messages[name]
        self._last_correlation_id += 1
        request = request_frame(
            message, version, self._last_correlation_id, encode(request_form(message, version), values)
        )
        context = self._open.get(broker_id)
        if context is None:
            endpoint = self.endpoints[broker_id]
            context = self._open[broker_id] = socket.create_connection(
                (endpoint.host, endpoint.port), SOCKET_TIMEOUT_S
            )
        try:
            context.sendall(request)
            answer = read_frame(context)
        except (EOFError, ConnectionError):
            self._open.pop(broker_id).close()
            return None
        assert struct.unpack_from(">i", answer, 4) == (self._last_correlation_id,)
        return answer

    def answer(self, name: str, version: int, request: Request) -> Values:
        """Raises: AssertionError: the connection was closed, or the response does not match its
        definition."""
        message = self.messages[name]
        frame = self.send(
            request.broker_id, name, version, fill(request_form(message, version), request.values)
        )
        assert frame is not None, f"{name} closes the connection"
        return decode(message, version, frame)

    def close(self) -> None:
        for each in self._open.values():
            each.close()


def decode(message: Message, version: int, frame: bytes) -> Values:
    """Raises: AssertionError: the frame does not match the definition."""
    # An ApiVersions response always has the header of v0, and an unsupported request is answered in v0.
    tagged = version >= message.first_flexible and message.api_key != API_VERSIONS
    reader = Reader(frame[9 if tagged else 8 :])
    values = reader.message(response_form(message, version))
    reader.check_end()
    return values


def fill(form: Form, fields: Mapping[str, Any]) -> Values:
    """Make a message with the given fields that this version has, and empty values elsewhere."""
    values = empty_message(form)
    for item in (*form.plain, *form.tagged):
        if item.name not in fields:
            continue
        value = fields[item.name]
        if item.fields and value is not None:
            inner = form.of(item.fields)
            values[item.name] = [fill(inner, each) for each in value] if item.is_array else fill(inner, value)
        else:
            values[item.name] = value
    return values


@dataclass(frozen=True)
class Request:
    """The request for a broker. Fields that a version lacks are omitted."""

    values: Mapping[str, Any]
    broker_id: BrokerId = 1


@dataclass
class CaseContext:
    """The objects that a request may refer to.

    Args:
        direct: the direct route, for preparations.
        ranges: the versions of each API that brokers offer through the fleet.
        topic, topic_id: a topic of three partitions with records; broker 1 leads the first, and so on.
        lonely, lonely_id: a topic of one partition, whose only replica is on broker 1.
        group, coordinator: an idle group that has committed in `topic`.
        unused_topics: unused topics with their ids.
        name: name for groups, transactions, clients and users of one attempt.
        own_objects: objects made for that attempt, and their names in comparisons.
    """

    direct: Route
    ranges: Mapping[str, Range]
    topic: str = ""
    topic_id: uuid.UUID = NO_ID
    single_replica_topic: str = ""
    single_replica_topic_id: uuid.UUID = NO_ID
    group: str = ""
    coordinator: BrokerId = 1
    unused_topics: list[tuple[str, uuid.UUID]] = field(default_factory=list)
    name: str = ""
    own_objects: dict[str | uuid.UUID, str] = field(default_factory=dict)
    result: int = 0

    def begin_attempt(self) -> None:
        """Start another attempt, with its own name."""
        self.result += 1
        self.name = f"real-{os.getpid()}-{self.result:05}"
        self.own_objects = {self.name: "OWN"}

    def prepare(self, name: str, request: Request) -> Values:
        """Prepare something directly at a broker, in the newest version. Retry until it works."""
        deadline_s = time.monotonic() + SOCKET_TIMEOUT_S
        while True:
            answer = self.direct.answer(name, self.ranges[name].high, request)
            codes = set(error_codes(answer))
            if codes <= {0, MEMBER_ID_REQUIRED, UNSUPPORTED_VERSION}:
                return answer
            assert time.monotonic() < deadline_s, f"{name}: {codes} in {answer}"
            time.sleep(0.05)

    def coordinator_of(self, key: str, kind: int = 0) -> BrokerId:
        """Find the coordinator of a group, or of a transactional id, which is kind 1."""
        found = self.prepare("FindCoordinator", Request({"KeyType": kind, "CoordinatorKeys": [key]}))
        node: BrokerId = found["Coordinators"][0]["NodeId"]
        return node

    def unused_topic(self) -> tuple[str, uuid.UUID]:
        """Return the name and id of an unused topic of one partition, which broker 1 leads."""
        if not self.unused_topics:
            names = [f"{self.name}-spare-{number:02}" for number in range(20)]
            self.unused_topics += self.make_topics({name: [[1, 2, 3]] for name in names}).items()
        topic, topic_id = self.unused_topics.pop()
        self.own_objects = {topic: "OWN-TOPIC", topic_id: "OWN-TOPIC-ID", **self.own_objects}
        return topic, topic_id

    def make_topics(self, replicas: Mapping[str, Sequence[Sequence[BrokerId]]]) -> dict[str, uuid.UUID]:
        """Create topics with the given replicas, known to all brokers, and led by the preferred ones."""
        topics = [
            {
                **{"Name": name, "NumPartitions": -1, "ReplicationFactor": -1, "Configs": []},
                "Assignments": [
                    {"PartitionIndex": number, "BrokerIds": list(each)}
                    for number, each in enumerate(expected)
                ],
            }
            for name, expected in replicas.items()
        ]
        self.prepare("CreateTopics", Request({"Topics": topics, "timeoutMs": 30_000}))
        request_fields = {"Topics": [{"TopicId": NO_ID, "Name": name} for name in replicas]}
        ids: dict[str, uuid.UUID] = {}
        for broker_id in self.direct.endpoints:
            answer = self.prepare("Metadata", Request(request_fields, broker_id))
            ids = {each["Name"]: each["TopicId"] for each in answer["Topics"]}
        return ids


MEMBER_ID_REQUIRED: Final = 79
UNSUPPORTED_VERSION: Final = 35
"""The response of a broker that knows an API but has it turned off."""


def error_codes(values: Any) -> Iterable[int]:
    """Yield all error codes of a message."""
    if isinstance(values, list):
        for each in values:
            yield from error_codes(each)
    elif isinstance(values, dict):
        for name, value in values.items():
            if name.endswith("ErrorCode"):
                yield value
            else:
                yield from error_codes(value)


# ---- comparing


def normalized(api: str, values: Any, own_objects: Mapping[Any, str]) -> Any:
    """Replace what differs between any two requests."""
    if isinstance(values, dict):
        result = {}
        for name, value in values.items():
            is_ignored = f"{api}.{name}" in NORMALIZATIONS or f"*.{name}" in NORMALIZATIONS
            result[name] = (
                "…" if is_ignored and value not in ABSENT_VALUES else normalized(api, value, own_objects)
            )
        return result
    if isinstance(values, list):
        return [normalized(api, each, own_objects) for each in values]
    if isinstance(values, str):
        for each, name_in_comparison in own_objects.items():
            values = values.replace(str(each), name_in_comparison)
        return values
    return own_objects.get(values, values) if isinstance(values, uuid.UUID) else values


def first_difference(direct: Any, proxied: Any, path: str = "") -> str:
    """Describe the first difference of two messages; empty if there is none."""
    if isinstance(direct, dict) and isinstance(proxied, dict):
        for name in {**direct, **proxied}:
            found = first_difference(direct.get(name), proxied.get(name), f"{path}.{name}")
            if found:
                return found
        return ""
    if isinstance(direct, list) and isinstance(proxied, list) and len(direct) == len(proxied):
        for number, (direct_frame, proxied_frame) in enumerate(zip(direct, proxied, strict=True)):
            found = first_difference(direct_frame, proxied_frame, f"{path}[{number}]")
            if found:
                return found
        return ""
    return (
        ""
        if direct == proxied
        else f"{path or 'all'}: direct {direct!r:.300}, through the fleet {proxied!r:.300}"
    )


def intersection(message: Message, broker: Mapping[str, int]) -> Values | None:
    """The versions that a fleet offers of an API that a broker offers; None if it offers none."""
    api_versions = offered(message)
    low, high = max(api_versions.low, broker["MinVersion"]), min(api_versions.high, broker["MaxVersion"])
    if low > high:
        return None
    lowest = broker["MinVersion"] if message.api_key in APIS_WITH_BROKER_MINIMUM else low
    return {"ApiKey": message.api_key, "MinVersion": lowest, "MaxVersion": high}


Case: TypeAlias = Callable[[CaseContext, int], Sequence[Request]]


class Comparison:
    """Sends requests directly and through the fleet.

    Args:
        kafka: brokers 1 to 3, idle.
        proxied: the fleet's endpoint for each broker; the fleet is idle, too.
        cases: makes the requests of an API in a version, after preparations.
    """

    def __init__(
        self,
        kafka: KafkaCluster,
        proxied: Mapping[BrokerId, Endpoint],
        cases: Mapping[str, Case],
    ) -> None:
        messages = definitions()
        real = {broker_id: Endpoint(each.host, each.port) for broker_id, each in kafka.brokers.items()}
        self._secrets = secrets_of(kafka)
        self._direct, self._proxied = Route(real, messages), Route(proxied, messages)
        self._cases = cases
        api_versions = self._direct.messages["ApiVersions"]
        frame = self._proxied.send(1, api_versions.name, 0, {})  # v0 has no fields
        assert frame is not None
        offers = {
            each["ApiKey"]: Range(each["MinVersion"], each["MaxVersion"])
            for each in decode(api_versions, 0, frame)["ApiKeys"]
        }
        # Not Produce v0 to v2: see `intersection`.
        self.ranges = {
            each.name: Range(max(offers[each.api_key].low, offered(each).low), offers[each.api_key].high)
            for each in messages
            if each.api_key in offers
        }
        self._context = CaseContext(self._direct, self.ranges)
        self.without_error: set[str] = set()
        """APIs that gave a response without an error, or that are turned off."""

    def run(self, say: Callable[[str], None] = lambda _: None) -> Outcome:
        """Compare every API and version that is offered."""
        self._prepare()
        outcome = Outcome()
        for name, versions in self.ranges.items():
            case = self._cases.get(name)
            if case is None:
                outcome.differences.append(f"{name}: the catalogue has no request")
                continue
            for version in range(versions.low, versions.high + 1):
                outcome.tried.add((self._direct.messages[name].api_key, version))
                difference = self._differs(name, version, case, outcome.leaks)
                if difference:
                    outcome.differences.append(f"{name} v{version}{difference}")
            say(f"{name}: versions {versions.low} to {versions.high}")
        self._direct.close()
        self._proxied.close()
        return outcome

    def _prepare(self) -> None:
        context = self._context
        context.begin_attempt()
        context.topic, context.single_replica_topic, context.group = (
            f"{context.name}-{each}" for each in ("topic", "lonely", "group")
        )
        ids = context.make_topics(
            {context.topic: [[1, 2, 3], [2, 3, 1], [3, 1, 2]], context.single_replica_topic: [[1]]}
        )
        context.topic_id, context.single_replica_topic_id = (
            ids[context.topic],
            ids[context.single_replica_topic],
        )
        for partition, leader in ((0, 1), (1, 2), (2, 3)):
            context.prepare("Produce", produce_request(context.topic, context.topic_id, partition, leader))
        context.coordinator = context.coordinator_of(context.group)
        context.prepare(
            "OffsetCommit",
            commit_request(context.group, context.topic, context.topic_id, context.coordinator),
        )

    def _differs(self, name: str, version: int, case: Case, leaks: list[str]) -> str:
        """Describe the last difference, if every attempt had one."""
        difference = ""
        for attempt in range(MAX_ATTEMPTS):
            if attempt:
                time.sleep(ATTEMPT_PAUSE_S)
            difference = self._compare(name, version, case, leaks)
            if not difference:
                break
        return difference

    def _compare(self, name: str, version: int, case: Case, leaks: list[str]) -> str:
        message = self._direct.messages[name]
        form = response_form(message, version)
        direct, proxied = (
            list(self._answers(route, name, version, case)) for route in (self._direct, self._proxied)
        )
        for number, ((direct_frame, direct_names), (proxied_frame, proxied_names)) in enumerate(
            zip(direct, proxied, strict=True)
        ):
            if direct_frame is None or proxied_frame is None:
                if direct_frame is not proxied_frame:
                    return (
                        f" ({number}): closed: direct={direct_frame is None} proxied={proxied_frame is None}"
                    )
                continue
            if any(secret.pattern in proxied_frame for secret in self._secrets):
                leaks.append(f"{name} v{version} ({number})")
            expected, received = (
                decode(message, version, direct_frame),
                decode(message, version, proxied_frame),
            )
            if set(error_codes(expected)) <= {0} or UNSUPPORTED_VERSION in error_codes(expected):
                self.without_error.add(name)
            expected = for_client(form, expected, self._proxied.endpoints)
            if message.api_key == API_VERSIONS:
                offers = (self._offered(each) for each in expected["ApiKeys"])
                expected["ApiKeys"] = [each for each in offers if each is not None]
            if not received.get("NodeEndpoints") and version >= ENDPOINTS.get(name, version + 1):
                expected["NodeEndpoints"] = received.get("NodeEndpoints")  # they do not fit: see ADR 16
            found = first_difference(
                normalized(name, expected, direct_names), normalized(name, received, proxied_names)
            )
            if found:
                return f" ({number}){found}"
        return ""

    def _answers(
        self, route: Route, name: str, version: int, case: Case
    ) -> Iterator[tuple[bytes | None, Mapping[str | uuid.UUID, str]]]:
        context = self._context
        context.begin_attempt()
        requests = case(context, version)
        form = request_form(route.messages[name], version)
        for request in requests:
            yield (
                route.send(request.broker_id, name, version, fill(form, request.values)),
                context.own_objects,
            )

    def _offered(self, broker: Mapping[str, int]) -> Values | None:
        message = next(
            (each for each in self._direct.messages.values() if each.api_key == broker["ApiKey"]), None
        )
        return None if message is None else intersection(message, broker)


def produce_request(topic: str, topic_id: uuid.UUID, partition: int = 0, leader: BrokerId = 1) -> Request:
    """Make a request that produces one record."""
    partition_fields = {"Index": partition, "Records": one_record()}
    topics = [{"Name": topic, "TopicId": topic_id, "PartitionData": [partition_fields]}]
    return Request({"TransactionalId": None, "Acks": -1, "TimeoutMs": 30_000, "TopicData": topics}, leader)


def fetch_request(
    topic: str, topic_id: uuid.UUID, partition: int = 0, leader: BrokerId = 1, epoch: int = -1
) -> Request:
    """Make a request that reads a partition from the start, without a session.

    Without an epoch followers answer.
    """
    partition_fields = {
        **{"Partition": partition, "CurrentLeaderEpoch": epoch, "FetchOffset": 0, "LastFetchedEpoch": -1},
        **{"LogStartOffset": -1, "PartitionMaxBytes": 1 << 20},
    }
    request_fields = {
        **{"ReplicaId": -1, "MaxWaitMs": 0, "MinBytes": 0, "MaxBytes": 1 << 20, "SessionEpoch": -1},
        "Topics": [{"Topic": topic, "TopicId": topic_id, "Partitions": [partition_fields]}],
    }
    return Request(request_fields, leader)


def commit_request(group: str, topic: str, topic_id: uuid.UUID, coordinator: BrokerId) -> Request:
    """Make a request that commits an offset without a membership."""
    partition = {
        **{"PartitionIndex": 0, "CommittedOffset": 3},
        **{"CommittedLeaderEpoch": -1, "CommittedMetadata": "m"},
    }
    request_fields = {
        **{"GroupId": group, "GenerationIdOrMemberEpoch": -1, "MemberId": "", "GroupInstanceId": None},
        "RetentionTimeMs": -1,
        "Topics": [{"Name": topic, "TopicId": topic_id, "Partitions": [partition]}],
    }
    return Request(request_fields, coordinator)
