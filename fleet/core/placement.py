"""Placement of identities on the least loaded members that may own them. Pure; used by ``fleet.assign``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from zlib import crc32

from fleet.core.model import Broker, BrokerId, IdentitySpace, Member, ProxyId


class Candidates:
    """The members that may own each identity."""

    def __init__(
        self,
        members: Mapping[ProxyId, Member],
        brokers: Mapping[BrokerId, Broker],
        pins: Mapping[BrokerId, ProxyId],
        unreachable: AbstractSet[tuple[ProxyId, BrokerId]],
    ) -> None:
        self.brokers = brokers
        self.broker_ids = sorted(brokers)
        self.pins = pins
        self.unreachable_from: dict[BrokerId, set[ProxyId]] = {}
        for proxy_id, broker_id in unreachable:
            self.unreachable_from.setdefault(broker_id, set()).add(proxy_id)
        spaces: dict[IdentitySpace, list[ProxyId]] = {}
        for member in members.values():
            if member.eligible:
                spaces.setdefault(member.identities, []).append(member.proxy_id)
        # Most members have the same ports: check each distinct space, not each member, for each identity.
        self._spaces = [
            (served, frozenset(proxy_ids))
            for space, proxy_ids in spaces.items()
            if (served := brokers.keys() & frozenset(space.broker_ids()))
        ]
        self.everyone: frozenset[ProxyId] = frozenset().union(*(proxy_ids for _, proxy_ids in self._spaces))
        """The members that may own any identity. A witness has no ports and is not among them."""
        self.eligible = sorted(self.everyone)
        self.racks = {proxy_id: members[proxy_id].rack for proxy_id in self.eligible}
        self._unions: dict[tuple[int, ...], frozenset[ProxyId]] = {}
        self._free = (
            frozenset(brokers).intersection(*(ids for ids, _ in self._spaces)) - self.unreachable_from.keys()
        )

    def allowed(self, broker_id: BrokerId, without: ProxyId | None = None) -> frozenset[ProxyId]:
        """The members that may own an identity, regardless of pins, if ``without`` is dead.

        The result may contain ``without``.
        """
        if broker_id in self._free:
            return self.everyone
        which = tuple(index for index, (ids, _) in enumerate(self._spaces) if broker_id in ids)
        if len(which) == len(self._spaces):
            serving = self.everyone
        elif which in self._unions:
            serving = self._unions[which]
        else:
            serving = frozenset().union(*(self._spaces[index][1] for index in which))
            self._unions[which] = serving
        if broker_id in self.unreachable_from:
            reaching = serving - self.unreachable_from[broker_id]
            if reaching - {without}:
                return reaching
        return serving

    def choices(self, broker_id: BrokerId, without: ProxyId | None = None) -> frozenset[ProxyId]:
        """The members that may own an identity, its pin included.

        Without restrictions, the result is the object ``everyone`` itself.
        """
        allowed = self.allowed(broker_id, without)
        pin = self.pins.get(broker_id)
        if pin is not None and pin != without and pin in allowed:
            return frozenset((pin,))
        return allowed

    def matches(self, broker_id: BrokerId, proxy_id: ProxyId) -> bool:
        rack = self.brokers[broker_id].rack
        return rack is not None and rack == self.racks[proxy_id]


@dataclass(slots=True)
class Levels:
    """The eligible members by load, and by load within each rack; built once for many placements."""

    fleet: Candidates
    loads: dict[ProxyId, int]
    all_racks: dict[int, list[ProxyId]] = field(default_factory=dict)
    by_rack: dict[str, dict[int, list[ProxyId]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for proxy_id in self.fleet.eligible:
            load = self.loads[proxy_id]
            self.all_racks.setdefault(load, []).append(proxy_id)
            rack = self.fleet.racks[proxy_id]
            if rack is not None:
                self.by_rack.setdefault(rack, {}).setdefault(load, []).append(proxy_id)


class Placement:
    """Gives identities to the least loaded members first, as water fills the lowest places first.

    Args:
        without: a member to treat as dead.
    """

    def __init__(self, fleet: Candidates, levels: Levels, without: ProxyId | None = None) -> None:
        self._fleet = fleet
        self._levels = levels
        self._without = without
        self._taken: dict[ProxyId, int] = {}
        self._placed: dict[BrokerId, ProxyId] = {}
        self._level = 0
        """Every member is filled to this load, …"""
        self._extras = 0
        """… and this many members to one identity more."""

    def place(
        self, pool: Iterable[BrokerId], preferred: Mapping[BrokerId, ProxyId | None] | None = None
    ) -> dict[BrokerId, ProxyId]:
        """Choose a member for each identity that some member may own.

        Args:
            preferred: the member to choose if the choice costs neither balance nor a rack match.
        """
        preferred = preferred or {}
        free: list[BrokerId] = []
        restricted: list[tuple[int, BrokerId, frozenset[ProxyId]]] = []
        for broker_id in pool:
            choices = self._fleet.choices(broker_id, self._without)
            if choices is self._fleet.everyone:
                free.append(broker_id)
            else:
                restricted.append((len(choices), broker_id, choices))
        for _, broker_id, choices in sorted(restricted, key=lambda entry: entry[:2]):
            self._place_restricted(broker_id, choices, preferred.get(broker_id))
        if free:
            self._fill(free, preferred)
        return self._placed

    def _load(self, proxy_id: ProxyId) -> int:
        return self._levels.loads[proxy_id] + self._taken.get(proxy_id, 0)

    def _place_restricted(
        self, broker_id: BrokerId, choices: frozenset[ProxyId], preferred: ProxyId | None
    ) -> None:
        options = choices - {self._without}
        if options:
            matches = self._fleet.matches
            chosen = min(options, key=lambda p: (self._load(p), not matches(broker_id, p), p != preferred, p))
            self._placed[broker_id] = chosen
            self._taken[chosen] = self._taken.get(chosen, 0) + 1

    def _fill(self, free: list[BrokerId], preferred: Mapping[BrokerId, ProxyId | None]) -> None:
        if not self._set_level(len(free)):
            return
        fleet = self._fleet
        racked: list[BrokerId] = []
        for broker_id in free:
            member = preferred.get(broker_id)
            if member is None or not (fleet.matches(broker_id, member) and self._take(broker_id, member)):
                racked.append(broker_id)
        rest: list[BrokerId] = []
        slots: dict[str, Iterator[ProxyId]] = {}
        for broker_id in racked:
            rack = fleet.brokers[broker_id].rack
            if rack is None or rack not in self._levels.by_rack:
                rest.append(broker_id)
                continue
            if rack not in slots:
                slots[rack] = self._slots(self._levels.by_rack[rack])
            slot = next(slots[rack], None)
            if slot is None or not self._take(broker_id, slot):
                rest.append(broker_id)
        last: list[BrokerId] = []
        for broker_id in rest:
            member = preferred.get(broker_id)
            if member is None or not self._take(broker_id, member):
                last.append(broker_id)
        any_slots = self._slots(self._levels.all_racks)
        for broker_id in last:
            self._take(broker_id, next(any_slots))

    def _set_level(self, count: int) -> bool:
        """Compute the load that ``count`` more identities fill the members to; False without any member."""
        histogram = {load: len(at_load) for load, at_load in self._levels.all_racks.items()}
        if self._without is not None and self._without in self._levels.loads:
            histogram[self._levels.loads[self._without]] -= 1
        for proxy_id, taken in self._taken.items():
            load = self._levels.loads[proxy_id]
            histogram[load] -= 1
            histogram[load + taken] = histogram.get(load + taken, 0) + 1
        loads = sorted(load for load, number in histogram.items() if number)
        if not loads:
            return False
        below = 0
        for load, above in zip(loads, [*loads[1:], None], strict=True):
            below += histogram[load]
            cost = count if above is None else below * (above - load)
            if above is None or cost > count:
                self._level, self._extras = load + count // below, count % below
                return True
            count -= cost
        raise AssertionError("the last level takes everything")

    def _take(self, broker_id: BrokerId, proxy_id: ProxyId) -> bool:
        taken = self._taken.get(proxy_id, 0)
        load = self._levels.loads[proxy_id] + taken
        if proxy_id == self._without or load > self._level:
            return False
        if load == self._level:
            if not self._extras:
                return False
            self._extras -= 1
        self._taken[proxy_id] = taken + 1
        self._placed[broker_id] = proxy_id
        return True

    def _slots(self, at_load: Mapping[int, Sequence[ProxyId]]) -> Iterator[ProxyId]:
        """The members with room, in the order of use. The caller must take each yielded member."""
        loads = sorted(at_load)
        # A different start for each dead member: if two members die together, their successors differ.
        start = 0 if self._without is None else crc32(self._without.encode())
        for load in loads:
            if load < self._level:
                for proxy_id in _rotate(at_load[load], start):
                    while proxy_id != self._without and self._load(proxy_id) < self._level:
                        yield proxy_id
        for load in loads:
            if load <= self._level:
                for proxy_id in _rotate(at_load[load], start):
                    if not self._extras:
                        return
                    if proxy_id != self._without and self._load(proxy_id) == self._level:
                        yield proxy_id


def _rotate(items: Sequence[ProxyId], start: int) -> Iterator[ProxyId]:
    size = len(items)
    for index in range(start, start + size):
        yield items[index % size]
