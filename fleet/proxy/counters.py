"""The counters of one worker: plain integers that connections add to, and the snapshot for control."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping

from fleet.core.errors import LimitExceeded, WireError
from fleet.core.model import BrokerId
from fleet.proxy.traffic import Traffic
from fleet.proxy.wire.counters import WireCounters
from fleet.runtime.ipc import REWRITE_BOUNDS_S, TrafficRow, WorkerCounters
from fleet.runtime.stderr_log import dropped_lines

log = logging.getLogger(__name__)

LOG_EVERY_S = 1.0  # not Final: tests change it, and a compiler would write its value into the code
"""At most one log line for each reason in this time: a scanner must not fill the disk."""


class Counters:
    """The counters that all connections of a worker share; ``wire`` are those of the address books."""

    def __init__(self) -> None:
        self.wire = WireCounters()
        self._traffic: dict[tuple[str, BrokerId], Traffic] = {}
        self._errors: Counter[str] = Counter()
        self._limited: Counter[str] = Counter()
        self._rewrite_buckets = [0] * (len(REWRITE_BOUNDS_S) + 1)
        self._rewrite_sum_s = 0.0
        self._logged_at_s: dict[str, float] = {}
        self._unlogged: Counter[str] = Counter()

    def traffic(self, listener: str, broker_id: BrokerId) -> Traffic:
        """Return the counters for the connections of an identity (or ``BOOTSTRAP``) at a listener."""
        found = self._traffic.get((listener, broker_id))
        if found is None:
            found = self._traffic[listener, broker_id] = Traffic()
        return found

    def rows(self) -> tuple[TrafficRow, ...]:
        """Return the traffic since the last call."""
        taken = (each.take(*key) for key, each in self._traffic.items())
        return tuple(row for row in taken if row is not None)

    def note_rewrite(self, took_s: float) -> None:
        self._rewrite_buckets[bisect_left(REWRITE_BOUNDS_S, took_s)] += 1
        self._rewrite_sum_s += took_s

    def refused(self, error: WireError | LimitExceeded, peer: object, now_s: float) -> None:
        """Count a connection that is closed for an error; log it, unless the reason was just logged."""
        reason = error.reason
        counted = self._limited if isinstance(error, LimitExceeded) else self._errors
        counted[reason] += 1
        if now_s - self._logged_at_s.get(reason, float("-inf")) < LOG_EVERY_S:
            self._unlogged[reason] += 1
            return
        self._logged_at_s[reason] = now_s
        more = self._unlogged.pop(reason, 0)
        log.warning(
            "closing the connection of client %s: %s (%s; %d more unlogged)", peer, error, reason, more
        )

    def snapshot(
        self, upstream_up: Mapping[BrokerId, bool], generation: int, revision: int, draining: bool
    ) -> WorkerCounters:
        """Return the counters as they are now."""
        to_broker: dict[BrokerId, int] = {}
        to_client: dict[BrokerId, int] = {}
        connections: dict[BrokerId, int] = {}
        for (_, broker_id), each in self._traffic.items():
            to_broker[broker_id] = to_broker.get(broker_id, 0) + each.to_broker_bytes
            to_client[broker_id] = to_client.get(broker_id, 0) + each.to_client_bytes
            connections[broker_id] = connections.get(broker_id, 0) + each.connections
        requests = map(sum, zip(*(each.wire.requests for each in self._traffic.values()), strict=True))
        return WorkerCounters(
            requests={key: count for key, count in enumerate(requests) if count},
            bytes_to_broker=to_broker,
            bytes_to_client=to_client,
            connections=connections,
            errors=dict(self._errors),
            limited=dict(self._limited),
            rewrite_buckets=tuple(self._rewrite_buckets),
            rewrite_sum_s=self._rewrite_sum_s,
            upstream_up=dict(upstream_up),
            generation=generation,
            revision=revision,
            draining=draining,
            dropped_log_lines=dropped_lines(),
        )
