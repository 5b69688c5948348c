"""The rack in a Fetch request, by which a leader sends a consumer to a follower (KIP-392).

Source: FetchRequest.json v11 and above
"""

from __future__ import annotations

from typing import Final

from fleet.core.errors import TruncatedFrame
from fleet.proxy.wire._tables import APIS
from fleet.proxy.wire.body_reader import BodyReader, request_body
from fleet.proxy.wire.fetch import FETCH
from fleet.proxy.wire.primitives import OUT_OF_BYTES, pack_int32
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
        body = request_body(request, version >= _FIRST_FLEXIBLE)
        _skip_to_rack(body, version)
        start = body.pos
        body.text()
    except OUT_OF_BYTES:
        raise TruncatedFrame("client", "Fetch request ends inside a field") from None
    empty = b"\1" if version >= _FIRST_FLEXIBLE else b"\0\0"
    rest = request[4:start] + empty + request[body.pos :]
    return pack_int32(len(rest)) + rest


def _skip_to_rack(body: BodyReader, version: int) -> None:
    def skip_topic() -> None:
        if version >= FIRST_WITH_TOPIC_IDS:
            body.skip(UUID_BYTES)
        else:
            body.text()

    partition_bytes = _PARTITION_BYTES + (_LAST_EPOCH_BYTES if version >= _FIRST_FLEXIBLE else 0)
    body.skip(_FIXED_BYTES + (0 if version >= FIRST_WITHOUT_REPLICA_ID else _REPLICA_ID_BYTES))
    for _ in range(body.count()):
        skip_topic()
        for _ in range(body.count()):
            body.skip(partition_bytes)
            body.tags()
        body.tags()
    for _ in range(body.count()):  # forgotten topics
        skip_topic()
        body.skip(4 * body.count())
        body.tags()
