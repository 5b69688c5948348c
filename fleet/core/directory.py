"""From the committed state and this member's suspicions to the directory that its workers read. Pure.

The overlay is laid here: an identity whose owners all look dead is advertised at its first live successor,
the same one on every member, before Raft has committed anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from hashlib import blake2b

from fleet.core.model import (
    Broker,
    BrokerId,
    Directory,
    FleetState,
    Member,
    MemberStatus,
    Ownership,
    ProxyId,
)


def advertised_owners(
    broker_id: BrokerId,
    ownership: Ownership,
    live: Callable[[ProxyId], bool],
    members: Mapping[ProxyId, Member],
) -> tuple[ProxyId, ...]:
    """The proxies to advertise for one identity when only some members are live.

    Args:
        ownership: what is committed for the identity.
        live: whether a member can be advertised now.
        members: the committed members.
    Returns: the live owners; else the first live successor; else the live member that rendezvous hashing
        picks, one that may own before one that is drained; where nobody is live, the committed owners.
    """
    owners = tuple(proxy_id for proxy_id in ownership.owners if live(proxy_id))
    if owners:
        return owners
    for proxy_id in ownership.successors:
        member = members.get(proxy_id)
        if member is not None and member.eligible and member.serves(broker_id) and live(proxy_id):
            return (proxy_id,)
    fallback = _fallback_owner(broker_id, live, members)
    return ownership.owners if fallback is None else (fallback,)


def pick(owners: tuple[ProxyId, ...], client_key: bytes) -> ProxyId:
    """One of an identity's owners for one client: the same on every member, and evenly over the clients.

    Args:
        owners: at least one.
        client_key: what tells clients apart and stays the same for one of them, such as its host.
    """
    if len(owners) == 1:
        return owners[0]
    return max(owners, key=lambda proxy_id: (_score(proxy_id, client_key), proxy_id))


def build(
    state: FleetState,
    bypassed: AbstractSet[ProxyId],
    me: Member | None,
    revision: int,
    seen: Mapping[BrokerId, Broker] | None = None,
) -> Directory:
    """The directory to hand out now.

    Args:
        state: what is committed.
        suspects: the members to advertise bypassed_peers.
        me: this member as configured here; None where the directory is for nobody in particular.
        revision: one more than that of the directory before.
        seen: brokers that this member knows of, committed or not, at the addresses where it reaches them.
    """
    members = _members(state, me)
    my_id = None if me is None else me.proxy_id
    bypassed_peers = frozenset(bypassed) - {my_id}

    def live(proxy_id: ProxyId) -> bool:
        # I never advertise bypassed_peers myself: I am serving right now, whatever has been committed about me.
        if proxy_id == my_id:
            return True
        member = state.members.get(proxy_id)
        return (
            member is not None and member.status is not MemberStatus.DOWN and proxy_id not in bypassed_peers
        )

    # What the brokers told me myself goes first: I may reach them by another listener than the others do.
    brokers = {**state.brokers, **(seen or {})}
    advertised: dict[BrokerId, tuple[ProxyId, ...]] = {}
    for broker_id in sorted(state.ownership.keys() | brokers.keys()):
        ownership = state.ownership.get(broker_id)
        if ownership is not None:
            advertised[broker_id] = advertised_owners(broker_id, ownership, live, state.members)
        elif me is not None and me.serves(broker_id):
            advertised[broker_id] = (me.proxy_id,)
        elif (fallback := _fallback_owner(broker_id, live, members)) is not None:
            advertised[broker_id] = (fallback,)
    return Directory(
        generation=state.generation,
        revision=revision,
        advertised=advertised,
        committed={broker_id: ownership.owners for broker_id, ownership in state.ownership.items()},
        members=members,
        brokers=brokers,
        suspects=tuple(sorted(bypassed_peers)),
    )


def _members(state: FleetState, me: Member | None) -> dict[ProxyId, Member]:
    members = dict(state.members)
    if me is not None:
        committed = members.get(me.proxy_id)
        # My addresses are what I am configured with now; what the fleet decided about me is not mine to say.
        members[me.proxy_id] = (
            me if committed is None else replace(me, status=committed.status, drained=committed.drained)
        )
    return members


def _fallback_owner(
    broker_id: BrokerId, live: Callable[[ProxyId], bool], members: Mapping[ProxyId, Member]
) -> ProxyId | None:
    candidates = [member for member in members.values() if member.serves(broker_id) and live(member.proxy_id)]
    if not candidates:
        return None
    key = str(broker_id).encode()
    best = max(candidates, key=lambda m: (m.eligible, _score(m.proxy_id, key), m.proxy_id))
    return best.proxy_id


def _score(proxy_id: ProxyId, key: bytes) -> bytes:
    """A stable weight of one member for one key; the greatest one wins (rendezvous hashing)."""
    return blake2b(proxy_id.encode() + b"\0" + key, digest_size=8).digest()
