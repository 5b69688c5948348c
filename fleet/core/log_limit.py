"""A rate limit for log lines that strangers can cause: without one, they could fill a disk."""

from __future__ import annotations

from typing import Final

MAX_KEYS: Final = 128


class LogLimit:
    """Decides whether a log line may be written.

    Args:
        interval_s: the least time between two lines with the same key.
        max_keys: how many keys may log within one interval.
    """

    def __init__(self, interval_s: float, max_keys: int = MAX_KEYS) -> None:
        self._interval_s = interval_s
        self._max_keys = max_keys
        self._logged_s: dict[str, float] = {}

    def is_due(self, now_s: float, key: str = "") -> bool:
        """Whether the caller may write a line now. If so, the next line with this key waits for `interval_s`.

        Args:
            key: what makes two lines the same.
        """
        if self._is_recent(now_s, self._logged_s.get(key)):
            return False
        if len(self._logged_s) >= self._max_keys:
            self._logged_s = {
                each: at_s for each, at_s in self._logged_s.items() if self._is_recent(now_s, at_s)
            }
            if len(self._logged_s) >= self._max_keys:
                return False
        self._logged_s[key] = now_s
        return True

    def _is_recent(self, now_s: float, logged_s: float | None) -> bool:
        return logged_s is not None and now_s - logged_s < self._interval_s
