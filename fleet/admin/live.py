"""The fleet as it changes, for all who look: one document is made for them together, and none for nobody.

While somebody looks, the other members are asked for their counters once a second: members do not exchange
those among themselves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, Final

from fleet.admin.documents import LIVE, LiveDocument
from fleet.admin.ownership import ownership_document
from fleet.admin.snapshot import AdminSource, FleetView
from fleet.admin.traffic import Counts, counted, rates, traffic_document
from fleet.core.crowd import Crowd

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 0.1
TELL_EVERY_S: Final = 1.0
"""Also where nothing but times and rates has changed."""
COUNT_EVERY_S: Final = 1.0
MAX_WATCHERS = 32  # not Final: tests change it

AskOthers = Callable[[], Awaitable[Counts]]


async def nobody() -> Counts:
    """Where there are no others to be asked."""
    return {}


class Watcher:
    """A place for somebody who looks. Where it is displaced, somebody else has it."""

    def __init__(self) -> None:
        self.is_displaced = False


class Live:
    """What is told, and to whom.

    Args:
        source: asked for views.
        others: asks the other members what passes them; must not take long, and raises nothing.
    """

    def __init__(self, source: AdminSource, others: AskOthers = nobody) -> None:
        self._source = source
        self._others = others
        self._watchers: Crowd[Watcher] = Crowd(MAX_WATCHERS)
        self._telling: _Telling | None = None

    def enter(self, source: str) -> Watcher | None:
        """Take a place, before anything is awaited; ``leave`` gives it back.

        Where all are taken, one is taken from the source that has most, if this one has fewer.

        Args:    source: where the watcher comes from
        Returns: None where there is no place for one more
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
        """Each newest document, for as long as it is asked for one more. Who is slow misses some."""
        if self._telling is None or self._telling.ended:
            self._telling = _Telling(self._source, self._others)
        telling = self._telling
        telling.watchers += 1
        seen = 0
        try:
            while not telling.ended:
                seen, document = await telling.after(seen)
                if watcher.is_displaced:
                    break
                if document:
                    yield document
        finally:
            telling.watchers -= 1
            if not telling.watchers:
                # Whoever comes while this one stops has another.
                if self._telling is telling:
                    self._telling = None
                await telling.stop()


class _Telling:
    """What is told for as long as somebody looks, or until something is wrong here."""

    def __init__(self, source: AdminSource, others: AskOthers) -> None:
        self._source = source
        self._others = others
        self._before: Counts = {}
        self._now: Counts = {}
        self._number = 0
        self._newest = b""
        self._told = asyncio.Condition()
        self.watchers = 0
        self.ended = False
        self._work = [asyncio.create_task(self._last(each)) for each in (self._count(), self._tell())]

    async def after(self, seen: int) -> tuple[int, bytes]:
        """The newest document and its number, once that is another one; nothing where this has ended."""
        async with self._told:
            await self._told.wait_for(lambda: self.ended or self._number != seen)
            return self._number, b"" if self.ended else self._newest

    async def stop(self) -> None:
        for each in self._work:
            each.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)

    async def _last(self, work: Coroutine[Any, Any, None]) -> None:
        """Have all who look leave, and come again, where something is wrong here."""
        try:
            await work
        except Exception:
            log.exception("what is told of the fleet cannot be made")
            async with self._told:
                self.ended = True
                self._told.notify_all()

    async def _count(self) -> None:
        while True:
            view = await self._source.counted()
            own, others = await asyncio.gather(asyncio.to_thread(traffic_document, view), self._others())
            self._before, self._now = self._now, {view.me: own, **others}
            await asyncio.sleep(COUNT_EVERY_S)

    async def _tell(self) -> None:
        """Make a document where the fleet is not as it was, and once a second."""
        loop = asyncio.get_running_loop()
        was, told_s = None, 0.0
        while True:
            view = self._source.view()
            now = _what_matters(view)
            if now != was or loop.time() - told_s >= TELL_EVERY_S:
                was, told_s = now, loop.time()
                before, counts = self._before, self._now
                # As with /ownership: not on the loop that answers heartbeats.
                document = await asyncio.to_thread(_encoded, view, before, counts)
                async with self._told:
                    self._number, self._newest = self._number + 1, document
                    self._told.notify_all()
            await asyncio.sleep(LOOK_EVERY_S)


def _what_matters(view: FleetView) -> object:
    """What is told at once where it changes."""
    members = tuple((each.proxy_id, each.condition, each.ready) for each in view.members)
    raft = view.raft.role, view.raft.leader, view.raft.term, view.raft.has_quorum, view.raft.error
    return view.directory.generation, view.directory.revision, members, raft, view.takeovers.recent


def _encoded(view: FleetView, before: Counts, now: Counts) -> bytes:
    return LIVE.encode(LiveDocument(ownership_document(view), rates(before, now), counted(before, now)))
