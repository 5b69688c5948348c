"""Heartbeats of groups, and the response that makes a member of a group look for its coordinator again."""

from __future__ import annotations

from struct import Struct
from typing import Final

from fleet.proxy.wire._tables import APIS
from fleet.proxy.wire.primitives import pack_int32

HEARTBEAT: Final = 12
CONSUMER_GROUP_HEARTBEAT: Final = 68
SHARE_GROUP_HEARTBEAT: Final = 76
HEARTBEATS: Final = frozenset({HEARTBEAT, CONSUMER_GROUP_HEARTBEAT, SHARE_GROUP_HEARTBEAT})
NOT_COORDINATOR: Final = 16

_error: Final = Struct(">h").pack
_throttle_and_error: Final = Struct(">ih").pack
# Throttle time, error; message and member id null; member epoch, interval; assignment null; tagged fields.
_group_error: Final = Struct(">ihBBiibB").pack


def build_not_coordinator(key: int, version: int, correlation_id: int) -> bytes:
    """Return the whole response to a heartbeat with error NOT_COORDINATOR.

    Args:   key: one of HEARTBEATS; version: one that the fleet offers.
    Source: HeartbeatResponse.json, ConsumerGroupHeartbeatResponse.json, ShareGroupHeartbeatResponse.json
    """
    if key != HEARTBEAT:
        body = _group_error(0, NOT_COORDINATOR, 0, 0, 0, 0, -1, 0)
    elif version == 0:
        body = _error(NOT_COORDINATOR)
    else:
        body = _throttle_and_error(0, NOT_COORDINATOR)
        if version >= APIS[HEARTBEAT].first_flexible:
            body += b"\0"
    tags = b"\0" if version >= APIS[key].first_flexible else b""
    rest = correlation_id.to_bytes(4, "big") + tags + body
    return pack_int32(len(rest)) + rest
