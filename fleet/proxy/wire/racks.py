"""The rack in a Fetch request, by which a leader sends a consumer to a follower (KIP-392).

Source: FetchRequest.json v11 and above
"""

from __future__ import annotations

from typing import Final

from fleet.core.errors import TruncatedFrame
from fleet.proxy.wire._tables import APIS
from fleet.proxy.wire.fetch import FETCH
from fleet.proxy.wire.primitives import (
    OUT_OF_BYTES,
    pack_int32,
    read_int16,
    read_int32,
    read_varint,
    skip_tags,
)
from fleet.proxy.wire.routing_keys import UUID_BYTES

FIRST_WITH_RACK: Final = 11
FIRST_WITH_TOPIC_IDS: Final = 13
FIRST_WITHOUT_REPLICA_ID: Final = 15
_REPLICA_ID_BYTES: Final = 4
_FIXED_BYTES: Final = 21
"""Wait, minimum, maximum, isolation level, session id and epoch."""
_PARTITION_BYTES: Final = 28
"""Index, leader epoch, offset, log start offset, maximum; v12 adds the last fetched epoch."""
_LAST_EPOCH_BYTES: Final = 4


_FIRST_FLEXIBLE: Final[int] = APIS[FETCH].first_flexible
_NO_RACK: Final = 0
"""The last two bytes of a classic request without a rack."""
_NO_RACK_NO_TAGS: Final = 0x01_00


def has_no_rack(last_two_bytes: int, version: int) -> bool:
    """Whether a request ends with an empty rack, and without tagged fields.

    Only brokers send tagged fields in a Fetch. With such fields the result may be wrong.
    """
    return last_two_bytes == (_NO_RACK_NO_TAGS if version >= _FIRST_FLEXIBLE else _NO_RACK)


def blank_rack(request: bytes, version: int) -> bytes:
    """Return a whole Fetch request of FIRST_WITH_RACK or above without its rack.

    Args:   request: from its size field on.
    Raises: TruncatedFrame: the request ends inside a field
    """
    try:
        start, end = _find_rack(memoryview(request), version)
    except OUT_OF_BYTES:
        raise TruncatedFrame("client", "Fetch request ends inside a field") from None
    if end > len(request):
        raise TruncatedFrame("client", "Fetch request ends inside its rack")
    empty = b"\1" if version >= _FIRST_FLEXIBLE else b"\0\0"
    rest = request[4:start] + empty + request[end:]
    return pack_int32(len(rest)) + rest


def _find_rack(buf: memoryview, version: int) -> tuple[int, int]:
    """Return where the text of the rack begins, its length included, and where it ends."""
    is_flexible = version >= _FIRST_FLEXIBLE

    def count_at(pos: int) -> tuple[int, int]:
        if is_flexible:
            value, pos = read_varint(buf, pos, "client")
            value -= 1
        else:
            value, pos = int(read_int32(buf, pos)[0]), pos + 4
        if value > len(buf) - pos:  # each element has at least one byte
            raise IndexError(value)
        return max(value, 0), pos

    def skip_text(pos: int) -> int:
        if is_flexible:
            length, pos = read_varint(buf, pos, "client")
            length -= 1
        else:
            length, pos = int(read_int16(buf, pos)[0]), pos + 2
        return pos + max(length, 0)

    def skip_topic(pos: int) -> int:
        return pos + UUID_BYTES if version >= FIRST_WITH_TOPIC_IDS else skip_text(pos)

    def skip_section(pos: int) -> int:
        return skip_tags(buf, pos, "client") if is_flexible else pos

    pos = skip_section(14 + max(int(read_int16(buf, 12)[0]), 0))
    pos += _FIXED_BYTES + (0 if version >= FIRST_WITHOUT_REPLICA_ID else _REPLICA_ID_BYTES)
    topics, pos = count_at(pos)
    for _ in range(topics):
        partitions, pos = count_at(skip_topic(pos))
        for _ in range(partitions):
            pos = skip_section(pos + _PARTITION_BYTES + (_LAST_EPOCH_BYTES if is_flexible else 0))
        pos = skip_section(pos)
    forgotten, pos = count_at(pos)
    for _ in range(forgotten):
        partitions, pos = count_at(skip_topic(pos))
        pos = skip_section(pos + 4 * partitions)
    return pos, skip_text(pos)
