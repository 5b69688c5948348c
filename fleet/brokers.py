"""What this member knows of the real brokers: which there are, and which of them it can reach."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from fleet.config import Settings
from fleet.discovery import discover
from fleet.model import Broker, BrokerId, Endpoint
from fleet.probe import probe_broker

log = logging.getLogger(__name__)


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

    @property
    def known(self) -> Mapping[BrokerId, Broker]:
        """Every broker seen since the start, at its newest address."""
        return MappingProxyType(self._known)

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
            self._on_change()

    def learn(self, committed: Mapping[BrokerId, Broker]) -> None:
        """Take over what the fleet knows of brokers that this member has not seen itself."""
        self.saw(broker for broker_id, broker in committed.items() if broker_id not in self._known)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._discover())
            tasks.create_task(self._probe())

    async def _discover(self) -> None:
        while True:
            servers = [*self._bootstrap_servers, *(Endpoint(b.host, b.port) for b in self._known.values())]
            found = await discover(servers, timeout_s=self._timing.upstream_connect_timeout_s)
            if found:
                listed = frozenset(broker.broker_id for broker in found)
                gone, self._listed = self._listed - listed, listed
                if gone:
                    log.info("brokers %s are not in the cluster's Metadata any more", sorted(gone))
                self.saw(found)
            # Ask again soon while nothing is known: a fleet may be started before its cluster.
            await asyncio.sleep(self._timing.broker_refresh_s if found else self._timing.probe_interval_s)

    async def _probe(self) -> None:
        while True:
            brokers = list(self._known.values())
            answers = await asyncio.gather(
                *(probe_broker(Endpoint(b.host, b.port), self._timing.probe_timeout_s) for b in brokers)
            )
            reachable = {broker.broker_id: up for broker, up in zip(brokers, answers, strict=True)}
            if reachable != self._reachable:
                self._reachable = reachable
                self._on_change()
            # A first answer is waited for by /readyz and by the leader, so it is sought without delay.
            await asyncio.sleep(self._timing.probe_interval_s if brokers else self._timing.heartbeat_s)
