"""Reads the first key of a request: a partition, a group, a transactional id, or the id of a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from librt.strings import read_i16_be, read_i32_be

from fleet.proxy.wire._tables import APIS, ROUTES
from fleet.proxy.wire.primitives import OUT_OF_BYTES, read_varint
from fleet.proxy.wire.produce import REQUEST_HEADER_BYTES, skip_header_tags
from fleet.proxy.wire.requests import VERSIONS_PER_API
from fleet.proxy.wire.routes import CONFIG, ENTER_ARRAY, TOPIC_ID, TOPIC_NAME, Route

if TYPE_CHECKING:
    from mypy_extensions import i64

NO_KEY: Final = 0
"""The request has no key, or is malformed: any broker gives the right answer, or the right error."""
KEY_FOUND: Final = 1
KEY_INCOMPLETE: Final = 2
"""More bytes of the request are needed."""

UUID_BYTES: Final = 16
MAX_TOPIC_BYTES: Final = 249
"""Source: Topic.java, MAX_NAME_LENGTH"""
MAX_KEY_BYTES: Final = 1024
"""The longest group or transactional id that is looked up. Brokers close a connection for one above 32 KB."""
_ZERO_ID: Final = bytes(UUID_BYTES)
_BROKER_RESOURCES: Final = frozenset((4, 8))
"""BROKER and BROKER_LOGGER. Source: ConfigResource.Type"""
_MAX_BROKER_ID_DIGITS: Final = 10
_ROUTES_BY_API: Final = {
    key << 16 | version: route for key, first, last, route in ROUTES for version in range(first, last + 1)
}
ROUTE_TABLE: Final[list[Route | None]] = [
    _ROUTES_BY_API.get(key << 16 | version)
    for key in range(max(APIS) + 1)
    for version in range(VERSIONS_PER_API)
]
"""The route of each request that the fleet offers, by API key times VERSIONS_PER_API plus version."""


class RoutingKey:
    """The first key of the request that `read` saw last, as positions in its bytes.

    ``start`` and ``end`` enclose a topic's name or id, a group, a transactional id, or the name of a
    configuration resource. ``partition`` is the index of a partition, or the id of a broker; else -1.
    """

    __slots__ = ("_seen", "end", "partition", "start")

    def __init__(self) -> None:
        self._seen: i64 = 0
        """The end of the bytes that were read, or that must arrive."""
        self.start: i64 = 0
        self.end: i64 = 0
        self.partition: i64 = -1

    def read(self, route: Route, data: bytes, pos: i64, arrived: i64, is_flexible: bool) -> int:
        """Read the key of a request with a keyed route.

        Args:
            pos: where the request begins, with its size field.
            arrived: the end of the arrived bytes. Only the header up to the client id must have arrived.
        Returns: NO_KEY, KEY_FOUND or KEY_INCOMPLETE.
        Raises: MalformedFrame: the header has too many tagged fields
        """
        size: int = read_i32_be(data, pos)
        after: i64 = pos + 4 + size
        stop: i64 = after if after < arrived else arrived
        try:
            found = self._read(route, data, pos, is_flexible)
        except OUT_OF_BYTES:
            found = False
            self._seen = arrived + 1
        if self._seen > stop:
            return KEY_INCOMPLETE if stop < after else NO_KEY
        return KEY_FOUND if found else NO_KEY

    def _read(self, route: Route, data: bytes, pos: i64, is_flexible: bool) -> bool:
        """Find the key, perhaps beyond the arrived bytes."""
        length: int = read_i16_be(data, pos + 12)
        at: i64 = pos + REQUEST_HEADER_BYTES + (length if length > 0 else 0)
        count: int
        if is_flexible:
            if data[at]:
                at = skip_header_tags(memoryview(data), at)
            else:
                at += 1
        step: i64
        for step in route.steps:
            if step > 0:
                at += step
                continue
            count = self._read_length(data, at, is_flexible, step == ENTER_ARRAY)
            at = self._seen
            if step == ENTER_ARRAY:
                if count < 1:
                    return False
            elif count > 0:
                at += count
        kind: i64 = route.kind
        resource: int = 0
        if kind == TOPIC_ID:
            length = UUID_BYTES
        else:
            if kind == CONFIG:
                resource = data[at]
                at += 1
            length = self._read_length(data, at, is_flexible, False)
            if length < 1:
                return False
            at = self._seen
        self.start = at
        self.end = self._seen = at + length
        self.partition = -1
        if length > (MAX_TOPIC_BYTES if kind == TOPIC_NAME else MAX_KEY_BYTES):
            return False
        if kind == TOPIC_ID and data.startswith(_ZERO_ID, self.start):
            return False
        if kind in (TOPIC_ID, TOPIC_NAME):
            return self._read_partition(data, is_flexible)
        return kind != CONFIG or (resource in _BROKER_RESOURCES and self._read_broker_id(data))

    def _read_partition(self, data: bytes, is_flexible: bool) -> bool:
        """Read the index of the topic's first partition."""
        if self._read_length(data, self.end, is_flexible, True) < 1:
            return False
        at: i64 = self._seen
        self._seen = at + 4
        partition: int = read_i32_be(data, at)
        self.partition = partition
        return True

    def _read_length(self, data: bytes, at: i64, is_flexible: bool, is_array: bool) -> int:
        """Read the length of a string or the number of an array's elements; -1 for null. ``_seen`` is then
        behind it."""
        length: int
        if is_flexible:
            length = data[at]
            at += 1
            if length > 127:
                length, at = read_varint(data, at - 1, "client")
            self._seen = at
            return length - 1
        if is_array:
            length = read_i32_be(data, at)
            self._seen = at + 4
        else:
            length = read_i16_be(data, at)
            self._seen = at + 2
        return length

    def _read_broker_id(self, data: bytes) -> bool:
        digits = data[self.start : self.end]
        if not digits.isdigit() or len(digits) > _MAX_BROKER_ID_DIGITS:
            return False
        self.partition = int(digits)
        return True
