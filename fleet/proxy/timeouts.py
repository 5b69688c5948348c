"""Time limits for clients, checked in sweeps, without a timer for each connection.

The clock is the clock of sweeps: it advances by little more than the interval at each sweep. Between two
sweeps the loop reads the bytes that have arrived. So the time in which a worker was frozen or busy counts
against a client only up to one interval.
"""

from __future__ import annotations

from typing import Final

from fleet.config.settings import Limits
from fleet.core.errors import LimitExceeded, TimeLimit

SWEEP_S = 1.0  # not Final: tests change it, and a compiler would write its value into the code
"""The shortest interval of sweeps."""
RAREST_SWEEP_S: Final = 30.0
"""The longest interval of sweeps, even if all time limits are longer. A sweep also enables keep-alive, and
must do so soon after a connection was made."""
_SWEEPS_PER_TIME_LIMIT: Final = 5
"""Number of sweeps within a time limit. So a client is closed at most a fifth of the limit too late."""
_TIMER_TOLERANCE_S: Final = 0.05
"""How much less than the time limit five sweeps may take, because their timers fire slightly early."""

_TIMEOUT_DETAILS: Final[dict[TimeLimit, str]] = {
    "first_request_timeout_s": "no request",
    "request_timeout_s": "no more bytes of an incomplete request",
    "idle_timeout_s": "idle with no request in flight",
}


class TimeoutPolicy:
    """The time limits of a worker.

    Args:
        limits: the configured limits.
    """

    __slots__ = ("_limit_s", "rare_sweep_s", "sweep_s")

    def __init__(self, limits: Limits) -> None:
        self._limit_s: dict[TimeLimit, float] = {
            "first_request_timeout_s": limits.first_request_timeout_s,
            "request_timeout_s": limits.request_timeout_s,
            "idle_timeout_s": limits.idle_timeout_s,
        }
        self.sweep_s = max(
            SWEEP_S,
            min(*self._limit_s.values(), _SWEEPS_PER_TIME_LIMIT * RAREST_SWEEP_S) / _SWEEPS_PER_TIME_LIMIT,
        )
        """Interval of sweeps while there are new connections, or connections above a limit."""
        rare_s = min(limits.request_timeout_s, limits.idle_timeout_s) / _SWEEPS_PER_TIME_LIMIT
        self.rare_sweep_s = max(SWEEP_S, min(rare_s, RAREST_SWEEP_S))
        """Interval of sweeps at other times."""

    def error_if_exceeded(self, limit: TimeLimit, waited_s: float) -> LimitExceeded | None:
        """Return the error for a client that has waited for too long; else None."""
        if waited_s < self._limit_s[limit] - _TIMER_TOLERANCE_S:
            return None
        return LimitExceeded(limit, f"{_TIMEOUT_DETAILS[limit]} for {waited_s:.0f} s")


class ClientTimeout:
    """The time limit that runs for one client, and since when."""

    __slots__ = ("_limit", "_progress", "_since_s")

    def __init__(self) -> None:
        self._limit: TimeLimit | None = None
        self._progress = 0
        self._since_s = 0.0

    def check(
        self, limit: TimeLimit | None, progress: int, policy: TimeoutPolicy, now_s: float
    ) -> LimitExceeded | None:
        """Return the error if the client has made no progress for too long; else None.

        Args:
            limit: the limit that runs; None when it is not the client's turn.
            progress: a number that changes whenever the client makes progress.
            now_s: by the clock of sweeps.
        """
        if limit != self._limit or progress != self._progress:
            self._limit, self._progress, self._since_s = limit, progress, now_s
        return None if limit is None else policy.error_if_exceeded(limit, now_s - self._since_s)
