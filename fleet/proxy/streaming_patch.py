"""A response with records before its addresses, on its way to the client: never held whole.

What is before its tail passes as it comes. The tail is the little behind the records, in which the addresses
stand; it is rewritten to just as many bytes (see ``wire.tail``), for the frame's length was sent before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from fleet.core.errors import TruncatedFrame
from fleet.proxy.wire.addresses import Streamed
from fleet.proxy.wire.scan import FieldBudget, Scan
from fleet.proxy.wire.tail import TAIL_LIMIT_BYTES, blank_head

Write: TypeAlias = Callable[[bytes | memoryview], object]
"""Takes what goes to the client: memory that nobody changes afterwards."""
TAIL_BYTES_PER_FIELD: Final = 4
"""How much of a tail counts as one of the tagged fields that are passed at once."""


class Stream:
    """One such response.

    Args:
        layout: how it is walked through.
        frame_bytes: how long it is, from its size field on.
        rewrite: given a whole tail, makes the one that takes its place; None where it stays as it is.
        budget: of tagged fields and of tails, for all responses of the connection.

    ``pauses`` is whether the budget was used up before what has arrived was taken.
    ``left_bytes`` is how much of it has not been taken. Of what it keeps, the tail is the greatest part, and
    that is never longer than ``TAIL_LIMIT_BYTES``.
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
        "left_bytes",
        "pauses",
    )

    pauses: bool

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
        """How many of the bytes to come pass before anything is looked at."""
        self._tail = b""
        self._padding_left: int | None = None
        """How many are still to be written, where the tail is too long to be rewritten."""
        self.left_bytes = frame_bytes

    def receive(self, view: memoryview, run: int, pos: int, end: int, write: Write) -> int:
        """Take what has arrived.

        Args:    run: from where bytes are still to be written; pos: where this response begins or goes on;
                 end: where ends what has arrived.
        Returns: from where bytes are still to be written now. Where the response goes on that is less than
                 five bytes before ``end``, or anywhere if it ``pauses``, and they are to be presented again.
        Raises:  TruncatedFrame, MalformedFrame: as of the scanner and of ``wire.tail``.
        """
        after = pos + self.left_bytes
        stop = min(after, end)
        pos += self._ahead_bytes
        self.pauses = False
        if not self._scanned and pos < stop:
            budget = self._budget
            if budget.left > 0:
                pos = self._walk(view, pos, stop)
            if not self._scanned and budget.left <= 0 and pos < stop:
                return self._pause(view, run, pos, after, write)
        if pos >= after or (stop == after and not self._scanned):
            raise TruncatedFrame("broker", f"{self._layout.name} response: its end comes too early")
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
        """Write up to ``pos``, and have the rest presented again in a later turn of the event loop."""
        if pos > run:
            # What is read is kept again at each pause; a view would hold on to each of these copies.
            write(bytes(view[run:pos]))
        self._ahead_bytes, self.left_bytes = 0, after - pos
        self.pauses = True
        return pos

    def _walk(self, view: memoryview, pos: int, stop: int) -> int:
        """Scan what has arrived; returns where to go on, perhaps beyond it."""
        # The scanner has it until it is given another, which may take long: released, it holds no memory.
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
        """Write padding for so many bytes of a tail that have arrived; at first with what is before it."""
        if self._padding_left is None:
            head = blank_head(self._layout, tail_bytes)
            write(b"".join((before, head)))
            self._padding_left = tail_bytes - len(head)
        zeros = min(arrived_bytes, self._padding_left)
        self._padding_left -= zeros
        if zeros:
            write(bytes(zeros))
