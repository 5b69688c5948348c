"""What the patching functions need to know of addresses: one look-up, and one way to say what they saw."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final, NamedTuple, TypeAlias

from fleet.core.model import BrokerId
from fleet.proxy.wire.primitives import read_int16, read_int32, read_varint
from fleet.proxy.wire.scan import FieldBudget, Scan


class Address(NamedTuple):
    """What is written for one broker: host and port, in both encodings.

    Args:
        compact: compact string and int32, as in flexible versions.
        classic: int16 string and int32, as before them.
        real_compact, real_classic: the broker's own address as the directory knows it, or empty. A response
            that carries another one is worth a report; one comparison of bytes is what it costs to find out.
    """

    compact: bytes
    classic: bytes
    real_compact: bytes
    real_classic: bytes


class Addresses(dict[BrokerId, Address]):
    """The addresses for one client by broker id; a subclass finds a missing one: a look-up never fails.

    ``left_out`` counts what keeps a list of all brokers from being one that others begin with, too: brokers
    that have no id or no host, and stay as they are, and brokers that no member has a port for.
    """

    __slots__ = ("left_out",)

    def __init__(self) -> None:
        super().__init__()
        self.left_out = 0

    def __missing__(self, broker_id: BrokerId) -> Address:
        raise NotImplementedError

    def has_unreported_move(self, broker_id: BrokerId) -> bool:
        """Whether the client must be told that a broker's address has changed: once on a connection."""
        return False

    def report_address(
        self, broker_id: BrokerId, host: str, port: int, rack: str | None, has_rack: bool
    ) -> None:
        """Take note of a real address that differs from ``Address.real_*``.

        Args:
            has_rack: whether the response carries racks at all.
        """

    def report_compact(self, buf: memoryview, broker_id: BrokerId, pos: int, has_rack: bool) -> None:
        """``report_address`` what stands at ``pos``: a compact host, a port, and perhaps a rack."""
        length, pos = read_varint(buf, pos)
        host = _text(buf, pos, length - 1)
        pos += length - 1
        (port,) = read_int32(buf, pos)
        rack = None
        if has_rack:
            length, pos = read_varint(buf, pos + 4)
            rack = _text(buf, pos, length - 1) if length else None
        self.report_address(broker_id, host, port, rack, has_rack)

    def report_classic(self, buf: memoryview, broker_id: BrokerId, pos: int, has_rack: bool) -> None:
        """``report_address`` what stands at ``pos``: an int16 host, a port, and perhaps a rack."""
        (length,) = read_int16(buf, pos)
        pos += 2
        host = _text(buf, pos, length)
        pos += length
        (port,) = read_int32(buf, pos)
        rack = None
        if has_rack:
            (length,) = read_int16(buf, pos + 4)
            rack = _text(buf, pos + 6, length) if length >= 0 else None
        self.report_address(broker_id, host, port, rack, has_rack)


def _text(buf: memoryview, pos: int, length: int) -> str:
    if pos + length > len(buf):
        raise IndexError(pos + length)
    return str(buf[pos : pos + length], "utf-8", "replace")


Parts: TypeAlias = list[bytes | memoryview]
"""Segments of a response in order; slices of it, with what replaces its addresses between them."""

Patch: TypeAlias = Callable[[memoryview, Addresses, Parts], int]
"""Rewrites the addresses in one response.

Args:    the response from its size field on, as far as it has arrived; the addresses to write; an empty list,
         which receives the segments from byte 4 on up to the last address and stays empty where there is none
Returns: the position from which the rest follows as it is
Raises:  IndexError, struct.error: more bytes are needed; MalformedFrame
"""


SLICE_BYTES = 8 * 1024  # not Final: tests change it, and a compiler would write its value into the code
"""How much of a response is patched in one turn of the event loop: 0.3 ms of DescribeConfigs."""
TAG_LIMIT_BYTES: Final = 256 * 1024
"""The longest tagged field with addresses in a response that is patched in slices: of 6,000 brokers."""

Slices: TypeAlias = Generator[None, None, int]
"""Rewrites the addresses in one response as ``Patch`` does, and pauses after each ``SLICE_BYTES``.

At a pause the list has all segments since the pause before; the caller takes them and empties it. It has a
single one where nothing was replaced. What it returns is the position from which the rest follows as it is,
without the segment for that.
"""

PatchSlices: TypeAlias = Callable[[memoryview, Addresses, Parts], Slices]


class Layout(NamedTuple):
    """How the responses of one API and version are patched.

    Args:
        name: of the function, for error messages.
        whole: whether an address can stand at the end, so that the response must be complete first.
        slices: for those that may be long and must be complete first; None where they are always short.
    """

    name: str
    patch: Patch
    whole: bool
    slices: PatchSlices | None = None


PatchArray: TypeAlias = Callable[[memoryview, int, Addresses, Parts], tuple[int, int]]
"""Rewrites an array of addresses.

Args:    a buffer that ends where the array must have ended; the array's position in it; the addresses to
         write; a list, which receives the segments up to the last address, if there is one
Returns: the position from which the rest of the array follows as it is; and where the array ends, or beyond
         the buffer, where it does not end in it
Raises:  IndexError, struct.error: the array does not end in the buffer; MalformedFrame
"""


class Streamed(NamedTuple):
    """How responses are patched that have their addresses at the end, behind records: see ``wire.tail``.

    Args:
        name: as of ``Layout``.
        scan: walks up to the end of what passes as it is.
        endpoints: rewrites the array of addresses.
        tag: of the field that this array is in the last section of tagged fields; None where it is an
            ordinary one, right before that section.
    """

    name: str
    scan: Callable[[memoryview, int, int, FieldBudget], Scan]
    endpoints: PatchArray
    tag: int | None


class Api(NamedTuple):
    """One API as brokers serve it and as the fleet offers it.

    Args:
        max_version: the highest version to offer, which is the highest defined one.
        first_flexible: first version with compact encodings and tagged fields (request header v2, response
            header v1); ``NEVER_FLEXIBLE`` where there is none.
    """

    name: str
    min_version: int
    max_version: int
    first_flexible: int


NEVER_FLEXIBLE: Final = 1 << 15
