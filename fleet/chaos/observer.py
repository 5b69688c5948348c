"""What is seen of a fleet from outside while it is broken: its Metadata, and who owns what as members say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from functools import partial

from fleet.chaos.checker import Sighting, View
from fleet.demo.background import alongside, in_thread
from fleet.demo.local_fleet import LocalFleet
from fleet.demo.prober import Prober
from fleet.model import BrokerId, ProxyId

_ASK_EVERY_S = 0.1
_ASK_LIMIT_S = 0.5


class Observer:
    """Looks on while a run lasts.

    Args:
        broker_ids: the identities that must always have a live address.
    """

    def __init__(self, fleet: LocalFleet, broker_ids: frozenset[BrokerId]) -> None:
        self._fleet = fleet
        self._broker_ids = broker_ids
        targets = {each: fleet.bootstrap_endpoint(each) for each in fleet.members}
        self._prober = Prober(targets, fleet.owner_of)
        self._prober.fast = True
        self.sightings: list[Sighting] = []

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[None]:
        """Look on meanwhile."""
        async with alongside(self._prober.run(), *map(self._follow, self._fleet.members)):
            yield

    def taken_over(self, survivors: Collection[ProxyId], since_s: float) -> bool:
        """Whether the survivors' Metadata has survivors alone."""
        return self._prober.live_since_s(self._broker_ids, survivors, since_s) is not None

    def views(self) -> dict[ProxyId, list[View]]:
        """What each member's Metadata has said, at each change."""
        return {
            proxy_id: [
                View(change.at_s, {each: self._fleet.owner_of(at) for each, at in change.table.items()})
                for change in changes
            ]
            for proxy_id, changes in self._prober.changes.items()
        }

    async def _follow(self, proxy_id: ProxyId) -> None:
        newest: tuple[int, dict[BrokerId, tuple[ProxyId, ...]]] | None = None
        while True:
            document = await in_thread(partial(self._fleet.try_ownership, proxy_id, _ASK_LIMIT_S))
            if document is not None:
                owners = {each.broker_id: each.committed for each in document.identities}
                if (document.generation, owners) != newest:
                    newest = (document.generation, owners)
                    self.sightings.append(Sighting(document.now_mono_s, proxy_id, *newest))
            await asyncio.sleep(_ASK_EVERY_S)
