"""Takeovers as they are recorded: when one was detected, advertised and committed, and how long that took."""

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
    """Counts by upper bound, each observation in one bucket only; the last bucket has no bound."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float = 0.0

    @staticmethod
    def empty(bounds: tuple[float, ...]) -> Histogram:
        return Histogram(bounds, (0,) * (len(bounds) + 1))

    def observe(self, value: float) -> Histogram:
        """The histogram with one more observation."""
        at = bisect_left(self.bounds, value)
        counts = (*self.counts[:at], self.counts[at] + 1, *self.counts[at + 1 :])
        return Histogram(self.bounds, counts, self.total + value)


@dataclass(frozen=True, slots=True)
class Moment:
    """One instant on both clocks: wall time for people, the machine's monotonic time for intervals."""

    wall_ms: int
    mono_s: float

    def back_to(self, mono_s: float) -> Moment:
        """An earlier instant, in whole milliseconds not after it."""
        return Moment(self.wall_ms - ceil(1000 * (self.mono_s - mono_s)), mono_s)


def trace_id(*known: object) -> str:
    """The trace of something that several members tell of, by what all of them know; 32 hex digits."""
    return hashlib.sha256("/".join(map(str, known)).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Takeover:
    """How one member's identities came to others, as seen by the member that tells it.

    Args:
        proxy_id: whose identities moved.
        reason: why, in a word that does as a metric label: "reset", "silent", "drain" …
        broker_ids: the identities that moved.
        detected: when this member suspected the owner (or learnt of the drain).
        advertised: when the directory that bypasses the owner was handed to this member's workers.
        committed: when Raft had committed it here; None until then.
        alive: the last moment at which this member is sure that the owner's worker was alive; None where it
            is of none, and of a drain.
        change: the id of the command by which the last identity left; empty until then, and where it is not
            known, as after a snapshot.
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
        """The trace that it is told in: one of all members that know the change, else one of this alone."""
        return trace_id(fleet, *([self.change] if self.change else (self.proxy_id, self.detected)))


@dataclass(frozen=True, slots=True)
class TakeoverLog:
    """The takeovers that a control process has seen since it started.

    Args:
        recent: the last ones, oldest first.
        by_reason: number of all that were advertised, by reason.
        seconds: of all that were advertised, detection to advertised.
    """

    recent: tuple[Takeover, ...] = ()
    by_reason: Mapping[str, int] = field(default_factory=dict)
    seconds: Histogram = field(default_factory=lambda: Histogram.empty(TAKEOVER_BOUNDS_S))

    def put(self, takeover: Takeover) -> TakeoverLog:
        """The log with a takeover in it, in the place of what was known of the same one before.

        Two are the same where proxy and time of detection are. One counts once, when first advertised.
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
