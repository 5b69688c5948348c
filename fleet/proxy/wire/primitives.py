"""Varints, lengths and tagged fields, read in place.

All functions read a ``memoryview``, or bytes, that end with the frame or with the bytes that have arrived so
far. Reading past the end raises ``IndexError`` or ``struct.error``. Only the session knows whether more bytes
follow, and turns the error into "wait" or into ``TruncatedFrame``. Skipping does not check the skipped bytes:
a position beyond the end fails at the next read.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from typing import Final, NoReturn

from fleet.core.errors import MalformedFrame, Peer

OUT_OF_BYTES: Final = (IndexError, struct_error)
"""The errors of a read past the end."""

read_int16: Final = Struct(">h").unpack_from
read_int32: Final = Struct(">i").unpack_from
read_id_and_compact_length: Final = Struct(">iB").unpack_from
read_id_and_length: Final = Struct(">ih").unpack_from

pack_int16: Final = Struct(">h").pack
pack_int32: Final = Struct(">i").pack

MAX_VARINT_BYTES: Final = 5
MAX_TAGS_PER_SECTION: Final = 4096
"""Tagged fields in one section, which is skipped in one turn. No message defines more than a handful."""
MAX_INT32: Final = 0x7FFFFFFF


def read_varint(buf: bytes | memoryview, pos: int, peer: Peer = "broker") -> tuple[int, int]:
    """Read an unsigned varint.

    Returns: the value and the position after the varint.
    Raises:  MalformedFrame: the varint does not end, or its value is above int32.
    """
    value = shift = 0
    for at in range(pos, pos + MAX_VARINT_BYTES):
        byte = buf[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > MAX_INT32:
                raise MalformedFrame(peer, f"varint {value} at byte {pos} is above int32")
            return value, at + 1
        shift += 7
    raise MalformedFrame(peer, f"varint at byte {pos} does not end within {MAX_VARINT_BYTES} bytes")


def encode_varint(value: int) -> bytes:
    """Encode a non-negative number as an unsigned varint."""
    if value < 0x80:
        return bytes((value,))
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def skip_tags(buf: memoryview, pos: int, peer: Peer = "broker") -> int:
    """Skip a section of tagged fields, known and unknown alike.

    Returns: the position after the section.
    Raises:  MalformedFrame: an invalid varint, or more fields than any message has.
    Source:  KIP-482
    """
    count, pos = read_varint(buf, pos, peer)
    if count > MAX_TAGS_PER_SECTION:
        reject_tag_count(count, peer)
    for _ in range(count):
        if buf[pos] < 0x80:
            pos += 1
        else:
            _, pos = read_varint(buf, pos, peer)
        size = buf[pos]
        pos += 1
        if size > 0x7F:
            size, pos = read_varint(buf, pos - 1, peer)
        pos += size
    return pos


def reject_tag_count(count: int, peer: Peer = "broker") -> NoReturn:
    """Refuse a section with more tagged fields than any message has."""
    raise MalformedFrame(peer, f"{count} tagged fields in one section; the limit is {MAX_TAGS_PER_SECTION}")


def reject_negative_length(length: int, pos: int, peer: Peer = "broker") -> NoReturn:
    """Refuse a length or count below -1, which means null."""
    raise MalformedFrame(peer, f"negative length {length} before byte {pos}")


def compact_string(value: str) -> bytes:
    """Encode a non-null string as in flexible versions."""
    encoded = value.encode()
    return encode_varint(len(encoded) + 1) + encoded


def classic_string(value: str) -> bytes:
    """Encode a non-null string as before flexible versions."""
    encoded = value.encode()
    return pack_int16(len(encoded)) + encoded
