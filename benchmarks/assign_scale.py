"""How long assignment takes at scale: a fresh assignment, a death and a join, without any network.

*moved* counts the identities whose owners change. A death may move only the identities of the dead proxy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import Final, TypeAlias

from benchmarks.results import FLEET, Sample
from fleet.assign import assign, take_over
from fleet.core.model import Broker, BrokerId, IdentitySpace, Member, Ownership, ProxyId

ASSIGN: Final = "assign"
SIZES: Final = ((10, 3), (100, 10), (1_000, 100), (10_000, 1_000))
"""Numbers of identities and of proxies."""
_RACKS: Final = ("a", "b", "c")
_REPETITIONS: Final = 3

Owners: TypeAlias = Mapping[BrokerId, Ownership]


def measure_sizes(rounds: int) -> Iterator[Sample]:
    """Measure each size once a round."""
    for number in range(rounds):
        for identities, proxies in SIZES:
            for measure, value in measure_size(identities, proxies).items():
                yield Sample(ASSIGN, f"{measure}_{identities}x{proxies}", FLEET, number, value)


def measure_size(identities: int, proxies: int) -> dict[str, float]:
    """The measures of one size: the fastest of several runs, moves, and the largest share over the mean."""
    space = IdentitySpace(1, identities)
    brokers = {n: Broker(n, "kafka", 9092, _RACKS[n % len(_RACKS)]) for n in space.broker_ids()}
    members = _members(proxies, space)
    before = assign(members, brokers, {}, {})
    survivors = {proxy_id: member for proxy_id, member in members.items() if proxy_id != "p1"}
    taken, death_ms = _time_fastest(lambda: take_over(survivors, brokers, before, {}))
    _, fresh_ms = _time_fastest(lambda: assign(members, brokers, {}, {}))
    joined, join_ms = _time_fastest(lambda: assign(_members(proxies + 1, space), brokers, before, {}))
    return {
        "fresh_ms": fresh_ms,
        "death_ms": death_ms,
        "death_moved": _count_moved(before, taken),
        "death_moved_of_others": sum(
            before[each].owners != taken[each].owners and "p1" not in before[each].owners for each in taken
        ),
        "join_ms": join_ms,
        "join_moved": _count_moved(before, joined),
        "fresh_max_to_mean": _max_to_mean(before, proxies),
        "death_max_to_mean": _max_to_mean(taken, proxies - 1),
    }


def _members(count: int, identities: IdentitySpace) -> dict[ProxyId, Member]:
    return {
        f"p{n}": Member(f"p{n}", rack=_RACKS[n % len(_RACKS)], identities=identities)
        for n in range(1, count + 1)
    }


def _time_fastest(work: Callable[[], Owners]) -> tuple[Owners, float]:
    fastest_s = float("inf")
    for _ in range(_REPETITIONS):
        began_s = perf_counter()
        found = work()
        fastest_s = min(fastest_s, perf_counter() - began_s)
    return found, 1000 * fastest_s


def _count_moved(before: Owners, after: Owners) -> int:
    return sum(before[each].owners != after[each].owners for each in after)


def _max_to_mean(owned: Owners, proxies: int) -> float:
    counts = Counter(owner for each in owned.values() for owner in each.owners)
    return max(counts.values()) * proxies / counts.total()
