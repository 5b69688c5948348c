"""Records of takeovers: when each was detected, advertised and committed, and how long it took."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Final

from fleet.core.model import (
    BrokerId,
    ProxyId,
)

TAKEOVER_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
RECENT_TAKEOVERS: Final = 64


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts by upper bound. Each observation is in exactly one bucket; the last bucket has no bound."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float = 0.0

    @staticmethod
    def empty(bounds: tuple[float, ...]) -> Histogram:
        return Histogram(bounds, (0,) * (len(bounds) + 1))

    def observe(self, value: float) -> Histogram:
        """Add an observation. Returns the new histogram."""
        at = bisect_left(self.bounds, value)
        counts = (*self.counts[:at], self.counts[at] + 1, *self.counts[at + 1 :])
        return Histogram(self.bounds, counts, self.total + value)


@dataclass(frozen=True, slots=True)
class Moment:
    """One instant on both clocks: wall time for people, the machine's monotonic time for intervals."""

    wall_ms: int
    mono_s: float

    def back_to(self, mono_s: float) -> Moment:
        """An earlier instant; its wall time is rounded down to a millisecond."""
        return Moment(self.wall_ms - ceil(1000 * (self.mono_s - mono_s)), mono_s)


def trace_id(*known: object) -> str:
    """The id (32 hex digits) of a trace to which several members contribute, from values that all know."""
    return hashlib.sha256("/".join(map(str, known)).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Takeover:
    """The move of one member's identities to others, as this member observed it.

    Args:
        proxy_id: the member that lost its identities.
        reason: the reason, in one word that is usable as a metric label: "reset", "silent", "drain" …
        broker_ids: the identities that moved.
        detected: when this member suspected the owner, or learned of the drain.
        advertised: when all workers of this member used a directory that bypasses the owner; None until then.
        committed: when this member applied the commit; None until then.
        alive: the last moment at which the owner's worker was certainly alive; None if no such moment is
            known, and for a drain.
        change: the id of the command that moved the last identity; empty until then, and if it is unknown, as
            after a snapshot.
    """

    proxy_id: ProxyId
    reason: str
    detected: Moment
    broker_ids: tuple[BrokerId, ...] = ()
    advertised: Moment | None = None
    committed: Moment | None = None
    alive: Moment | None = None
    change: str = ""

    @property
    def seconds(self) -> float | None:
        """From detection to advertisement."""
        return None if self.advertised is None else max(0.0, self.advertised.mono_s - self.detected.mono_s)

    def trace_id(self, fleet: str) -> str:
        """The id of the takeover's trace: shared by all members that know ``change``, otherwise its own."""
        return trace_id(fleet, *([self.change] if self.change else (self.proxy_id, self.detected)))


@dataclass(frozen=True, slots=True)
class TakeoverLog:
    """The takeovers that a control process has seen since it started.

    Args:
        recent: the last takeovers, oldest first.
        by_reason: number of all advertised takeovers, by reason.
        seconds: the times from detection to advertisement of all advertised takeovers.
    """

    recent: tuple[Takeover, ...] = ()
    by_reason: Mapping[str, int] = field(default_factory=dict)
    seconds: Histogram = field(default_factory=lambda: Histogram.empty(TAKEOVER_BOUNDS_S))

    def put(self, takeover: Takeover) -> TakeoverLog:
        """Add a takeover, or replace its previous record. Returns the new log.

        Two records belong to the same takeover if member and detection time are equal. A takeover counts
        once, when it is first advertised.
        """
        key = (takeover.proxy_id, takeover.detected)
        before = next((old for old in self.recent if (old.proxy_id, old.detected) == key), None)
        if before is None:
            recent = (*self.recent, takeover)[-RECENT_TAKEOVERS:]
        else:
            recent = tuple(takeover if old is before else old for old in self.recent)
        if takeover.seconds is None or (before is not None and before.seconds is not None):
            return replace(self, recent=recent)
        by_reason = {**self.by_reason, takeover.reason: self.by_reason.get(takeover.reason, 0) + 1}
        return TakeoverLog(recent, by_reason, self.seconds.observe(takeover.seconds))
