"""Patches a response with records before its addresses while it passes, without ever holding it whole.

The bytes before the tail pass unchanged. The tail is the short part after the records that has the
addresses. The tail is rewritten to the same number of bytes (see ``wire.tail``), because the frame's length
was sent before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from fleet.core.errors import TruncatedFrame
from fleet.proxy.wire.addresses import Streamed
from fleet.proxy.wire.scan import FieldBudget, Scan
from fleet.proxy.wire.tail import TAIL_LIMIT_BYTES, blank_head

Write: TypeAlias = Callable[[bytes | memoryview], object]
"""Takes bytes for the client; their memory must not change afterwards."""
TAIL_BYTES_PER_FIELD: Final = 4
"""Bytes of a tail that count as one tagged field in the budget of a turn."""


class Stream:
    """One response that is patched while it passes.

    Args:
        layout: its layout, with the scanner.
        frame_bytes: its length, from the size field on.
        rewrite: called with the whole tail; returns the new tail, or None if the tail has no address.
        budget: for tagged fields and tails, shared by all responses of the connection.

    ``is_paused`` is whether the budget was used up before all arrived bytes were taken. ``left_bytes`` is the
    number of bytes that have not been taken. A stream keeps the tail and little else, at most
    ``TAIL_LIMIT_BYTES``.
    """

    __slots__ = (
        "_ahead_bytes",
        "_budget",
        "_layout",
        "_padding_left",
        "_rewrite",
        "_scan",
        "_scanned",
        "_tail",
        "is_paused",
        "left_bytes",
    )

    is_paused: bool

    def __init__(
        self,
        layout: Streamed,
        frame_bytes: int,
        rewrite: Callable[[memoryview], bytes | None],
        budget: FieldBudget,
    ) -> None:
        self._layout = layout
        self._rewrite = rewrite
        self._budget = budget
        self._scan: Scan | None = None
        self._scanned = False
        self._ahead_bytes = 0
        """Bytes to come that pass before the scanner continues."""
        self._tail = b""
        self._padding_left: int | None = None
        """Bytes of padding still to be written, if the tail is too long to be rewritten; else None."""
        self.left_bytes = frame_bytes

    def receive(self, view: memoryview, run: int, pos: int, end: int, write: Write) -> int:
        """Take the bytes that have arrived.

        Args:    run: start of the bytes that are not written yet; pos: where the response begins or goes on;
                 end: end of the bytes that have arrived.
        Returns: the new start of the bytes that are not written yet. If the response continues, these are
                 fewer than five bytes, or any number if it ``is_paused``; they must be presented again.
        Raises:  TruncatedFrame, MalformedFrame: see the scanner and ``wire.tail``.
        """
        after = pos + self.left_bytes
        stop = min(after, end)
        pos += self._ahead_bytes
        self.is_paused = False
        if not self._scanned and pos < stop:
            budget = self._budget
            if budget.left > 0:
                pos = self._walk(view, pos, stop)
            if not self._scanned and budget.left <= 0 and pos < stop:
                return self._pause(view, run, pos, after, write)
        if pos >= after or (stop == after and not self._scanned):
            raise TruncatedFrame("broker", f"{self._layout.name} response ends too early")
        if pos >= stop or not self._scanned:
            upto = min(pos, stop)
            if upto > run:
                write(view[run:upto])
            self._ahead_bytes, self.left_bytes = pos - upto, after - upto
            return upto
        self._ahead_bytes, self.left_bytes = 0, after - stop
        tail_bytes = len(self._tail) + after - pos
        if self._padding_left is not None or tail_bytes > TAIL_LIMIT_BYTES:
            self._blank(view[run:pos], tail_bytes, stop - pos, write)
            return stop
        if stop == after and not self._tail:
            self._budget.left -= tail_bytes // TAIL_BYTES_PER_FIELD
            tail = self._rewrite(view[pos:after])
            if tail is None:
                return run
            write(b"".join((view[run:pos], tail)))
            return after
        if pos > run:
            write(view[run:pos])
        self._tail += view[pos:stop]
        if stop == after:
            self._budget.left -= tail_bytes // TAIL_BYTES_PER_FIELD
            write(self._rewrite(memoryview(self._tail)) or self._tail)
        return stop

    def _pause(self, view: memoryview, run: int, pos: int, after: int, write: Write) -> int:
        """Write the bytes up to ``pos``; the caller presents the rest again in a later turn of the loop."""
        if pos > run:
            # Each pause copies the unconsumed bytes; a view would keep every one of these copies in memory.
            write(bytes(view[run:pos]))
        self._ahead_bytes, self.left_bytes = 0, after - pos
        self.is_paused = True
        return pos

    def _walk(self, view: memoryview, pos: int, stop: int) -> int:
        """Scan the bytes that have arrived. Returns: the position to continue from, perhaps beyond them."""
        # The scanner keeps its chunk until the next one, perhaps for long: a released view holds no memory.
        with view[:stop] as chunk:
            try:
                if self._scan is None:
                    self._scan = self._layout.scan(chunk, pos, stop, self._budget)
                    return next(self._scan)
                return self._scan.send((chunk, pos, stop))
            except StopIteration as ended:
                self._scanned = True
                return int(ended.value)

    def _blank(self, before: memoryview, tail_bytes: int, arrived_bytes: int, write: Write) -> None:
        """Write padding in place of the arrived bytes of a tail; the first call also writes ``before``."""
        if self._padding_left is None:
            head = blank_head(self._layout, tail_bytes)
            write(b"".join((before, head)))
            self._padding_left = tail_bytes - len(head)
        zeros = min(arrived_bytes, self._padding_left)
        self._padding_left -= zeros
        if zeros:
            write(bytes(zeros))
