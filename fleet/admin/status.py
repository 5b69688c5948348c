"""Combines the answers of several members: the status of the fleet, and the moves that a drain causes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from fleet.admin.documents import (
    AnswerDocument,
    LoadDocument,
    MemberDocument,
    MoveDocument,
    OwnershipDocument,
    PlanDocument,
    StatusDocument,
)
from fleet.assign import assign
from fleet.core.errors import AdminError, FleetError, UnknownMember
from fleet.core.model import Broker, BrokerId, Member, MemberStatus, Ownership, ProxyId
from fleet.core.weights import UNKNOWN_WEIGHTS, Weights, loads_of

Answers = Mapping[ProxyId, OwnershipDocument | FleetError]


def best_answer(answers: Answers) -> OwnershipDocument:
    """The most reliable answer: members with a quorum come first, then the newest generation, then the
    leader.

    Raises:
        AdminError: no member answered.
    """
    given = [answer for answer in answers.values() if isinstance(answer, OwnershipDocument)]
    if not given:
        reasons = "; ".join(str(answer) for answer in answers.values()) or "there are no members"
        raise AdminError(f"no member answered: {reasons}")
    return max(given, key=lambda each: (each.quorum.present, each.generation, each.role == "leader"))


def _answer(proxy_id: ProxyId, admin: str, answer: OwnershipDocument | FleetError) -> AnswerDocument:
    if isinstance(answer, FleetError):
        return AnswerDocument(proxy_id, admin, str(answer), None, None, None, None, None, None, None)
    return AnswerDocument(
        proxy_id=answer.proxy_id,
        admin=admin,
        error=None,
        generation=answer.generation,
        role=answer.role,
        leader=answer.leader,
        term=answer.term,
        has_quorum=answer.quorum.present,
        staleness_s=answer.staleness_s,
        raft_error=answer.raft_error,
    )


def fleet_status(answers: Answers, urls: Mapping[ProxyId, str]) -> StatusDocument:
    """The status of the fleet.

    Args:
        answers: the answer or the error of every member.
        urls: the admin URL of every member.

    Raises:
        AdminError: no member answered.
    """
    best = best_answer(answers)
    given = [answer for answer in answers.values() if isinstance(answer, OwnershipDocument)]
    return StatusDocument(
        fleet=best.fleet,
        reported_by=best.proxy_id,
        generation=best.generation,
        agree=len({answer.generation for answer in given}) == 1,
        leader=best.leader,
        term=best.term,
        quorum=best.quorum,
        staleness_s=best.staleness_s,
        answers=tuple(_answer(proxy_id, urls[proxy_id], answer) for proxy_id, answer in answers.items()),
        members=best.members,
        brokers=best.brokers,
        identities=best.identities,
        troubles=_troubles(answers),
    )


def _troubles(answers: Answers) -> tuple[str, ...]:
    """Faults of brokers and between members; with the members that report them, unless all do."""
    given = [each for each in answers.values() if isinstance(each, OwnershipDocument)]
    reporters: dict[str, list[ProxyId]] = {}
    for answer in given:
        for trouble in (*(each.trouble for each in answer.broker_troubles), *answer.member_troubles):
            reporters.setdefault(trouble, []).append(answer.proxy_id)
    return tuple(
        trouble if len(by) == len(given) else f"{trouble} (reported by {', '.join(by)})"
        for trouble, by in reporters.items()
    )


def _member(document: MemberDocument) -> Member | None:
    if document.status is None:
        return None
    return Member(
        proxy_id=document.proxy_id,
        rack=document.rack,
        listeners=document.listeners,
        identities=document.identities,
        status=document.status,
        drained=document.drained,
        incarnation=document.incarnation,
    )


def _unreachable(answers: Answers) -> frozenset[tuple[ProxyId, BrokerId]]:
    """Pairs of a member and a broker that the member reports as unreachable."""
    return frozenset(
        (answer.proxy_id, broker.broker_id)
        for answer in answers.values()
        if isinstance(answer, OwnershipDocument)
        for broker in answer.brokers
        if broker.up is False
    )


def _loads(ownership: Mapping[BrokerId, Ownership], members: Collection[ProxyId]) -> dict[ProxyId, int]:
    loads = dict.fromkeys(members, 0)
    for owned in ownership.values():
        for owner in owned.owners:
            loads[owner] = loads.get(owner, 0) + 1
    return loads


def _weights(
    ownership: Mapping[BrokerId, Ownership], members: Collection[ProxyId], weighing: Weights | None
) -> dict[ProxyId, float | None]:
    if weighing is None:
        return dict.fromkeys(members)
    weights = {broker_id: weighing.weights.get(broker_id, 0.0) for broker_id in ownership}
    owned = {broker_id: each.owners for broker_id, each in ownership.items()}
    return dict(loads_of(owned, weights, list(members)))


def plan(answers: Answers, without: tuple[ProxyId, ...], weighing: Weights | None = None) -> PlanDocument:
    """The moves that draining some members would cause, by the same computation as the leader's.

    Args:
        without: the members to drain.
        weighing: the weights of identities. Without them the plan balances by number, or not at all if the
            fleet balances by weights.

    Raises:
        AdminError: no member answered.
        UnknownMember: an id in ``without`` is not the id of a member.
    """
    source = best_answer(answers)
    members = {each.proxy_id: _member(each) for each in source.members}
    for proxy_id in without:
        if proxy_id not in members:
            raise UnknownMember(f"no member {proxy_id!r}; use one of {', '.join(members)}")
    known = {proxy_id: member for proxy_id, member in members.items() if member is not None}
    left = {
        proxy_id: replace(member, drained=True) if proxy_id in without else member
        for proxy_id, member in known.items()
    }
    brokers = {
        each.broker_id: Broker(each.broker_id, each.host, each.port, each.rack) for each in source.brokers
    }
    before = {
        each.broker_id: Ownership(each.committed, each.successors)
        for each in source.identities
        if each.committed
    }
    pins = {each.broker_id: each.pinned_to for each in source.identities if each.pinned_to is not None}
    weights = UNKNOWN_WEIGHTS if weighing is None and source.balanced_by == "weights" else weighing
    after = assign(left, brokers, before, pins, _unreachable(answers), weights)
    no_owner = Ownership(())
    changed = [
        MoveDocument(broker_id, before.get(broker_id, no_owner).owners, owned.owners)
        for broker_id, owned in sorted(after.items())
        if set(owned.owners) != set(before.get(broker_id, no_owner).owners)
    ]
    moved = {move.broker_id for move in changed}
    loads_before, loads_after = _loads(before, known), _loads(after, known)
    weight_before, weight_after = _weights(before, known, weighing), _weights(after, known, weighing)
    return PlanDocument(
        without=without,
        reported_by=source.proxy_id,
        generation=source.generation,
        feasible=any(member.status is MemberStatus.UP and not member.drained for member in left.values()),
        moves=tuple(changed),
        stays=tuple(broker_id for broker_id in sorted(after) if broker_id not in moved),
        loads=tuple(
            LoadDocument(each, loads_before[each], loads_after[each], weight_before[each], weight_after[each])
            for each in known
        ),
        weighed=weighing is not None,
    )
