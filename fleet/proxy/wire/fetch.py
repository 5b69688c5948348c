"""Recognizes the usual Fetch responses without addresses, which are most of the traffic.

A recognizer accepts only responses that the scanner and ``wire.tail`` would leave unchanged. They handle all
other responses (compare ``wire.produce``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from librt.strings import read_i32_be

from fleet.proxy.wire.primitives import MAX_VARINT_BYTES, read_varint
from fleet.proxy.wire.produce import Recognizer

if TYPE_CHECKING:
    from mypy_extensions import i64

FETCH: Final = 1

# FetchResponse.json v16-18: size, correlation id, tags; throttle_time_ms, error_code, session_id; responses
# [topic_id, partitions [index, error_code, high_watermark, last_stable_offset, log_start_offset,
# aborted_transactions, preferred_read_replica, records, tags], tags], tags.
# Positions of the tags, of the compact counts of topics, partitions and aborted transactions (each one more
# than the count), and of the length of the records.
_TAGS_AT: Final = 8
_TOPICS_AT: Final = 19
_PARTITIONS_AT: Final = 36
_ABORTED_AT: Final = 67
_RECORDS_AT: Final = 72
NO_TAGS_BYTES: Final = 3
"""Empty sections of tagged fields after the records: of the partition, the topic and the response."""
_SHORTEST_BYTES: Final = _RECORDS_AT + 1 + NO_TAGS_BYTES
_EMPTY_BYTES: Final = 21


class _OnePartition(Recognizer):
    """One partition without aborted transactions, or no partition; no tagged fields, so no endpoints."""

    def passes(self, data: bytes, pos: i64, after: i64) -> bool:
        if after - pos < _SHORTEST_BYTES:
            empty = after - pos == _EMPTY_BYTES
            return empty and not data[pos + _TAGS_AT] and data[pos + _TOPICS_AT] <= 1 and not data[after - 1]
        return not read_i32_be(data, after - 4) & 0xFFFFFF and self.passes_prefix(data, pos, after, after)

    def passes_prefix(self, data: bytes, pos: i64, after: i64, end: i64) -> bool:
        at: i64 = pos + _RECORDS_AT + 1
        if (
            end < at
            or data[pos + _TAGS_AT]
            or data[pos + _TOPICS_AT] != 2
            or data[pos + _PARTITIONS_AT] != 2
            or data[pos + _ABORTED_AT] > 1
        ):
            return False
        length: i64 = data[at - 1]
        if length > 127:
            if end == at:
                return False
            if data[at] > 127:
                if end < at + MAX_VARINT_BYTES - 1 and all(byte > 127 for byte in data[at + 1 : end]):
                    return False
                length, at = read_varint(data, at - 1)
            else:  # a few records
                length += (data[at] - 1) << 7
                at += 1
        return at + (length or 1) - 1 + NO_TAGS_BYTES == after


FETCH_RECOGNIZERS: Final[dict[int, Recognizer]] = {16: _OnePartition()}
"""First Fetch version of a layout → recognizer of the usual responses without an address."""
