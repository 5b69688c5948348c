"""Rewrites the end of a response with addresses after records, without changing its length.

The frame's length was sent long before. If the fleet's addresses are shorter, the rest is padded with tagged
fields that clients skip, because no definition has their tags. If the addresses do not fit, padding replaces
all of them, and the client requests Metadata, like older clients without these addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from fleet.core.errors import MalformedFrame
from fleet.proxy.wire.addresses import Addresses, Parts, Streamed
from fleet.proxy.wire.primitives import MAX_VARINT_BYTES, encode_varint, read_varint, reject_tag_count

TAIL_LIMIT_BYTES: Final = 64 * 1024
"""The longest tail that is rewritten; a longer one is replaced by padding."""

MAX_TAIL_FIELDS: Final = 256
"""Tagged fields in the last section, which is copied in one turn. No message defines more than a handful."""

PADDING_TAGS: Final = range(1, 128)
"""The tags of one byte that a padding field may have; the highest free tags are used."""

_NO_ADDRESSES: Final = b"\x01"
"""An empty array."""


class TaggedField(NamedTuple):
    """A tagged field: its tag, and its whole encoding."""

    tag: int
    encoded: bytes


def rewrite(tail: memoryview, layout: Streamed, addresses: Addresses) -> bytes | None:
    """Replace the addresses in a whole tail, or remove them.

    Args:    tail: the bytes from the end of ``layout.scan`` to the end of the frame.
    Returns: the new tail, of the same length; None if there is no address to replace.
    Raises:  IndexError, struct.error: the tail ends inside a field; MalformedFrame
    """
    pos = replaced = 0
    array = b""
    if layout.tag is None:
        array, replaced, pos = _array(tail, 0, layout, addresses)
    other_fields: list[TaggedField] = []
    fields: list[TaggedField] = []
    count, pos = read_varint(tail, pos)
    if count > MAX_TAIL_FIELDS:
        reject_tag_count(count)
    for _ in range(count):
        start = pos
        tag, pos = read_varint(tail, pos)
        size, pos = read_varint(tail, pos)
        stop = pos + size
        if stop > len(tail):
            raise IndexError(stop)
        if tag == layout.tag:
            value, found, pos = _array(tail[:stop], pos, layout, addresses)
            if pos != stop:
                raise MalformedFrame("broker", f"tagged field ends at byte {pos}, expected {stop}")
            replaced += found
            fields.append(TaggedField(tag, encode_varint(tag) + encode_varint(len(value)) + value))
        else:
            other_fields.append(TaggedField(tag, bytes(tail[start:stop])))
            pos = stop
    if pos != len(tail):
        raise MalformedFrame("broker", f"the last section ends at byte {pos}, expected {len(tail)}")
    if not replaced:
        return None
    fitting = fit(array, [*fields, *other_fields], len(tail)) or fit(
        _NO_ADDRESSES if array else b"", other_fields, len(tail)
    )
    if fitting is None:
        raise MalformedFrame("broker", f"{count} tagged fields leave no tag for padding")
    return fitting


def fit(array: bytes, fields: Sequence[TaggedField], size: int) -> bytes | None:
    """Encode an array and a section of tagged fields, padded to ``size`` bytes with up to two more fields.

    Returns: the bytes; None if they are longer, or one byte shorter, because no field has one byte.
    """
    used = {each.tag for each in fields}
    free = [tag for tag in PADDING_TAGS if tag not in used][-2:]
    for number in range(len(free) + 1):
        count = encode_varint(len(fields) + number)
        room = size - len(array) - len(count) - sum(len(each.encoded) for each in fields)
        sizes = ((), (room,), (2, room - 2))[number]
        made = [padding(tag, each) for tag, each in zip(free, sizes, strict=False)]
        extra = [each for each in made if each is not None]
        if sum(sizes) == room and len(extra) == number:
            section = sorted((*fields, *extra), key=lambda each: each.tag)
            return b"".join((array, count, *(each.encoded for each in section)))
    return None


def padding(tag: int, size: int) -> TaggedField | None:
    """Return a field of zeros with ``size`` bytes in total; see ``padding_head``."""
    head = padding_head(tag, size)
    return TaggedField(tag, head.ljust(size, b"\0")) if head else None


def padding_head(tag: int, size: int) -> bytes:
    """Return the tag and the length of a field with ``size`` bytes in total.

    Returns: empty if no field has this size: below 2 bytes, or when a longer encoding of the length makes the
             field too long, such as with 130 bytes.
    """
    for width in range(1, MAX_VARINT_BYTES + 1):
        length = size - 1 - width
        if length >= 0 and len(encoded := encode_varint(length)) == width:
            return bytes((tag,)) + encoded
    return b""


def blank_head(layout: Streamed, size: int) -> bytes:
    """Return the beginning of a tail of ``size`` bytes that is only padding; only zeros follow.

    Args: size: above TAIL_LIMIT_BYTES.
    """
    first, second = PADDING_TAGS[-2:]
    array = _NO_ADDRESSES if layout.tag is None else b""
    room = size - len(array) - 1
    head = padding_head(first, room)
    if head:
        return array + b"\x01" + head
    return array + b"\x02" + padding_head(first, 2) + padding_head(second, room - 2)


def _array(buf: memoryview, pos: int, layout: Streamed, addresses: Addresses) -> tuple[bytes, bool, int]:
    """Rewrite an array of addresses.

    Returns: the new array, whether an address was replaced, and where the old array ended.
    Raises:  IndexError, struct.error: the array does not end in ``buf``
    """
    parts: Parts = []
    mark, ends = layout.endpoints(buf, pos, addresses, parts)
    if ends > len(buf):
        raise IndexError(ends)
    return b"".join((*parts, buf[mark:ends])), bool(parts), ends
