"""Answers to requests that no broker can get, because the client has not shown which broker it means.

Source: FetchResponse.json, ShareFetchResponse.json, ShareAcknowledgeResponse.json,
    DescribeLogDirsResponse.json, AlterReplicaLogDirsRequest.json and AlterReplicaLogDirsResponse.json
"""

from __future__ import annotations

from typing import Final

from fleet.core.errors import TruncatedFrame
from fleet.proxy.wire._tables import APIS
from fleet.proxy.wire.body_reader import request_body
from fleet.proxy.wire.fetch import FETCH
from fleet.proxy.wire.primitives import OUT_OF_BYTES, encode_varint, pack_int16, pack_int32

SHARE_FETCH: Final = 78
SHARE_ACKNOWLEDGE: Final = 79
ALTER_REPLICA_LOG_DIRS: Final = 34
DESCRIBE_LOG_DIRS: Final = 35

INVALID_REQUEST: Final = 42
FETCH_SESSION_ID_NOT_FOUND: Final = 70
SHARE_SESSION_NOT_FOUND: Final = 122

FIRST_FETCH_WITH_SESSIONS: Final = 7
FIRST_TIMEOUT: Final = {SHARE_FETCH: 1, SHARE_ACKNOWLEDGE: 2}
"""API key → first version whose response has AcquisitionLockTimeoutMs."""
FIRST_LOG_DIRS_ERROR: Final = 3
"""First version of DescribeLogDirs with an error code for the whole response."""


def has_sessions(key: int, version: int) -> bool:
    """Whether a request may name no partition, because the broker knows them from a session."""
    return key in FIRST_TIMEOUT or (key == FETCH and version >= FIRST_FETCH_WITH_SESSIONS)


def reject_session(key: int, version: int, correlation_id: int) -> bytes:
    """Return the whole response to Fetch, ShareFetch or ShareAcknowledge: there is no such session.

    The client then sends a request with all its partitions.
    """
    throttle = pack_int32(0)
    if key == FETCH:
        is_flexible = version >= APIS[FETCH].first_flexible
        body = throttle + pack_int16(FETCH_SESSION_ID_NOT_FOUND) + pack_int32(0)
        body += b"\1\0" if is_flexible else pack_int32(0)
        return _response(correlation_id, body, flexible=is_flexible)
    timeout = pack_int32(0) if version >= FIRST_TIMEOUT[key] else b""
    no_message, empty, no_tags = b"\0", b"\1", b"\0"
    body = throttle + pack_int16(SHARE_SESSION_NOT_FOUND) + no_message + timeout + empty + empty + no_tags
    return _response(correlation_id, body, flexible=True)


def reject_log_dirs(key: int, version: int, correlation_id: int, request: bytes) -> bytes:
    """Return the whole response to DescribeLogDirs or AlterReplicaLogDirs: INVALID_REQUEST.

    Args:   request: the whole request, from its size field on.
    Raises: TruncatedFrame: the request ends inside a field
    """
    is_flexible = version >= APIS[key].first_flexible
    if key == ALTER_REPLICA_LOG_DIRS:
        return _response(
            correlation_id, pack_int32(0) + _alter_results(request, is_flexible), flexible=is_flexible
        )
    body, tags = pack_int32(0), b"\0" if is_flexible else b""
    if version >= FIRST_LOG_DIRS_ERROR:
        body += pack_int16(INVALID_REQUEST) + b"\1"
    else:  # one result without a folder
        one, empty = (b"\2", b"\1") if is_flexible else (pack_int32(1), pack_int16(0))
        no_topics = b"\1" if is_flexible else pack_int32(0)
        body += one + pack_int16(INVALID_REQUEST) + empty + no_topics + tags
    return _response(correlation_id, body + tags, flexible=is_flexible)


def _response(correlation_id: int, body: bytes, *, flexible: bool) -> bytes:
    rest = pack_int32(correlation_id) + (b"\0" if flexible else b"") + body
    return pack_int32(len(rest)) + rest


def _alter_results(request: bytes, is_flexible: bool) -> bytes:
    """Return the results of AlterReplicaLogDirs: the error for each partition of the request."""
    topics: dict[bytes, list[int]] = {}
    try:
        body = request_body(request, is_flexible)
        for _ in range(body.count()):
            body.text()  # the folder
            for _ in range(body.count()):
                partitions = topics.setdefault(body.text() or b"", [])
                partitions += [body.int32() for _ in range(body.count())]
                body.tags()
            body.tags()
    except OUT_OF_BYTES:
        raise TruncatedFrame("client", "AlterReplicaLogDirs ends inside a field") from None

    def count(number: int) -> bytes:
        return encode_varint(number + 1) if is_flexible else pack_int32(number)

    def text(value: bytes) -> bytes:
        return (encode_varint(len(value) + 1) if is_flexible else pack_int16(len(value))) + value

    tags = b"\0" if is_flexible else b""
    results = b""
    for name, partitions in topics.items():
        errors = b"".join(pack_int32(each) + pack_int16(INVALID_REQUEST) + tags for each in partitions)
        results += text(name) + count(len(partitions)) + errors + tags
    return count(len(topics)) + results + tags
