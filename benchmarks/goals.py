"""The most that the fleet may cost, and whether it does."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.results import DIRECT, FLEET, FLEET_OF_TWO, HAPROXY, Sample, Values, by_measure, ratio

FORWARDER: Final = "forwarder"
FORWARDER_LIMIT: Final = 1.15
RATIO_UNIT: Final = "times"
_PER_REQUEST: Final = "cpu_us_per_request"
_PER_GB: Final = "cpu_s_per_gb"
_FORWARDER_MEASURES: Final = (
    ("sync", _PER_REQUEST),
    ("sync", f"{_PER_REQUEST}_16"),
    ("sync", f"{_PER_REQUEST}_256"),
    ("small", _PER_REQUEST),
    ("deep", _PER_REQUEST),
    ("produce", _PER_GB),
    ("consume", _PER_GB),
    ("sparse", "cpu_us_per_record"),
    ("sparse", "cpu_us_per_record_over_rest"),
    *(("connections", f"cpu_us_per_connect_{size}") for size in (100, 1000, 5000)),
    *(("connections", f"{_PER_REQUEST}_{size}") for size in (100, 1000, 5000)),
    ("metadata", "storm_cpu_us_3x10"),
    ("metadata", "storm_cpu_us_100x10000"),
    ("metadata", "storm_cpu_us_1000x100000"),
)
_TLS_MEASURES: Final = (
    *((workload, _PER_REQUEST) for workload in ("sync", "small", "deep")),
    *(("sync", f"{_PER_REQUEST}_{connections}") for connections in (16, 256)),
    *((workload, _PER_GB) for workload in ("produce", "consume")),
    ("sparse", "cpu_us_per_record"),
    ("sparse", "cpu_us_per_record_over_rest"),
    *(("connections", f"cpu_us_per_connect_{size}") for size in (100, 1000)),
    *(("connections", f"{_PER_REQUEST}_{size}") for size in (100, 1000)),
    ("metadata", "storm_cpu_us_3x10"),
    ("metadata", "storm_cpu_us_100x10000"),
)
_TWO_WORKER_MEASURES: Final = (
    *((workload, _PER_REQUEST) for workload in ("sync", "small", "deep")),
    *(("sync", f"{_PER_REQUEST}_{connections}") for connections in (16, 256)),
    ("sparse", "cpu_us_per_record"),
    *(("connections", f"{_PER_REQUEST}_{size}") for size in (100, 1000, 5000)),
)


@dataclass(frozen=True, slots=True)
class Goal:
    """One goal.

    Args:
        description: the goal in words.
        limit: the greatest value that meets it.
        unit: of both; `times` for the median of the ratios within the same round.
        value_of: computes the value from all values; None if the value was not measured.
    """

    description: str
    limit: float
    unit: str
    value_of: Callable[[Values], float | None]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The measured value of a goal."""

    goal: Goal
    value: float

    @property
    def met(self) -> bool:
        return self.value <= self.goal.limit


def verdicts(samples: Sequence[Sample]) -> list[Verdict]:
    """The verdicts on all goals that these samples measure."""
    values = by_measure(samples)
    found = ((goal, goal.value_of(values)) for goal in GOALS)
    return [Verdict(goal, value) for goal, value in found if value is not None]


def _ratio(workload: str, measure: str, target: str, base: str) -> Callable[[Values], float | None]:
    """A function that returns the median of the ratios within each round."""

    def value_of(values: Values) -> float | None:
        mine = values.get((workload, measure, target), {})
        return ratio(mine, values.get((workload, measure, base)))

    return value_of


def _added(workload: str, measure: str) -> Callable[[Values], float | None]:
    """A function: what the fleet adds to a direct connection over what HAProxy adds; medians of rounds.

    The value is infinite if the fleet adds time and HAProxy adds none.
    """

    def value_of(values: Values) -> float | None:
        rounds = [values.get((workload, measure, each)) for each in (DIRECT, HAPROXY, FLEET)]
        if not all(rounds):
            return None
        direct, haproxy, fleet = (statistics.median(each.values()) for each in rounds if each)
        if fleet <= direct:
            return 0.0
        return (fleet - direct) / (haproxy - direct) if haproxy > direct else math.inf

    return value_of


def _median(workload: str, measure: str, target: str) -> Callable[[Values], float | None]:
    def value_of(values: Values) -> float | None:
        rounds = values.get((workload, measure, target))
        return statistics.median(rounds.values()) if rounds else None

    return value_of


GOALS: Final = (
    *(
        Goal(
            f"CPU over the forwarder: `{workload}`, `{measure}`",
            FORWARDER_LIMIT,
            RATIO_UNIT,
            _ratio(workload, measure, FLEET, FORWARDER),
        )
        for workload, measure in _FORWARDER_MEASURES
    ),
    Goal(
        "CPU per small request, pipelined, over HAProxy",
        1.0,
        RATIO_UNIT,
        _ratio("small", _PER_REQUEST, FLEET, HAPROXY),
    ),
    Goal(
        "CPU per request, one in flight, over HAProxy",
        1.3,
        RATIO_UNIT,
        _ratio("sync", _PER_REQUEST, FLEET, HAPROXY),
    ),
    Goal("CPU per GB produced, over HAProxy", 1.0, RATIO_UNIT, _ratio("produce", _PER_GB, FLEET, HAPROXY)),
    Goal("CPU per GB consumed, over HAProxy", 0.8, RATIO_UNIT, _ratio("consume", _PER_GB, FLEET, HAPROXY)),
    Goal("p50 added, one in flight, over what HAProxy adds", 1.2, RATIO_UNIT, _added("sync", "p50_us")),
    Goal("p99 added, one in flight, over what HAProxy adds", 1.5, RATIO_UNIT, _added("sync", "p99_us")),
    Goal(
        "sparse records end to end, p50 over direct",
        1.1,
        RATIO_UNIT,
        _ratio("sparse", "p50_us", FLEET, DIRECT),
    ),
    Goal(
        "CPU of a Metadata response, 100 brokers and 10,000 partitions",
        400.0,
        "µs",
        _median("metadata", "cpu_us_100x10000", FLEET),
    ),
    Goal(
        "CPU of a Metadata response that is not in the cache",
        400.0,
        "µs",
        _median("metadata", "cpu_us_100x10000", "patch"),
    ),
    Goal(
        "CPU of a Metadata request and response in a storm, kernel included",
        400.0,
        "µs",
        _median("metadata", "storm_cpu_us_100x10000", FLEET),
    ),
    Goal(
        "memory of two workers with 10,000 idle connections",
        200.0,
        "MB",
        _median("connections", "memory_mb_10000", FLEET_OF_TWO),
    ),
    Goal(
        "memory of one of 10,000 idle connections, with its upstream",
        20.0,
        "KiB",
        _median("connections", "kib_per_connection_10000", FLEET_OF_TWO),
    ),
    *(
        Goal(
            f"CPU per request with two workers, over one: `{workload}`, `{measure}`",
            1.1,
            RATIO_UNIT,
            _ratio(workload, measure, FLEET_OF_TWO, FLEET),
        )
        for workload, measure in _TWO_WORKER_MEASURES
    ),
    *(
        Goal(
            f"TLS at the clients' side over HAProxy: `{workload}`, `{measure}`",
            1.3,
            RATIO_UNIT,
            _ratio("tls", f"client_{workload}_{measure}", FLEET, HAPROXY),
        )
        for workload, measure in _TLS_MEASURES
    ),
    Goal("assign 10,000 to 1,000, one death", 50.0, "ms", _median("assign", "death_ms_10000x1000", FLEET)),
    Goal(
        "identities of live members that move at that death",
        0.0,
        "",
        _median("assign", "death_moved_of_others_10000x1000", FLEET),
    ),
)
