"""Limits how fast one source may send and receive."""

from __future__ import annotations

import math

MAX_DEBT_S = 10.0  # not Final: tests change it, and a compiler would write its value into the code
"""The longest debt of a source that receives; debt beyond it is forgiven. One Fetch response may be larger
than a small quota allows in the 30 s that clients wait for the next response. Kafka's brokers shorten such a
response to the quota of 11 s, which a proxy cannot do.
"""


class Quota:
    """The bytes that all connections of a source may send to brokers, or receive from them.

    A quota is a credit that grows at a steady rate, up to the bytes of one second.

    Args:
        bytes_per_second: the rate.
        now_s: by the same clock as in ``refill``.
        max_debt_s: the debt never exceeds the bytes of this time.

    ``connections`` is the number of connections that share the quota.
    """

    __slots__ = ("_bytes_per_second", "_credit_bytes", "_filled_s", "_least_bytes", "connections")

    def __init__(self, bytes_per_second: float, now_s: float, max_debt_s: float = math.inf) -> None:
        self._bytes_per_second = bytes_per_second
        self._credit_bytes = bytes_per_second
        self._least_bytes = -max_debt_s * bytes_per_second
        self._filled_s = now_s
        self.connections = 0

    def spend(self, size: int) -> bool:
        """Take bytes out of the credit, without reading a clock. Returns: whether no credit is left."""
        self._credit_bytes -= size
        return self._credit_bytes < 0

    def refill(self, now_s: float) -> float:
        """Add the growth since the last call. Returns: the seconds until there is credit again."""
        grown_bytes = (now_s - self._filled_s) * self._bytes_per_second
        credit_bytes = max(self._credit_bytes, self._least_bytes) + grown_bytes
        self._credit_bytes = min(self._bytes_per_second, credit_bytes)
        self._filled_s = now_s
        return max(0.0, -self._credit_bytes / self._bytes_per_second)

    def is_full(self, now_s: float) -> bool:
        """Whether the credit is full, as in a new quota."""
        self.refill(now_s)
        return self._credit_bytes == self._bytes_per_second


class Quotas:
    """The quotas of one direction, by source.

    Args:
        bytes_per_second: of each source at a member; None for no limit.
        workers: the number of workers that share the rate.
        max_debt_s: see `Quota`.
    """

    def __init__(self, bytes_per_second: int | None, workers: int, max_debt_s: float = math.inf) -> None:
        self._bytes_per_second = None if bytes_per_second is None else bytes_per_second / workers
        self._longest_wait_s = max_debt_s
        self._quotas: dict[str, Quota] = {}

    def __len__(self) -> int:
        return len(self._quotas)

    @property
    def is_limited(self) -> bool:
        return self._bytes_per_second is not None

    def give(self, source: str, now_s: float) -> Quota | None:
        """Return the quota of a source for one more connection; None if there is no limit."""
        if self._bytes_per_second is None:
            return None
        quota = self._quotas.get(source)
        if quota is None:
            quota = self._quotas[source] = Quota(self._bytes_per_second, now_s, self._longest_wait_s)
        quota.connections += 1
        return quota

    def forget(self, now_s: float) -> None:
        """Drop the quotas of sources that have no connection and no debt."""
        for source, quota in list(self._quotas.items()):
            if not quota.connections and quota.is_full(now_s):
                del self._quotas[source]
