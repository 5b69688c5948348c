"""Balance by weight: by how much passes each identity, and not how many there are. Pure.

The load of a proxy is the sum of the shares of what it owns: an identity's weight, divided by the number of
its owners. An identity that alone is too much for a proxy gets more owners besides those it has, and its
clients are spread over them. Nobody loses anything by that, so it is no move.

Then it is the most loaded proxy that counts. Each step relieves that one, by what leaves the least load on
the two that take part: an identity moves to a proxy that has less, or changes places with a lighter one.

All steps together are a proposal. One that takes less than ``min_gain`` off the greatest load is not made:
weights are measured, and never twice the same; connections that move are a price, and must be worth it.
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
"""What makes two proxies equal: how many identities each has, or what these weigh."""

IDLE_WEIGHT_SHARE: Final = 0.01
"""What an identity weighs of which nothing is known, in parts of the average: connections cost, too."""
MAX_OWNER_SHARE: Final = 1.1
"""Up to how many average loads one owner may have of one identity; above, it gets another one."""
MIN_STEP_GAIN_SHARE: Final = 0.02
"""Parts of the average load by which a single step has to relieve a proxy."""
EXCHANGE_TAKERS_COUNT: Final = 4
"""How many of the least loaded proxies are looked at for an exchange."""


@dataclass(frozen=True, slots=True)
class Weights:
    """By what identities are balanced.

    Args:
        weights: in any unit; identities that are missing weigh (nearly) nothing.
        min_gain: the part of the greatest load that a proposal has to take off it.
    """

    weights: Mapping[BrokerId, float]
    min_gain: float = 0.2

    def for_brokers(self, broker_ids: list[BrokerId]) -> dict[BrokerId, float]:
        """The weight of each, the least of which is that of an idle one."""
        known = {b: max(0.0, self.weights.get(b, 0.0)) for b in broker_ids}
        average = sum(known.values()) / max(1, len(known)) or 1.0
        return {b: weight + IDLE_WEIGHT_SHARE * average for b, weight in known.items()}


UNKNOWN_WEIGHTS: Final = Weights({}, float("inf"))
"""As long as nobody has said what identities weigh: what is there stays, all else is dealt out by number."""


def loads_of(
    owned: Owners, weights: Mapping[BrokerId, float], proxy_ids: list[ProxyId]
) -> dict[ProxyId, float]:
    """The load of each proxy."""
    loads = dict.fromkeys(proxy_ids, 0.0)
    for broker_id, owners in owned.items():
        for proxy_id in owners:
            if proxy_id in loads:
                loads[proxy_id] += weights[broker_id] / len(owners)
    return loads


def place_orphans(fleet: Candidates, owned: Owners, orphans: list[BrokerId], weights: Weights) -> Owners:
    """An owner for each identity that has none: the least loaded that may, the heaviest identity first."""
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
    """The owners after the best that was found; those of now where it gains too little."""
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
        left: the load of the heavier of the two that take part, when it is done.
        moves: how many identities change hands.
        owners: of the identities that it changes.
    """

    left: float
    moves: int
    owners: Owners

    def better_than(self, other: _Step | None) -> bool:
        return other is None or (self.left, self.moves) < (other.left, other.moves)


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
        """Give more owners to what is too much for those it has."""
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
        """Relieve the most loaded proxy; False where nothing does."""
        donor = max(self.loads, key=lambda p: (self.loads[p], p))
        takers = sorted((p for p in self.loads if p != donor), key=lambda p: (self.loads[p], p))
        best: _Step | None = None
        for step in (*self._moves(donor, takers), *self._exchanges(donor, takers[:EXCHANGE_TAKERS_COUNT])):
            if step.better_than(best):
                best = step
        if best is None or self.loads[donor] - best.left < MIN_STEP_GAIN_SHARE * self._average:
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
                left = max(self.loads[donor] - share, self.loads[taker] + share)
                steps.append(_Step(left, 1, {broker_id: _replaced(owners, donor, taker)}))
        return steps

    def _exchanges(self, donor: ProxyId, takers: list[ProxyId]) -> list[_Step]:
        """Of identities with one owner alone."""
        given = [b for b in sorted(self._holdings[donor]) if len(self.owned[b]) == 1]
        steps = []
        for taker in takers:
            back = sorted(
                (self._weights[b], b)
                for b in self._holdings[taker]
                if len(self.owned[b]) == 1 and donor in self._fleet.choices(b)
            )
            if not back:
                continue
            wanted = (self.loads[donor] - self.loads[taker]) / 2
            for broker_id in given:
                if taker not in self._fleet.choices(broker_id):
                    continue
                weight = self._weights[broker_id]
                at = bisect_left(back, (weight - wanted, -1))
                for lighter, other in back[max(0, at - 1) : at + 1]:
                    moved = weight - lighter
                    if moved > 0:
                        left = max(self.loads[donor] - moved, self.loads[taker] + moved)
                        steps.append(_Step(left, 2, {broker_id: (taker,), other: (donor,)}))
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


def _replaced(owners: tuple[ProxyId, ...], old: ProxyId, new: ProxyId) -> tuple[ProxyId, ...]:
    return tuple(new if each == old else each for each in owners)
