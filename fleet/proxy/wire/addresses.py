"""The interface of patching functions to addresses: a look-up, and a report of real addresses."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final, NamedTuple, TypeAlias

from fleet.core.model import BrokerId
from fleet.proxy.wire.primitives import read_int16, read_int32, read_varint
from fleet.proxy.wire.scan import FieldBudget, Scan


class Address(NamedTuple):
    """The host and port that are written for one broker, in both encodings.

    Args:
        compact: compact string and int32, for flexible versions.
        classic: int16 string and int32, for earlier versions.
        real_compact, real_classic: the broker's own address in the directory, or empty. A different address
            in a response is reported; detecting it costs one comparison of bytes.
    """

    compact: bytes
    classic: bytes
    real_compact: bytes
    real_classic: bytes


class Addresses(dict[BrokerId, Address]):
    """Broker id → address, for one client. A subclass finds missing ones, so a look-up never fails.

    ``left_out`` counts the brokers that make a list of all brokers unfit for the cache of heads: brokers
    without an id or a host, which stay unchanged, and brokers that no member has a port for.
    """

    __slots__ = ("left_out",)

    def __init__(self) -> None:
        super().__init__()
        self.left_out = 0

    def __missing__(self, broker_id: BrokerId) -> Address:
        raise NotImplementedError

    def has_unreported_move(self, broker_id: BrokerId) -> bool:
        """Whether a move must be reported to the client; True once for each move and connection."""
        return False

    def report_address(
        self, broker_id: BrokerId, host: str, port: int, rack: str | None, has_rack: bool
    ) -> None:
        """Report a real address that differs from ``Address.real_*``.

        Args:
            has_rack: whether responses of this version have racks.
        """

    def report_compact(self, buf: memoryview, broker_id: BrokerId, pos: int, has_rack: bool) -> None:
        """Report the address at ``pos``: a compact host, a port, and perhaps a rack."""
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
        """Report the address at ``pos``: an int16 host, a port, and perhaps a rack."""
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
"""Segments of a response in order: views of it, and between them the replacements of its addresses."""

Patch: TypeAlias = Callable[[memoryview, Addresses, Parts], int]
"""Rewrites the addresses in one response.

Args:    the response from its size field on, as far as it has arrived; the addresses to write; an empty list,
         which receives the segments from byte 4 up to the last address and stays empty without an address
Returns: the position from which the rest follows unchanged
Raises:  IndexError, struct.error: more bytes are needed; MalformedFrame
"""


SLICE_BYTES = 8 * 1024  # not Final: tests change it, and a compiler would write its value into the code
"""Bytes of a response that are patched in one turn of the event loop: 0.3 ms for DescribeConfigs."""
TAG_LIMIT_BYTES: Final = 256 * 1024
"""The longest tagged field with addresses in a response that is patched in slices: about 6,000 brokers."""

Slices: TypeAlias = Generator[None, None, int]
"""Rewrites the addresses in one response like ``Patch``, and pauses after each ``SLICE_BYTES``.

At a pause the list has all segments since the previous pause; the caller takes them and clears the list. The
list has a single segment if nothing was replaced. The generator returns the position from which the rest
follows unchanged; the list has no segment for the rest.
"""

PatchSlices: TypeAlias = Callable[[memoryview, Addresses, Parts], Slices]


class Layout(NamedTuple):
    """How the responses of one API and version are patched.

    Args:
        name: of the patching function, for error messages.
        patch: rewrites a response.
        whole: whether the response must be complete first, because it may have an address at its end.
        slices: rewrites a response in slices; None if whole responses are always short.
    """

    name: str
    patch: Patch
    whole: bool
    slices: PatchSlices | None = None


PatchArray: TypeAlias = Callable[[memoryview, int, Addresses, Parts], tuple[int, int]]
"""Rewrites an array of addresses.

Args:    a buffer that ends at the latest possible end of the array; the array's position in it; the addresses
         to write; a list, which receives the segments up to the last address, if there is one
Returns: the position from which the rest of the array follows unchanged; and the end of the array, which is
         beyond the buffer if the array does not end in it
Raises:  IndexError, struct.error: the array does not end in the buffer; MalformedFrame
"""


class Streamed(NamedTuple):
    """How responses with addresses at their end, after the records, are patched: see ``wire.tail``.

    Args:
        name: see ``Layout``.
        scan: scans up to the end of the bytes that pass unchanged.
        endpoints: rewrites the array of addresses.
        tag: the tag of the array in the last section of tagged fields; None if the array is an untagged field
            right before this section.
    """

    name: str
    scan: Callable[[memoryview, int, int, FieldBudget], Scan]
    endpoints: PatchArray
    tag: int | None


class Api(NamedTuple):
    """One API of brokers, as the fleet offers it.

    Args:
        name: as in Kafka's definitions.
        min_version: the lowest version to offer.
        max_version: the highest version to offer, which is the highest defined one.
        first_flexible: the first version with compact encodings and tagged fields (request header v2,
            response header v1); ``NEVER_FLEXIBLE`` if no version has them.
    """

    name: str
    min_version: int
    max_version: int
    first_flexible: int


NEVER_FLEXIBLE: Final = 1 << 15
