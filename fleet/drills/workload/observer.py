"""What is seen of a fleet from outside while it is broken: its Metadata, and who owns what as members say."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from fleet.admin import client
from fleet.admin.documents import OwnershipDocument
from fleet.config import Settings, bootstrap_endpoints, identity_owners
from fleet.core.errors import FleetError
from fleet.core.model import BrokerId, ProxyId
from fleet.drills.workload.checker import Sighting, View
from fleet.drills.workload.prober import FAST_S, Prober
from fleet.drills.workload.waiting import alongside
from fleet.tls.access import access_to

_ASK_EVERY_S = 0.1
_ASK_LIMIT_S = 0.5


@dataclass(frozen=True, slots=True)
class Answer:
    """What a member's /ownership said last; when is of this machine's monotonic clock."""

    at_s: float
    document: OwnershipDocument


class Observer:
    """Looks on while a run lasts.

    Args:
        broker_ids: the identities that must always have a live address.
        listener: by which way in Metadata is asked for; the first of each member where None.
        probe_every_s: how often it is.
    """

    def __init__(
        self,
        settings: Settings,
        broker_ids: frozenset[BrokerId],
        listener: str | None = None,
        probe_every_s: float = FAST_S,
    ) -> None:
        self._urls = client.admin_urls(settings)
        self._access = access_to(settings, os.environ)
        self._broker_ids = broker_ids
        self._owner_of = identity_owners(settings).get
        self._prober = Prober(bootstrap_endpoints(settings, listener), self._owner_of, probe_every_s)
        self._prober.fast = True
        self.sightings: list[Sighting] = []
        self.answers: dict[ProxyId, Answer] = {}

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[None]:
        """Look on meanwhile."""
        async with alongside(self._prober.run(), *map(self._follow, self._urls)):
            yield

    def heard_s(self, proxy_id: ProxyId) -> float:
        """When a member last showed its Metadata, or a witness answered on its admin address; 0 for never."""
        if proxy_id in self._prober.changes:
            return self._prober.heard_s.get(proxy_id, 0.0)
        answer = self.answers.get(proxy_id)
        return answer.at_s if answer is not None else 0.0

    def taken_over(self, survivors: Collection[ProxyId], since_s: float) -> bool:
        """Whether the survivors' Metadata has survivors alone."""
        return self._prober.live_since_s(self._broker_ids, survivors, since_s) is not None

    def views(self) -> dict[ProxyId, list[View]]:
        """What each member's Metadata has said, at each change."""
        return {
            proxy_id: [
                View(
                    change.at_s,
                    {each: self._owner_of(at) for each, at in change.table.items()},
                    change.asked_s,
                )
                for change in changes
            ]
            for proxy_id, changes in self._prober.changes.items()
        }

    async def _follow(self, proxy_id: ProxyId) -> None:
        newest: tuple[int, dict[BrokerId, tuple[ProxyId, ...]]] | None = None
        async with self._access.session() as session:
            while True:
                with suppress(FleetError):
                    document = await client.fetch_ownership(session, self._urls[proxy_id], _ASK_LIMIT_S)
                    at_s = time.monotonic()
                    self.answers[proxy_id] = Answer(at_s, document)
                    owners = {each.broker_id: each.committed for each in document.identities}
                    if (document.generation, owners) != newest:
                        newest = (document.generation, owners)
                        self.sightings.append(Sighting(at_s, proxy_id, *newest))
                await asyncio.sleep(_ASK_EVERY_S)
