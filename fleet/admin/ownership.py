"""Builds the documents of ``/ownership`` and ``/readyz`` from a view."""

from __future__ import annotations

from fleet import __version__
from fleet.admin.documents import (
    BrokerDocument,
    BrokerTroubleDocument,
    CheckDocument,
    IdentityDocument,
    ListenerEndpoints,
    MachineTroubleDocument,
    MemberDocument,
    OwnershipDocument,
    QuorumDocument,
    ReadyDocument,
    TakeoverDocument,
)
from fleet.admin.snapshot import FleetView, MemberView
from fleet.core.model import BrokerId, Directory, IdentitySpace
from fleet.core.takeover import Takeover


def ownership_document(view: FleetView) -> OwnershipDocument:
    """The body of ``/ownership``."""
    return OwnershipDocument(
        fleet=view.fleet,
        proxy_id=view.me,
        version=__version__,
        now_ms=view.now.wall_ms,
        now_mono_s=view.now.mono_s,
        incarnation=view.incarnation,
        generation=view.directory.generation,
        revision=view.directory.revision,
        role=view.raft.role,
        leader=view.raft.leader,
        term=view.raft.term,
        commit_index=view.raft.commit_index,
        quorum=QuorumDocument(
            present=view.raft.has_quorum,
            voters=tuple(member.proxy_id for member in view.members if member.voter),
            lost_s=view.staleness_s,
        ),
        staleness_s=view.staleness_s,
        suspects=view.directory.suspects,
        members=tuple(_member(member) for member in view.members),
        brokers=_brokers(view),
        identities=tuple(_identity(view, broker_id) for broker_id in broker_ids(view.directory)),
        takeovers=tuple(_takeover(takeover) for takeover in view.takeovers.recent),
        raft_error=view.raft.error,
        balanced_by=view.balanced_by,
        distrusted_voters=view.raft.distrusted,
        member_troubles=view.member_troubles,
        machine_troubles=(
            ()
            if view.port_trouble is None
            else (MachineTroubleDocument(view.port_trouble.detail, view.port_trouble.fix),)
        ),
        broker_troubles=tuple(
            BrokerTroubleDocument(broker_id, trouble)
            for broker_id, trouble in sorted(view.broker_troubles.items())
        ),
    )


def ready_document(view: FleetView) -> ReadyDocument:
    """The body of ``/readyz``."""
    checks = tuple(CheckDocument(check.name, check.ok, check.detail) for check in view.checks)
    return ReadyDocument(view.ready, checks)


def broker_ids(directory: Directory) -> list[BrokerId]:
    """Every identity that is committed or advertised, or whose broker is known, in order."""
    return sorted({*directory.committed, *directory.advertised, *directory.brokers})


def _member(member: MemberView) -> MemberDocument:
    committed = member.committed
    return MemberDocument(
        proxy_id=member.proxy_id,
        condition=member.condition,
        status=committed.status if committed else None,
        liveness=member.liveness,
        drained=committed.drained if committed else False,
        ready=member.ready,
        generation=member.generation,
        voter=member.voter,
        witness=member.witness,
        rack=member.rack,
        admin=str(member.admin),
        connected=member.connected,
        silent_s=member.silent_s,
        incarnation=committed.incarnation if committed else 0,
        listeners=committed.listeners if committed else (),
        identities=committed.identities if committed else IdentitySpace(),
        has_voter_digest=member.has_voter_digest,
    )


def _brokers(view: FleetView) -> tuple[BrokerDocument, ...]:
    known = view.directory.brokers
    return tuple(
        BrokerDocument(broker_id, broker.host, broker.port, broker.rack, view.upstream_up.get(broker_id))
        for broker_id, broker in sorted(known.items())
    )


def _identity(view: FleetView, broker_id: BrokerId) -> IdentityDocument:
    directory = view.directory
    advertised = directory.advertised.get(broker_id, ())
    ownership = view.state.ownership.get(broker_id)
    owners = [directory.members[owner] for owner in advertised if owner in directory.members]
    listeners = dict.fromkeys(listener.name for owner in owners for listener in owner.listeners)
    endpoints = []
    for listener in listeners:
        found = [owner.endpoint(listener, broker_id) for owner in owners]
        endpoints.append(ListenerEndpoints(listener, tuple(str(each) for each in found if each)))
    return IdentityDocument(
        broker_id=broker_id,
        committed=directory.committed.get(broker_id, ()),
        advertised=advertised,
        successors=ownership.successors if ownership else (),
        pinned_to=view.state.pins.get(broker_id),
        endpoints=tuple(endpoints),
    )


def _takeover(takeover: Takeover) -> TakeoverDocument:
    advertised, committed = takeover.advertised, takeover.committed
    return TakeoverDocument(
        proxy_id=takeover.proxy_id,
        reason=takeover.reason,
        broker_ids=takeover.broker_ids,
        detected_ms=takeover.detected.wall_ms,
        detected_mono_s=takeover.detected.mono_s,
        advertised_ms=advertised.wall_ms if advertised else None,
        advertised_mono_s=advertised.mono_s if advertised else None,
        committed_ms=committed.wall_ms if committed else None,
        committed_mono_s=committed.mono_s if committed else None,
    )
