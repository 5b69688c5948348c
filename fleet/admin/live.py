"""Streams the view of the fleet to all readers of ``/live``: one document for all, and none without a reader.

While there is a reader, the other members are asked for their counters once a second: members do not exchange
counters among themselves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, Final

from fleet.admin.documents import LIVE, LiveDocument
from fleet.admin.ownership import ownership_document
from fleet.admin.snapshot import AdminSource, FleetView
from fleet.admin.traffic import Counts, rate_sources, rates, traffic_document
from fleet.core.crowd import Crowd

log = logging.getLogger(__name__)

CHANGE_CHECK_INTERVAL_S: Final = 0.1
MAX_DOCUMENT_INTERVAL_S: Final = 1.0
"""A document is sent at least this often, even if only times and rates have changed."""
COUNT_INTERVAL_S: Final = 1.0
MAX_WATCHERS = 32  # not Final: tests change it

FetchCounts = Callable[[], Awaitable[Counts]]


async def no_other_members() -> Counts:
    """The counts of the other members, if there are none."""
    return {}


class Watcher:
    """The place of one reader. A displaced watcher has lost its place to another reader."""

    def __init__(self) -> None:
        self.is_displaced = False


class LiveFeed:
    """The readers of ``/live``, and the broadcast that serves them.

    Args:
        source: gives views of the fleet.
        others: fetches the counts of the other members; must not take long, and raises nothing.
    """

    def __init__(self, source: AdminSource, others: FetchCounts = no_other_members) -> None:
        self._source = source
        self._others = others
        self._watchers: Crowd[Watcher] = Crowd(MAX_WATCHERS)
        self.broadcast: _Broadcast | None = None

    def enter(self, source: str) -> Watcher | None:
        """Take a place, before anything is awaited; ``leave`` gives it back.

        If all places are taken, the source with the most watchers loses one, provided this source has fewer.

        Args:    source: the address that the watcher connects from
        Returns: the watcher, or None if there is no place
        """
        if not self._watchers.has_place_for(source):
            return None
        watcher = Watcher()
        displaced = self._watchers.add(watcher, source)
        if displaced is not None:
            displaced.is_displaced = True
        return watcher

    def leave(self, watcher: Watcher) -> None:
        """Give a place back."""
        self._watchers.discard(watcher)

    async def follow(self, watcher: Watcher) -> AsyncGenerator[bytes, None]:
        """Yield the newest document whenever the reader asks for one. A slow reader misses documents."""
        if self.broadcast is None or self.broadcast.ended:
            self.broadcast = _Broadcast(self._source, self._others)
        broadcast = self.broadcast
        broadcast.watchers += 1
        seen = 0
        try:
            while not broadcast.ended:
                seen, document = await broadcast.after(seen)
                if watcher.is_displaced:
                    break
                if document:
                    yield document
        finally:
            broadcast.watchers -= 1
            if not broadcast.watchers:
                # A reader that arrives while this broadcast stops gets a new one.
                if self.broadcast is broadcast:
                    self.broadcast = None
                await broadcast.stop()


class _Broadcast:
    """Builds documents while there is a watcher, or until building one fails."""

    def __init__(self, source: AdminSource, others: FetchCounts) -> None:
        self._source = source
        self._others = others
        self._before: Counts = {}
        self._now: Counts = {}
        self._number = 0
        self._newest = b""
        self._changed = asyncio.Condition()
        self.watchers = 0
        self.ended = False
        self._tasks = [asyncio.create_task(self._run(each)) for each in (self._count(), self._publish())]

    async def after(self, seen: int) -> tuple[int, bytes]:
        """Wait for a document with another number than ``seen``.

        Returns: the number and the document; the document is empty if the broadcast has ended
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self.ended or self._number != seen)
            return self._number, b"" if self.ended else self._newest

    async def stop(self) -> None:
        for each in self._tasks:
            each.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run one task; if it fails, end the broadcast, so that all readers reconnect."""
        try:
            await work
        except Exception:
            log.exception("/live: cannot build the document")
            async with self._changed:
                self.ended = True
                self._changed.notify_all()

    async def _count(self) -> None:
        while True:
            view = await self._source.counted_view()
            own, others = await asyncio.gather(asyncio.to_thread(traffic_document, view), self._others())
            self._before, self._now = self._now, {view.me: own, **others}
            await asyncio.sleep(COUNT_INTERVAL_S)

    async def _publish(self) -> None:
        """Build a document whenever the fleet has changed, and once a second."""
        loop = asyncio.get_running_loop()
        before_change, published_s = None, 0.0
        while True:
            view = self._source.view()
            now = _urgent_part(view)
            if now != before_change or loop.time() - published_s >= MAX_DOCUMENT_INTERVAL_S:
                before_change, published_s = now, loop.time()
                before, counts = self._before, self._now
                # As with /ownership: not on the loop that answers heartbeats.
                document = await asyncio.to_thread(_encode, view, before, counts)
                async with self._changed:
                    self._number, self._newest = self._number + 1, document
                    self._changed.notify_all()
            await asyncio.sleep(CHANGE_CHECK_INTERVAL_S)


def _urgent_part(view: FleetView) -> object:
    """The part of a view whose changes are sent at once."""
    members = tuple((each.proxy_id, each.condition, each.ready) for each in view.members)
    raft = view.raft.role, view.raft.leader, view.raft.term, view.raft.has_quorum, view.raft.error
    return view.directory.generation, view.directory.revision, members, raft, view.takeovers.recent


def _encode(view: FleetView, before: Counts, now: Counts) -> bytes:
    return LIVE.encode(LiveDocument(ownership_document(view), rates(before, now), rate_sources(before, now)))
