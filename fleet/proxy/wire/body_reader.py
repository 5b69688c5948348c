"""Reads the fields of one message in order, outside the hot path.

Frequent messages are read by generated functions, and in ``produce``, ``fetch`` and ``routing_keys``.
"""

from __future__ import annotations

from fleet.core.errors import Peer
from fleet.proxy.wire.primitives import read_int16, read_int32, read_varint, skip_tags
from fleet.proxy.wire.produce import REQUEST_HEADER_BYTES


class BodyReader:
    """Reads from a position on.

    Args:
        buf: the message, which ends with the bytes.
        pos: where the first field begins.
        is_flexible: whether lengths and counts are varints, and structs end with tagged fields.
        peer: who sent the message, for errors.

    Each method raises ``OUT_OF_BYTES`` if the message ends inside the field, and MalformedFrame if a varint
    is invalid. Skipped bytes are checked by the next read, and by `check_end`.
    """

    def __init__(self, buf: bytes, pos: int, *, is_flexible: bool, peer: Peer) -> None:
        self.pos = pos
        self._buf = memoryview(buf)
        self._is_flexible = is_flexible
        self._peer: Peer = peer

    def int16(self) -> int:
        (value,) = read_int16(self._buf, self.pos)
        self.pos += 2
        return int(value)

    def int32(self) -> int:
        (value,) = read_int32(self._buf, self.pos)
        self.pos += 4
        return int(value)

    def varint(self) -> int:
        value, self.pos = read_varint(self._buf, self.pos, self._peer)
        return value

    def count(self) -> int:
        """Read the number of elements of an array; 0 for null. Each element has at least one byte."""
        count = self.varint() - 1 if self._is_flexible else self.int32()
        if count > len(self._buf) - self.pos:
            raise IndexError(count)
        return max(count, 0)

    def text(self) -> bytes | None:
        """Read a string; None for null."""
        length = self.varint() - 1 if self._is_flexible else self.int16()
        return None if length < 0 else self.take(length)

    def take(self, size_bytes: int) -> bytes:
        after = self.pos + size_bytes
        if after > len(self._buf):
            raise IndexError(after)
        value = bytes(self._buf[self.pos : after])
        self.pos = after
        return value

    def skip(self, size_bytes: int) -> None:
        self.pos += size_bytes

    def tags(self) -> None:
        """Skip the tagged fields of a struct or header, which classic messages do not have."""
        if self._is_flexible:
            self.pos = skip_tags(self._buf, self.pos, self._peer)

    def check_end(self) -> None:
        """Raises: IndexError: the last field ends behind the end of the message."""
        if self.pos > len(self._buf):
            raise IndexError(self.pos)


def request_body(request: bytes, is_flexible: bool) -> BodyReader:
    """Return a reader of a whole request that a client sent, behind its header.

    Raises: as `BodyReader`
    """
    (client_id_bytes,) = read_int16(request, REQUEST_HEADER_BYTES - 2)
    pos = REQUEST_HEADER_BYTES + max(int(client_id_bytes), 0)
    reader = BodyReader(request, pos, is_flexible=is_flexible, peer="client")
    reader.tags()
    return reader
