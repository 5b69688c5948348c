"""What this member knows of the real brokers: which there are, and which of them it can reach."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
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

BACKOFF_FIRST_S: Final = 0.05
"""Between two probes of a broker that is down; each wait is twice the last, up to `probe_interval_s`."""
NEVER_TOLD_LIMIT_S: Final = 60.0
"""Between two questions which brokers there are, where nobody has ever said: each may be a failed
authentication in a broker's log."""
ASK_FIRST_S: Final = 0.1
ASK_LIMIT_S: Final = 1.0
"""Between two questions that clients cause: each wait that brought nothing new is twice the last."""
MOST_NAMED: Final = 100
"""Brokers that are not believed and that the log names."""
GATHER_S: Final = 0.01
"""Answers that come within this time are told of together: those of all brokers at the start."""


class BrokerWatch:
    """Asks the cluster for its brokers, and every broker whether it answers, for as long as ``run`` runs.

    Args:
        settings: bootstrap servers, the way to the brokers, and timing.
        on_change: called after what is known, or what can be reached, has changed.
        me: this member.
    """

    def __init__(self, settings: Settings, on_change: Callable[[], None], me: ProxyId | None = None) -> None:
        self._bootstrap_servers = settings.bootstrap_servers
        self._timing = settings.timing
        self._access = KafkaAccess(settings.upstream, settings.source)
        self._on_change = on_change
        self._known: dict[BrokerId, Broker] = {}
        self._listed: frozenset[BrokerId] = frozenset()
        self._no_metadata = ""
        self._refused = False
        """The cluster tells nobody who has no credentials, and this member has none."""
        self._reachable: dict[BrokerId, bool] = {}
        self._own = OwnAddresses(settings, me, is_local_address)
        self._identities = settings.identities
        self._listeners = sorted({each.name for one in settings.members.values() for each in one.listeners})
        self._misled: dict[BrokerId, str] = {}
        """Brokers whose address is none to dial, and why."""
        self._unanswered: dict[BrokerId, str] = {}
        """Brokers that do not answer probes, and why."""
        self._resolver = Resolver(NAME_CACHE_S)
        self._doubts: dict[BrokerId, asyncio.Event] = {}
        """Of each broker that is being probed: set where it should be asked at once."""
        self._changed = asyncio.Event()
        self._asked = asyncio.Event()
        """The cluster is to be asked before its time."""
        self._wanted: dict[BrokerId, float] = {}
        """Brokers that clients wait for, and until when."""
        self._unconfirmed: set[Broker] = set()
        """Brokers whose address the log has named as not believed."""
        self._telling: asyncio.TimerHandle | None = None

    @property
    def known(self) -> Mapping[BrokerId, Broker]:
        """Every broker confirmed since the start, at its newest address."""
        return MappingProxyType(self._known)

    @property
    def servers(self) -> list[Endpoint]:
        """Where to find the cluster: the configured addresses, then the brokers of its last answer; for any
        thread.
        """
        known, listed = list(self._known.values()), self._listed
        return [
            *self._bootstrap_servers,
            *(Endpoint(each.host, each.port) for each in known if not listed or each.broker_id in listed),
        ]

    @property
    def listed(self) -> tuple[Broker, ...]:
        """The brokers of the cluster's last answer.

        Before the first, those of the known ones that answer probes: a cluster that wants credentials tells
        nobody who has none.
        """
        ids = self._listed or {broker_id for broker_id, up in self._reachable.items() if up}
        return tuple(self._known[broker_id] for broker_id in sorted(ids))

    @property
    def reachable(self) -> Mapping[BrokerId, bool]:
        """Whether each broker answered the last probe; absent where none has ended yet."""
        return MappingProxyType(self._reachable)

    @property
    def troubles(self) -> Mapping[BrokerId, str]:
        """What is wrong with brokers, in words for an operator."""
        unserved = {each: no_port(each, self._listeners) for each in self._known if self._is_unserved(each)}
        return {**unserved, **self._unanswered, **self._misled}

    def _is_unserved(self, broker_id: BrokerId) -> bool:
        return bool(self._listeners) and self._identities.offset(broker_id) is None

    @property
    def unreachable(self) -> tuple[BrokerId, ...]:
        return tuple(sorted(broker_id for broker_id, up in self._reachable.items() if not up))

    def heard(self, brokers: Iterable[Broker]) -> None:
        """Passing responses name these otherwise than they are known: a reason to ask the cluster, no more.

        A cluster that tells nobody is not asked more often for that: each question may be a failed login. Of
        its brokers those are believed whose address the configuration has: that is the operator's word.
        """
        news = [broker for broker in brokers if self._known.get(broker.broker_id) != broker]
        if not news:
            return
        if not self._refused:
            self._asked.set()
            return
        configured = {(server.host.lower(), server.port) for server in self._bootstrap_servers}
        self.confirm(broker for broker in news if (broker.host.lower(), broker.port) in configured)
        for broker in news:
            is_new = broker.broker_id not in self._known and broker not in self._unconfirmed
            if is_new and len(self._unconfirmed) < MOST_NAMED:
                self._unconfirmed.add(broker)
                where = f"{broker.host}:{broker.port}"
                log.warning("broker %d is not used: %s is not in bootstrap_servers", broker.broker_id, where)

    def want(self, broker_ids: Iterable[BrokerId]) -> None:
        """Clients wait for these."""
        until_s = asyncio.get_running_loop().time() + self._timing.upstream_connect_timeout_s
        self._wanted.update((each, until_s) for each in broker_ids if each not in self._known)
        if self._wanted:
            self._asked.set()

    def confirm(self, brokers: Iterable[Broker]) -> None:
        """The cluster has told a member of these."""
        before = dict(self._known)
        found = {broker.broker_id: broker for broker in brokers if not self._leads_back(broker)}
        for broker_id in found.keys() - before.keys():
            if self._is_unserved(broker_id):
                log.warning("%s", no_port(broker_id, self._listeners))
        self._known.update(found)
        self._listed |= found.keys() if self._listed else frozenset()
        if self._known != before:
            self.lost(each for each in before if before[each] != self._known[each])
            self._changed.set()
            self._on_change()

    def _leads_back(self, broker: Broker) -> bool:
        """Whether who dials this broker would dial the fleet, and so on without end."""
        where = self._own.find(broker.host, broker.port)
        before = self._misled.pop(broker.broker_id, None)
        if where is None:
            return False
        why = (
            f"broker {broker.broker_id} advertises the fleet: {broker.host}:{broker.port} is {where}; "
            "have its advertised.listeners name an address of its own"
        )
        self._misled[broker.broker_id] = why
        if why != before:
            log.warning("%s", why)
        return True

    def learn(self, before: Mapping[BrokerId, Broker], committed: Mapping[BrokerId, Broker]) -> None:
        """Take over what is new in what the fleet knows, until this member's own next look.

        What is not new stays as it was seen here: members may reach the brokers by different listeners, and
        only one address of each is committed.
        """
        news = (broker for broker_id, broker in committed.items() if before.get(broker_id) != broker)
        # A member of an earlier release commits whatever a broker names.
        self.confirm(broker for broker in news if is_address(broker.host, broker.port))

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
        seldom_s, soon_s = self._timing.broker_refresh_s, ASK_FIRST_S
        while True:
            self._asked.clear()
            before = dict(self._known)
            await self._ask()
            soon_s = ASK_FIRST_S if self._known.keys() != before.keys() else min(2 * soon_s, ASK_LIMIT_S)
            now_s = asyncio.get_running_loop().time()
            self._wanted = {
                broker_id: until_s
                for broker_id, until_s in self._wanted.items()
                if broker_id not in self._known and until_s > now_s
            }
            if self._wanted:
                self._asked.set()  # the server that answered may not know these brokers yet
            if not self._no_metadata:
                await self._pause(soon_s, self._timing.broker_refresh_s)
            elif self._refused and self._known and not self._listed:
                # One whose brokers are there, and which has never told, will hardly do so now.
                await asyncio.sleep(seldom_s)
                seldom_s = max(seldom_s, min(2 * seldom_s, NEVER_TOLD_LIMIT_S))
            else:
                # Soon: a fleet may be started before its cluster, or the cluster has gone.
                await self._pause(soon_s, self._timing.probe_interval_s)

    async def _pause(self, least_s: float, most_s: float) -> None:
        """Until somebody has a question, but not so soon that clients could have the cluster flooded."""
        await asyncio.sleep(min(least_s, most_s))
        with suppress(TimeoutError):
            async with asyncio.timeout(most_s - least_s):
                await self._asked.wait()

    async def _ask(self) -> None:
        """Ask the cluster which brokers there are."""
        try:
            found = await discover(self.servers, self._access, self._timing.upstream_connect_timeout_s)
        except NoMetadata as error:
            self._not_told(str(error))
            self._refused = error.refused
            return
        self._no_metadata, self._refused = "", False
        listed_ids = {broker.broker_id for broker in found}
        self._misled = {each: why for each, why in self._misled.items() if each in listed_ids}
        found = tuple(broker for broker in found if not self._leads_back(broker))
        listed = frozenset(broker.broker_id for broker in found)
        gone, self._listed = self._listed - listed, listed
        if gone:
            log.info("brokers %s are not in the cluster's Metadata any more", sorted(gone))
        self.confirm(found)

    def _not_told(self, why: str) -> None:
        """Say so where it is news."""
        if why != self._no_metadata:
            log.warning("no broker says which brokers there are: %s", why)
        self._no_metadata = why

    async def _probe(self, broker_id: BrokerId) -> None:
        """Ask one broker for ever: regularly, at once where a worker has lost it, less often while down."""
        doubt, interval_s, backoff_s = self._doubts[broker_id], self._timing.probe_interval_s, BACKOFF_FIRST_S
        while True:
            doubt.clear()
            broker = self._known[broker_id]
            at = Endpoint(broker.host, broker.port)
            trouble = await probe_broker(
                at,
                self._timing.probe_timeout_s,
                self._access.tls,
                self._resolver,
                serves_strangers=bool(self._listed) and self._access.is_anonymous,
            )
            self._answered(broker_id, at, trouble)
            if trouble is None:
                backoff_s = BACKOFF_FIRST_S
                await asyncio.sleep(min(interval_s, BACKOFF_FIRST_S))
                with suppress(TimeoutError):
                    async with asyncio.timeout(interval_s):
                        await doubt.wait()
            else:
                await asyncio.sleep(min(interval_s, backoff_s))
                backoff_s = min(interval_s, 2 * backoff_s)

    def _answered(self, broker_id: BrokerId, at: Endpoint, trouble: str | None) -> None:
        """A probe has ended; ``trouble`` is what was wrong."""
        before, up = self._reachable.get(broker_id), trouble is None
        self._unanswered.pop(broker_id, None)
        if trouble is not None:
            self._unanswered[broker_id] = f"broker {broker_id} at {at} cannot be reached: {trouble}"
        if before is up:
            return
        self._reachable[broker_id] = up
        if trouble is not None:
            log.warning("%s", self._unanswered[broker_id])
            self._asked.set()  # it may be elsewhere by now
        elif before is not None:
            log.info("broker %d at %s is reached again", broker_id, at)
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(GATHER_S, self._tell)

    def _tell(self) -> None:
        self._telling = None
        self._on_change()
