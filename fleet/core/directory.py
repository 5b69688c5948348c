"""Builds the directory for the workers from the committed state and this member's suspicions. Pure.

This module applies the overlay: if all owners of an identity look dead, every member immediately advertises
the same first live successor, before Raft commits the change.
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
    """The proxies to advertise for one identity while some members may be dead.

    Args:
        ownership: the committed ownership of the identity.
        live: whether a member can be advertised now.
        members: the committed members.
    Returns: the live owners; otherwise the first live successor; otherwise the live member that rendezvous
        hashing picks, with eligible members before drained ones; without live members, the committed owners.
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
    """Pick the owner of an identity for one client: the same on every member, and evenly over the clients.

    Args:
        owners: at least one owner.
        client_key: a stable key of the client, such as its host.
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
    """Build the directory for the workers.

    Args:
        state: the committed state.
        bypassed: the members to bypass.
        me: this member as configured; None if the directory is for no particular member.
        revision: the revision of the new directory.
        seen: the brokers that this member knows, committed or not, at the addresses where it reaches them.
    """
    members = _members(state, me)
    my_id = None if me is None else me.proxy_id
    bypassed_peers = frozenset(bypassed) - {my_id}

    def live(proxy_id: ProxyId) -> bool:
        # A member never bypasses itself: it is serving now, whatever is committed about it.
        if proxy_id == my_id:
            return True
        member = state.members.get(proxy_id)
        return (
            member is not None and member.status is not MemberStatus.DOWN and proxy_id not in bypassed_peers
        )

    # Addresses that this member has seen take precedence: it may reach the brokers by another listener.
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
        # This member's configuration decides its addresses; the committed state decides its status.
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
    """A stable score of one member for one key; the highest score wins (rendezvous hashing)."""
    return blake2b(proxy_id.encode() + b"\0" + key, digest_size=8).digest()
