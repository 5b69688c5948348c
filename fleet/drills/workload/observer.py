"""Observes a fleet from outside during a fault: each member's Metadata and reported ownership."""

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
from fleet.drills.workload.prober import FAST_INTERVAL_S, Prober
from fleet.drills.workload.waiting import background_tasks
from fleet.tls.access import access_to

_OWNERSHIP_INTERVAL_S = 0.1
_OWNERSHIP_LIMIT_S = 0.5


@dataclass(frozen=True, slots=True)
class Answer:
    """A member's newest /ownership; `at_s` is on this machine's monotonic clock."""

    at_s: float
    document: OwnershipDocument


class Observer:
    """Observes every member of a fleet during a run.

    Args:
        broker_ids: the identities that must always have a live address.
        listener: the listener that Metadata is requested from; None for the first listener of each member.
        probe_every_s: seconds between Metadata requests to a member.
    """

    def __init__(
        self,
        settings: Settings,
        broker_ids: frozenset[BrokerId],
        listener: str | None = None,
        probe_every_s: float = FAST_INTERVAL_S,
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
    async def observing(self) -> AsyncIterator[None]:
        """Observe the fleet while the block runs."""
        async with background_tasks(self._prober.run(), *map(self._follow, self._urls)):
            yield

    def heard_s(self, proxy_id: ProxyId) -> float:
        """When a member last sent Metadata, or a witness last answered at its admin address; 0 for never."""
        if proxy_id in self._prober.changes:
            return self._prober.heard_s.get(proxy_id, 0.0)
        answer = self.answers.get(proxy_id)
        return answer.at_s if answer is not None else 0.0

    def taken_over(self, survivors: Collection[ProxyId], since_s: float) -> bool:
        """Whether every survivor's Metadata names only survivors."""
        return self._prober.live_since_s(self._broker_ids, survivors, since_s) is not None

    def views(self) -> dict[ProxyId, list[View]]:
        """Each member's Metadata, one view for each change."""
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
                    document = await client.fetch_ownership(session, self._urls[proxy_id], _OWNERSHIP_LIMIT_S)
                    at_s = time.monotonic()
                    self.answers[proxy_id] = Answer(at_s, document)
                    owners = {each.broker_id: each.committed for each in document.identities}
                    if (document.generation, owners) != newest:
                        newest = (document.generation, owners)
                        self.sightings.append(Sighting(at_s, proxy_id, *newest))
                await asyncio.sleep(_OWNERSHIP_INTERVAL_S)
