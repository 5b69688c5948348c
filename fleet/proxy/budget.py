"""What the clients of one worker have it hold altogether, and who goes where that is too much.

Each of them has limits of its own. A thousand clients that each stay within theirs could still take all of a
machine's memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Final, Generic, Protocol, TypeVar

BACKLOG_GRACE_S = 5.0  # not Final: tests change it, and a compiler would write its value into the code
"""How long a client may be behind before it is closed for the sake of others: most catch up in much less."""
LOOKS_PER_GRACE: Final = 5

HolderT = TypeVar("HolderT", bound=Hashable)


class MemoryBudget(Generic[HolderT]):
    """What is held for some holders, and a limit for all of it.

    The greatest holder goes first, and of equals the oldest: so nobody can lock others out by holding much.

    Args:
        limit_bytes: for all of them together.
        evict: called with a holder that must hold nothing any more, and what it has held in bytes. It may be
            the one that is just being noted, so it must not be closed within the call.
    """

    def __init__(self, limit_bytes: int, evict: Callable[[HolderT, int], object]) -> None:
        self.limit_bytes = limit_bytes
        self.total_bytes = 0
        self._evict = evict
        self._held: dict[HolderT, int] = {}

    def note(self, holder: HolderT, size_bytes: int) -> None:
        """Have somebody hold so much from now on; 0: nothing any more."""
        self.total_bytes += size_bytes - self._held.get(holder, 0)
        if size_bytes:
            self._held[holder] = size_bytes
        else:
            self._held.pop(holder, None)
        while self.total_bytes > self.limit_bytes:
            greatest = max(self._held, key=self._held.__getitem__)
            held_bytes = self._held.pop(greatest)
            self.total_bytes -= held_bytes
            self._evict(greatest, held_bytes)


class Reader(Hashable, Protocol):
    """Somebody who is written to."""

    @property
    def waiting_bytes(self) -> int:
        """What was written, and has not been taken yet."""


ReaderT = TypeVar("ReaderT", bound=Reader)


class Backlogs(Generic[ReaderT]):
    """The clients of one worker that are behind: more waits for them than goes unnoticed.

    Many may be for a moment, as when all of them ask for Metadata after a takeover. So nobody is closed at
    once: a client's share shrinks as more are behind, and above it the client is paused. Whoever is behind
    for long is closed, the greatest first, while all of them have the worker hold more than the limit.

    Args:
        limit_bytes: for all of them together.
        evict: called with one that is closed, and what waited for it in bytes.
    """

    def __init__(self, limit_bytes: int, evict: Callable[[ReaderT, int], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._limit_bytes = limit_bytes
        self._evict = evict
        self._since_s: dict[ReaderT, float] = {}
        self._is_timed = False

    def __contains__(self, reader: ReaderT) -> bool:
        return reader in self._since_s

    @property
    def share_bytes(self) -> int:
        """What may wait for each of those that are behind."""
        return self._limit_bytes // max(1, len(self._since_s))

    def begin(self, reader: ReaderT) -> None:
        """It is behind."""
        self._since_s[reader] = self._loop.time()
        self._look_later()

    def end(self, reader: ReaderT) -> None:
        """It has caught up, or is gone."""
        self._since_s.pop(reader, None)

    def _look_later(self) -> None:
        if self._since_s and not self._is_timed:
            self._is_timed = True
            self._loop.call_later(BACKLOG_GRACE_S / LOOKS_PER_GRACE, self._look)

    def _look(self) -> None:
        self._is_timed = False
        self._look_later()
        sizes_bytes = {reader: reader.waiting_bytes for reader in self._since_s}
        total_bytes = sum(sizes_bytes.values())
        if total_bytes <= self._limit_bytes:
            return
        before_s = self._loop.time() - BACKLOG_GRACE_S
        late = [reader for reader, since_s in self._since_s.items() if since_s <= before_s]
        for reader in sorted(late, key=sizes_bytes.__getitem__, reverse=True):
            if total_bytes <= self._limit_bytes:
                return
            total_bytes -= sizes_bytes[reader]
            self.end(reader)
            self._evict(reader, sizes_bytes[reader])
