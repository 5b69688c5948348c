"""The worker's own requests, and the answers that it reads and builds, by Kafka's own definitions."""

from __future__ import annotations

import random
import struct
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.core.errors import MalformedFrame, TruncatedFrame
from fleet.core.model import Endpoint
from fleet.proxy.wire._tables import APIS
from fleet.proxy.wire.api_versions import NO_NODE, offered_range, read_expectation
from fleet.proxy.wire.common_versions import Versions, build_answer, build_body, intersect, read_versions
from fleet.proxy.wire.lookups import (
    COORDINATOR_BATCH,
    FIRST_COORDINATOR,
    FIRST_METADATA,
    METADATA_BY_ID,
    api_versions_request,
    coordinator_request,
    metadata_request,
    read_coordinators,
    read_ranges,
    read_topics,
)
from fleet.proxy.wire.merging import LIST_GROUPS, LIST_TRANSACTIONS, merge
from fleet.proxy.wire.racks import FIRST_WITH_RACK, blank_rack, has_no_rack
from fleet.proxy.wire.rejections import (
    ALTER_REPLICA_LOG_DIRS,
    DESCRIBE_LOG_DIRS,
    FETCH_SESSION_ID_NOT_FOUND,
    INVALID_REQUEST,
    SHARE_ACKNOWLEDGE,
    SHARE_FETCH,
    SHARE_SESSION_NOT_FOUND,
    has_sessions,
    reject_log_dirs,
    reject_session,
)
from fleet.proxy.wire.routes import GROUP, TRANSACTION
from tests.conformance.exchange import request_form, request_frame, response_form, response_frame
from tests.conformance.messages import UNKNOWN, Maker, Reader, Values, encode
from tests.conformance.scripted import definitions
from tests.examples import examples

FETCH, METADATA, FIND_COORDINATOR, API_VERSIONS = 1, 3, 10, 18
MESSAGES = {each.api_key: each for each in definitions()}
NO_ID = uuid.UUID(int=0)
CORRELATION_ID = 77
quick = settings(max_examples=examples(25), deadline=None)
seeds = st.integers(0, 2**32)


def decode_request(frame: bytes) -> tuple[int, int, int, Values]:
    """Key, version, correlation id and body of a whole request, which has nothing after its body."""
    size, key, version, correlation_id, client_id_bytes = struct.unpack_from(">ihhih", frame)
    assert size == len(frame) - 4
    form = request_form(MESSAGES[key], version)
    reader = Reader(frame[14 + client_id_bytes + form.flexible :])
    values = reader.message(form)
    reader.check_end()
    return key, version, correlation_id, values


def decode_response(frame: bytes, key: int, version: int) -> Values:
    """The body of a whole response."""
    size, correlation_id = struct.unpack_from(">ii", frame)
    assert (size, correlation_id) == (len(frame) - 4, CORRELATION_ID)
    form = response_form(MESSAGES[key], version)
    reader = Reader(frame[8 + (form.flexible and key != API_VERSIONS) :])
    values = reader.message(form)
    reader.check_end()
    return values


def response(key: int, version: int, values: Values) -> bytes:
    """A response without its size field."""
    message = MESSAGES[key]
    return response_frame(message, version, CORRELATION_ID, encode(response_form(message, version), values))[
        4:
    ]


def made(key: int, version: int, seed: int) -> Values:
    """The body of a random response."""
    maker = Maker(random.Random(seed), {1: Endpoint("kafka", 9092)}, unknown=0.2)
    return maker.message(response_form(MESSAGES[key], version))


def test_request_for_versions() -> None:
    assert decode_request(api_versions_request(7)) == (API_VERSIONS, 0, 7, {})


@pytest.mark.parametrize("version", [FIRST_METADATA, METADATA_BY_ID])
def test_request_for_topics_creates_none(version: int) -> None:
    ids = [uuid.UUID(int=5)] if version == METADATA_BY_ID else []
    frame = metadata_request(version, 7, [b"a", b"topic" * 40], [each.bytes for each in ids])
    key, found_version, correlation_id, values = decode_request(frame)
    assert (key, found_version, correlation_id) == (METADATA, version, 7)
    topics = [(each["Name"], each.get("TopicId", NO_ID)) for each in values.pop("Topics")]
    assert topics == [("a", NO_ID), ("topic" * 40, NO_ID), *((None, each) for each in ids)]
    assert set(values.values()) == {False}, "nothing is created, and no rights are listed"


@pytest.mark.parametrize(("kind", "key_type"), [(GROUP, 0), (TRANSACTION, 1)])
def test_request_for_coordinators(kind: int, key_type: int) -> None:
    frame = coordinator_request(COORDINATOR_BATCH, 7, kind, [b"a", b"b"])
    expected = {"KeyType": key_type, "CoordinatorKeys": ["a", "b"]}
    assert decode_request(frame) == (FIND_COORDINATOR, COORDINATOR_BATCH, 7, expected)
    frame = coordinator_request(FIRST_COORDINATOR, 8, kind, [b"a"])
    assert decode_request(frame) == (
        FIND_COORDINATOR,
        FIRST_COORDINATOR,
        8,
        {"KeyType": key_type, "Key": "a"},
    )


@pytest.mark.parametrize("version", [FIRST_METADATA, METADATA_BY_ID])
@quick
@given(seed=seeds)
def test_topics_are_read(version: int, seed: int) -> None:
    values = made(METADATA, version, seed)
    for topic in values["Topics"]:
        for index, partition in enumerate(topic["Partitions"]):
            partition["PartitionIndex"] = index
    found = read_topics(response(METADATA, version, values), version)
    assert len(found) == len(values["Topics"])
    for topic, expected in zip(found, values["Topics"], strict=True):
        partitions = expected["Partitions"]
        assert topic.leaders == tuple(each["LeaderId"] for each in partitions)
        assert topic.replicas == tuple(tuple(each["ReplicaNodes"]) for each in partitions)
        assert topic.name == (None if expected["Name"] is None else expected["Name"].encode())
        topic_id = expected.get("TopicId", NO_ID)
        assert topic.topic_id == (None if topic_id == NO_ID else topic_id.bytes)


@pytest.mark.parametrize("version", [FIRST_COORDINATOR, COORDINATOR_BATCH])
@quick
@given(seed=seeds, error_code=st.sampled_from((0, 15)))
def test_coordinators_are_read(version: int, seed: int, error_code: int) -> None:
    values = made(FIND_COORDINATOR, version, seed)
    if version == COORDINATOR_BATCH:
        for number, each in enumerate(values["Coordinators"]):
            each |= {"Key": f"g{number}", "ErrorCode": error_code if number == 1 else 0}
        expected = {
            each["Key"].encode(): each["NodeId"] for each in values["Coordinators"] if not each["ErrorCode"]
        }
    else:
        values["ErrorCode"] = error_code
        expected = {} if error_code else {b"g": values["NodeId"]}
    assert read_coordinators(response(FIND_COORDINATOR, version, values), version, [b"g"]) == expected


@quick
@given(seed=seeds)
def test_ranges_are_read(seed: int) -> None:
    values = made(API_VERSIONS, 0, seed)
    expected = {each["ApiKey"]: (each["MinVersion"], each["MaxVersion"]) for each in values["ApiKeys"]}
    assert read_ranges(response(API_VERSIONS, 0, values)) == expected


@quick
@given(seed=seeds, cut=st.integers(0, 2**32))
def test_cut_answers_are_refused(seed: int, cut: int) -> None:
    topics = response(METADATA, METADATA_BY_ID, made(METADATA, METADATA_BY_ID, seed))
    ranges = response(API_VERSIONS, 0, {**made(API_VERSIONS, 0, seed), "ErrorCode": 35})
    with pytest.raises(MalformedFrame):
        read_topics(topics[: cut % len(topics)], METADATA_BY_ID)
    with pytest.raises(MalformedFrame):
        read_ranges(ranges)


# ---- the versions of all brokers together


def versions_of(values: Values) -> Versions:
    def levels(name: str, first: str, second: str) -> dict[bytes, tuple[int, int]]:
        return {each["Name"].encode(): (each[first], each[second]) for each in values.get(name, ())}

    return Versions(
        {each["ApiKey"]: (each["MinVersion"], each["MaxVersion"]) for each in values["ApiKeys"]},
        levels("SupportedFeatures", "MinVersion", "MaxVersion"),
        levels("FinalizedFeatures", "MaxVersionLevel", "MinVersionLevel"),
        values.get("FinalizedFeaturesEpoch", -1),
    )


@pytest.mark.parametrize("version", [3, 4])
@quick
@given(seed=seeds)
def test_versions_of_a_broker_are_read(version: int, seed: int) -> None:
    values = made(API_VERSIONS, version, seed)
    body = response(API_VERSIONS, version, values)[4:]
    assert read_versions(body) == versions_of(values)


@pytest.mark.parametrize("version", range(APIS[API_VERSIONS].max_version + 1))
@quick
@given(seed=seeds)
def test_answer_for_all_brokers_is_one_of_a_broker(version: int, seed: int) -> None:
    rng = random.Random(seed)
    ranges = {key: (rng.choice((0, 1)), rng.choice((1, 9, 30))) for key in (0, 1, 17, 18, 999)}
    features = {b"metadata.version": (1, 30), b"kraft.version": (0, 1)}
    known = Versions(ranges, features, {b"metadata.version": (27, 27)}, rng.choice((-1, 5)))
    values = decode_response(build_answer(build_body(known, version), CORRELATION_ID), API_VERSIONS, version)
    offered = {key: offered_range(key, *levels) for key, levels in ranges.items()}
    found = versions_of(values)
    assert values["ErrorCode"] == 0
    assert found.ranges == {key: each for key, each in offered.items() if each is not None}
    if version >= 3:
        assert found.supported == {name: each for name, each in features.items() if each[0] or version >= 4}
        assert (found.finalized, found.epoch) == (known.finalized, known.epoch)


def test_brokers_together_can_do_what_each_can() -> None:
    old = Versions({0: (3, 10), 1: (4, 15), 71: (0, 0)}, {b"f": (1, 5)}, {b"f": (5, 5)}, 3)
    new = Versions(
        {0: (3, 13), 1: (4, 18), 80: (0, 0), 71: (1, 1)}, {b"f": (2, 8), b"g": (0, 1)}, {b"f": (6, 6)}, 4
    )
    expected = Versions({0: (3, 10), 1: (4, 15)}, {b"f": (2, 5)}, {b"f": (6, 6)}, 4)
    assert intersect([old, new]) == intersect([new, old]) == expected
    assert intersect([old]) == old


@pytest.mark.parametrize("node_id", [-1, 0, 7, 2**31 - 1])
def test_broker_id_in_a_request_for_versions(node_id: int) -> None:
    message = MESSAGES[API_VERSIONS]
    for version in range(APIS[API_VERSIONS].max_version + 1):
        for cluster_id in (None, "", "cluster"):
            values: dict[str, Any] = {"ClientSoftwareName": "n" * 200, "ClientSoftwareVersion": ""}
            values |= {"ClusterId": cluster_id, "NodeId": node_id}
            frame = request_frame(message, version, 1, encode(request_form(message, version), values))
            is_expecting = version >= 5 and (cluster_id is not None or node_id >= 0)
            assert read_expectation(frame) == (is_expecting, node_id if version >= 5 else NO_NODE)
            if version >= 5:
                assert all(
                    read_expectation(frame[:end]) == (True, NO_NODE) for end in range(14, len(frame) - 5)
                )


# ---- the rack of a Fetch


@pytest.mark.parametrize("version", range(FIRST_WITH_RACK, APIS[FETCH].max_version + 1))
@quick
@given(seed=seeds, rack=st.sampled_from(("", "a", "rack" * 50)), cut=st.integers(0, 2**32))
def test_rack_is_taken_out_of_a_fetch(version: int, seed: int, rack: str, cut: int) -> None:
    message, rng = MESSAGES[FETCH], random.Random(seed)
    form = request_form(message, version)
    values = {**Maker(rng, {1: Endpoint("kafka", 9092)}, unknown=0.2).message(form), "RackId": rack}
    unknown = {125: b"tagged"} if form.flexible and seed % 2 else {}
    frame, expected = (
        request_frame(message, version, 1, encode(form, {**values, "RackId": each}), unknown)
        for each in (rack, "")
    )
    assert blank_rack(frame, version) == expected
    if not (UNKNOWN in values or any(item.name in values for item in form.tagged)):
        assert has_no_rack(int.from_bytes(frame[-2:], "big", signed=True), version) is (not rack)
        with pytest.raises((TruncatedFrame, MalformedFrame)):
            blank_rack(frame[: 14 + cut % (len(frame) - 16 - len(rack))], version)


# ---- the lists of all brokers


@pytest.mark.parametrize(
    ("key", "version"),
    [*((LIST_GROUPS, each) for each in range(6)), *((LIST_TRANSACTIONS, each) for each in range(3))],
)
@quick
@given(some=st.lists(seeds, min_size=1, max_size=4), error_at=st.none() | st.integers(0, 3))
def test_lists_are_joined(key: int, version: int, some: list[int], error_at: int | None) -> None:
    name = "Groups" if key == LIST_GROUPS else "TransactionStates"
    form = response_form(MESSAGES[key], version)
    each = [Maker(random.Random(seed), {1: Endpoint("kafka", 9092)}).message(form) for seed in some]
    if error_at is not None and error_at < len(each):
        each[error_at]["ErrorCode"] = 15
    joined = decode_response(merge(key, version, [response(key, version, one) for one in each]), key, version)
    failed = [one for one in each if one["ErrorCode"]]
    assert joined == (
        failed[0] if failed else {**each[0], name: [item for one in each for item in one[name]]}
    )


# ---- rejections


@pytest.mark.parametrize(
    ("key", "version"),
    [
        (key, version)
        for key in (FETCH, SHARE_FETCH, SHARE_ACKNOWLEDGE)
        for version in range(APIS[key].min_version, APIS[key].max_version + 1)
    ],
)
def test_unknown_session_is_answered(key: int, version: int) -> None:
    if not has_sessions(key, version):
        assert (key, version) < (FETCH, 7)
        return
    values = decode_response(reject_session(key, version, CORRELATION_ID), key, version)
    expected = FETCH_SESSION_ID_NOT_FOUND if key == FETCH else SHARE_SESSION_NOT_FOUND
    assert (values["ErrorCode"], values["Responses"]) == (expected, [])


@pytest.mark.parametrize("version", range(1, APIS[DESCRIBE_LOG_DIRS].max_version + 1))
def test_log_dirs_of_an_unknown_broker_are_refused(version: int) -> None:
    values = decode_response(
        reject_log_dirs(DESCRIBE_LOG_DIRS, version, CORRELATION_ID, b""), DESCRIBE_LOG_DIRS, version
    )
    codes = [values["ErrorCode"]] if version >= 3 else [each["ErrorCode"] for each in values["Results"]]
    assert codes == [INVALID_REQUEST]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("client_id", [b"", b"client"])
def test_each_replica_of_an_unknown_broker_is_refused(version: int, client_id: bytes) -> None:
    message = MESSAGES[ALTER_REPLICA_LOG_DIRS]
    dirs = [
        {"Path": "/a", "Topics": [{"Name": "t", "Partitions": [0, 2]}, {"Name": "u", "Partitions": []}]},
        {"Path": "/b", "Topics": [{"Name": "t", "Partitions": [1]}]},
    ]
    body = encode(request_form(message, version), {"Dirs": dirs})
    frame = request_frame(message, version, 1, body, client_id=client_id)
    answer = reject_log_dirs(ALTER_REPLICA_LOG_DIRS, version, CORRELATION_ID, frame)
    values = decode_response(answer, ALTER_REPLICA_LOG_DIRS, version)
    found = {
        each["TopicName"]: {part["PartitionIndex"]: part["ErrorCode"] for part in each["Partitions"]}
        for each in values["Results"]
    }
    assert found == {"t": dict.fromkeys((0, 2, 1), INVALID_REQUEST), "u": {}}
    for end in (14, len(frame) - 8):
        with pytest.raises(TruncatedFrame):
            reject_log_dirs(ALTER_REPLICA_LOG_DIRS, version, CORRELATION_ID, frame[:end])
