"""The worker's own requests for the brokers of keys, and the answers: ApiVersions, Metadata, FindCoordinator.

Flexible versions only, which brokers have since 2.4: Metadata v9, or v12 for topic ids; FindCoordinator v3,
or v4 for several keys at once.

Source: MetadataRequest.json, FindCoordinatorRequest.json, ApiVersionsRequest.json, and their responses
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

from fleet.core.errors import MalformedFrame
from fleet.core.model import BrokerId
from fleet.proxy.wire.api_versions import API_VERSIONS
from fleet.proxy.wire.body_reader import BodyReader
from fleet.proxy.wire.coordinators import FIND_COORDINATOR
from fleet.proxy.wire.primitives import (
    OUT_OF_BYTES,
    classic_string,
    encode_varint,
    pack_int32,
)
from fleet.proxy.wire.routes import GROUP, TRANSACTION
from fleet.proxy.wire.routing_keys import UUID_BYTES

METADATA: Final = 3
CLIENT_ID: Final = "fleet-routing"
KEY_TYPES: Final = {GROUP: 0, TRANSACTION: 1}
"""Kind of route → KeyType of FindCoordinator."""
FIRST_METADATA: Final = 9
METADATA_WITHOUT_CLUSTER_RIGHTS: Final = 11
METADATA_BY_ID: Final = 12
FIRST_COORDINATOR: Final = 3
COORDINATOR_BATCH: Final = 4

_header = Struct(">hhi").pack
_NO_ID: Final = bytes(UUID_BYTES)
_NO_TAGS: Final = b"\0"
_FALSE: Final = b"\0"


@dataclass(frozen=True, slots=True)
class TopicAnswer:
    """One topic in a Metadata response.

    Args:
        name: None if a topic id is unknown to the broker.
        leaders, replicas: by the index of the partition; -1 without a leader.
    """

    name: bytes | None
    topic_id: bytes | None
    leaders: tuple[BrokerId, ...]
    replicas: tuple[tuple[BrokerId, ...], ...]


def _frame(key: int, version: int, correlation_id: int, body: bytes, *, flexible: bool = True) -> bytes:
    tags = _NO_TAGS if flexible else b""
    request = _header(key, version, correlation_id) + classic_string(CLIENT_ID) + tags + body
    return pack_int32(len(request)) + request


def _compact(value: bytes) -> bytes:
    return encode_varint(len(value) + 1) + value


def api_versions_request(correlation_id: int) -> bytes:
    """A whole ApiVersions v0 request."""
    return _frame(API_VERSIONS, 0, correlation_id, b"", flexible=False)


def metadata_request(
    version: int, correlation_id: int, names: Sequence[bytes], topic_ids: Sequence[bytes] = ()
) -> bytes:
    """A whole Metadata request for some topics, which creates no topic.

    Args: version: FIRST_METADATA or METADATA_BY_ID; only the latter has topic ids.
    """
    if version >= METADATA_BY_ID:
        topics = [_NO_ID + _compact(each) + _NO_TAGS for each in names]
        topics += [each + b"\0" + _NO_TAGS for each in topic_ids]
        flags = _FALSE * 2
    else:
        topics = [_compact(each) + _NO_TAGS for each in names]
        flags = _FALSE * 3
    body = encode_varint(len(topics) + 1) + b"".join(topics) + flags + _NO_TAGS
    return _frame(METADATA, version, correlation_id, body)


def coordinator_request(version: int, correlation_id: int, kind: int, keys: Sequence[bytes]) -> bytes:
    """A whole FindCoordinator request.

    Args:
        version: FIRST_COORDINATOR, with exactly one key, or COORDINATOR_BATCH.
        kind: GROUP or TRANSACTION.
    """
    key_type = bytes((KEY_TYPES[kind],))
    if version >= COORDINATOR_BATCH:
        body = key_type + encode_varint(len(keys) + 1) + b"".join(map(_compact, keys)) + _NO_TAGS
    else:
        (key,) = keys
        body = _compact(key) + key_type + _NO_TAGS
    return _frame(FIND_COORDINATOR, version, correlation_id, body)


def _body(frame: bytes, *, is_flexible: bool = True) -> BodyReader:
    """A reader of a response, behind its correlation id and its tagged fields."""
    body = BodyReader(frame, 4, is_flexible=is_flexible, peer="broker")
    body.tags()
    return body


def read_ranges(frame: bytes) -> dict[int, tuple[int, int]]:
    """Read an ApiVersions v0 response, without its size field.

    Returns: API key → lowest and highest version.
    Raises:  MalformedFrame: the frame is no such response, or has an error code
    """
    try:
        body = _body(frame, is_flexible=False)
        error_code, count = body.int16(), body.int32()
        if error_code or count < 0:
            raise MalformedFrame("broker", f"ApiVersions answers error {error_code}")
        return {body.int16(): (body.int16(), body.int16()) for _ in range(count)}
    except OUT_OF_BYTES as error:
        raise MalformedFrame("broker", f"ApiVersions response of {len(frame)} bytes is too short") from error


def read_topics(frame: bytes, version: int) -> list[TopicAnswer]:
    """Read a Metadata response, without its size field.

    Raises: MalformedFrame: the frame is no such response
    """
    try:
        return list(_topics(_body(frame), version))
    except OUT_OF_BYTES as error:
        raise MalformedFrame("broker", f"Metadata response of {len(frame)} bytes is too short") from error


def _ids(body: BodyReader) -> tuple[BrokerId, ...]:
    return tuple(body.int32() for _ in range(body.count()))


def _topics(body: BodyReader, version: int) -> Iterator[TopicAnswer]:
    body.int32()  # throttle time
    for _ in range(body.count()):
        body.int32()
        body.text()
        body.int32()
        body.text()
        body.tags()
    body.text()  # cluster id
    body.int32()  # controller
    for _ in range(body.count()):
        body.int16()  # the error of a topic without partitions
        name = body.text()
        topic_id = body.take(UUID_BYTES) if version >= METADATA_BY_ID else None
        body.skip(1)  # is internal
        found: dict[int, tuple[BrokerId, tuple[BrokerId, ...]]] = {}
        for _ in range(body.count()):
            body.int16()  # the error of a partition without a leader comes with leader -1
            index, leader = body.int32(), body.int32()
            body.int32()  # leader epoch
            replicas = _ids(body)
            _ids(body)  # in sync
            _ids(body)  # offline
            body.tags()
            found[index] = (leader, replicas)
        body.skip(4)  # authorized operations
        body.tags()
        indexes = range(len(found)) if all(each in found for each in range(len(found))) else ()
        yield TopicAnswer(
            name,
            None if topic_id == _NO_ID else topic_id,
            tuple(found[each][0] for each in indexes),
            tuple(found[each][1] for each in indexes),
        )
    if version < METADATA_WITHOUT_CLUSTER_RIGHTS:
        body.skip(4)
    body.tags()
    body.check_end()


def read_coordinators(frame: bytes, version: int, keys: Sequence[bytes]) -> dict[bytes, BrokerId]:
    """Read a FindCoordinator response, without its size field.

    Args:    keys: the keys of the request.
    Returns: key → broker id, without the keys that have no coordinator now.
    Raises:  MalformedFrame: the frame is no such response
    """
    try:
        body = _body(frame)
        body.int32()  # throttle time
        found: dict[bytes, BrokerId] = {}
        if version < COORDINATOR_BATCH:
            error_code = body.int16()
            body.text()
            broker_id = body.int32()
            return {} if error_code else {keys[0]: broker_id}
        for _ in range(body.count()):
            key, broker_id = body.text(), body.int32()
            body.text()
            body.int32()
            error_code = body.int16()
            body.text()
            body.tags()
            if key is not None and not error_code:
                found[key] = broker_id
        return found
    except OUT_OF_BYTES as error:
        raise MalformedFrame(
            "broker", f"FindCoordinator response of {len(frame)} bytes is too short"
        ) from error
