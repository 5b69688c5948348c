"""Large bodies that pass from one socket to another inside the kernel, by way of a pipe.

Their bytes never come into this process, which halves what they cost (``benchmarks``). It is a shortcut that
can be left at any moment: nothing stays in the pipe from one turn of the loop to the next. What the other
side does not take at once is read, and written by its transport, which knows what to do about a slow reader.

    Source: splice(2)
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from mypy_extensions import i64

log = logging.getLogger(__name__)

LARGE_BYTES: Final = 128 * 1024
"""What is left of a body that passes so, at least: to begin and to end takes as long as to copy so much."""
MOST: Final = 64
"""How many bodies of a worker pass so at a time: each has two files open for as long."""
_PIPE_BYTES: Final = 1 << 20
_LINUX: Final = sys.platform == "linux"


class Pipe:
    """One for all bodies of a worker: whatever is put in is taken out at once.

    Raises: OSError: there is none to be had.
    """

    __slots__ = ("_flags", "_into", "_out", "passages", "size_bytes")

    def __init__(self) -> None:
        self._out, self._into = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        with suppress(OSError):  # as much as others of this user leave
            fcntl.fcntl(self._into, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self.size_bytes = fcntl.fcntl(self._into, fcntl.F_GETPIPE_SZ)
        self._flags = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK
        self.passages = 0
        """How many use it."""

    def fill(self, source: int, most_bytes: int) -> int:
        """Put in what a socket has received; 0 where it has ended. Raises: BlockingIOError, OSError."""
        return os.splice(source, self._into, most_bytes, flags=self._flags)

    def empty(self, to: int, size_bytes: int) -> int:
        """Take so much out, to a socket; returns how much of it. Raises: BlockingIOError, OSError."""
        return os.splice(self._out, to, size_bytes, flags=self._flags)

    def read(self, size_bytes: int) -> bytes:
        """Take so much out."""
        pieces: list[bytes] = []
        while size_bytes:
            pieces.append(os.read(self._out, size_bytes))
            size_bytes -= len(pieces[-1])
        return b"".join(pieces)

    def close(self) -> None:
        os.close(self._out)
        os.close(self._into)


def pipe() -> Pipe | None:
    """Where the system has none of this, all bodies pass as small ones do."""
    if not _LINUX:
        return None
    try:
        return Pipe()
    except OSError as error:
        log.warning("no pipe for large bodies, which are copied: %s", error)
        return None


class Traveller(Protocol):
    """Whose body it is: a connection between a client and a broker."""

    def body_passed(self, size_bytes: int, to_broker: bool) -> None:
        """So much more of it was read from the one side, and will be at the other."""

    def body_ended(self, to_broker: bool) -> None:
        """Go on reading: all of it has passed, or what is left is to pass as small bodies do."""

    def side_failed(self, error: OSError, broker: bool) -> None:
        """The kernel has said so here, and tells the transport no more."""


class Passage:
    """What is left of one body, on its way. Meanwhile nobody else reads its source, nor writes to its target.

    Args:
        through: of the worker.
        source, target: the sockets' transports; the first has been told to pause.
        left_bytes: of the body.
        traveller: is told of it.
        to_broker: the direction.
    Raises: OSError: too many files are open.
    """

    __slots__ = ("_left_bytes", "_loop", "_pipe", "_source", "_target", "_to", "_to_broker", "_traveller")

    def __init__(
        self,
        through: Pipe,
        source: asyncio.Transport,
        target: asyncio.Transport,
        left_bytes: int,
        traveller: Traveller,
        to_broker: bool,
    ) -> None:
        self._pipe = through
        self._target = target
        self._left_bytes: i64 = left_bytes
        self._traveller = traveller
        self._to_broker = to_broker
        # Of its own: those of a transport that has failed are others' within the same turn of the loop.
        self._source: int = os.dup(source.get_extra_info("socket").fileno())
        try:
            self._to: int = os.dup(target.get_extra_info("socket").fileno())
        except OSError:
            os.close(self._source)
            raise
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._source, self._go_on)
        through.passages += 1

    def stop(self) -> None:
        """Let go of it, wherever it is. Once."""
        self._pipe.passages -= 1
        self._loop.remove_reader(self._source)
        os.close(self._source)
        os.close(self._to)

    def _go_on(self) -> None:
        """There is more of it, or the source has ended."""
        through, traveller = self._pipe, self._traveller
        if self._target.get_write_buffer_size():  # what is before it has not all gone
            traveller.body_ended(self._to_broker)
            return
        try:
            count = through.fill(self._source, min(self._left_bytes, through.size_bytes))
        except BlockingIOError:
            return
        except OSError as error:
            traveller.side_failed(error, broker=not self._to_broker)
            return
        if not count:
            traveller.body_ended(self._to_broker)
            return
        rest = count
        failure: OSError | None = None
        try:
            while rest:
                rest -= through.empty(self._to, rest)
        except BlockingIOError:
            pass
        except OSError as error:
            failure = error
        kept = through.read(rest) if rest else b""
        self._left_bytes -= count
        traveller.body_passed(count, self._to_broker)
        if failure is not None:
            traveller.side_failed(failure, broker=self._to_broker)
        elif kept:
            target = self._target
            traveller.body_ended(self._to_broker)
            target.write(kept)
        elif not self._left_bytes:
            traveller.body_ended(self._to_broker)
