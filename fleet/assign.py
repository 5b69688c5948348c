"""Assigns identities: members, brokers and previous ownership in, ownership and successors out. Pure.

The *load* of a proxy is the number of identities that it owns. The rules, most important first:

1. Every identity has an owner that may own it: an eligible member with a port for the identity, which reaches
   the broker if any such member does. If no member may own the identity, the previous owners stay.
2. A pinned identity is owned by the member that it is pinned to, if this member may own it. So a pin to a
   member that cannot reach the broker waits until the member can.
3. Loads differ by at most one, as far as rules 1 and 2 permit. If identities have weights,
   ``fleet.core.weights`` decides rules 3 to 5 instead.
4. As few owners as possible lose an identity.
5. Owners are in the racks of their brokers.

An identity has one owner, unless there are more proxies than identities. Then a proxy that would own nothing
becomes an additional owner, and stays an owner until balance requires a change.

The first successor of an identity is the member that gets it when its only owner dies. The same placement
that decides all other moves computes the successors. So a takeover is balanced, although each member looks up
the successor by itself. ``take_over`` follows the committed successors, because every member has advertised
them since it suspected the death.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from heapq import heapify, heapreplace
from zlib import crc32

from fleet.core.model import Broker, BrokerId, Member, Ownership, ProxyId
from fleet.core.placement import Candidates, Levels, Placement
from fleet.core.weights import Weights, place_orphans, rebalance

MAX_SUCCESSORS = 3
"""Successors per identity. If all are dead, ``fleet.core.directory`` falls back to rendezvous hashing."""

_Owners = dict[BrokerId, tuple[ProxyId, ...]]


def take_over(
    members: Mapping[ProxyId, Member],
    brokers: Mapping[BrokerId, Broker],
    previous: Mapping[BrokerId, Ownership],
    pins: Mapping[BrokerId, ProxyId],
    unreachable: AbstractSet[tuple[ProxyId, BrokerId]] = frozenset(),
) -> dict[BrokerId, Ownership]:
    """Compute the ownership after a death, a drain or a lost broker connection, without any other move.

    Args:
        members: all committed members; only eligible members own identities.
        brokers: the identities to own.
        previous: the committed ownership.
        pins: identity → the member that should own it; applied to identities that lost their owners.
        unreachable: pairs of a proxy and a broker that the proxy cannot reach.
    Returns: for every identity the owners that may stay; otherwise its first successor that may own it;
        otherwise the least loaded member, with racks as the tie-breaker.
    """
    fleet = Candidates(members, brokers, pins, unreachable)
    owned, orphans = _keep_owners(fleet, previous, pinned=False)
    rest = []
    for broker_id in orphans:
        successor = _first_successor(fleet, broker_id, previous)
        if successor is None:
            rest.append(broker_id)
        else:
            owned[broker_id] = (successor,)
    placement = Placement(fleet, Levels(fleet, _loads(fleet, owned)))
    owned.update(_with_single_owners(placement.place(rest)))
    return _with_successors(fleet, owned, previous)


def assign(
    members: Mapping[ProxyId, Member],
    brokers: Mapping[BrokerId, Broker],
    previous: Mapping[BrokerId, Ownership],
    pins: Mapping[BrokerId, ProxyId],
    unreachable: AbstractSet[tuple[ProxyId, BrokerId]] = frozenset(),
    weights: Weights | None = None,
) -> dict[BrokerId, Ownership]:
    """Compute the balanced ownership that moves as little as possible. ``assign`` does not change its own
    result.

    Args and Returns: as for ``take_over``, but pins apply to every identity.
        weights: the weights of identities; None to balance by number.
    """
    fleet = Candidates(members, brokers, pins, unreachable)
    owned, orphans = _keep_owners(fleet, previous, pinned=True)
    if weights is not None:
        owned.update(place_orphans(fleet, owned, orphans, weights))
        owned = rebalance(fleet, owned, weights)
        _add_owners(fleet, owned)
        return _with_successors(fleet, owned, previous)
    preferred = {broker_id: _first_successor(fleet, broker_id, previous) for broker_id in orphans}
    placement = Placement(fleet, Levels(fleet, _loads(fleet, owned)))
    owned.update(_with_single_owners(placement.place(orphans, preferred)))
    _move_excess(fleet, owned)
    if len(fleet.eligible) > len(brokers):
        _add_owners(fleet, owned)
    _even_out(fleet, owned)
    _add_owners(fleet, owned)
    return _with_successors(fleet, owned, previous)


def _keep_owners(
    fleet: Candidates, previous: Mapping[BrokerId, Ownership], pinned: bool
) -> tuple[_Owners, list[BrokerId]]:
    """The previous owners that may stay, and the identities that have no owner left."""
    owned: _Owners = {}
    orphans: list[BrokerId] = []
    for broker_id in fleet.broker_ids:
        choices = fleet.choices(broker_id) if pinned else fleet.allowed(broker_id)
        before = previous[broker_id].owners if broker_id in previous else ()
        owners = before if choices.issuperset(before) else tuple(p for p in before if p in choices)
        if owners:
            owned[broker_id] = owners
        elif choices:
            orphans.append(broker_id)
        elif before:
            owned[broker_id] = before
    return owned, orphans


def _first_successor(
    fleet: Candidates, broker_id: BrokerId, previous: Mapping[BrokerId, Ownership]
) -> ProxyId | None:
    if broker_id not in previous:
        return None
    choices = fleet.choices(broker_id)
    return next((p for p in previous[broker_id].successors if p in choices), None)


def _with_single_owners(placed: Mapping[BrokerId, ProxyId]) -> _Owners:
    return {broker_id: (proxy_id,) for broker_id, proxy_id in placed.items()}


def _loads(fleet: Candidates, owned: _Owners) -> dict[ProxyId, int]:
    loads = dict.fromkeys(fleet.eligible, 0)
    for owners in owned.values():
        for proxy_id in owners:
            if proxy_id in loads:
                loads[proxy_id] += 1
    return loads


def _move_excess(fleet: Candidates, owned: _Owners) -> None:
    """Move identities that any member may own from the most to the least loaded, as few as possible."""
    loads = _loads(fleet, owned)
    movable: dict[ProxyId, list[BrokerId]] = {}
    for broker_id, owners in owned.items():
        if len(owners) == 1 and owners[0] in loads and fleet.choices(broker_id) is fleet.everyone:
            movable.setdefault(owners[0], []).append(broker_id)
    # If proxies outnumber identities, a proxy without identities becomes an additional owner: no move.
    least = 1 if len(fleet.eligible) > len(fleet.brokers) else 0
    donors = [(-max(loads[proxy_id], least), proxy_id) for proxy_id in movable]
    receivers = [(max(load, least), proxy_id) for proxy_id, load in loads.items()]
    heapify(donors)
    heapify(receivers)
    giving: dict[ProxyId, int] = {}
    racks = set()
    while donors and -donors[0][0] >= receivers[0][0] + 2:
        (load, donor), (low, receiver) = donors[0], receivers[0]
        giving[donor] = giving.get(donor, 0) + 1
        racks.add(fleet.racks[receiver])
        # A donor without more identities to give counts as not loaded.
        heapreplace(donors, (load + 1 if giving[donor] < len(movable[donor]) else 0, donor))
        heapreplace(receivers, (low + 1, receiver))
    pool: list[BrokerId] = []
    for donor, count in giving.items():
        best = sorted(
            movable[donor],
            key=lambda b: (fleet.matches(b, donor), fleet.brokers[b].rack not in racks, b),
        )
        pool += best[:count]
        for broker_id in best[:count]:
            del owned[broker_id]
    placement = Placement(fleet, Levels(fleet, _loads(fleet, owned)))
    owned.update(_with_single_owners(placement.place(sorted(pool))))


def _add_owners(fleet: Candidates, owned: _Owners) -> None:
    """Make every proxy that owns nothing an additional owner."""
    for proxy_id, load in _loads(fleet, owned).items():
        if load == 0:
            options = [
                b
                for b, owners in owned.items()
                if owners[0] in fleet.everyone and proxy_id in fleet.choices(b)
            ]
            if options:
                chosen = min(options, key=lambda b: (len(owned[b]), not fleet.matches(b, proxy_id), b))
                owned[chosen] = (*owned[chosen], proxy_id)


def _even_out(fleet: Candidates, owned: _Owners) -> None:
    """Balance the rest by chains of moves, over identities that only some members may own."""
    loads = _loads(fleet, owned)
    while loads and max(loads.values()) - (least := min(loads.values())) >= 2:
        holdings: dict[ProxyId, list[BrokerId]] = {}
        for broker_id, owners in owned.items():
            for proxy_id in owners:
                holdings.setdefault(proxy_id, []).append(broker_id)
        donors = sorted((p for p in loads if loads[p] >= least + 2), key=lambda p: (-loads[p], p))
        chains = [found for d in donors if (found := _chain(fleet, owned, holdings, loads, d))]
        if not chains:
            return
        # The shortest chain first; among equals, the chain from the most loaded member.
        chain = min(chains, key=len)
        loads[chain[0][1]] -= 1
        loads[chain[-1][2]] += 1
        for broker_id, giver, taker in chain:
            owned[broker_id] = tuple(taker if p == giver else p for p in owned[broker_id])


def _chain(
    fleet: Candidates,
    owned: _Owners,
    holdings: Mapping[ProxyId, Sequence[BrokerId]],
    loads: Mapping[ProxyId, int],
    donor: ProxyId,
) -> list[tuple[BrokerId, ProxyId, ProxyId]]:
    """The shortest chain of (identity, giver, taker) to a member with two fewer than the donor; or empty."""
    came: dict[ProxyId, tuple[BrokerId, ProxyId]] = {}
    queue = deque([donor])
    while queue:
        giver = queue.popleft()
        for broker_id in holdings.get(giver, ()):
            takers = fleet.choices(broker_id).difference(owned[broker_id], came, (donor,))
            for taker in sorted(takers, key=lambda p: (loads[p], not fleet.matches(broker_id, p), p)):
                came[taker] = (broker_id, giver)
                if loads[taker] > loads[donor] - 2:
                    queue.append(taker)
                    continue
                chain = []
                while taker != donor:
                    broker, giver = came[taker]
                    chain.append((broker, giver, taker))
                    taker = giver
                return chain[::-1]
    return []


def _with_successors(
    fleet: Candidates, owned: _Owners, previous: Mapping[BrokerId, Ownership]
) -> dict[BrokerId, Ownership]:
    first = _first_successors(fleet, owned, previous)
    ring = sorted((crc32(proxy_id.encode()), proxy_id) for proxy_id in fleet.eligible)
    places = [place for place, _ in ring]
    ring_twice = [proxy_id for _, proxy_id in ring] * 2
    result: dict[BrokerId, Ownership] = {}
    for broker_id in fleet.broker_ids:
        if broker_id not in owned:
            continue
        owners = owned[broker_id]
        before = previous.get(broker_id)
        allowed = fleet.allowed(broker_id)
        if not allowed:
            result[broker_id] = before if before is not None else Ownership(owners)
            continue
        successors = [first[broker_id]] if broker_id in first else []
        # The next members on a ring of hashes: few successors change when a member joins or leaves.
        start = bisect_left(places, (broker_id * 2654435761) & 0xFFFFFFFF)
        # If every member may own the identity, this many candidates suffice: the owners may be among them.
        enough = MAX_SUCCESSORS + len(owners) if allowed is fleet.everyone else len(ring)
        for proxy_id in ring_twice[start : start + min(enough, len(ring))]:
            if len(successors) == MAX_SUCCESSORS:
                break
            if proxy_id in allowed and proxy_id not in owners and proxy_id not in successors:
                successors.append(proxy_id)
        made = tuple(successors)
        if before is not None and before.owners == owners and before.successors == made:
            result[broker_id] = before
        else:
            result[broker_id] = Ownership(owners, made)
    return result


def _first_successors(
    fleet: Candidates, owned: _Owners, previous: Mapping[BrokerId, Ownership]
) -> dict[BrokerId, ProxyId]:
    """For each identity with one owner: the member that gets it when the owner alone dies."""
    alone: dict[ProxyId, list[BrokerId]] = {}
    for broker_id, owners in sorted(owned.items()):
        if len(owners) == 1 and owners[0] in fleet.everyone:
            alone.setdefault(owners[0], []).append(broker_id)
    levels = Levels(fleet, _loads(fleet, owned))
    first: dict[BrokerId, ProxyId] = {}
    for owner, broker_ids in alone.items():
        preferred: dict[BrokerId, ProxyId] = {}
        for broker_id in broker_ids:
            before = previous.get(broker_id)
            for proxy_id in before.successors if before is not None else ():
                if proxy_id != owner and proxy_id in fleet.everyone:
                    preferred[broker_id] = proxy_id
                    break
        first.update(Placement(fleet, levels, without=owner).place(broker_ids, preferred))
    return first
