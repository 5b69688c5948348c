"""The reports of members to each other, on which the leader's proposals are based."""

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
    """The report that a member sends to every other member at each heartbeat.

    Args:
        member: the sender as it is configured; ``status`` and ``drained`` have no meaning here.
        ready: the sender serves clients.
        stopping: the sender is about to exit, and asks the others to take over its identities first.
        suspects: the members that the sender's detector suspects.
        failed_probes: the suspects whose advertised listeners do not answer the sender. Release 0.2.0 does
            not send the field.
        brokers: the brokers of the cluster as the sender knows them; empty before its first answer.
        unreachable: the brokers that the sender cannot connect to.
        generation: the generation of the sender's current directory.
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
