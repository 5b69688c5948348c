"""Produce, which is most of all requests: what is read of it, and its usual shapes, recognized at once.

A proxy's processor caches are cold at each request, so what counts is how little code and how few objects a
frame touches. Both shortcuts decide the same as the way around them (``produce_acks``, the patching
functions), which takes whatever they do not recognize.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from librt.strings import read_i16_be, read_i32_be

from fleet.core.errors import MalformedFrame
from fleet.proxy.wire._tables import APIS
from fleet.proxy.wire.api_versions import PRODUCE
from fleet.proxy.wire.primitives import read_int16, read_varint, skip_tags

if TYPE_CHECKING:
    from mypy_extensions import i64


class Recognizer(ABC):
    """Knows a shape of frames without an address. A class, whose method compiled code calls directly."""

    @abstractmethod
    def passes(self, data: bytes, pos: i64, after: i64) -> bool:
        """Whether the whole frame between two positions has it."""

    def passes_prefix(self, data: bytes, pos: i64, after: i64, end: i64) -> bool:
        """Whether a frame that is to end at ``after``, and is there up to ``end``, has it if zeros are behind
        what is of any length: there is no room for anything else then.
        """
        return False


REQUEST_HEADER_BYTES: Final = 14
_FLEXIBLE: Final[int] = APIS[PRODUCE].first_flexible

FIRST_FLEXIBLE_PRODUCE: Final = _FLEXIBLE
"""The first version of requests that mostly have ``acks`` right behind three bytes after the client id: no
tagged fields, and no transactional id."""

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
_NO_TAGS_ONE_TOPIC: Final = 0x00_02
_NO_ERRORS_NO_MESSAGE: Final = 0x01_00_00_00
"""And no tagged fields of the partition, nor of the topic."""


class _OneBatch(Recognizer):
    """One batch of a topic that is named by what has ``self.id_bytes`` bytes, or by a short text."""

    def __init__(self, id_bytes: int) -> None:
        self.id_bytes: i64 = id_bytes

    def passes(self, data: bytes, pos: i64, after: i64) -> bool:
        at = after - _BATCH_BYTES
        length = at - pos - _NAME_AT
        if self.id_bytes:
            named = length == self.id_bytes
        else:
            named = 1 < length <= _LONGEST_NAME and data[pos + _NAME_AT] == length
        return (
            named
            and read_i16_be(data, pos + 8) == _NO_TAGS_ONE_TOPIC
            and data[at] == 2
            and read_i32_be(data, at + 31) == _NO_ERRORS_NO_MESSAGE
            and not data[after - 1]
        )


_BY_NAME: Final = _OneBatch(0)
PRODUCE_RECOGNIZERS: Final[dict[int, Recognizer]] = {
    **dict.fromkeys((10, 11, 12), _BY_NAME),
    13: _OneBatch(_ID_BYTES),
}
"""Produce version → recognizes the response to one batch, which has no address in it."""


MAX_HEADER_TAGS: Final = 16
"""Tagged fields in a request header. Kafka defines none and skips unknown ones; this leaves room for more.

The header is read again whenever more of it arrives, so an unbounded number would cost its length each time.
"""


def produce_acks(frame: memoryview, version: int, client_id_length: int) -> int:
    """Read how many acknowledgements a Produce request wants; 0 means that no response comes.

    Args:   frame: the request from its size field on, as far as it has arrived.
    Raises: IndexError, struct.error: more bytes are needed; MalformedFrame
    Source: ProduceRequest.json: transactional id, acks
    """
    pos = REQUEST_HEADER_BYTES + (client_id_length if client_id_length > 0 else 0)
    if version >= _FLEXIBLE:
        if frame[pos]:
            count = read_varint(frame, pos, "client")[0]
            if count > MAX_HEADER_TAGS:
                raise MalformedFrame("client", f"{count} tagged fields in a request header")
            pos = skip_tags(frame, pos, "client")
        else:
            pos += 1
        length = frame[pos]
        pos += 1
        if length > 127:
            length, pos = read_varint(frame, pos - 1, "client")
        if length > 1:
            pos += length - 1
    else:
        (length,) = read_int16(frame, pos)
        if length < -1:
            raise MalformedFrame("client", f"transactional id of {length} bytes")
        pos += 2 + (length if length > 0 else 0)
    return int(read_int16(frame, pos)[0])
