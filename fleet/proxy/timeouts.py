"""How long a worker waits for what a client owes it; looked at in sweeps, not timed for each connection.

The clock is that of the sweeps, and between two of them the loop reads what has arrived: the time in which a
worker was frozen, or busy, is nobody's fault but for what there is between two of them.
"""

from __future__ import annotations

from typing import Final

from fleet.config.settings import Limits
from fleet.core.errors import LimitExceeded, TimeLimit

SWEEP_S = 1.0  # not Final: tests change it, and a compiler would write its value into the code
"""Between two sweeps at least."""
RAREST_SWEEP_S: Final = 30.0
"""However long the time limits are: a sweep does what is to be done soon after a connection is made, too."""
_SWEEPS_PER_TIME_LIMIT: Final = 5
"""Sweeps in a time limit: it passes up to a fifth of it later."""
_TIMER_TOLERANCE_S: Final = 0.05
"""By so much five sweeps may come early."""

_TIMEOUT_DETAILS: Final[dict[TimeLimit, str]] = {
    "first_request_timeout_s": "no request",
    "request_timeout_s": "no more of a request that has begun",
    "idle_timeout_s": "nothing asked and nothing to answer",
}


class TimeoutPolicy:
    """The time limits of a worker.

    Args:
        limits: as configured.
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
        """Between two sweeps while somebody is new, or above a limit of connections."""
        rare_s = min(limits.request_timeout_s, limits.idle_timeout_s) / _SWEEPS_PER_TIME_LIMIT
        self.rare_sweep_s = max(SWEEP_S, min(rare_s, RAREST_SWEEP_S))
        """Between two sweeps else."""

    def error_if_exceeded(self, limit: TimeLimit, waited_s: float) -> LimitExceeded | None:
        """The error where a limit has passed."""
        if waited_s < self._limit_s[limit] - _TIMER_TOLERANCE_S:
            return None
        return LimitExceeded(limit, f"{_TIMEOUT_DETAILS[limit]} for {waited_s:.0f} s")


class ClientTimeout:
    """What one client owes, and since when."""

    __slots__ = ("_limit", "_progress", "_since_s")

    def __init__(self) -> None:
        self._limit: TimeLimit | None = None
        self._progress = 0
        self._since_s = 0.0

    def check(
        self, limit: TimeLimit | None, progress: int, policy: TimeoutPolicy, now_s: float
    ) -> LimitExceeded | None:
        """Whether it has owed that for too long.

        Args:
            limit: which one runs; None where it is not the client's turn.
            progress: any number that changes when the client does something about it.
        """
        if limit != self._limit or progress != self._progress:
            self._limit, self._progress, self._since_s = limit, progress, now_s
        return None if limit is None else policy.error_if_exceeded(limit, now_s - self._since_s)
