"""The same requests straight at real brokers and through a fleet: both answers mean the same.

Of every API and version that the brokers offer through the fleet; what is asked is in ``catalogue``. An
answer through the fleet is to be what ``messages.for_client`` makes of the one that came straight, but for
what differs between any two requests: see ``NORMALIZATIONS``.
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
    nothing,
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

LIMIT_S: Final = 60.0
TRIES: Final = 8
"""How often what differs is asked again: brokers learn of what was done a moment later, each in its time."""
PAUSE_S: Final = 0.25

_CLOCK = "the time it was"
_MADE_UP = "made up anew each time"
_AT_WORK = "goes on while brokers are at work"
NORMALIZATIONS: Final[Mapping[str, str]] = {
    "*.ThrottleTimeMs": "what the quotas of that moment wanted",
    "Metadata.ControllerId": "any broker, since controllers are none of the clients' business",
    "DescribeCluster.ControllerId": "the same",
    "*.ClientHost": "where a request comes from: the fleet",
    "*.MemberId": _MADE_UP,
    "JoinGroup.Leader": _MADE_UP,
    "*.ProducerId": "given out one by one",
    "ApiVersions.FinalizedFeaturesEpoch": _AT_WORK,
    "DescribeQuorum.HighWatermark": _AT_WORK,
    "DescribeQuorum.LogEndOffset": _AT_WORK,
    "DescribeQuorum.LastFetchTimestamp": _CLOCK,
    "DescribeQuorum.LastCaughtUpTimestamp": _CLOCK,
    "DescribeTransactions.TransactionStartTimeMs": _CLOCK,
    "DescribeLogDirs.TotalBytes": "the machine's disk, which others write to",
    "DescribeLogDirs.UsableBytes": "the same",
    "GetTelemetrySubscriptions.ClientInstanceId": _MADE_UP,
    "CreateTopics.TopicId": _MADE_UP,
}
"""API and field → why it is no difference. Addresses are none either: see ``messages.for_client``. What a try
has made for itself (``There.own``) is called the same in both answers."""


NO_ID: Final = uuid.UUID(int=0)
NONE: Final = ("", -1, None, NO_ID)
"""That there is no such thing is told apart from that there is one."""


class Way:
    """Connections to each broker, at some address, and what is asked over them."""

    def __init__(self, endpoints: Mapping[BrokerId, Endpoint], messages: Iterable[Message]) -> None:
        self.endpoints = endpoints
        self.messages = {each.name: each for each in messages}
        self._open: dict[BrokerId, socket.socket] = {}
        self._asked = 0

    def ask(self, broker_id: BrokerId, name: str, version: int, values: Values) -> bytes | None:
        """The frame that answers; None where the connection is closed instead."""
        message = self.messages[name]
        self._asked += 1
        request = request_frame(message, version, self._asked, encode(request_form(message, version), values))
        there = self._open.get(broker_id)
        if there is None:
            at = self.endpoints[broker_id]
            there = self._open[broker_id] = socket.create_connection((at.host, at.port), LIMIT_S)
        try:
            there.sendall(request)
            answer = read_frame(there)
        except (EOFError, ConnectionError):
            self._open.pop(broker_id).close()
            return None
        assert struct.unpack_from(">i", answer, 4) == (self._asked,)
        return answer

    def answer(self, name: str, version: int, request: Request) -> Values:
        """Raises: AssertionError: the connection is closed instead, or it is not what the definition says."""
        message = self.messages[name]
        frame = self.ask(
            request.broker_id, name, version, fill(request_form(message, version), request.values)
        )
        assert frame is not None, f"{name} closes the connection"
        return decode(message, version, frame)

    def close(self) -> None:
        for each in self._open.values():
            each.close()


def decode(message: Message, version: int, frame: bytes) -> Values:
    """Raises: AssertionError: the frame is not what the definition says."""
    # An ApiVersions response always has the header of v0, and an unsupported request is answered in v0.
    tagged = version >= message.first_flexible and message.api_key != API_VERSIONS
    reader = Reader(frame[9 if tagged else 8 :])
    values = reader.message(response_form(message, version))
    reader.end()
    return values


def fill(form: Form, given: Mapping[str, Any]) -> Values:
    """A message with what is given, as far as this version has it, and nothing else."""
    values = nothing(form)
    for item in (*form.plain, *form.tagged):
        if item.name not in given:
            continue
        value = given[item.name]
        if item.fields and value is not None:
            inner = form.of(item.fields)
            values[item.name] = [fill(inner, each) for each in value] if item.is_array else fill(inner, value)
        else:
            values[item.name] = value
    return values


@dataclass(frozen=True)
class Request:
    """What is asked of a broker; fields that a version does not have are left out of it."""

    values: Mapping[str, Any]
    broker_id: BrokerId = 1


@dataclass
class There:
    """What a request may need to be about something.

    Args:
        straight: for what has to be done before.
        ranges: the versions of each API that brokers offer through the fleet.
        topic, topic_id: of three partitions with records, the first led by broker 1, and so on.
        lonely, lonely_id: a topic of one partition, which broker 1 alone has.
        group, coordinator: a group at rest that has committed in `topic`.
        spare: topics that nobody has used, with their ids.
        name: of one try alone, for groups, transactions, clients, users.
        own: what was made for that try alone, and what it is called where answers are compared.
    """

    straight: Way
    ranges: Mapping[str, Range]
    topic: str = ""
    topic_id: uuid.UUID = NO_ID
    lonely: str = ""
    lonely_id: uuid.UUID = NO_ID
    group: str = ""
    coordinator: BrokerId = 1
    spare: list[tuple[str, uuid.UUID]] = field(default_factory=list)
    name: str = ""
    own: dict[str | uuid.UUID, str] = field(default_factory=dict)
    made: int = 0

    def begin(self) -> None:
        """Another try, with a name of its own."""
        self.made += 1
        self.name = f"real-{os.getpid()}-{self.made:05}"
        self.own = {self.name: "OWN"}

    def now(self, name: str, request: Request) -> Values:
        """Do something before, straight at a broker, in the newest version; until it works."""
        deadline_s = time.monotonic() + LIMIT_S
        while True:
            answer = self.straight.answer(name, self.ranges[name].high, request)
            codes = set(error_codes(answer))
            if codes <= {0, MEMBER_ID_REQUIRED, UNSUPPORTED}:
                return answer
            assert time.monotonic() < deadline_s, f"{name}: {codes} in {answer}"
            time.sleep(0.05)

    def coordinator_of(self, key: str, kind: int = 0) -> BrokerId:
        """Of a group, or of a transactional id, which is kind 1."""
        found = self.now("FindCoordinator", Request({"KeyType": kind, "CoordinatorKeys": [key]}))
        node: BrokerId = found["Coordinators"][0]["NodeId"]
        return node

    def fresh(self) -> tuple[str, uuid.UUID]:
        """The name and id of a topic that nobody has used, of one partition, led by broker 1."""
        if not self.spare:
            names = [f"{self.name}-spare-{number:02}" for number in range(20)]
            self.spare += self.make_topics({name: [[1, 2, 3]] for name in names}).items()
        topic, topic_id = self.spare.pop()
        self.own = {topic: "OWN-TOPIC", topic_id: "OWN-TOPIC-ID", **self.own}
        return topic, topic_id

    def make_topics(self, replicas: Mapping[str, Sequence[Sequence[BrokerId]]]) -> dict[str, uuid.UUID]:
        """Topics by name, with the replicas of each partition; known to all brokers, and led as preferred."""
        topics = [
            {
                **{"Name": name, "NumPartitions": -1, "ReplicationFactor": -1, "Configs": []},
                "Assignments": [
                    {"PartitionIndex": number, "BrokerIds": list(each)} for number, each in enumerate(wanted)
                ],
            }
            for name, wanted in replicas.items()
        ]
        self.now("CreateTopics", Request({"Topics": topics, "timeoutMs": 30_000}))
        asked = {"Topics": [{"TopicId": NO_ID, "Name": name} for name in replicas]}
        ids: dict[str, uuid.UUID] = {}
        for broker_id in self.straight.endpoints:
            answer = self.now("Metadata", Request(asked, broker_id))
            ids = {each["Name"]: each["TopicId"] for each in answer["Topics"]}
        return ids


MEMBER_ID_REQUIRED: Final = 79
UNSUPPORTED: Final = 35
"""What a broker answers whose release knows an API, and has it turned off."""


def error_codes(values: Any) -> Iterable[int]:
    """All that are in a message."""
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


def normalized(api: str, values: Any, own: Mapping[Any, str]) -> Any:
    """Without what differs between any two requests."""
    if isinstance(values, dict):
        made = {}
        for name, value in values.items():
            same = f"{api}.{name}" in NORMALIZATIONS or f"*.{name}" in NORMALIZATIONS
            made[name] = "…" if same and value not in NONE else normalized(api, value, own)
        return made
    if isinstance(values, list):
        return [normalized(api, each, own) for each in values]
    if isinstance(values, str):
        for each, called in own.items():
            values = values.replace(str(each), called)
        return values
    return own.get(values, values) if isinstance(values, uuid.UUID) else values


def first_difference(straight: Any, through: Any, path: str = "") -> str:
    """Where two messages differ, in words; empty where they do not."""
    if isinstance(straight, dict) and isinstance(through, dict):
        for name in {**straight, **through}:
            found = first_difference(straight.get(name), through.get(name), f"{path}.{name}")
            if found:
                return found
        return ""
    if isinstance(straight, list) and isinstance(through, list) and len(straight) == len(through):
        for number, (one, other) in enumerate(zip(straight, through, strict=True)):
            found = first_difference(one, other, f"{path}[{number}]")
            if found:
                return found
        return ""
    return (
        ""
        if straight == through
        else f"{path or 'all'}: straight {straight!r:.300}, through {through!r:.300}"
    )


def intersection(message: Message, broker: Mapping[str, int]) -> Values | None:
    """What a fleet says of an API that a broker offers; None where it says nothing."""
    known = offered(message)
    low, high = max(known.low, broker["MinVersion"]), min(known.high, broker["MaxVersion"])
    if low > high:
        return None
    lowest = broker["MinVersion"] if message.api_key in APIS_WITH_BROKER_MINIMUM else low
    return {"ApiKey": message.api_key, "MinVersion": lowest, "MaxVersion": high}


Case: TypeAlias = Callable[[There, int], Sequence[Request]]


class Comparison:
    """Asks straight and through the fleet.

    Args:
        kafka: brokers 1 to 3, at rest.
        through: where the fleet stands for each; at rest, too.
        cases: by API, what is asked in a version; it may do things before.
    """

    def __init__(
        self,
        kafka: KafkaCluster,
        through: Mapping[BrokerId, Endpoint],
        cases: Mapping[str, Case],
    ) -> None:
        messages = definitions()
        real = {broker_id: Endpoint(each.host, each.port) for broker_id, each in kafka.brokers.items()}
        self._secrets = secrets_of(kafka)
        self._straight, self._through = Way(real, messages), Way(through, messages)
        self._cases = cases
        known = self._straight.messages["ApiVersions"]
        frame = self._through.ask(1, known.name, 0, {})  # v0 has no fields
        assert frame is not None
        offers = {
            each["ApiKey"]: Range(each["MinVersion"], each["MaxVersion"])
            for each in decode(known, 0, frame)["ApiKeys"]
        }
        # Not Produce v0 to v2: see `intersection`.
        self.ranges = {
            each.name: Range(max(offers[each.api_key].low, offered(each).low), offers[each.api_key].high)
            for each in messages
            if each.api_key in offers
        }
        self._there = There(self._straight, self.ranges)
        self.without_error: set[str] = set()
        """APIs with an answer that has no error in it, or that are turned off."""

    def run(self, say: Callable[[str], None] = lambda _: None) -> Outcome:
        """Every API and version that is offered."""
        self._prepare()
        outcome = Outcome()
        for name, versions in self.ranges.items():
            case = self._cases.get(name)
            if case is None:
                outcome.differences.append(f"{name}: nobody knows what to ask")
                continue
            for version in range(versions.low, versions.high + 1):
                outcome.tried.add((self._straight.messages[name].api_key, version))
                difference = self._differs(name, version, case, outcome.leaks)
                if difference:
                    outcome.differences.append(f"{name} v{version}{difference}")
            say(f"{name}: versions {versions.low} to {versions.high}")
        self._straight.close()
        self._through.close()
        return outcome

    def _prepare(self) -> None:
        there = self._there
        there.begin()
        there.topic, there.lonely, there.group = (
            f"{there.name}-{each}" for each in ("topic", "lonely", "group")
        )
        ids = there.make_topics({there.topic: [[1, 2, 3], [2, 3, 1], [3, 1, 2]], there.lonely: [[1]]})
        there.topic_id, there.lonely_id = ids[there.topic], ids[there.lonely]
        for partition, leader in ((0, 1), (1, 2), (2, 3)):
            there.now("Produce", a_record(there.topic, there.topic_id, partition, leader))
        there.coordinator = there.coordinator_of(there.group)
        there.now("OffsetCommit", an_offset(there.group, there.topic, there.topic_id, there.coordinator))

    def _differs(self, name: str, version: int, case: Case, leaks: list[str]) -> str:
        """How the last answers differed, if they did at every try."""
        difference = ""
        for tried in range(TRIES):
            if tried:
                time.sleep(PAUSE_S)
            difference = self._compare(name, version, case, leaks)
            if not difference:
                break
        return difference

    def _compare(self, name: str, version: int, case: Case, leaks: list[str]) -> str:
        message = self._straight.messages[name]
        form = response_form(message, version)
        straight, through = (
            list(self._answers(way, name, version, case)) for way in (self._straight, self._through)
        )
        for number, ((one, called_one), (other, called_other)) in enumerate(
            zip(straight, through, strict=True)
        ):
            if one is None or other is None:
                if one is not other:
                    return f" ({number}): closed straight {one is None}, through the fleet {other is None}"
                continue
            if any(secret.pattern in other for secret in self._secrets):
                leaks.append(f"{name} v{version} ({number})")
            wanted, seen = decode(message, version, one), decode(message, version, other)
            if set(error_codes(wanted)) <= {0} or UNSUPPORTED in error_codes(wanted):
                self.without_error.add(name)
            wanted = for_client(form, wanted, self._through.endpoints)
            if message.api_key == API_VERSIONS:
                offers = (self._offered(each) for each in wanted["ApiKeys"])
                wanted["ApiKeys"] = [each for each in offers if each is not None]
            if not seen.get("NodeEndpoints") and version >= ENDPOINTS.get(name, version + 1):
                wanted["NodeEndpoints"] = seen.get("NodeEndpoints")  # they do not fit: see ADR 16
            found = first_difference(
                normalized(name, wanted, called_one), normalized(name, seen, called_other)
            )
            if found:
                return f" ({number}){found}"
        return ""

    def _answers(
        self, way: Way, name: str, version: int, case: Case
    ) -> Iterator[tuple[bytes | None, Mapping[str | uuid.UUID, str]]]:
        there = self._there
        there.begin()
        requests = case(there, version)
        form = request_form(way.messages[name], version)
        for request in requests:
            yield way.ask(request.broker_id, name, version, fill(form, request.values)), there.own

    def _offered(self, broker: Mapping[str, int]) -> Values | None:
        message = next(
            (each for each in self._straight.messages.values() if each.api_key == broker["ApiKey"]), None
        )
        return None if message is None else intersection(message, broker)


def a_record(topic: str, topic_id: uuid.UUID, partition: int = 0, leader: BrokerId = 1) -> Request:
    """Bring one to a topic."""
    where = {"Index": partition, "Records": one_record()}
    topics = [{"Name": topic, "TopicId": topic_id, "PartitionData": [where]}]
    return Request({"TransactionalId": None, "Acks": -1, "TimeoutMs": 30_000, "TopicData": topics}, leader)


def a_fetch(
    topic: str, topic_id: uuid.UUID, partition: int = 0, leader: BrokerId = 1, epoch: int = -1
) -> Request:
    """Read a partition from its beginning, in no session; without an epoch followers answer, too."""
    where = {
        **{"Partition": partition, "CurrentLeaderEpoch": epoch, "FetchOffset": 0, "LastFetchedEpoch": -1},
        **{"LogStartOffset": -1, "PartitionMaxBytes": 1 << 20},
    }
    asked = {
        **{"ReplicaId": -1, "MaxWaitMs": 0, "MinBytes": 0, "MaxBytes": 1 << 20, "SessionEpoch": -1},
        "Topics": [{"Topic": topic, "TopicId": topic_id, "Partitions": [where]}],
    }
    return Request(asked, leader)


def an_offset(group: str, topic: str, topic_id: uuid.UUID, coordinator: BrokerId) -> Request:
    """Commit one, without being a member."""
    partition = {
        **{"PartitionIndex": 0, "CommittedOffset": 3},
        **{"CommittedLeaderEpoch": -1, "CommittedMetadata": "m"},
    }
    asked = {
        **{"GroupId": group, "GenerationIdOrMemberEpoch": -1, "MemberId": "", "GroupInstanceId": None},
        "RetentionTimeMs": -1,
        "Topics": [{"Name": topic, "TopicId": topic_id, "Partitions": [partition]}],
    }
    return Request(asked, coordinator)
