"""Medians, spreads and ratios of what single runs measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, TypedDict

from benchmarks.workloads import Measured

DIRECT: Final = "direct"
HAPROXY: Final = "haproxy"
FLEET: Final = "fleet"
FLEET_OF_TWO: Final = "fleet-2"
"""A fleet whose member has two workers."""
FLEET_PURE: Final = "fleet-pure"
"""A fleet in pure Python; the others are compiled, as in the container, if there is a C compiler."""
_GB: Final = 1e9
Rounds: TypeAlias = Mapping[int, float]
"""A value for each round."""
Values: TypeAlias = Mapping[tuple[str, str, str], Rounds]
"""Values by workload, measure and target."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one target.

    Args:
        round: the number of the run; a round has one or more runs, and targets are compared within each run.
    """

    workload: str
    measure: str
    target: str
    round: int
    value: float


@dataclass(frozen=True, slots=True)
class Figure:
    """One measure of one target over all rounds.

    Args:
        value: the median; least, most: the spread.
        to_direct, to_haproxy: the median of the ratios within each round, if the other target was measured.
    """

    workload: str
    measure: str
    target: str
    value: float
    least: float
    most: float
    to_direct: float | None
    to_haproxy: float | None


class FigureDocument(TypedDict):
    """One entry of the JSON output."""

    workload: str
    measure: str
    target: str
    value: float
    to_direct: float | None
    to_haproxy: float | None


def measures(
    workload: str, measured: Measured, proxy_cpu_s: float | None, member_cpu_s: float | None
) -> dict[str, float]:
    """The measures of one run, by name; the units are in the names.

    Args:
        proxy_cpu_s: of the processes that bytes pass through; None if there are none.
        member_cpu_s: of these and all others of the member.
    """
    found: dict[str, float] = {}
    if measured.p50_us is not None and measured.p99_us is not None:
        found |= {"p50_us": measured.p50_us, "p99_us": measured.p99_us}
    if workload in ("produce", "consume"):
        rate, unit, scale = {"mb_per_s": measured.bytes / measured.elapsed_s / 1e6}, "s_per_gb", 1.0
        amount = measured.bytes / _GB
    else:
        rate, unit, scale = {"requests_per_s": measured.requests / measured.elapsed_s}, "us_per_request", 1e6
        amount = float(measured.requests)
    if workload == "sparse":  # the client mostly waits, with every target
        rate, unit = {}, "us_per_record"
    if proxy_cpu_s is not None:
        found[f"cpu_{unit}"] = scale * proxy_cpu_s / amount
    if member_cpu_s is not None:
        found[f"member_cpu_{unit}"] = scale * member_cpu_s / amount
    return found | rate


def by_measure(samples: Sequence[Sample]) -> Values:
    """The values of all samples, in the order of their measures and targets."""
    values: dict[tuple[str, str, str], dict[int, float]] = {}
    for each in samples:
        values.setdefault((each.workload, each.measure, each.target), {})[each.round] = each.value
    return values


def figures(samples: Sequence[Sample]) -> list[Figure]:
    """The figures of all samples, in the order in which their measures and targets first appear."""
    values = by_measure(samples)
    ranks = {name: rank for rank, name in enumerate(dict.fromkeys((s.workload, s.measure) for s in samples))}
    # Sorting is stable: within a measure, targets keep the order in which they appeared.
    return [
        Figure(
            workload,
            measure,
            target,
            value=statistics.median(mine.values()),
            least=min(mine.values()),
            most=max(mine.values()),
            to_direct=ratio(mine, values.get((workload, measure, DIRECT))),
            to_haproxy=ratio(mine, values.get((workload, measure, HAPROXY))),
        )
        for (workload, measure, target), mine in sorted(values.items(), key=lambda item: ranks[item[0][:2]])
    ]


def ratio(mine: Rounds, other: Rounds | None) -> float | None:
    """The median of the ratios of rounds in which both were measured.

    Each ratio is of one round, because other work of the machine affects both alike in one round.
    """
    if other is None:
        return None
    ratios = [value / other[number] for number, value in mine.items() if other.get(number)]
    return statistics.median(ratios) if ratios else None


def document(found: Sequence[Figure]) -> list[FigureDocument]:
    """What `--json` prints."""
    return [
        FigureDocument(
            workload=each.workload,
            measure=each.measure,
            target=each.target,
            value=_rounded(each.value),
            to_direct=_optional(each.to_direct),
            to_haproxy=_optional(each.to_haproxy),
        )
        for each in found
    ]


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _optional(value: float | None) -> float | None:
    return None if value is None else _rounded(value)


Say = Callable[[str], None]
"""Takes one line of progress."""
