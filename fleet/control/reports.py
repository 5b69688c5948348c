"""What each member reports of itself to the others, and the Raft leader decides by."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.core.model import (
    Broker,
    BrokerId,
    Member,
    ProxyId,
)


@dataclass(frozen=True, slots=True)
class MemberReport:
    """What a member tells every other one at each heartbeat.

    Args:
        member: itself, as it is configured; its status and ``drained`` mean nothing here.
        ready: it serves clients.
        stopping: it is about to exit, and wants its identities to be taken over first.
        suspects: whom its detector suspects.
        failed_probes: those of them whose advertised listeners it has asked in vain. A report of 0.2.0 has
            none.
        brokers: the brokers of the cluster as it knows them; empty where it has not asked yet.
        unreachable: the brokers that it cannot connect to.
        generation: of the directory that it has in use.
    """

    proxy_id: ProxyId
    incarnation: int
    member: Member
    ready: bool
    stopping: bool = False
    suspects: tuple[ProxyId, ...] = ()
    failed_probes: tuple[ProxyId, ...] = ()
    brokers: tuple[Broker, ...] = ()
    unreachable: tuple[BrokerId, ...] = ()
    generation: int = 0
