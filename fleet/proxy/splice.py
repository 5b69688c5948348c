"""Large bodies that pass from one socket to another inside the kernel, through a pipe.

The bytes never enter this process, which saves a third of their cost. The shortcut can end at any moment,
because the pipe is empty after each turn of the loop. Bytes that the target does not take at once are read
from the pipe and written by the target's transport, which handles slow readers.

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

LARGE_BODY_BYTES: Final = 128 * 1024
"""The smallest rest of a body that is worth splicing, because starting and stopping cost something, too.
Reasoned, not measured.
"""
MAX_SPLICED_BODIES: Final = 64
"""Splices of a worker at a time: each serves one direction of a connection, and has two open files."""
HEAD_READ_BYTES: Final = 16 * 1024
"""How many bytes are read at a time between two bodies."""
MAX_HEAD_READS: Final = 3
"""Reads after a body until the transport reads again, because a Fetch response may end in a separate read."""
PIPE_BYTES: Final = 64 * 1024
"""The capacity of a Linux pipe. With a larger one, reading from a broker costs a quarter more."""
PIPE_FILLS_PER_TURN: Final = 16
"""How many times one body may fill the pipe before other connections get their turn."""
_LINUX: Final = sys.platform == "linux"


class Pipe:
    """The pipe for all bodies of a worker: bytes that are put in are taken out at once.

    Raises: OSError: the system has no pipe or no splice.
    """

    __slots__ = (
        "_flags",
        "_into",
        "_out",
        "active_bodies",
        "filled_bytes",
        "idle_bodies",
        "max_bodies",
        "started_bodies",
    )

    def __init__(self) -> None:
        self._out, self._into = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._flags = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK
        self.max_bodies = MAX_SPLICED_BODIES
        self.started_bodies = 0
        self.filled_bytes = 0
        """Bytes that have passed through the pipe so far."""
        self.active_bodies = 0
        """Number of bodies that use the pipe now; ``started_bodies`` counts all since the start."""
        self.idle_bodies: dict[SplicedBody, None] = {}
        """Splices between two bodies; the one that is idle for longest comes first."""
        try:
            self._check()
        except OSError:
            os.close(self._out)
            os.close(self._into)
            raise

    def _check(self) -> None:
        """Check that splice works: a system may have the call and forbid it. Raises: OSError."""
        one, other = socket.socketpair()
        with one, other:
            one.send(b"?")
            self.empty(one.fileno(), self.fill(other.fileno(), 1))
        self.filled_bytes = 0

    def has_room(self) -> bool:
        """Whether one more body may use the pipe; an idle one makes room."""
        if self.active_bodies >= self.max_bodies and self.idle_bodies:
            next(iter(self.idle_bodies)).give_up()
        return self.active_bodies < self.max_bodies

    def fill(self, source: int, most_bytes: int) -> int:
        """Put in bytes that a socket has received. Returns: their number; 0 at the end of the socket's bytes.

        Raises: BlockingIOError, OSError
        """
        count = os.splice(source, self._into, most_bytes, flags=self._flags)
        self.filled_bytes += count
        return count

    def empty(self, to: int, size_bytes: int) -> bytes:
        """Move bytes to a socket. Returns: the bytes that the socket does not take now. Raises: OSError."""
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


def create_pipe() -> Pipe | None:
    """Return the pipe for large bodies; None if the system has no splice, and all bodies are copied."""
    if not _LINUX:
        return None
    try:
        return Pipe()
    except OSError as error:
        log.warning("cannot splice large bodies, copying them instead: %s", error)
        return None


class SpliceOwner(Protocol):
    """The owner of spliced bodies: a connection between a client and a broker."""

    def body_passed(self, size_bytes: int, to_broker: bool) -> None:
        """Bytes of a body were read from one side, and will reach the other."""

    def head_received(self, data: bytes, to_broker: bool) -> None:
        """The splice, not the transport, read bytes after a body, perhaps the start of the next body."""

    def splice_ended(self, to_broker: bool) -> None:
        """Stop the splice and read by the transport: no large body is in transit, or the target is slow."""

    def side_failed(self, error: OSError, broker: bool) -> None:
        """The socket of one side failed. The splice got the error, so that side's transport never gets it."""


class SplicedBody:
    """Large bodies of one direction of a connection, one after the other.

    From the first body until other frames arrive, only the splice reads the source. The bytes between two
    bodies are read in small pieces, so that little of the next body is copied.

    Args:
        pipe: the pipe that all bodies of the worker share.
        source, target: the sockets' transports; reading from the source is paused.
        left_bytes: the rest of the first body.
        owner: receives the events.
        to_broker: the direction.
    Raises: OSError: too many files are open.
    """

    __slots__ = (
        "_errors",
        "_head_reads",
        "_loop",
        "_owner",
        "_pipe",
        "_source",
        "_target",
        "_to",
        "_to_broker",
        "left_bytes",
    )

    def __init__(
        self,
        pipe: Pipe,
        source: asyncio.Transport,
        target: asyncio.Transport,
        left_bytes: int,
        owner: SpliceOwner,
        to_broker: bool,
    ) -> None:
        self._pipe = pipe
        self._target = target
        self.left_bytes = left_bytes
        self._owner = owner
        self._to_broker = to_broker
        self._head_reads = 0
        """Number of reads since the end of a body."""
        # Own descriptors: those of a failed transport may be reused within the same turn of the loop.
        self._source: int = os.dup(source.get_extra_info("socket").fileno())
        self._to = -1
        self._loop = asyncio.get_running_loop()
        try:
            self._to = os.dup(target.get_extra_info("socket").fileno())
            self._loop.add_reader(self._source, self._on_readable)
        except OSError:
            self._close()
            raise
        self._errors = select.poll()
        self._errors.register(self._source, 0)
        pipe.active_bodies += 1
        pipe.started_bodies += 1

    def stop(self) -> None:
        """Stop splicing, at any point of a body. Call once."""
        self._pipe.active_bodies -= 1
        self._pipe.idle_bodies.pop(self, None)
        self._loop.remove_reader(self._source)
        self._close()

    def _close(self) -> None:
        os.close(self._source)
        self._source = -1
        if self._to >= 0:
            os.close(self._to)

    def give_up(self) -> None:
        """Make room for another body while this splice is idle."""
        self._owner.splice_ended(self._to_broker)

    def _on_readable(self) -> None:
        """Handle bytes from the source, or its end."""
        if self._target.get_write_buffer_size():  # earlier bytes still wait in the transport
            self._owner.splice_ended(self._to_broker)
            return
        if self.left_bytes:
            self._pass_on()
        else:
            self._receive()
        # Found: uvloop calls once, and never again, if a reset follows the received bytes.
        if self._source >= 0 and self._errors.poll(0):
            self._owner.splice_ended(self._to_broker)

    def _pass_on(self) -> None:
        owner, passed, unsent, is_over = self._owner, 0, b"", False
        side = self._source
        try:
            for _ in range(PIPE_FILLS_PER_TURN):
                side = self._source
                count = self._pipe.fill(self._source, min(self.left_bytes - passed, PIPE_BYTES))
                side = self._to
                passed += count
                unsent = self._pipe.empty(self._to, count)
                is_over = not count or bool(unsent)
                if is_over or passed == self.left_bytes:
                    break
        except BlockingIOError:
            # Found: at an urgent byte the socket is readable, but splice has nothing to move.
            is_over = not passed
        except OSError as error:
            self._note(passed)
            owner.side_failed(error, broker=self._to_broker == (side == self._to))
            return
        if unsent:  # before `body_passed`, after which the owner may end the target's connection
            self._target.write(unsent)
        self._note(passed)
        if is_over and self._source >= 0:
            owner.splice_ended(self._to_broker)

    def _note(self, passed_bytes: int) -> None:
        if passed_bytes:
            self.left_bytes -= passed_bytes
            if not self.left_bytes and self._source >= 0:  # a full target may have stopped this splice
                self._pipe.idle_bodies[self] = None
            self._owner.body_passed(passed_bytes, self._to_broker)  # may stop this splice

    def _receive(self) -> None:
        """Read the bytes after a body."""
        owner = self._owner
        try:
            data = os.read(self._source, HEAD_READ_BYTES)
        except BlockingIOError:
            data = b""
        except OSError as error:
            owner.side_failed(error, broker=not self._to_broker)
            return
        if data:
            owner.head_received(data, self._to_broker)  # sets ``left_bytes``, or stops this splice
        if self._source < 0:
            return
        if self.left_bytes:
            self._pipe.idle_bodies.pop(self, None)
            self._head_reads = 0
            return
        self._head_reads += 1
        if not data or self._head_reads == MAX_HEAD_READS:
            owner.splice_ended(self._to_broker)
