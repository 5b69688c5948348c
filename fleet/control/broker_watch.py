"""This member's view of the real brokers: which brokers exist, and which of them the member can reach."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Final

from fleet.config import Settings
from fleet.control.discovery import discover
from fleet.control.probes import probe_broker
from fleet.core.errors import NoMetadata
from fleet.core.model import Broker, BrokerId, Endpoint, ProxyId, is_address
from fleet.core.text import no_port
from fleet.runtime.outbound import NAME_CACHE_S, Resolver
from fleet.runtime.own_addresses import OwnAddresses
from fleet.runtime.socket_options import is_local_address
from fleet.tls.broker_credentials import KafkaAccess

log = logging.getLogger(__name__)

PROBE_BACKOFF_FIRST_S: Final = 0.05
"""First wait between two probes of a broker that is down. Each wait is twice the last, up to
`probe_interval_s`."""
NO_METADATA_MAX_INTERVAL_S: Final = 60.0
"""Longest wait between two Metadata requests while no broker has ever answered one. Each request may appear
as a failed authentication in a broker's log."""
DISCOVERY_MIN_INTERVAL_S: Final = 0.1
DISCOVERY_MAX_INTERVAL_S: Final = 1.0
"""Longest wait between two Metadata requests that clients cause. The wait doubles after each answer without
news."""
MAX_UNCONFIRMED_BROKERS_LOGGED: Final = 100
"""How many unconfirmed brokers the log names."""
PROBE_RESULT_BATCH_S: Final = 0.01
"""Probe results within this time cause one notification, such as the results of all brokers at the start."""


class BrokerWatch:
    """Asks the cluster for its brokers and probes every broker, for as long as ``run`` runs.

    Args:
        settings: bootstrap servers, access to the brokers, and timing.
        on_change: called after the known brokers, or their reachability, have changed.
        me: this member.
    """

    def __init__(self, settings: Settings, on_change: Callable[[], None], me: ProxyId | None = None) -> None:
        self._bootstrap_servers = settings.bootstrap_servers
        self._timing = settings.timing
        self._access = KafkaAccess(settings.upstream, settings.source)
        self._on_change = on_change
        self._known: dict[BrokerId, Broker] = {}
        self._listed: frozenset[BrokerId] = frozenset()
        self.no_metadata = ""
        self._is_metadata_refused = False
        """The cluster gives Metadata to clients with credentials only, and this member has none."""
        self._reachable: dict[BrokerId, bool] = {}
        listeners = (listener for member in settings.members.values() for listener in member.listeners)
        self._collects_versions = any(listener.is_shared for listener in listeners)
        self._api_versions: dict[BrokerId, bytes] = {}
        self._own_addresses = OwnAddresses(settings, me, is_local_address)
        self._identities = settings.identities
        self._listeners = sorted({each.name for one in settings.members.values() for each in one.listeners})
        self._loop_problems: dict[BrokerId, str] = {}
        """Brokers whose address belongs to the fleet itself, and the explanation for an operator."""
        self._probe_problems: dict[BrokerId, str] = {}
        """Brokers that do not answer probes, and the explanation for an operator."""
        self._resolver = Resolver(NAME_CACHE_S)
        self._probe_now: dict[BrokerId, asyncio.Event] = {}
        """For each broker that is being probed: set to request a probe immediately."""
        self._brokers_changed = asyncio.Event()
        self.discovery_requested = asyncio.Event()
        """Set to request Metadata before the next regular time."""
        self.awaited_until_s: dict[BrokerId, float] = {}
        """Brokers that clients wait for, and the end of the wait."""
        self._unconfirmed_logged: set[Broker] = set()
        """Unconfirmed brokers that the log has named already."""
        self._notification: asyncio.TimerHandle | None = None

    @property
    def known(self) -> Mapping[BrokerId, Broker]:
        """Every broker that was confirmed since the start, at its newest address."""
        return MappingProxyType(self._known)

    @property
    def servers(self) -> list[Endpoint]:
        """Addresses of the cluster: the configured servers, then the brokers of its last answer.

        Any thread may read the property.
        """
        known, listed = list(self._known.values()), self._listed
        return [
            *self._bootstrap_servers,
            *(Endpoint(each.host, each.port) for each in known if not listed or each.broker_id in listed),
        ]

    @property
    def listed(self) -> tuple[Broker, ...]:
        """The brokers of the cluster's last answer.

        Before the first answer: the known brokers that answer probes. A cluster that requires credentials
        never answers a member without them.
        """
        ids = self._listed or {broker_id for broker_id, up in self._reachable.items() if up}
        return tuple(self._known[broker_id] for broker_id in sorted(ids))

    @property
    def reachable(self) -> Mapping[BrokerId, bool]:
        """Whether each broker answered its last probe. A broker is absent until its first probe has ended."""
        return MappingProxyType(self._reachable)

    @property
    def api_versions(self) -> Mapping[BrokerId, bytes]:
        """The last answer of each broker to ApiVersions v3 or above; empty if no listener needs them."""
        return MappingProxyType(self._api_versions)

    @property
    def troubles(self) -> Mapping[BrokerId, str]:
        """The problem of each broker that has one, in words for an operator."""
        unserved = {each: no_port(each, self._listeners) for each in self._known if self._is_unserved(each)}
        return {**unserved, **self._probe_problems, **self._loop_problems}

    def _is_unserved(self, broker_id: BrokerId) -> bool:
        return bool(self._listeners) and self._identities.offset(broker_id) is None

    @property
    def unreachable(self) -> tuple[BrokerId, ...]:
        return tuple(sorted(broker_id for broker_id, up in self._reachable.items() if not up))

    def on_brokers_seen(self, brokers: Iterable[Broker]) -> None:
        """Passing responses carry these brokers. An unknown address is only a reason to ask the cluster.

        A cluster that refuses Metadata is not asked more often: each request may be a failed login. A broker
        of such a cluster is confirmed if its address is in the configuration, because the operator wrote it.
        """
        news = [broker for broker in brokers if self._known.get(broker.broker_id) != broker]
        if not news:
            return
        if not self._is_metadata_refused:
            self.discovery_requested.set()
            return
        configured = {(server.host.lower(), server.port) for server in self._bootstrap_servers}
        self.confirm(broker for broker in news if (broker.host.lower(), broker.port) in configured)
        for broker in news:
            is_new = broker.broker_id not in self._known and broker not in self._unconfirmed_logged
            if is_new and len(self._unconfirmed_logged) < MAX_UNCONFIRMED_BROKERS_LOGGED:
                self._unconfirmed_logged.add(broker)
                where = f"{broker.host}:{broker.port}"
                log.warning("broker %d ignored: %s is not in bootstrap_servers", broker.broker_id, where)

    def on_brokers_requested(self, broker_ids: Iterable[BrokerId]) -> None:
        """Clients wait for these brokers."""
        until_s = asyncio.get_running_loop().time() + self._timing.upstream_connect_timeout_s
        self.awaited_until_s.update((each, until_s) for each in broker_ids if each not in self._known)
        if self.awaited_until_s:
            self.discovery_requested.set()

    def confirm(self, brokers: Iterable[Broker]) -> None:
        """The cluster has listed these brokers to a member."""
        before = dict(self._known)
        found = {broker.broker_id: broker for broker in brokers if not self._leads_to_fleet(broker)}
        for broker_id in found.keys() - before.keys():
            if self._is_unserved(broker_id):
                log.warning("%s", no_port(broker_id, self._listeners))
        self._known.update(found)
        self._listed |= found.keys() if self._listed else frozenset()
        if self._known != before:
            self.on_brokers_lost(each for each in before if before[each] != self._known[each])
            self._brokers_changed.set()
            self._on_change()

    def _leads_to_fleet(self, broker: Broker) -> bool:
        """Whether the broker's address belongs to the fleet, so that a connection would loop."""
        where = self._own_addresses.find(broker.host, broker.port)
        before = self._loop_problems.pop(broker.broker_id, None)
        if where is None:
            return False
        why = (
            f"broker {broker.broker_id} advertises an address of the fleet: {broker.host}:{broker.port} is "
            f"{where}; set its advertised.listeners to an address of the broker"
        )
        self._loop_problems[broker.broker_id] = why
        if why != before:
            log.warning("%s", why)
        return True

    def on_brokers_committed(
        self, before: Mapping[BrokerId, Broker], committed: Mapping[BrokerId, Broker]
    ) -> None:
        """Confirm the brokers that Raft has newly committed, until this member asks the cluster again.

        Unchanged brokers keep the address that this member has seen. Members may reach the brokers by
        different listeners, and Raft commits only one address of each broker.
        """
        news = (broker for broker_id, broker in committed.items() if before.get(broker_id) != broker)
        # A member of an earlier release commits any address that a broker names.
        self.confirm(broker for broker in news if is_address(broker.host, broker.port))

    def on_brokers_lost(self, broker_ids: Iterable[BrokerId]) -> None:
        """A worker could not connect to these brokers, or they ended a connection: probe them now."""
        for broker_id in broker_ids:
            if broker_id in self._probe_now:
                self._probe_now[broker_id].set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._discover())
            while True:
                for broker_id in self._known.keys() - self._probe_now.keys():
                    self._probe_now[broker_id] = asyncio.Event()
                    tasks.create_task(self._probe(broker_id))
                self._brokers_changed.clear()
                await self._brokers_changed.wait()

    async def _discover(self) -> None:
        seldom_s, soon_s = self._timing.broker_refresh_s, DISCOVERY_MIN_INTERVAL_S
        while True:
            self.discovery_requested.clear()
            before = dict(self._known)
            await self._query_cluster()
            soon_s = (
                DISCOVERY_MIN_INTERVAL_S
                if self._known.keys() != before.keys()
                else min(2 * soon_s, DISCOVERY_MAX_INTERVAL_S)
            )
            now_s = asyncio.get_running_loop().time()
            self.awaited_until_s = {
                broker_id: until_s
                for broker_id, until_s in self.awaited_until_s.items()
                if broker_id not in self._known and until_s > now_s
            }
            if self.awaited_until_s:
                # The server that answered may not know these brokers yet.
                self.discovery_requested.set()
            if not self.no_metadata:
                await self._wait_for_request(soon_s, self._timing.broker_refresh_s)
            elif self._is_metadata_refused and self._known and not self._listed:
                # The brokers are up and have never answered: an answer is unlikely now.
                await asyncio.sleep(seldom_s)
                seldom_s = max(seldom_s, min(2 * seldom_s, NO_METADATA_MAX_INTERVAL_S))
            else:
                # Retry soon: the fleet may have started before its cluster, or the cluster is down.
                await self._wait_for_request(soon_s, self._timing.probe_interval_s)

    async def _wait_for_request(self, least_s: float, most_s: float) -> None:
        """Wait for a discovery request, at least ``least_s`` so that clients cannot flood the cluster."""
        await asyncio.sleep(min(least_s, most_s))
        with suppress(TimeoutError):
            async with asyncio.timeout(most_s - least_s):
                await self.discovery_requested.wait()

    async def _query_cluster(self) -> None:
        """Ask the cluster for its brokers."""
        try:
            found = await discover(self.servers, self._access, self._timing.upstream_connect_timeout_s)
        except NoMetadata as error:
            self._on_discovery_failed(str(error))
            self._is_metadata_refused = error.refused
            return
        self.no_metadata, self._is_metadata_refused = "", False
        listed_ids = {broker.broker_id for broker in found}
        self._loop_problems = {each: why for each, why in self._loop_problems.items() if each in listed_ids}
        found = tuple(broker for broker in found if not self._leads_to_fleet(broker))
        listed = frozenset(broker.broker_id for broker in found)
        removed, self._listed = self._listed - listed, listed
        if removed:
            log.info("brokers %s left the cluster's Metadata", sorted(removed))
        self.confirm(found)

    def _on_discovery_failed(self, why: str) -> None:
        """Log the failure if its reason is new."""
        if why != self.no_metadata:
            log.warning("discovery failed, no server listed the brokers: %s", why)
        self.no_metadata = why

    async def _probe(self, broker_id: BrokerId) -> None:
        """Probe one broker for ever: regularly, immediately after a worker lost it, less often while down."""
        probe_now, interval_s, backoff_s = (
            self._probe_now[broker_id],
            self._timing.probe_interval_s,
            PROBE_BACKOFF_FIRST_S,
        )
        while True:
            probe_now.clear()
            broker = self._known[broker_id]
            at = Endpoint(broker.host, broker.port)
            trouble = await probe_broker(
                at,
                self._timing.probe_timeout_s,
                self._access.tls,
                self._resolver,
                serves_anonymous_clients=bool(self._listed) and self._access.is_anonymous,
                on_versions=partial(self._on_versions, broker_id) if self._collects_versions else None,
            )
            self._on_probe_result(broker_id, at, trouble)
            if trouble is None:
                backoff_s = PROBE_BACKOFF_FIRST_S
                await asyncio.sleep(min(interval_s, PROBE_BACKOFF_FIRST_S))
                with suppress(TimeoutError):
                    async with asyncio.timeout(interval_s):
                        await probe_now.wait()
            else:
                await asyncio.sleep(min(interval_s, backoff_s))
                backoff_s = min(interval_s, 2 * backoff_s)

    def _on_versions(self, broker_id: BrokerId, body: bytes) -> None:
        if self._api_versions.get(broker_id) != body:
            self._api_versions[broker_id] = body
            self._notify_soon()

    def _on_probe_result(self, broker_id: BrokerId, at: Endpoint, trouble: str | None) -> None:
        """A probe has ended. ``trouble`` is the reason of a failure, None after a success."""
        before, up = self._reachable.get(broker_id), trouble is None
        self._probe_problems.pop(broker_id, None)
        if trouble is not None:
            self._probe_problems[broker_id] = f"broker {broker_id} at {at} cannot be reached: {trouble}"
        if before is up:
            return
        self._reachable[broker_id] = up
        if trouble is not None:
            log.warning("%s", self._probe_problems[broker_id])
            self.discovery_requested.set()  # the broker may have a new address
        elif before is not None:
            log.info("broker %d at %s is reachable again", broker_id, at)
        self._notify_soon()

    def _notify_soon(self) -> None:
        if self._notification is None:
            self._notification = asyncio.get_running_loop().call_later(PROBE_RESULT_BATCH_S, self._notify)

    def _notify(self) -> None:
        self._notification = None
        self._on_change()
