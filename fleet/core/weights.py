"""Balance by weight: by the traffic of each identity, not by the number of identities. Pure.

The load of a proxy is the sum of its shares: for each identity that it owns, the weight divided by the number
of owners. An identity that is too heavy for one proxy gets additional owners, and its clients are spread over
all owners. No owner loses the identity, so this is not a move.

After that, only the most loaded proxy counts. Each step relieves this proxy in the way that leaves the least
load on the two participating proxies: an identity moves to a less loaded proxy, or is exchanged for a lighter
identity.

All steps together form a proposal. A proposal that reduces the greatest load by less than ``min_gain`` is
discarded: measured weights never repeat exactly, and moving connections must be worth its price.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from fleet.core.model import BrokerId, ProxyId
from fleet.core.placement import Candidates

Owners: TypeAlias = dict[BrokerId, tuple[ProxyId, ...]]

BalancedBy: TypeAlias = Literal["identities", "weights"]
"""The quantity to balance: the number of identities of each proxy, or their weight."""

IDLE_WEIGHT_SHARE: Final = 0.01
"""Extra weight of every identity, in parts of the average weight: idle connections cost, too."""
MAX_OWNER_SHARE: Final = 1.1
"""Limit for one owner's share of one identity, in average loads. Above it, the identity gets more owners."""
MIN_STEP_GAIN_SHARE: Final = 0.02
"""Least relief by a single step, in parts of the average load."""
EXCHANGE_TAKERS_COUNT: Final = 4
"""How many of the least loaded proxies are considered for an exchange."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of identities, and the gain that justifies moves.

    Args:
        weights: identity → weight, in any unit; a missing identity weighs nearly nothing.
        min_gain: the part by which a proposal must reduce the greatest load.
    """

    weights: Mapping[BrokerId, float]
    min_gain: float = 0.2

    def for_brokers(self, broker_ids: list[BrokerId]) -> dict[BrokerId, float]:
        """The weight of each identity, the weight of idle connections included."""
        known = {b: max(0.0, self.weights.get(b, 0.0)) for b in broker_ids}
        average = sum(known.values()) / max(1, len(known)) or 1.0
        return {b: weight + IDLE_WEIGHT_SHARE * average for b, weight in known.items()}


UNKNOWN_WEIGHTS: Final = Weights({}, float("inf"))
"""Used until weights are known: owners stay, and identities without owners are placed by number."""


def loads_of(
    owned: Owners, weights: Mapping[BrokerId, float], proxy_ids: list[ProxyId]
) -> dict[ProxyId, float]:
    """Compute the load of each proxy."""
    loads = dict.fromkeys(proxy_ids, 0.0)
    for broker_id, owners in owned.items():
        for proxy_id in owners:
            if proxy_id in loads:
                loads[proxy_id] += weights[broker_id] / len(owners)
    return loads


def place_orphans(fleet: Candidates, owned: Owners, orphans: list[BrokerId], weights: Weights) -> Owners:
    """Place each identity without owners on the least loaded proxy that may own it, heaviest first."""
    weight_of = weights.for_brokers(fleet.broker_ids)
    loads = loads_of(owned, weight_of, fleet.eligible)
    placed: Owners = {}
    for broker_id in sorted(orphans, key=lambda b: (-weight_of[b], b)):
        choices = fleet.choices(broker_id)
        if choices:
            taker = min(choices, key=lambda p: (loads[p], not fleet.matches(broker_id, p), p))
            placed[broker_id] = (taker,)
            loads[taker] += weight_of[broker_id]
    return placed


def rebalance(fleet: Candidates, owned: Owners, weights: Weights) -> Owners:
    """The owners after the best proposal that was found; the current owners if it gains too little."""
    search = _Search(fleet, owned, weights.for_brokers(fleet.broker_ids))
    if not search.loads:
        return owned
    before = max(search.loads.values())
    search.split()
    while search.step():
        pass
    after = max(search.loads.values())
    return search.owned if before - after >= weights.min_gain * before else owned


@dataclass(frozen=True, slots=True)
class _Step:
    """One way to relieve the most loaded proxy.

    Args:
        max_load: the greater load of the two participating proxies after the step.
        moves: number of identities that change owners.
        owners: the new owners of these identities.
    """

    max_load: float
    moves: int
    owners: Owners

    def is_better_than(self, other: _Step | None) -> bool:
        return other is None or (self.max_load, self.moves) < (other.max_load, other.moves)


class _Search:
    def __init__(self, fleet: Candidates, owned: Owners, weights: dict[BrokerId, float]) -> None:
        self._fleet = fleet
        self._weights = weights
        self.owned = dict(owned)
        self.loads = loads_of(owned, weights, fleet.eligible)
        self._average = sum(self.loads.values()) / max(1, len(self.loads))
        self._holdings: dict[ProxyId, set[BrokerId]] = {p: set() for p in self.loads}
        for broker_id, owners in owned.items():
            for proxy_id in owners:
                if proxy_id in self._holdings:
                    self._holdings[proxy_id].add(broker_id)

    def split(self) -> None:
        """Add owners to the identities that are too heavy for their current owners."""
        for broker_id in sorted(self.owned, key=lambda b: (-self._weights[b], b)):
            choices = self._fleet.choices(broker_id)
            while (
                self._weights[broker_id] / len(owners := self.owned[broker_id])
                > MAX_OWNER_SHARE * self._average
            ):
                others = choices.difference(owners)
                if not others:
                    break
                taker = min(others, key=lambda p: (self.loads[p], not self._fleet.matches(broker_id, p), p))
                self._apply({broker_id: (*owners, taker)})

    def step(self) -> bool:
        """Relieve the most loaded proxy. Returns False if no step does."""
        donor = max(self.loads, key=lambda p: (self.loads[p], p))
        takers = sorted((p for p in self.loads if p != donor), key=lambda p: (self.loads[p], p))
        best: _Step | None = None
        for step in (*self._moves(donor, takers), *self._exchanges(donor, takers[:EXCHANGE_TAKERS_COUNT])):
            if step.is_better_than(best):
                best = step
        if best is None or self.loads[donor] - best.max_load < MIN_STEP_GAIN_SHARE * self._average:
            return False
        self._apply(best.owners)
        return True

    def _moves(self, donor: ProxyId, takers: list[ProxyId]) -> list[_Step]:
        steps = []
        for broker_id in sorted(self._holdings[donor]):
            owners, choices = self.owned[broker_id], self._fleet.choices(broker_id)
            taker = next((p for p in takers if p in choices and p not in owners), None)
            if taker is not None:
                share = self._weights[broker_id] / len(owners)
                max_load = max(self.loads[donor] - share, self.loads[taker] + share)
                steps.append(_Step(max_load, 1, {broker_id: _replace_owner(owners, donor, taker)}))
        return steps

    def _exchanges(self, donor: ProxyId, takers: list[ProxyId]) -> list[_Step]:
        """Exchanges of identities with a single owner."""
        offered = [b for b in sorted(self._holdings[donor]) if len(self.owned[b]) == 1]
        steps = []
        for taker in takers:
            returnable = sorted(
                (self._weights[b], b)
                for b in self._holdings[taker]
                if len(self.owned[b]) == 1 and donor in self._fleet.choices(b)
            )
            if not returnable:
                continue
            ideal_difference = (self.loads[donor] - self.loads[taker]) / 2
            for broker_id in offered:
                if taker not in self._fleet.choices(broker_id):
                    continue
                weight = self._weights[broker_id]
                at = bisect_left(returnable, (weight - ideal_difference, -1))
                for lighter, other in returnable[max(0, at - 1) : at + 1]:
                    moved = weight - lighter
                    if moved > 0:
                        max_load = max(self.loads[donor] - moved, self.loads[taker] + moved)
                        steps.append(_Step(max_load, 2, {broker_id: (taker,), other: (donor,)}))
        return steps

    def _apply(self, changes: Owners) -> None:
        for broker_id, owners in changes.items():
            before = self.owned[broker_id]
            for proxy_id in before:
                self.loads[proxy_id] -= self._weights[broker_id] / len(before)
                self._holdings[proxy_id].discard(broker_id)
            for proxy_id in owners:
                self.loads[proxy_id] += self._weights[broker_id] / len(owners)
                self._holdings[proxy_id].add(broker_id)
            self.owned[broker_id] = owners


def _replace_owner(owners: tuple[ProxyId, ...], old: ProxyId, new: ProxyId) -> tuple[ProxyId, ...]:
    return tuple(new if each == old else each for each in owners)
