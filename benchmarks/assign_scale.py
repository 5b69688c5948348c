"""How long ownership takes at scale: a fresh assignment, one death, one join.

python -m benchmarks.assign_scale [identities] [proxies]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from time import perf_counter

from fleet.assign import assign, take_over
from fleet.model import Broker, BrokerId, IdentitySpace, Member, Ownership, ProxyId

_RACKS = ("a", "b", "c")
_ROUNDS = 5


def _fastest_ms(work: Callable[[], object]) -> float:
    def once_s() -> float:
        start_s = perf_counter()
        work()
        return perf_counter() - start_s

    return 1000 * min(once_s() for _ in range(_ROUNDS))


def _members(first: int, count: int, identities: IdentitySpace) -> dict[ProxyId, Member]:
    return {
        f"p{n}": Member(f"p{n}", rack=_RACKS[n % len(_RACKS)], identities=identities)
        for n in range(first, first + count)
    }


def _changed(before: Mapping[BrokerId, Ownership], after: Mapping[BrokerId, Ownership]) -> str:
    owners = sum(before[b].owners != after[b].owners for b in after)
    successors = sum(before[b] != after[b] for b in after) - owners
    return f"{owners} identities moved, {successors} more with other successors"


def main(identities: int = 10_000, proxies: int = 1_000) -> None:
    space = IdentitySpace(1, identities)
    brokers = {n: Broker(n, "kafka", 9092, _RACKS[n % len(_RACKS)]) for n in space.broker_ids()}
    members = _members(1, proxies, space)
    before = assign(members, brokers, {}, {})
    survivors = {proxy_id: member for proxy_id, member in members.items() if proxy_id != "p1"}
    more = members | _members(proxies + 1, 1, space)
    taken = take_over(survivors, brokers, before, {})
    cases = {
        "fresh assign": (lambda: assign(members, brokers, {}, {}), ""),
        "assign, nothing to do": (lambda: assign(members, brokers, before, {}), ""),
        "take_over, one death": (lambda: take_over(survivors, brokers, before, {}), _changed(before, taken)),
        "assign after it": (
            lambda: assign(survivors, brokers, taken, {}),
            _changed(taken, assign(survivors, brokers, taken, {})),
        ),
        "assign, one death": (
            lambda: assign(survivors, brokers, before, {}),
            _changed(before, assign(survivors, brokers, before, {})),
        ),
        "assign, one join": (
            lambda: assign(more, brokers, before, {}),
            _changed(before, assign(more, brokers, before, {})),
        ),
    }
    print(f"{identities} identities, {proxies} proxies; fastest of {_ROUNDS}")
    for name, (work, changed) in cases.items():
        print(f"{name:24}{_fastest_ms(work):8.1f} ms   {changed}")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:3]))
