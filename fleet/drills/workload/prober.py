"""Requests Metadata from every member all the time, as a client may, and records its changes."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace

from fleet.core.errors import FleetError
from fleet.core.model import BrokerId, Endpoint, ProxyId
from fleet.proxy.wire.metadata import Table, brokers_of, metadata_request

_ANSWER_LIMIT_S = 2.0
_RECONNECT_PAUSE_S = 0.05
FAST_INTERVAL_S = 0.005
_SLOW_INTERVAL_S = 0.1


@dataclass(frozen=True, slots=True)
class Change:
    """The content of one member's Metadata, from a moment on.

    Args:
        at_s: when the first answer with this content arrived, on the machine's monotonic clock.
        asked_s: when the newest answer with this content was requested.
    """

    at_s: float
    table: Table
    asked_s: float = 0.0


class Prober:
    """Requests Metadata over one connection to each member, and keeps the changes.

    Args:
        targets: the members' bootstrap addresses.
        owner_of: returns the member that an address belongs to.
        fast_s: seconds between requests to a member while `fast` is set.
    """

    def __init__(
        self,
        targets: Mapping[ProxyId, Endpoint],
        owner_of: Callable[[Endpoint], ProxyId | None],
        fast_s: float = FAST_INTERVAL_S,
    ) -> None:
        self._targets = targets
        self._owner_of = owner_of
        self._fast_s = fast_s
        self.changes: dict[ProxyId, list[Change]] = {proxy_id: [] for proxy_id in targets}
        self.heard_s: dict[ProxyId, float] = {}
        """By member, when it last answered."""
        self.fast = False
        """Whether to send a request every `fast_s` instead of every 100 ms."""

    async def run(self) -> None:
        """Probe until cancelled."""
        async with asyncio.TaskGroup() as group:
            for proxy_id, endpoint in self._targets.items():
                group.create_task(self._follow(proxy_id, endpoint), name=f"probe {proxy_id}")

    def owners(self, proxy_id: ProxyId) -> dict[BrokerId, ProxyId | None]:
        """The owner of each identity in a member's newest Metadata; None for an unknown address."""
        changes = self.changes[proxy_id]
        table = changes[-1].table if changes else {}
        return {broker_id: self._owner_of(endpoint) for broker_id, endpoint in sorted(table.items())}

    def live_since_s(
        self, broker_ids: AbstractSet[BrokerId], survivors: Collection[ProxyId], since_s: float
    ) -> float | None:
        """The time since which every survivor's Metadata has a survivor's address for every identity.

        Args:
            broker_ids: the identities that the Metadata must have.
            since_s: the time of the kill; the result is never earlier.
        Returns:
            a monotonic time; None if some Metadata names another address now.
        """
        latest_s = since_s
        for proxy_id in survivors:
            became_s: float | None = None
            for change in self.changes[proxy_id]:
                owners = (self._owner_of(change.table[each]) for each in broker_ids & change.table.keys())
                live = broker_ids <= change.table.keys() and all(owner in survivors for owner in owners)
                became_s = None if not live else change.at_s if became_s is None else became_s
            if became_s is None:
                return None
            latest_s = max(latest_s, became_s)
        return latest_s

    async def _follow(self, proxy_id: ProxyId, endpoint: Endpoint) -> None:
        while True:
            with suppress(OSError, asyncio.IncompleteReadError, FleetError):
                await self._probe_connection(proxy_id, endpoint)
            await asyncio.sleep(_RECONNECT_PAUSE_S)

    async def _probe_connection(self, proxy_id: ProxyId, endpoint: Endpoint) -> None:
        """Request Metadata over one connection until the connection breaks.

        Raises: OSError, IncompleteReadError, WireError: the connection broke.
        """
        async with asyncio.timeout(_ANSWER_LIMIT_S):
            reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        changes = self.changes[proxy_id]
        correlation_id = 0
        try:
            while True:
                asked_s = time.monotonic()
                correlation_id += 1
                writer.write(metadata_request(correlation_id))
                async with asyncio.timeout(_ANSWER_LIMIT_S):
                    (size,) = struct.unpack(">i", await reader.readexactly(4))
                    table = brokers_of(await reader.readexactly(size), correlation_id)
                self.heard_s[proxy_id] = now_s = time.monotonic()
                if not changes or changes[-1].table != table:
                    changes.append(Change(now_s, table, asked_s))
                else:
                    changes[-1] = replace(changes[-1], asked_s=asked_s)
                await asyncio.sleep(asked_s + (self._fast_s if self.fast else _SLOW_INTERVAL_S) - now_s)
        finally:
            writer.transport.abort()
