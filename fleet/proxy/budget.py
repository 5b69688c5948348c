"""A limit for the memory that all clients of one worker use together, and who is closed above it.

Each client has limits of its own, too; but a thousand clients that each stay within them could use up the
memory of a machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable
from typing import Final, Generic, Protocol, TypeVar

RELIEF_SHARE: Final = 7 / 8
"""Of the limit. Backlogs are cut to this share, so that not every further byte closes another reader."""
SOURCE_SHARE: Final = 1 / 2
"""Of the limit. Above this share, the greatest readers of one address are closed at once."""
GRACE_S = 5.0  # not Final: tests change it, and a compiler would write its value into the code
"""How long a reader may be behind before it is closed, if no address holds more than its share."""
RELIEF_INTERVAL_S: Final = 0.05
IN_FLIGHT_BYTES: Final = 40
"""What a session takes for a request in flight, behind the first."""
MOST_IN_FLIGHT: Final = 4096
"""Requests in flight with which a client is not read from before half of them are answered; fewer, where many
clients have many. Then each may have its part of half of what the worker has for them, and what one read
brings is above that: with requests of 14 bytes 18,000 of them.
"""


class Reader(Hashable, Protocol):
    """Somebody who is written to; ``source`` is the address that it comes from."""

    source: str

    @property
    def waiting_bytes(self) -> int:
        """What was written, and has not been taken yet."""


ReaderT = TypeVar("ReaderT", bound=Reader)


class MemoryBudget(Generic[ReaderT]):
    """What is held for some readers, and a limit for all of it.

    Of the address that has most held, the greatest goes first, and of equals the oldest: so nobody can lock
    others out by holding much, nor by holding a little on many connections.

    Args:
        limit_bytes: for all of them together.
        evict: called with a reader that must hold nothing any more, and what it has held in bytes. It may be
            the one that is just being noted.
    """

    def __init__(self, limit_bytes: int, evict: Callable[[ReaderT, int], object]) -> None:
        self.limit_bytes = limit_bytes
        self.total_bytes = 0
        self._evict = evict
        self._held: dict[ReaderT, int] = {}

    def __len__(self) -> int:
        """How many hold something."""
        return len(self._held)

    def items(self) -> Iterable[tuple[ReaderT, int]]:
        """Who holds something, the oldest first, and how much."""
        return self._held.items()

    def held_bytes(self, reader: ReaderT) -> int:
        """As it was noted."""
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
        """Everybody is looked at once, however many have to go: one that is great may drive out thousands."""
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
                mine.sort(key=self._held.__getitem__)  # of equals the oldest is the last now
            greatest = mine.pop()
            held_bytes = self._held.pop(greatest)
            sums[source] -= held_bytes
            self.total_bytes -= held_bytes
            self._evict(greatest, held_bytes)


class Backlog:
    """What one reader has the worker hold.

    Args:
        longest_bytes, written_bytes: the longest read, and all reads, that something was written of since it
            is behind.
        held_bytes: when it was last measured.
        since_s: when it got behind, by the loop's clock.
    """

    __slots__ = ("held_bytes", "longest_bytes", "since_s", "written_bytes")

    def __init__(self, since_s: float) -> None:
        self.since_s = since_s
        self.longest_bytes = self.written_bytes = self.held_bytes = 0


class Backlogs(Generic[ReaderT]):
    """The clients of one worker that are behind: something waits for them that the kernel does not take.

    Many may be for a moment, so a client's share shrinks as more are behind, and above it the client is
    paused. A transport keeps the whole of a read for as long as a part of it waits, so what a client has the
    worker hold is up to one read more than what waits. Where that is above the limit, readers are closed, and
    what counts for each, and for its address, is what is held for it in ``responses``, too:

    - where one address has more than half of the whole limit held, its own, in the next turn of the event
      loop: of those with a response, and the half of the others that is behind for longer, the greatest
      first;
    - else those that are behind for ``GRACE_S``, the greatest first. Many clients of many addresses are slow
      for a moment, as after a takeover, and that is nobody's fault.

    Args:
        least_bytes: the limit of what is held for all of them together; more, as far as ``responses`` does
            not use its own.
        evict: called with one that is closed, and what was held for it in bytes, in responses, too.
    """

    def __init__(
        self,
        least_bytes: int,
        responses: MemoryBudget[ReaderT],
        evict: Callable[[ReaderT, int], object],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._least_bytes = least_bytes
        self._responses = responses
        self._evict = evict
        self._behind: dict[ReaderT, Backlog] = {}
        """Those that are behind for longest first."""
        self._is_relieved_soon = False
        self.total_bytes = 0
        """Not less than what is held."""

    def __contains__(self, reader: ReaderT) -> bool:
        return reader in self._behind

    @property
    def limit_bytes(self) -> int:
        """As it is now."""
        return self._least_bytes + self._responses.limit_bytes - self._responses.total_bytes

    @property
    def share_bytes(self) -> int:
        """What may wait for each of those that are behind."""
        return self.limit_bytes // max(1, len(self._behind))

    def begin(self, reader: ReaderT) -> None:
        """It is behind."""
        self._behind.setdefault(reader, Backlog(self._loop.time()))
        self.note(reader, 0)

    def note(self, reader: ReaderT, read_bytes: int) -> None:
        """More was written to a reader that is behind, out of a read of ``read_bytes``."""
        backlog = self._behind[reader]
        backlog.longest_bytes = max(backlog.longest_bytes, read_bytes)
        backlog.written_bytes += read_bytes
        self._measure(reader, backlog)
        self.look()

    def look(self) -> None:
        """Close some soon where too much is held: the one that is written to just now must not be closed."""
        if self.total_bytes > self.limit_bytes and not self._is_relieved_soon:
            self._is_relieved_soon = True
            self._loop.call_soon(self._relieve)

    def end(self, reader: ReaderT) -> None:
        """It has caught up, or is gone."""
        backlog = self._behind.pop(reader, None)
        if backlog is not None:
            self.total_bytes -= backlog.held_bytes

    def _relieve(self) -> None:
        try:
            self._relieve_once()
        finally:  # not before: closing a reader that holds a response calls `look`
            self._is_relieved_soon = self.total_bytes > self.limit_bytes
            if self._is_relieved_soon:
                self._loop.call_later(RELIEF_INTERVAL_S, self._relieve)

    def _relieve_once(self) -> None:
        by_source: dict[str, int] = {}
        for reader, backlog in self._behind.items():  # what was noted may have been read meanwhile
            self._measure(reader, backlog)
            by_source[reader.source] = by_source.get(reader.source, 0) + backlog.held_bytes
        if self.total_bytes <= self.limit_bytes:
            return
        for reader, held_bytes in self._responses.items():
            by_source[reader.source] = by_source.get(reader.source, 0) + held_bytes
        greatest = max(by_source, key=by_source.__getitem__)
        most_bytes = (self._least_bytes + self._responses.limit_bytes) * SOURCE_SHARE
        if by_source[greatest] > most_bytes:
            while self._is_above() and (mine := self._of_source(greatest)):
                self._close(mine)
        else:
            before_s = self._loop.time() - GRACE_S
            self._close([each for each, backlog in self._behind.items() if backlog.since_s <= before_s])

    def _of_source(self, source: str) -> list[ReaderT]:
        """Those with a response, and of the others the half that is behind for longer."""
        holders = [each for each, _ in self._responses.items() if each.source == source]
        known = set(holders)
        behind = [each for each in self._behind if each.source == source and each not in known]
        return holders + behind[: (len(behind) + 1) // 2]

    def _is_above(self) -> bool:
        return self.total_bytes > self.limit_bytes * RELIEF_SHARE

    def _close(self, readers: list[ReaderT]) -> None:
        """Close some of these, the greatest first, until it is enough."""
        for reader in sorted(readers, key=self._held_bytes, reverse=True):
            if not self._is_above():
                return
            held_bytes = self._held_bytes(reader)
            self.end(reader)
            self._responses.note(reader, 0)
            self._evict(reader, held_bytes)

    def _measure(self, reader: ReaderT, backlog: Backlog) -> None:
        waiting_bytes = reader.waiting_bytes
        most_bytes = waiting_bytes + backlog.longest_bytes
        held_bytes = max(waiting_bytes, min(backlog.written_bytes, most_bytes))
        self.total_bytes += held_bytes - backlog.held_bytes
        backlog.held_bytes = held_bytes

    def _held_bytes(self, reader: ReaderT) -> int:
        """In responses, too."""
        backlog = self._behind.get(reader)
        return self._responses.held_bytes(reader) + (0 if backlog is None else backlog.held_bytes)


def most_in_flight(limit_bytes: int, clients: int) -> int:
    """How many requests a client may have in flight, if this many clients have many."""
    return min(MOST_IN_FLIGHT, limit_bytes // (2 * IN_FLIGHT_BYTES * max(1, clients)))
