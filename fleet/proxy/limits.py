"""The limits of one worker: admits connections, closes late clients, and slows down clients above a quota."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final

from fleet.config.settings import MemberSettings, Settings
from fleet.core.errors import LimitExceeded
from fleet.proxy.admission import MAX_SILENCE_S, Admission
from fleet.proxy.connection import ClientConnection
from fleet.proxy.quota import MAX_DEBT_S, Quota, Quotas
from fleet.proxy.timeouts import TimeoutPolicy
from fleet.runtime.sockets import connections_per_worker, max_probe_connections
from fleet.runtime.ticker import PeriodicCallback

_SWEEP_DELAY_FACTOR: Final = 1.1
"""A sweep may be late by a tenth of the interval between two sweeps."""
# Not Final: tests change it, and a compiler would write its value into the code.
SWEPT_CONNECTIONS_PER_TURN = 256
"""Connections that a sweep checks in one turn of the event loop, before other work gets its turn."""

KEEP_ALIVE_AFTER_S = 10.0  # not Final: tests change it, and a compiler would write its value into the code
"""The age at which a broker's connection gets TCP keep-alive. Keep-alive takes six system calls and matters
after minutes only, and the first seconds after a takeover are busy."""


class ConnectionLimiter:
    """Enforces the limits on the connections of one worker, which has a share of its member's limits.

    Args:
        settings, member: the settings of the fleet, and of the worker's member.
        all_connections: returns the connections that are open now.
    """

    def __init__(
        self,
        settings: Settings,
        member: MemberSettings,
        all_connections: Callable[[], list[ClientConnection]],
    ) -> None:
        limits = settings.limits
        per_source = limits.max_connections_per_source
        self._all_connections = all_connections
        self._timeout_policy = TimeoutPolicy(limits)
        self.admission: Admission[ClientConnection] = Admission(
            connections_per_worker(settings, member),
            None if per_source is None else math.ceil(per_source / member.workers),
            max_probe_connections(settings, member),
            max(MAX_SILENCE_S, self._timeout_policy.sweep_s * _SWEEP_DELAY_FACTOR),
        )
        self.sweep_clock_s = 0.0
        self.last_sweep_s = asyncio.get_running_loop().time()
        self._rare_sweeps: PeriodicCallback | None = None
        self.frequent_sweeps: PeriodicCallback | None = None
        """Runs only while there are new clients: others rarely exceed a limit, and sweeps cost time."""
        self.is_sweeping = False
        self._has_new_clients = False
        self.to_broker_quotas = Quotas(limits.to_broker_bytes_per_second, member.workers)
        self._to_client = Quotas(limits.to_client_bytes_per_second, member.workers, MAX_DEBT_S)
        self._indebted: dict[Quota, set[ClientConnection]] = {}

    def opened(self, connection: ClientConnection) -> None:
        if self.to_broker_quotas.is_limited or self._to_client.is_limited:
            now_s = asyncio.get_running_loop().time()
            connection.to_broker_quota = self.to_broker_quotas.give(connection.source, now_s)
            connection.to_client_quota = self._to_client.give(connection.source, now_s)
        self._has_new_clients = True
        self._sweep_often()
        too_many = self.admission.enter(connection, self.sweep_clock_s)
        if too_many is not None:
            refused, error = too_many
            refused.refuse(error)

    def closed(self, connection: ClientConnection) -> None:
        self.admission.leave(connection)
        for quota in (connection.to_broker_quota, connection.to_client_quota):
            if quota is not None:
                quota.connections -= 1

    def ask_for_broker(self, connection: ClientConnection) -> LimitExceeded | None:
        """Admit a connection that needs a broker. Returns: the error if a limit is reached."""
        return self.admission.ask_for_broker(connection)

    def start(self) -> PeriodicCallback:
        """Sweep until `stop`. Returns: the callback of the sweeps; ``failed`` has the error of a sweep."""
        self._rare_sweeps = PeriodicCallback(self._timeout_policy.rare_sweep_s, self._sweep_rarely)
        return self._rare_sweeps

    def stop(self) -> None:
        for each in (self._rare_sweeps, self.frequent_sweeps):
            if each is not None:
                each.stop()

    def _sweep_often(self) -> None:
        """Sweep frequently until a sweep finds no new client."""
        if self.frequent_sweeps is None:
            self.advance_clock(asyncio.get_running_loop().time(), self._timeout_policy.rare_sweep_s)
            self.frequent_sweeps = PeriodicCallback(self._timeout_policy.sweep_s, self._sweep_frequently)

    def _sweep_rarely(self) -> None:
        if self.frequent_sweeps is None:
            self._sweep_again(self._timeout_policy.rare_sweep_s)

    def _sweep_frequently(self) -> None:
        try:
            self._sweep_again(self._timeout_policy.sweep_s)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self._rare_sweeps is None:
            raise error
        self._rare_sweeps.fail(error)

    def _sweep_again(self, every_s: float) -> None:
        if self.is_sweeping:
            return  # the previous sweep takes longer than the interval
        self.advance_clock(asyncio.get_running_loop().time(), every_s)
        self.enforce(self.sweep_clock_s)

    def advance_clock(self, now_s: float, most_s: float) -> None:
        """Advance the clock of sweeps, by little more than the interval at most."""
        self.sweep_clock_s += min(now_s - self.last_sweep_s, most_s * _SWEEP_DELAY_FACTOR)
        self.last_sweep_s = now_s

    def enforce(self, now_s: float) -> None:
        """Close the connections that are late, some now and the others soon.

        Args: now_s: by the clock of sweeps.
        """
        for guest, error in self.admission.silent_guests(now_s):
            guest.refuse(error)
        self.is_sweeping = True
        self._has_new_clients = False
        self._check_some(self._all_connections(), 0, now_s)

    def _check_more(self, connections: list[ClientConnection], first: int, now_s: float) -> None:
        try:
            self._check_some(connections, first, now_s)
        except Exception as error:
            self._fail(error)

    def _check_some(self, connections: list[ClientConnection], first: int, now_s: float) -> None:
        loop, after = asyncio.get_running_loop(), first + SWEPT_CONNECTIONS_PER_TURN
        settled_s = loop.time() - KEEP_ALIVE_AFTER_S
        for connection in connections[first:after]:
            limit, progress = connection.active_timeout()
            # Other members keep their probe connections open: these have answers, and are not new.
            self._has_new_clients = self._has_new_clients or (
                limit == "first_request_timeout_s" and not progress
            )
            # Not earlier: after a takeover thousands connect at once, and all of them request Metadata.
            if connection.broker is not None and connection.since_s <= settled_s:
                connection.broker.enable_keep_alive()
            late = connection.timeout.check(limit, progress, self._timeout_policy, now_s)
            if late is not None:
                connection.refuse(late)
        if after < len(connections):
            loop.call_soon(self._check_more, connections, after, now_s)
            return
        self.is_sweeping = False
        if self._has_new_clients or self.admission.over_limit_count:
            self._sweep_often()
        elif self.frequent_sweeps is not None:
            self.frequent_sweeps.stop()
            self.frequent_sweeps = None
        loop_s = loop.time()
        self.to_broker_quotas.forget(loop_s)
        self._to_client.forget(loop_s)

    def overdrawn(self, connection: ClientConnection, quota: Quota) -> None:
        """Pause a connection until its source has credit again."""
        loop = asyncio.get_running_loop()
        wait_s = quota.refill(loop.time())
        if not wait_s:
            return
        connection.hold_for_quota(quota)
        if quota not in self._indebted:
            self._indebted[quota] = set()
            loop.call_later(wait_s, self._release_indebted, quota)
        self._indebted[quota].add(connection)

    def _release_indebted(self, quota: Quota) -> None:
        loop = asyncio.get_running_loop()
        wait_s = quota.refill(loop.time())
        if wait_s:  # other connections of the source have spent more meanwhile
            loop.call_later(wait_s, self._release_indebted, quota)
            return
        for connection in self._indebted.pop(quota):
            connection.release_for_quota(quota)
