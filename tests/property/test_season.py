"""Predictions of loads with a daily pattern."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.pipeline.forecast import (
    DAY_MS,
    LONGEST_GAP_MINUTES,
    MINUTE_MS,
    SLOTS_PER_DAY,
    SeasonalForecast,
    slot_of,
)
from tests.examples import examples

MINUTES_AHEAD = 30
START_MS = 1_790_000_000_000 // DAY_MS * DAY_MS
MINUTES = DAY_MS // MINUTE_MS

NOTHING = SeasonalForecast()

Load = Callable[[int], float]


def follow(load: Load, minutes: int, known: SeasonalForecast = NOTHING, first: int = 0) -> SeasonalForecast:
    for number in range(first, first + minutes):
        known = known.learn(START_MS + number * MINUTE_MS, load(number))
    return known


def error(load: Load, days: int, tell: Callable[[SeasonalForecast, int], float]) -> float:
    """The mean error of the predictions for the half hours of one day, after some days."""
    known, wrong = follow(load, days * MINUTES), 0.0
    for number in range(days * MINUTES, (days + 1) * MINUTES, MINUTES_AHEAD):
        truth = sum(load(number + each) for each in range(MINUTES_AHEAD)) / MINUTES_AHEAD
        wrong += abs(tell(known, number) - truth)
        known = follow(load, MINUTES_AHEAD, known, number)
    return wrong * MINUTES_AHEAD / MINUTES


def daily(number: int) -> float:
    """A load between 200 and 1,800, with its maximum at noon."""
    return 1_000 - 800 * math.cos(2 * math.pi * number / MINUTES)


def noisy(load: Load, seed: int) -> Load:
    chance = random.Random(seed)
    noise = [chance.gauss(0.0, 100.0) for _ in range(10 * MINUTES)]
    return lambda number: max(0.0, load(number) + noise[number])


@pytest.mark.parametrize("seed", range(3))
def test_season_of_a_day_is_learned(seed: int) -> None:
    """Better than the load of the last half hour, which is always half an hour late."""
    load = noisy(daily, seed)
    predicted = error(load, 6, lambda known, _: known.predict(MINUTES_AHEAD))
    last = error(
        load,
        6,
        lambda _, number: sum(load(number - each) for each in range(1, MINUTES_AHEAD + 1)) / MINUTES_AHEAD,
    )
    assert predicted < 0.8 * last


def test_constant_load_is_predicted_as_it_is() -> None:
    known = follow(lambda _: 500.0, 2 * MINUTES)
    assert known.predict(MINUTES_AHEAD) == pytest.approx(500.0, rel=1e-3)


def test_growing_load_is_predicted_ahead() -> None:
    known = follow(lambda number: 2.0 * number, 300)
    assert known.predict(MINUTES_AHEAD) > 2.0 * 290


def test_a_load_that_ends_is_forgotten_within_an_hour() -> None:
    known = follow(lambda _: 500.0, 300)
    known = known.learn(START_MS + 360 * MINUTE_MS, 0.0)
    assert known.predict(MINUTES_AHEAD) < 25.0


def test_level_restarts_after_a_long_silence() -> None:
    known = follow(lambda _: 500.0, 300)
    known = known.learn(START_MS + (300 + LONGEST_GAP_MINUTES + 1) * MINUTE_MS, 80.0)
    assert known.level == pytest.approx(80.0, abs=10.0)
    assert known.trend == 0.0


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.integers(0, 3 * LONGEST_GAP_MINUTES), st.floats(0.0, 1e12)), max_size=40))
def test_prediction_is_bounded_and_never_negative(seen: list[tuple[int, float]]) -> None:
    known = SeasonalForecast()
    for minute, load in seen:
        known = known.learn(START_MS + minute * MINUTE_MS, load)
    assert 0.0 <= known.predict(MINUTES_AHEAD) <= 3 * max((load for _, load in seen), default=0.0)
    assert len(known.season) == SLOTS_PER_DAY


def test_past_observation_changes_nothing() -> None:
    known = follow(lambda _: 500.0, 10)
    assert known.learn(START_MS + 9 * MINUTE_MS, 9_999.0) == known


def test_slots_are_quarters_of_an_hour() -> None:
    assert [slot_of(START_MS + minute * MINUTE_MS) for minute in (0, 14, 15, 1_439)] == [0, 0, 1, 95]
