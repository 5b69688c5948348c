"""How fast one source may send."""

from __future__ import annotations


class Quota:
    """What all connections of a source may send to brokers.

    It is a credit that grows at a steady rate, up to that of one second.

    Args:
        bytes_per_second: the rate.
        now_s: on the clock that ``refill`` is given.

    ``connections`` is how many share it.
    """

    __slots__ = ("_bytes_per_second", "_credit_bytes", "_filled_s", "connections")

    def __init__(self, bytes_per_second: float, now_s: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._credit_bytes = bytes_per_second
        self._filled_s = now_s
        self.connections = 0

    def spend(self, size: int) -> bool:
        """Take so many bytes out of it; whether nothing is left, as far as is known without a clock."""
        self._credit_bytes -= size
        return self._credit_bytes < 0

    def refill(self, now_s: float) -> float:
        """Add what has grown since the last time; returns for how many seconds nothing will be left."""
        grown_bytes = (now_s - self._filled_s) * self._bytes_per_second
        self._credit_bytes = min(self._bytes_per_second, self._credit_bytes + grown_bytes)
        self._filled_s = now_s
        return max(0.0, -self._credit_bytes / self._bytes_per_second)

    def is_full(self, now_s: float) -> bool:
        """Whether it is as good as new."""
        self.refill(now_s)
        return self._credit_bytes == self._bytes_per_second
