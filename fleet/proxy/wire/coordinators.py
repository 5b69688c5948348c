"""FindCoordinator up to v2, when a coordinator has a new address and the same id.

librdkafka, which uses these versions, accepts a new address of a coordinator only if the id differs from the
previous one. A group whose coordinator's proxy died would dial the dead address forever. After a single
answer without a coordinator librdkafka forgets the old address, asks again half a second later, and accepts
the answer.

Other libraries with these versions accept every address, so they get the answer at once. kafka-go opens a
connection for each request, so an answer given once on a connection is the only one that kafka-go would get.

Source: FindCoordinatorResponse.json; rd_kafka_cgrp_coord_update and rd_kafka_txn_coord_set of librdkafka 2.16
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from fleet.proxy.wire.addresses import Addresses, Layout, Parts, Patch
from fleet.proxy.wire.primitives import read_int16, read_int32

FIND_COORDINATOR: Final = 10
LAST_RETRY_VERSION: Final = 2
"""The last version with a retry after a move. Clients with later versions accept every address."""
COORDINATOR_NOT_AVAILABLE: Final = 15

_NO_COORDINATOR: Final = Struct(">ihi").pack(-1, 0, -1)
"""Node id -1, empty host, port -1."""
_error_v0: Final = Struct(">h").pack(COORDINATOR_NOT_AVAILABLE)
_error_v1: Final = Struct(">hh").pack(COORDINATOR_NOT_AVAILABLE, -1)
"""Error, error message null."""


def keeps_coordinators(read_software_name: bytes) -> bool:
    """Whether a library with this name is librdkafka, or contains it; librdkafka sends a name since 1.4."""
    return b"rdkafka" in read_software_name or read_software_name.startswith(b"confluent-kafka")


def with_retry_after_move(layout: Layout, version: int) -> Layout:
    """Return a layout of FindCoordinator v0 to v2 that makes clients ask again, once, after a move."""
    throttle_bytes = 0 if version == 0 else 4

    def patch(buf: memoryview, addresses: Addresses, parts: Parts) -> int:
        """See ``fleet.proxy.wire.addresses.Patch``."""
        pos = 8 + throttle_bytes
        (error_code,) = read_int16(buf, pos)
        error_at, pos = pos, pos + 2
        if version > 0:
            (length,) = read_int16(buf, pos)
            pos += 2 + max(int(length), 0)
        (broker_id,) = read_int32(buf, pos)
        (length,) = read_int16(buf, pos + 4)
        end = pos + 6 + max(int(length), 0) + 4
        if end > len(buf):
            raise IndexError(end)
        if error_code or broker_id < 0 or not addresses.has_unreported_move(broker_id):
            return generated(buf, addresses, parts)
        parts += (buf[4:error_at], _error_v0 if version == 0 else _error_v1, _NO_COORDINATOR)
        return end

    generated: Patch = layout.patch
    return layout._replace(patch=patch)
