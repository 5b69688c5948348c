"""Forecasts a load that depends on the time of day. Pure.

The model of the load in a minute is level + season + noise, and the level has a trend. Each part is an
exponentially weighted mean. The level follows the load without its season within minutes. The season is the
difference between the load and its mean of a day, by time of day; the model learns it from the second day on.
The trend is damped, because no load grows for ever.

This is the additive method of Holt and Winters except for the season. They measure the season relative to the
level, but a level that follows within minutes would leave no difference.

Source: P. R. Winters, Forecasting Sales by Exponentially Weighted Moving Averages,
Management Science 6, 1960.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

MINUTE_MS: Final = 60_000
DAY_MS: Final = 24 * 60 * MINUTE_MS
SLOTS_PER_DAY: Final = 96
"""The season has one value for each quarter of an hour."""
LONGEST_GAP_MINUTES: Final = 24 * 60
"""Longest gap that counts as minutes without load; after a longer gap the level starts again."""

_LEVEL_WEIGHT: Final = 0.07
"""Weight of each minute: the last ten minutes make half of the level."""
_TREND_WEIGHT: Final = 0.03
_TREND_DAMPING: Final = 0.995
_MINUTES_PER_DAY: Final = 24 * 60
_SEASON_WEIGHT: Final = 0.03
"""Weight of each minute; a quarter of an hour weighs a third, so a season is known after a few days."""


@dataclass(frozen=True, slots=True)
class SeasonalForecast:
    """The model of one load, in units per minute.

    Args:
        until_ms: end of the last minute that was learned, in Unix time; 0 before the first.
        level: current load without its season.
        trend: growth of the level in a minute.
        mean: mean load of a day; during the first day, the mean so far.
        minutes: number of minutes that were learned.
        season: amount that the time of day adds, for each quarter of an hour.
    """

    until_ms: int = 0
    level: float = 0.0
    trend: float = 0.0
    mean: float = 0.0
    minutes: int = 0
    season: tuple[float, ...] = (0.0,) * SLOTS_PER_DAY

    def learn(self, minute_ms: int, seen: float) -> SeasonalForecast:
        """Return the model after one more minute. Skipped minutes count as zero; past minutes are ignored.

        Args:
            minute_ms: start of the minute, in Unix time.
            seen: load of the minute.
        """
        if self.until_ms and minute_ms < self.until_ms:
            return self
        if not self.until_ms:
            return SeasonalForecast(minute_ms + MINUTE_MS, level=seen, mean=seen, minutes=1)
        missed = (minute_ms - self.until_ms) // MINUTE_MS
        if missed > LONGEST_GAP_MINUTES:
            level = max(0.0, seen - self.season[slot_of(minute_ms)])
            return replace(self, until_ms=minute_ms + MINUTE_MS, level=level, trend=0.0)
        known = self
        for number in range(missed):
            known = known._learn_next(self.until_ms + number * MINUTE_MS, 0.0)
        return known._learn_next(minute_ms, seen)

    def _learn_next(self, minute_ms: int, seen: float) -> SeasonalForecast:
        slot = slot_of(minute_ms)
        season, damped = self.season[slot], _TREND_DAMPING * self.trend
        level = _LEVEL_WEIGHT * (seen - season) + (1 - _LEVEL_WEIGHT) * (self.level + damped)
        trend = _TREND_WEIGHT * (level - self.level) + (1 - _TREND_WEIGHT) * damped
        minutes = self.minutes + 1
        mean = self.mean + (seen - self.mean) / min(minutes, _MINUTES_PER_DAY)
        seasons = self.season
        if minutes > _MINUTES_PER_DAY:
            season += _SEASON_WEIGHT * (seen - mean - season)
            seasons = (*seasons[:slot], season, *seasons[slot + 1 :])
        return SeasonalForecast(minute_ms + MINUTE_MS, level, trend, mean, minutes, seasons)

    def predict(self, minutes: int) -> float:
        """Return the expected mean load of the next `minutes` minutes; never below zero."""
        total, level, trend = 0.0, self.level, self.trend
        for number in range(minutes):
            level, trend = level + trend, _TREND_DAMPING * trend
            total += max(0.0, level + self.season[slot_of(self.until_ms + number * MINUTE_MS)])
        return total / max(1, minutes)


def slot_of(minute_ms: int) -> int:
    """Return the number of the quarter of an hour in the day (UTC)."""
    return minute_ms % DAY_MS * SLOTS_PER_DAY // DAY_MS
