"""Large bodies that pass from one socket to another inside the kernel, by way of a pipe.

Their bytes never come into this process, which takes a third off what they cost. It is a shortcut that can be
left at any moment: nothing stays in the pipe from one turn of the loop to the next. What the other
side does not take at once is read, and written by its transport, which knows what to do about a slow reader.

    Source: splice(2)
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
import sys
from typing import Final, Protocol

log = logging.getLogger(__name__)

LARGE_BYTES: Final = 128 * 1024
"""What is left of a body that passes so, at least: to begin and to end costs something, too. Reasoned, not
measured.
"""
MOST: Final = 64
"""How many passages a worker has at a time, each of one direction of a connection, with two files open."""
HEAD_BYTES: Final = 16 * 1024
"""How much is read at a time between two bodies."""
READS: Final = 3
"""So many times, and then by the transport again: the end of a Fetch response may come alone."""
PIPE_BYTES: Final = 64 * 1024
"""What a pipe of Linux has room for. In a larger one what is read of a broker costs a quarter more."""
AT_ONCE: Final = 16
"""How many times it may be filled before others have their turn."""
_LINUX: Final = sys.platform == "linux"


class Pipe:
    """One for all bodies of a worker: whatever is put in is taken out at once.

    Raises: OSError: there is none to be had.
    """

    __slots__ = ("_flags", "_into", "_out", "begun", "filled_bytes", "most", "passages", "resting")

    def __init__(self) -> None:
        self._out, self._into = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._flags = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK
        self.most = MOST
        self.begun = 0
        self.filled_bytes = 0
        """How much has passed through it so far."""
        self.passages = 0
        """How many use it now; of so many that have begun."""
        self.resting: dict[SplicedBody, None] = {}
        """Those between two bodies, the longest first."""
        try:
            self._try()
        except OSError:
            os.close(self._out)
            os.close(self._into)
            raise

    def _try(self) -> None:
        """A system may have it and not allow it. Raises: OSError."""
        one, other = socket.socketpair()
        with one, other:
            one.send(b"?")
            self.empty(one.fileno(), self.fill(other.fileno(), 1))
        self.filled_bytes = 0

    def has_room(self) -> bool:
        """Whether one more may use it; one that rests makes room."""
        if self.passages >= self.most and self.resting:
            next(iter(self.resting)).give_up()
        return self.passages < self.most

    def fill(self, source: int, most_bytes: int) -> int:
        """Put in what a socket has received; 0 where it has ended. Raises: BlockingIOError, OSError."""
        count = os.splice(source, self._into, most_bytes, flags=self._flags)
        self.filled_bytes += count
        return count

    def empty(self, to: int, size_bytes: int) -> bytes:
        """Take so much out, to a socket; returns what of it that does not take now. Raises: OSError."""
        try:
            while size_bytes:
                size_bytes -= os.splice(self._out, to, size_bytes, flags=self._flags)
        except BlockingIOError:
            return self._read(size_bytes)
        except OSError:
            self._read(size_bytes)
            raise
        return b""

    def _read(self, size_bytes: int) -> bytes:
        pieces: list[bytes] = []
        while size_bytes:
            pieces.append(os.read(self._out, size_bytes))
            size_bytes -= len(pieces[-1])
        return b"".join(pieces)


def pipe() -> Pipe | None:
    """Where the system has none of this, all bodies pass as small ones do."""
    if not _LINUX:
        return None
    try:
        return Pipe()
    except OSError as error:
        log.warning("no pipe for large bodies, which are copied: %s", error)
        return None


class SpliceOwner(Protocol):
    """Whose bodies they are: a connection between a client and a broker."""

    def body_passed(self, size_bytes: int, to_broker: bool) -> None:
        """So much more of one was read from the one side, and will be at the other."""

    def head_received(self, data: bytes, to_broker: bool) -> None:
        """As its transport would have read it: what is behind a body, perhaps the beginning of another."""

    def passage_ends(self, to_broker: bool) -> None:
        """Stop it, and go on reading: no large body is on its way, or the other side is slow."""

    def side_failed(self, error: OSError, broker: bool) -> None:
        """The kernel has said so here, and tells the transport no more."""


class SplicedBody:
    """Large bodies on their way, one after the other.

    From the first one on, until something else comes, nobody else reads the one side. So what comes between
    two of them is read in small pieces, and little of the next is copied.

    Args:
        through: of the worker.
        source, target: the sockets' transports; the first has been told to pause.
        left_bytes: of the first body.
        traveller: is told of it.
        to_broker: the direction.
    Raises: OSError: too many files are open.
    """

    __slots__ = (
        "_errors",
        "_loop",
        "_owner",
        "_pipe",
        "_reads",
        "_source",
        "_target",
        "_to",
        "_to_broker",
        "left_bytes",
    )

    def __init__(
        self,
        through: Pipe,
        source: asyncio.Transport,
        target: asyncio.Transport,
        left_bytes: int,
        owner: SpliceOwner,
        to_broker: bool,
    ) -> None:
        self._pipe = through
        self._target = target
        self.left_bytes = left_bytes
        self._owner = owner
        self._to_broker = to_broker
        self._reads = 0
        """Since a body has ended."""
        # Of its own: those of a transport that has failed are others' within the same turn of the loop.
        self._source: int = os.dup(source.get_extra_info("socket").fileno())
        self._to = -1
        self._loop = asyncio.get_running_loop()
        try:
            self._to = os.dup(target.get_extra_info("socket").fileno())
            self._loop.add_reader(self._source, self._go_on)
        except OSError:
            self._close()
            raise
        self._errors = select.poll()
        self._errors.register(self._source, 0)
        through.passages += 1
        through.begun += 1

    def stop(self) -> None:
        """Let go of it, wherever it is. Once."""
        self._pipe.passages -= 1
        self._pipe.resting.pop(self, None)
        self._loop.remove_reader(self._source)
        self._close()

    def _close(self) -> None:
        os.close(self._source)
        self._source = -1
        if self._to >= 0:
            os.close(self._to)

    def give_up(self) -> None:
        """Make room: it rests."""
        self._owner.passage_ends(self._to_broker)

    def _go_on(self) -> None:
        """Something has come, or the source has ended."""
        if self._target.get_write_buffer_size():  # what is before it has not all gone
            self._owner.passage_ends(self._to_broker)
            return
        if self.left_bytes:
            self._pass_on()
        else:
            self._receive()
        # Found: uvloop calls once, and never again, where a reset is behind what has come.
        if self._source >= 0 and self._errors.poll(0):
            self._owner.passage_ends(self._to_broker)

    def _pass_on(self) -> None:
        owner, passed, kept, over = self._owner, 0, b"", False
        side = self._source
        try:
            for _ in range(AT_ONCE):
                side = self._source
                count = self._pipe.fill(self._source, min(self.left_bytes - passed, PIPE_BYTES))
                side = self._to
                passed += count
                kept = self._pipe.empty(self._to, count)
                over = not count or bool(kept)
                if over or passed == self.left_bytes:
                    break
        except BlockingIOError:
            # Found: at a byte that is urgent there is something to be read, and nothing to be spliced.
            over = not passed
        except OSError as error:
            self._note(passed)
            owner.side_failed(error, broker=self._to_broker == (side == self._to))
            return
        if kept:  # before anybody is told that it has passed, and says goodbye to the target
            self._target.write(kept)
        self._note(passed)
        if over and self._source >= 0:
            owner.passage_ends(self._to_broker)

    def _note(self, passed_bytes: int) -> None:
        if passed_bytes:
            self.left_bytes -= passed_bytes
            if not self.left_bytes and self._source >= 0:  # a full target may have stopped this
                self._pipe.resting[self] = None
            self._owner.body_passed(passed_bytes, self._to_broker)  # which may stop this

    def _receive(self) -> None:
        """What is behind a body."""
        owner = self._owner
        try:
            data = os.read(self._source, HEAD_BYTES)
        except BlockingIOError:
            data = b""
        except OSError as error:
            owner.side_failed(error, broker=not self._to_broker)
            return
        if data:
            owner.head_received(data, self._to_broker)  # which says how much is left, or stops this
        if self._source < 0:
            return
        if self.left_bytes:
            self._pipe.resting.pop(self, None)
            self._reads = 0
            return
        self._reads += 1
        if not data or self._reads == READS:
            owner.passage_ends(self._to_broker)
