"""Limits the memory that all clients of one worker use together, and closes clients above the limit.

Each client has its own limits, too. Still, a thousand clients within their limits could use up the memory of
a machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable
from typing import Final, Generic, Protocol, TypeVar

RELIEF_SHARE: Final = 7 / 8
"""Share of the limit down to which readers are closed. Otherwise each further byte would close one more."""
SOURCE_SHARE: Final = 1 / 2
"""Share of the limit above which the greatest readers of one address are closed at once."""
READER_GRACE_S = 5.0  # not Final: tests change it, and a compiler would write its value into the code
"""How long a reader may be behind before the worker closes it, if no address holds more than its share."""
RELIEF_INTERVAL_S: Final = 0.05
IN_FLIGHT_BYTES: Final = 40
"""Memory that a session uses for each request in flight after the first."""
MAX_IN_FLIGHT: Final = 4096
"""Requests in flight at which reading from a client pauses until half of them are answered. The number is
smaller when many clients have many requests in flight: then each client gets an equal part of half of the
worker's memory for requests. What one read brings comes on top: 18,000 requests of 14 bytes.
"""


class Reader(Hashable, Protocol):
    """A client that the worker writes to; ``source`` is the client's address."""

    source: str

    @property
    def waiting_bytes(self) -> int:
        """Bytes that were written, and that the kernel has not taken yet."""


ReaderT = TypeVar("ReaderT", bound=Reader)


class MemoryBudget(Generic[ReaderT]):
    """The memory held for each reader, and a limit for the sum.

    Eviction begins with the address that holds most. Of its readers the greatest goes first, and among equals
    the oldest. So no address can lock out others, neither with one large reader nor with many small ones.

    Args:
        limit_bytes: for all readers together.
        evict: called with a reader that must release its memory, and with the number of bytes that it held.
            The reader may be the one of the current call of ``note``.
    """

    def __init__(self, limit_bytes: int, evict: Callable[[ReaderT, int], object]) -> None:
        self.limit_bytes = limit_bytes
        self.total_bytes = 0
        self._evict = evict
        self._held: dict[ReaderT, int] = {}

    def __len__(self) -> int:
        """Number of readers that hold memory."""
        return len(self._held)

    def items(self) -> Iterable[tuple[ReaderT, int]]:
        """Return the readers that hold memory, the oldest first, with their bytes."""
        return self._held.items()

    def held_bytes(self, reader: ReaderT) -> int:
        """Return the bytes last noted for a reader."""
        return self._held.get(reader, 0)

    def note(self, reader: ReaderT, size_bytes: int) -> None:
        """Set what a reader holds to ``size_bytes``; 0 removes it."""
        self.total_bytes += size_bytes - self._held.get(reader, 0)
        if size_bytes:
            self._held[reader] = size_bytes
        else:
            self._held.pop(reader, None)
        if self.total_bytes > self.limit_bytes:
            self._make_room()

    def _make_room(self) -> None:
        """Evict readers after a single scan: one large reader may drive out thousands of small ones."""
        by_source: dict[str, list[ReaderT]] = {}
        sums: dict[str, int] = {}
        for each, held_bytes in self._held.items():
            by_source.setdefault(each.source, []).append(each)
            sums[each.source] = sums.get(each.source, 0) + held_bytes
        ordered: set[str] = set()
        while self.total_bytes > self.limit_bytes:
            source = max(sums, key=sums.__getitem__)
            mine = by_source[source]
            if source not in ordered:
                ordered.add(source)
                mine.reverse()
                mine.sort(key=self._held.__getitem__)  # among equals the oldest is now the last
            greatest = mine.pop()
            held_bytes = self._held.pop(greatest)
            sums[source] -= held_bytes
            self.total_bytes -= held_bytes
            self._evict(greatest, held_bytes)


class Backlog:
    """The memory that one slow reader makes the worker hold.

    Args:
        longest_bytes: the longest read of which bytes were written to the reader since it fell behind.
        written_bytes: the sum of these reads.
        held_bytes: the last measurement.
        since_s: when the reader fell behind, by the loop's clock.
    """

    __slots__ = ("held_bytes", "longest_bytes", "since_s", "written_bytes")

    def __init__(self, since_s: float) -> None:
        self.since_s = since_s
        self.longest_bytes = self.written_bytes = self.held_bytes = 0


class Backlogs(Generic[ReaderT]):
    """The clients of one worker that are behind: bytes wait for them that the kernel does not take.

    Many clients may be behind for a moment, so the share of each client shrinks as their number grows. Above
    its share a client is paused. A transport keeps a whole read for as long as a part of the read waits, so a
    client makes the worker hold up to one read more than the bytes that wait. When the sum is above the
    limit, readers are closed. The memory of a reader, and of its address, includes its part of ``responses``:

    - If one address holds more than half of the whole limit, its readers are closed in the next turn of the
      event loop, the greatest first. Candidates are the readers with a response, and of the others the half
      that fell behind first.
    - Otherwise readers that are behind for ``READER_GRACE_S`` are closed, the greatest first. Many clients of
      many addresses are slow for a moment, for example after a takeover, without any fault of theirs.

    Args:
        least_bytes: the limit for all readers together. The unused part of the limit of ``responses`` comes
            on top.
        evict: called with a reader that is closed, and the bytes held for it, responses included.
    """

    def __init__(
        self,
        least_bytes: int,
        responses: MemoryBudget[ReaderT],
        evict: Callable[[ReaderT, int], object],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._least_bytes = least_bytes
        self.responses = responses
        self._evict = evict
        self.behind: dict[ReaderT, Backlog] = {}
        """The readers that are behind for longest come first."""
        self.is_relieved_soon = False
        self.total_bytes = 0
        """An upper bound of the memory that is held."""

    def __contains__(self, reader: ReaderT) -> bool:
        return reader in self.behind

    @property
    def limit_bytes(self) -> int:
        """The limit at this moment."""
        return self._least_bytes + self.responses.limit_bytes - self.responses.total_bytes

    @property
    def share_bytes(self) -> int:
        """Bytes that may wait for each reader that is behind."""
        return self.limit_bytes // max(1, len(self.behind))

    def begin(self, reader: ReaderT) -> None:
        """Note that a reader fell behind."""
        self.behind.setdefault(reader, Backlog(self._loop.time()))
        self.note(reader, 0)

    def note(self, reader: ReaderT, read_bytes: int) -> None:
        """Note that bytes from a read of ``read_bytes`` were written to a reader that is behind."""
        backlog = self.behind[reader]
        backlog.longest_bytes = max(backlog.longest_bytes, read_bytes)
        backlog.written_bytes += read_bytes
        self._measure(reader, backlog)
        self.check()

    def check(self) -> None:
        """Schedule the closing of readers when too much is held; the current reader must not close now."""
        if self.total_bytes > self.limit_bytes and not self.is_relieved_soon:
            self.is_relieved_soon = True
            self._loop.call_soon(self.relieve)

    def end(self, reader: ReaderT) -> None:
        """Note that a reader has caught up, or was closed."""
        backlog = self.behind.pop(reader, None)
        if backlog is not None:
            self.total_bytes -= backlog.held_bytes

    def relieve(self) -> None:
        try:
            self._relieve_once()
        finally:  # not earlier: closing a reader that holds a response calls `check`
            self.is_relieved_soon = self.total_bytes > self.limit_bytes
            if self.is_relieved_soon:
                self._loop.call_later(RELIEF_INTERVAL_S, self.relieve)

    def _relieve_once(self) -> None:
        by_source: dict[str, int] = {}
        for reader, backlog in self.behind.items():  # readers may have caught up since the last measurement
            self._measure(reader, backlog)
            by_source[reader.source] = by_source.get(reader.source, 0) + backlog.held_bytes
        if self.total_bytes <= self.limit_bytes:
            return
        for reader, held_bytes in self.responses.items():
            by_source[reader.source] = by_source.get(reader.source, 0) + held_bytes
        greatest = max(by_source, key=by_source.__getitem__)
        most_bytes = (self._least_bytes + self.responses.limit_bytes) * SOURCE_SHARE
        if by_source[greatest] > most_bytes:
            while self._is_above() and (mine := self._of_source(greatest)):
                self._close(mine)
        else:
            before_s = self._loop.time() - READER_GRACE_S
            self._close([each for each, backlog in self.behind.items() if backlog.since_s <= before_s])

    def _of_source(self, source: str) -> list[ReaderT]:
        """Return the readers with a response, and of the others the half that fell behind first."""
        holders = [each for each, _ in self.responses.items() if each.source == source]
        known = set(holders)
        behind = [each for each in self.behind if each.source == source and each not in known]
        return holders + behind[: (len(behind) + 1) // 2]

    def _is_above(self) -> bool:
        return self.total_bytes > self.limit_bytes * RELIEF_SHARE

    def _close(self, readers: list[ReaderT]) -> None:
        """Close some of these readers, the greatest first, until enough memory is free."""
        for reader in sorted(readers, key=self._held_bytes, reverse=True):
            if not self._is_above():
                return
            held_bytes = self._held_bytes(reader)
            self.end(reader)
            self.responses.note(reader, 0)
            self._evict(reader, held_bytes)

    def _measure(self, reader: ReaderT, backlog: Backlog) -> None:
        waiting_bytes = reader.waiting_bytes
        most_bytes = waiting_bytes + backlog.longest_bytes
        held_bytes = max(waiting_bytes, min(backlog.written_bytes, most_bytes))
        self.total_bytes += held_bytes - backlog.held_bytes
        backlog.held_bytes = held_bytes

    def _held_bytes(self, reader: ReaderT) -> int:
        """Return the bytes held for a reader, responses included."""
        backlog = self.behind.get(reader)
        return self.responses.held_bytes(reader) + (0 if backlog is None else backlog.held_bytes)


def in_flight_limit(limit_bytes: int, clients: int) -> int:
    """Return how many requests a client may have in flight when this many clients have many."""
    return min(MAX_IN_FLIGHT, limit_bytes // (2 * IN_FLIGHT_BYTES * max(1, clients)))
