"""Produce, the most frequent request: reads its ``acks``, and recognizes its usual responses.

The processor caches of a proxy are cold at each request, so a frame has to touch as little code and as few
objects as possible. Both shortcuts decide like the general code (``produce_acks``, the patching functions),
which handles all frames that the shortcuts do not recognize.
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
    """Recognizes frames of one shape without an address. Compiled code calls methods of a class directly."""

    @abstractmethod
    def passes(self, data: bytes, pos: i64, after: i64) -> bool:
        """Whether the whole frame between two positions has the shape."""

    def passes_prefix(self, data: bytes, pos: i64, after: i64, end: i64) -> bool:
        """Whether a frame that ends at ``after``, and has arrived up to ``end``, has the shape.

        The missing bytes after the records count as zero: then there is no room for other fields.
        """
        return False


REQUEST_HEADER_BYTES: Final = 14
_FLEXIBLE: Final[int] = APIS[PRODUCE].first_flexible

FIRST_FLEXIBLE_PRODUCE: Final = _FLEXIBLE
"""The first version of requests that mostly have ``acks`` at the third byte after the client id: no tagged
fields, and no transactional id."""

# One batch that was written, or that failed without a message: no record errors, no tagged fields, and so no
# node endpoints. ProduceResponse.json: size, correlation id, tags; responses [name or id,
# partition_responses [index, error_code, base_offset, log_append_time_ms, log_start_offset, record_errors,
# error_message, tags], tags]; throttle_time_ms, tags.
_NAME_AT: Final = 10
_LONGEST_NAME: Final = 127
"""The longest name whose length fits in one byte, which has one more than the length."""
_ID_BYTES: Final = 16
_BATCH_BYTES: Final = 40
"""The bytes after the topic's name."""
_NO_TAGS_ONE_TOPIC: Final = 0x00_02
_NO_ERRORS_NO_MESSAGE: Final = 0x01_00_00_00
"""Includes that neither the partition nor the topic has tagged fields."""


class _OneBatch(Recognizer):
    """One batch of a topic with an id of ``self.id_bytes`` bytes, or with a short name if that is 0."""

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
"""Produce version → recognizer of the response to one batch, which has no address."""


MAX_HEADER_TAGS: Final = 16
"""Tagged fields in a request header. Kafka defines none and skips unknown ones; this leaves room for more.

The header is read again whenever more of it arrives, so an unlimited header would cost its length each time.
"""


def skip_header_tags(frame: memoryview, pos: int) -> int:
    """Skip the tagged fields of a request header that has any.

    Returns: the position after them.
    Raises:  MalformedFrame: more fields than MAX_HEADER_TAGS, or an invalid varint
    """
    count = read_varint(frame, pos, "client")[0]
    if count > MAX_HEADER_TAGS:
        raise MalformedFrame(
            "client", f"{count} tagged fields in a request header; the limit is {MAX_HEADER_TAGS}"
        )
    return skip_tags(frame, pos, "client")


def produce_acks(frame: memoryview, version: int, client_id_length: int) -> int:
    """Read how many acknowledgements a Produce request requires; 0 means that it gets no response.

    Args:   frame: the request from its size field on, as far as it has arrived.
    Raises: IndexError, struct.error: more bytes are needed; MalformedFrame
    Source: ProduceRequest.json: transactional id, acks
    """
    pos = REQUEST_HEADER_BYTES + (client_id_length if client_id_length > 0 else 0)
    if version >= _FLEXIBLE:
        if frame[pos]:
            pos = skip_header_tags(frame, pos)
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
            raise MalformedFrame("client", f"negative length {length} of the transactional id")
        pos += 2 + (length if length > 0 else 0)
    return int(read_int16(frame, pos)[0])
