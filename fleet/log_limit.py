"""Log lines that somebody else can cause, and that must not fill a disk."""

from __future__ import annotations

from typing import Final

MOST_KEYS: Final = 128


class LogLimit:
    """Tells which log lines are due: each once in an interval, and so many different ones at most.

    Args:
        interval_s: between two lines that are alike.
        most: how many different lines are due in an interval.
    """

    def __init__(self, interval_s: float, most: int = MOST_KEYS) -> None:
        self._interval_s = interval_s
        self._most = most
        self._logged_s: dict[str, float] = {}

    def is_due(self, now_s: float, key: str = "") -> bool:
        """Whether to write a line now; the caller does so where it is.

        Args: key: what lines have in common that count as alike.
        """
        if self._is_recent(now_s, self._logged_s.get(key)):
            return False
        if len(self._logged_s) >= self._most:
            self._logged_s = {
                each: at_s for each, at_s in self._logged_s.items() if self._is_recent(now_s, at_s)
            }
            if len(self._logged_s) >= self._most:
                return False
        self._logged_s[key] = now_s
        return True

    def _is_recent(self, now_s: float, logged_s: float | None) -> bool:
        return logged_s is not None and now_s - logged_s < self._interval_s
