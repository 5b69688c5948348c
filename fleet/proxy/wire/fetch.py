"""Fetch, whose answers are most of what passes: the usual ones without addresses, recognized at once.

As with Produce (``wire.produce``): what is recognized is what the scanner and ``wire.tail`` would leave as it
is, and they take whatever is not.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from fleet.proxy.wire.primitives import read_uint32, varint
from fleet.proxy.wire.produce import Recognize

FETCH: Final = 1

# FetchResponse.json v16-18: size, correlation id, tags; throttle_time_ms, error_code, session_id; responses
# [topic_id, partitions [index, error_code, high_watermark, last_stable_offset, log_start_offset,
# aborted_transactions, preferred_read_replica, records, tags], tags], tags.
_read_counts: Final = Struct(">8xB10xB16xB30xB4xB").unpack_from
"""Of tags, topics, partitions and aborted transactions, and the first byte of the length of the records."""
_RECORDS_AT: Final = 72
_NO_TAGS_BYTES: Final = 3
_SHORTEST_BYTES: Final = _RECORDS_AT + 1 + _NO_TAGS_BYTES
_EMPTY_BYTES: Final = 21


def _one_partition(data: bytes, pos: int, after: int) -> bool:
    """One partition without aborted transactions, or none at all; no tagged fields, and so no endpoints."""
    if after - pos < _SHORTEST_BYTES:
        empty = after - pos == _EMPTY_BYTES
        return empty and not data[pos + 8] and data[pos + 19] <= 1 and not data[pos + 20]
    tags, topics, partitions, aborted, length = _read_counts(data, pos)
    if tags or topics != 2 or partitions != 2 or aborted > 1 or read_uint32(data, after - 4)[0] & 0xFFFFFF:
        return False
    at = pos + _RECORDS_AT + 1
    if length > 127:
        length, at = varint(data, at - 1)
    return bool(at + (length or 1) - 1 + _NO_TAGS_BYTES == after)


WITHOUT_ENDPOINTS: Final[dict[int, Recognize]] = {16: _one_partition}
"""First Fetch version of a layout → recognizes the usual responses that have no address in them."""
