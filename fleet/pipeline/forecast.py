"""A load that rises and falls with the day, followed and told in advance. Pure.

What is seen at a moment is taken for level + what the time of day adds + noise; the level has a trend. Each
is an exponentially weighted mean: the level follows within minutes what is left of the load without its
season; the season is what the load has, over days, beside its mean of a day, and is learned from the second
day on. The trend is damped, for no load grows for ever. So it is the additive method of Holt and Winters but
for the season: theirs is seen beside the level, and one that follows within minutes leaves nothing to see.

Source: P. R. Winters, Forecasting Sales by Exponentially Weighted Moving Averages,
Management Science 6, 1960.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

MINUTE_MS: Final = 60_000
DAY_MS: Final = 24 * 60 * MINUTE_MS
SLOTS: Final = 96
"""Of a day: the season is the same for a quarter of an hour."""
LONGEST_GAP: Final = 24 * 60
"""Minutes without anything that are taken for none; after more of them the level begins anew."""

_LEVEL: Final = 0.07
"""Of each minute: half of what is known of the level is of the last ten."""
_TREND: Final = 0.03
_DAMPING: Final = 0.995
_A_DAY: Final = 24 * 60
_SEASON: Final = 0.03
"""Of each minute: of a quarter of an hour a third, so that a season is known after a few days."""


@dataclass(frozen=True, slots=True)
class SeasonalForecast:
    """What is known of one load, in its unit for a minute.

    Args:
        until_ms: the start of the minute behind the last that was seen; 0 before the first.
        mean: of a day; of the first one, so far.
        minutes: how many have been seen.
        season: what the time of day adds, for each quarter of an hour.
    """

    until_ms: int = 0
    level: float = 0.0
    trend: float = 0.0
    mean: float = 0.0
    minutes: int = 0
    season: tuple[float, ...] = (0.0,) * SLOTS

    def learn(self, minute_ms: int, seen: float) -> SeasonalForecast:
        """One minute more. Minutes in between had nothing; one that is past changes nothing any more.

        Args:
            minute_ms: when it began, in Unix time.
        """
        if self.until_ms and minute_ms < self.until_ms:
            return self
        if not self.until_ms:
            return SeasonalForecast(minute_ms + MINUTE_MS, level=seen, mean=seen, minutes=1)
        missed = (minute_ms - self.until_ms) // MINUTE_MS
        if missed > LONGEST_GAP:
            level = max(0.0, seen - self.season[slot_of(minute_ms)])
            return replace(self, until_ms=minute_ms + MINUTE_MS, level=level, trend=0.0)
        known = self
        for number in range(missed):
            known = known._one(self.until_ms + number * MINUTE_MS, 0.0)
        return known._one(minute_ms, seen)

    def _one(self, minute_ms: int, seen: float) -> SeasonalForecast:
        slot = slot_of(minute_ms)
        season, damped = self.season[slot], _DAMPING * self.trend
        level = _LEVEL * (seen - season) + (1 - _LEVEL) * (self.level + damped)
        trend = _TREND * (level - self.level) + (1 - _TREND) * damped
        minutes = self.minutes + 1
        mean = self.mean + (seen - self.mean) / min(minutes, _A_DAY)
        seasons = self.season
        if minutes > _A_DAY:
            season += _SEASON * (seen - mean - season)
            seasons = (*seasons[:slot], season, *seasons[slot + 1 :])
        return SeasonalForecast(minute_ms + MINUTE_MS, level, trend, mean, minutes, seasons)

    def ahead(self, minutes: int) -> float:
        """The mean of so many minutes to come; never below zero."""
        total, level, trend = 0.0, self.level, self.trend
        for number in range(minutes):
            level, trend = level + trend, _DAMPING * trend
            total += max(0.0, level + self.season[slot_of(self.until_ms + number * MINUTE_MS)])
        return total / max(1, minutes)


def slot_of(minute_ms: int) -> int:
    """The quarter of an hour of the day (UTC)."""
    return minute_ms % DAY_MS * SLOTS // DAY_MS
