"""How fast one source may send, and be sent."""

from __future__ import annotations

import math

LONGEST_WAIT_S = 10.0  # not Final: tests change it, and a compiler would write its value into the code
"""For what a source is sent: what is owed beyond it is forgiven, because one Fetch response may be larger
than what a small quota gives in the 30 s that clients wait for the next one. Kafka's brokers shorten such a
response to what the quota gives in 11 s, which nobody can who only passes it on.
"""


class Quota:
    """What all connections of a source may send to brokers, or be sent by them.

    It is a credit that grows at a steady rate, up to that of one second.

    Args:
        bytes_per_second: the rate.
        longest_wait_s: what is owed is never more than this time gives.
        now_s: on the clock that ``refill`` is given.

    ``connections`` is how many share it.
    """

    __slots__ = ("_bytes_per_second", "_credit_bytes", "_filled_s", "_least_bytes", "connections")

    def __init__(self, bytes_per_second: float, now_s: float, longest_wait_s: float = math.inf) -> None:
        self._bytes_per_second = bytes_per_second
        self._credit_bytes = bytes_per_second
        self._least_bytes = -longest_wait_s * bytes_per_second
        self._filled_s = now_s
        self.connections = 0

    def spend(self, size: int) -> bool:
        """Take so many bytes out of it; whether nothing is left, as far as is known without a clock."""
        self._credit_bytes -= size
        return self._credit_bytes < 0

    def refill(self, now_s: float) -> float:
        """Add what has grown since the last time; returns for how many seconds nothing will be left."""
        grown_bytes = (now_s - self._filled_s) * self._bytes_per_second
        credit_bytes = max(self._credit_bytes, self._least_bytes) + grown_bytes
        self._credit_bytes = min(self._bytes_per_second, credit_bytes)
        self._filled_s = now_s
        return max(0.0, -self._credit_bytes / self._bytes_per_second)

    def is_full(self, now_s: float) -> bool:
        """Whether it is as good as new."""
        self.refill(now_s)
        return self._credit_bytes == self._bytes_per_second


class Quotas:
    """Those of one direction, by source.

    Args:
        bytes_per_second: of each source at a member; None for no limit.
        workers: who share it.
        longest_wait_s: see `Quota`.
    """

    def __init__(self, bytes_per_second: int | None, workers: int, longest_wait_s: float = math.inf) -> None:
        self._bytes_per_second = None if bytes_per_second is None else bytes_per_second / workers
        self._longest_wait_s = longest_wait_s
        self._of: dict[str, Quota] = {}

    def __len__(self) -> int:
        return len(self._of)

    @property
    def limited(self) -> bool:
        return self._bytes_per_second is not None

    def give(self, source: str, now_s: float) -> Quota | None:
        """That of a source, for one connection more; None where there is no limit."""
        if self._bytes_per_second is None:
            return None
        quota = self._of.get(source)
        if quota is None:
            quota = self._of[source] = Quota(self._bytes_per_second, now_s, self._longest_wait_s)
        quota.connections += 1
        return quota

    def forget(self, now_s: float) -> None:
        """Drop those of sources that have no connection and owe nothing."""
        for source, quota in list(self._of.items()):
            if not quota.connections and quota.is_full(now_s):
                del self._of[source]
