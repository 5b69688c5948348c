"""Walking through a response while it arrives, for the scanners that tools/gen_tables.py writes.

A scanner is a generator. It is given a buffer, a position in it, and where ends what has arrived; it yields
the position from which on it needs more. That may be beyond the end: what is between passes unread. Or it is
up to four bytes before it: the beginning of a varint, to be presented again with more behind it. Or it is
anywhere, once its budget of tagged fields is used up: it goes on from there with a new one. It returns the
position up to which the response passes as it is, which may be beyond the end, too.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

from fleet.proxy.wire.primitives import MAX_VARINT_BYTES, read_varint

FIELDS_PER_TURN = 256  # not Final: tests change it, and a compiler would write its value into the code
"""Tagged fields that are passed in one turn of the event loop: half a millisecond."""


class FieldBudget:
    """How many tagged fields the scanners of one connection may still pass in this turn of the event loop.

    ``left`` at 0 or below has a scanner pause, wherever it is.
    """

    __slots__ = ("left",)

    left: int

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Another turn of the event loop has begun."""
        self.left = FIELDS_PER_TURN


Chunk: TypeAlias = tuple[memoryview, int, int]
"""A buffer, the position in it of what was yielded last, and where ends what has arrived."""

_Result = TypeVar("_Result")
Steps: TypeAlias = Generator[int, Chunk, _Result]
Scan: TypeAlias = Steps[int]


def await_varint(buf: memoryview, pos: int, end: int) -> Steps[tuple[int, memoryview, int, int]]:
    """Read an unsigned varint.

    Returns: its value; and the buffer, the position behind it and the end to go on with.
    Raises:  MalformedFrame: it does not end, or is above what an int32 holds.
    """
    while not _is_there(buf, pos, end):
        buf, pos, end = yield pos
    value, after = read_varint(buf, pos)
    return value, buf, after, end


def _is_there(buf: memoryview, pos: int, end: int) -> bool:
    """Whether a varint has arrived as a whole, or as much of it as shows that it does not end."""
    for at in range(pos, min(pos + MAX_VARINT_BYTES, end)):
        if buf[at] < 0x80:
            return True
    return end - pos >= MAX_VARINT_BYTES


def pass_tags(count: int, buf: memoryview, pos: int, end: int, budget: FieldBudget) -> Steps[Chunk]:
    """Skip ``count`` tagged fields, and pause when the budget is used up.

    Returns: the buffer, the position behind them and the end to go on with.
    Raises:  MalformedFrame: a varint that cannot be.
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
