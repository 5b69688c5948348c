"""Helpers of the scanners that tools/gen_tables.py generates, which read a response while it arrives.

A scanner is a generator. It gets a buffer, a position in it, and the end of the bytes that have arrived. It
yields the position from which it needs more bytes:

- beyond the end: the bytes up to there pass unread.
- up to four bytes before the end: the beginning of a varint, which the caller presents again with more bytes.
- anywhere, once its budget of tagged fields is used up: it continues there with a new budget.

A scanner returns the position up to which the response passes unchanged, which may be beyond the end, too.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

from fleet.proxy.wire.primitives import MAX_VARINT_BYTES, read_varint

FIELDS_PER_TURN = 256  # not Final: tests change it, and a compiler would write its value into the code
"""Tagged fields that are skipped in one turn of the event loop: half a millisecond."""


class FieldBudget:
    """How many tagged fields the scanners of one connection may still skip in this turn of the event loop.

    At 0 or below, ``left`` makes a scanner pause, at any position.
    """

    __slots__ = ("left",)

    left: int

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Renew the budget for the next turn of the event loop."""
        self.left = FIELDS_PER_TURN


Chunk: TypeAlias = tuple[memoryview, int, int]
"""A buffer, the last yielded position as a position in it, and the end of the bytes that have arrived."""

_Result = TypeVar("_Result")
Steps: TypeAlias = Generator[int, Chunk, _Result]
Scan: TypeAlias = Steps[int]


def await_varint(buf: memoryview, pos: int, end: int) -> Steps[tuple[int, memoryview, int, int]]:
    """Read an unsigned varint.

    Returns: the value; and the buffer, the position after the varint and the end to continue with.
    Raises:  MalformedFrame: the varint does not end, or its value is above int32.
    """
    while not _is_there(buf, pos, end):
        buf, pos, end = yield pos
    value, after = read_varint(buf, pos)
    return value, buf, after, end


def _is_there(buf: memoryview, pos: int, end: int) -> bool:
    """Whether a varint has arrived completely, or enough of it to see that it does not end."""
    for at in range(pos, min(pos + MAX_VARINT_BYTES, end)):
        if buf[at] < 0x80:
            return True
    return end - pos >= MAX_VARINT_BYTES


def pass_tags(count: int, buf: memoryview, pos: int, end: int, budget: FieldBudget) -> Steps[Chunk]:
    """Skip ``count`` tagged fields, and pause when the budget is used up.

    Returns: the buffer, the position after the fields and the end to continue with.
    Raises:  MalformedFrame: an invalid varint.
    """
    for _ in range(count):
        while budget.left <= 0:
            buf, pos, end = yield pos
        budget.left -= 1
        if pos + 2 * MAX_VARINT_BYTES <= end:
            _, pos = read_varint(buf, pos)
            size, pos = read_varint(buf, pos)
        else:
            _, buf, pos, end = yield from await_varint(buf, pos, end)
            size, buf, pos, end = yield from await_varint(buf, pos, end)
        pos += size
    return buf, pos, end
