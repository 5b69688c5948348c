"""Produce, which is most of all requests: what is read of it, and its usual shapes, recognized at once.

A proxy's processor caches are cold at each request, so what counts is how little code and how few objects a
frame touches. Both shortcuts decide the same as the way around them (``produce_acks``, the patching
functions), which takes whatever they do not recognize.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from fleet.errors import MalformedFrame
from fleet.proxy.wire._tables import APIS
from fleet.proxy.wire.api_versions import PRODUCE
from fleet.proxy.wire.primitives import read_int16, skip_tags, varint

Recognize: TypeAlias = Callable[[bytes, int, int], object]
"""Whether the whole frame between two positions has a shape: truthy where it has."""

REQUEST_HEADER_BYTES: Final = 14
_FLEXIBLE: Final[int] = APIS[PRODUCE].first_flexible

FIRST_IN_PLACE: Final = PRODUCE << 16 | _FLEXIBLE
LAST_IN_PLACE: Final = PRODUCE << 16 | APIS[PRODUCE].max_version
"""API and version, the first and the last, of requests that mostly have ``acks`` right behind three bytes
after the client id: no tagged fields, and no transactional id."""

# One batch that was written, or that failed without a word: no record errors, no message, no tagged fields,
# and so no node endpoints. ProduceResponse.json: size, correlation id, tags; responses [name or id,
# partition_responses [index, error_code, base_offset, log_append_time_ms, log_start_offset, record_errors,
# error_message, tags], tags]; throttle_time_ms, tags.
_NAME_AT: Final = 10
_LONGEST_NAME: Final = 127
"""As its length is in one byte, which counts one more."""
_ID_BYTES: Final = 16
_BATCH_BYTES: Final = 40
"""From behind the topic on."""


def _one_batch_by_name(data: bytes, pos: int, after: int) -> bool:
    at = after - _BATCH_BYTES
    length = at - pos - _NAME_AT
    return (
        1 < length <= _LONGEST_NAME
        and data[pos + _NAME_AT] == length
        and data[pos + 8 : pos + _NAME_AT] == b"\x00\x02"
        and data[at] == 2
        and data[at + 31 : at + 35] == b"\x01\x00\x00\x00"
        and not data[after - 1]
    )


def _one_batch_by_id(data: bytes, pos: int, after: int) -> bool:
    at = after - _BATCH_BYTES
    return (
        at - pos == _NAME_AT + _ID_BYTES
        and data[pos + 8 : pos + _NAME_AT] == b"\x00\x02"
        and data[at] == 2
        and data[at + 31 : at + 35] == b"\x01\x00\x00\x00"
        and not data[after - 1]
    )


ONE_BATCH: Final[dict[int, Recognize]] = {
    **dict.fromkeys((10, 11, 12), _one_batch_by_name),
    13: _one_batch_by_id,
}
"""Produce version → recognizes the response to one batch, which has no address in it."""


def produce_acks(frame: memoryview, version: int, client_id_length: int) -> int:
    """Read how many acknowledgements a Produce request wants; 0 means that no response comes.

    Args:   frame: the request from its size field on, as far as it has arrived.
    Raises: IndexError, struct.error: more bytes are needed; MalformedFrame
    Source: ProduceRequest.json: transactional id, acks
    """
    pos = REQUEST_HEADER_BYTES + (client_id_length if client_id_length > 0 else 0)
    if version >= _FLEXIBLE:
        pos = skip_tags(frame, pos, "client") if frame[pos] else pos + 1
        length = frame[pos]
        pos += 1
        if length > 127:
            length, pos = varint(frame, pos - 1, "client")
        if length > 1:
            pos += length - 1
    else:
        (length,) = read_int16(frame, pos)
        if length < -1:
            raise MalformedFrame("client", f"transactional id of {length} bytes")
        pos += 2 + (length if length > 0 else 0)
    return int(read_int16(frame, pos)[0])
