"""The limits of one worker: who may come in, who has to go for being late, and who is to send more slowly."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final

from fleet.config.settings import MemberSettings, Settings
from fleet.core.errors import LimitExceeded
from fleet.proxy.admission import SILENCE_S, Admission
from fleet.proxy.connection import ClientConnection
from fleet.proxy.quota import LONGEST_WAIT_S, Quota, Quotas
from fleet.proxy.timeouts import TimeoutPolicy
from fleet.runtime.sockets import connections_per_worker, max_probe_connections
from fleet.runtime.ticker import PeriodicCallback

_LATE: Final = 1.1
"""A sweep may come late by a tenth of the time between two."""
SWEPT_AT_ONCE = 256  # not Final: tests change it, and a compiler would write its value into the code
"""Connections; then others get their turn."""

SETTLED_S = 10.0  # not Final: tests change it, and a compiler would write its value into the code
"""After so long the kernel is asked to watch over a broker's connection: six system calls for what matters
after minutes, and in the first seconds after a takeover there is enough to do."""


class ConnectionLimiter:
    """Watches over the connections of one worker, which has its share of its member's limits.

    Args:
        settings, member: of the worker.
        everyone: its connections as they are now.
    """

    def __init__(
        self, settings: Settings, member: MemberSettings, everyone: Callable[[], list[ClientConnection]]
    ) -> None:
        limits = settings.limits
        per_source = limits.max_connections_per_source
        self._everyone = everyone
        self._patience = TimeoutPolicy(limits)
        self._admission: Admission[ClientConnection] = Admission(
            connections_per_worker(settings, member),
            None if per_source is None else math.ceil(per_source / member.workers),
            max_probe_connections(settings, member),
            max(SILENCE_S, self._patience.sweep_s * _LATE),
        )
        self._sweeps_s = 0.0
        self._swept_s = asyncio.get_running_loop().time()
        self._sweeping: PeriodicCallback | None = None
        self._sweeping_soon: PeriodicCallback | None = None
        """While somebody is new: most connections owe nothing, and to look at them wakes up the worker."""
        self._under_way = False
        self._new = False
        self._to_broker = Quotas(limits.to_broker_bytes_per_second, member.workers)
        self._to_client = Quotas(limits.to_client_bytes_per_second, member.workers, LONGEST_WAIT_S)
        self._indebted: dict[Quota, set[ClientConnection]] = {}

    def opened(self, connection: ClientConnection) -> None:
        if self._to_broker.limited or self._to_client.limited:
            now_s = asyncio.get_running_loop().time()
            connection.to_broker_quota = self._to_broker.give(connection.source, now_s)
            connection.to_client_quota = self._to_client.give(connection.source, now_s)
        self._new = True
        self._sweep_often()
        too_many = self._admission.enter(connection, self._sweeps_s)
        if too_many is not None:
            refused, error = too_many
            refused.refuse(error)

    def closed(self, connection: ClientConnection) -> None:
        self._admission.leave(connection)
        for quota in (connection.to_broker_quota, connection.to_client_quota):
            if quota is not None:
                quota.connections -= 1

    def ask_for_broker(self, connection: ClientConnection) -> LimitExceeded | None:
        """Why a connection may not have one."""
        return self._admission.ask_for_broker(connection)

    def start(self) -> PeriodicCallback:
        """Sweep until `stop`; what this gives tells of failures."""
        self._sweeping = PeriodicCallback(self._patience.rare_sweep_s, self._sweep_rarely)
        return self._sweeping

    def stop(self) -> None:
        for each in (self._sweeping, self._sweeping_soon):
            if each is not None:
                each.stop()

    def _sweep_often(self) -> None:
        """From now on, until a sweep finds nobody who is new."""
        if self._sweeping_soon is None:
            self._pass(asyncio.get_running_loop().time(), self._patience.rare_sweep_s)
            self._sweeping_soon = PeriodicCallback(self._patience.sweep_s, self._sweep_soon)

    def _sweep_rarely(self) -> None:
        if self._sweeping_soon is None:
            self._sweep_again(self._patience.rare_sweep_s)

    def _sweep_soon(self) -> None:
        try:
            self._sweep_again(self._patience.sweep_s)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self._sweeping is None:
            raise error
        self._sweeping.fail(error)

    def _sweep_again(self, every_s: float) -> None:
        if self._under_way:
            return  # it takes longer than the time between two, which is nobody's fault
        self._pass(asyncio.get_running_loop().time(), every_s)
        self.sweep(self._sweeps_s)

    def _pass(self, now_s: float, most_s: float) -> None:
        """Have the sweeps' clock go on, but by hardly more than there should be between two of them."""
        self._sweeps_s += min(now_s - self._swept_s, most_s * _LATE)
        self._swept_s = now_s

    def sweep(self, now_s: float) -> None:
        """Close the connections that are late, some now and the others soon. ``now_s`` is the sweeps'."""
        for silent, error in self._admission.silent(now_s):
            silent.refuse(error)
        self._under_way = True
        self._new = False
        self._look_at_some(self._everyone(), 0, now_s)

    def _look_on(self, connections: list[ClientConnection], first: int, now_s: float) -> None:
        try:
            self._look_at_some(connections, first, now_s)
        except Exception as error:
            self._fail(error)

    def _look_at_some(self, connections: list[ClientConnection], first: int, now_s: float) -> None:
        loop, after = asyncio.get_running_loop(), first + SWEPT_AT_ONCE
        settled_s = loop.time() - SETTLED_S
        for connection in connections[first:after]:
            limit, progress = connection.active_timeout()
            # Other members hold connections to ask over, and are answered.
            self._new = self._new or (limit == "first_request_timeout_s" and not progress)
            connection.watch_broker(settled_s)
            late = connection.watch.check(limit, progress, self._patience, now_s)
            if late is not None:
                connection.refuse(late)
        if after < len(connections):
            loop.call_soon(self._look_on, connections, after, now_s)
            return
        self._under_way = False
        if self._new or self._admission.beyond:
            self._sweep_often()
        elif self._sweeping_soon is not None:
            self._sweeping_soon.stop()
            self._sweeping_soon = None
        loop_s = loop.time()
        self._to_broker.forget(loop_s)
        self._to_client.forget(loop_s)

    def overdrawn(self, connection: ClientConnection, quota: Quota) -> None:
        """Have a connection wait until its source has credit again."""
        loop = asyncio.get_running_loop()
        wait_s = quota.refill(loop.time())
        if not wait_s:
            return
        connection.overdraw(quota)
        if quota not in self._indebted:
            self._indebted[quota] = set()
            loop.call_later(wait_s, self._repaid, quota)
        self._indebted[quota].add(connection)

    def _repaid(self, quota: Quota) -> None:
        loop = asyncio.get_running_loop()
        wait_s = quota.refill(loop.time())
        if wait_s:  # others of that source have spent more meanwhile
            loop.call_later(wait_s, self._repaid, quota)
            return
        for connection in self._indebted.pop(quota):
            connection.repaid(quota)
