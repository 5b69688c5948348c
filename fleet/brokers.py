"""What this member knows of the real brokers: which there are, and which of them it can reach."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Final

from fleet.config import Settings
from fleet.discovery import discover
from fleet.model import Broker, BrokerId, Endpoint
from fleet.probe import probe_broker

log = logging.getLogger(__name__)

BACKOFF_FIRST_S: Final = 0.05
"""Between two probes of a broker that is down; each wait is twice the last, up to `probe_interval_s`."""
GATHER_S: Final = 0.01
"""Answers that come within this time are told of together: those of all brokers at the start."""


class BrokerWatch:
    """Asks the cluster for its brokers, and every broker whether it answers, for as long as ``run`` runs.

    Args:
        settings: bootstrap servers and timing.
        on_change: called after what is known, or what can be reached, has changed.
    """

    def __init__(self, settings: Settings, on_change: Callable[[], None]) -> None:
        self._bootstrap_servers = settings.bootstrap_servers
        self._timing = settings.timing
        self._on_change = on_change
        self._known: dict[BrokerId, Broker] = {}
        self._listed: frozenset[BrokerId] = frozenset()
        self._reachable: dict[BrokerId, bool] = {}
        self._doubts: dict[BrokerId, asyncio.Event] = {}
        """Of each broker that is being probed: set where it should be asked at once."""
        self._changed = asyncio.Event()
        self._telling: asyncio.TimerHandle | None = None

    @property
    def known(self) -> Mapping[BrokerId, Broker]:
        """Every broker seen since the start, at its newest address."""
        return MappingProxyType(self._known)

    @property
    def servers(self) -> list[Endpoint]:
        """Where to find the cluster: the configured addresses, then known brokers; for any thread."""
        known = list(self._known.values())
        return [*self._bootstrap_servers, *(Endpoint(each.host, each.port) for each in known)]

    @property
    def listed(self) -> tuple[Broker, ...]:
        """The brokers of the cluster's last answer; none before the first."""
        return tuple(self._known[broker_id] for broker_id in sorted(self._listed))

    @property
    def reachable(self) -> Mapping[BrokerId, bool]:
        """Whether each broker answered the last probe; absent where none has ended yet."""
        return MappingProxyType(self._reachable)

    @property
    def unreachable(self) -> tuple[BrokerId, ...]:
        return tuple(sorted(broker_id for broker_id, up in self._reachable.items() if not up))

    def saw(self, brokers: Iterable[Broker]) -> None:
        """A response carried these brokers, or the fleet has committed them."""
        before = dict(self._known)
        self._known.update((broker.broker_id, broker) for broker in brokers)
        self._listed |= {broker.broker_id for broker in brokers} if self._listed else frozenset()
        if self._known != before:
            self.lost(each for each in before if before[each] != self._known[each])
            self._changed.set()
            self._on_change()

    def learn(self, before: Mapping[BrokerId, Broker], committed: Mapping[BrokerId, Broker]) -> None:
        """Take over what is new in what the fleet knows, until this member's own next look.

        What is not new stays as it was seen here: members may reach the brokers by different listeners, and
        only one address of each is committed.
        """
        self.saw(broker for broker_id, broker in committed.items() if before.get(broker_id) != broker)

    def lost(self, broker_ids: Iterable[BrokerId]) -> None:
        """A worker could not connect to these, or they have ended a connection: ask them now."""
        for broker_id in broker_ids:
            if broker_id in self._doubts:
                self._doubts[broker_id].set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._discover())
            while True:
                for broker_id in self._known.keys() - self._doubts.keys():
                    self._doubts[broker_id] = asyncio.Event()
                    tasks.create_task(self._probe(broker_id))
                self._changed.clear()
                await self._changed.wait()

    async def _discover(self) -> None:
        while True:
            found = await discover(self.servers, timeout_s=self._timing.upstream_connect_timeout_s)
            if found:
                listed = frozenset(broker.broker_id for broker in found)
                gone, self._listed = self._listed - listed, listed
                if gone:
                    log.info("brokers %s are not in the cluster's Metadata any more", sorted(gone))
                self.saw(found)
            # Ask again soon while nothing is known: a fleet may be started before its cluster.
            await asyncio.sleep(self._timing.broker_refresh_s if found else self._timing.probe_interval_s)

    async def _probe(self, broker_id: BrokerId) -> None:
        """Ask one broker for ever: regularly, at once where a worker has lost it, less often while down."""
        doubt, interval_s, backoff_s = self._doubts[broker_id], self._timing.probe_interval_s, BACKOFF_FIRST_S
        while True:
            doubt.clear()
            broker = self._known[broker_id]
            if await probe_broker(Endpoint(broker.host, broker.port), self._timing.probe_timeout_s):
                backoff_s = BACKOFF_FIRST_S
                self._answered(broker_id, up=True)
                await asyncio.sleep(min(interval_s, BACKOFF_FIRST_S))
                with suppress(TimeoutError):
                    async with asyncio.timeout(interval_s):
                        await doubt.wait()
            else:
                self._answered(broker_id, up=False)
                await asyncio.sleep(min(interval_s, backoff_s))
                backoff_s = min(interval_s, 2 * backoff_s)

    def _answered(self, broker_id: BrokerId, *, up: bool) -> None:
        if self._reachable.get(broker_id) is up:
            return
        self._reachable[broker_id] = up
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(GATHER_S, self._tell)

    def _tell(self) -> None:
        self._telling = None
        self._on_change()
