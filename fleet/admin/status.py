"""What several members' answers come to: the status of the fleet, and what would move without a member."""

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
    """The answer to believe: of a member with a quorum, if any has one, and of these the newest.

    Raises:
        AdminError: nobody answered.
    """
    given = [answer for answer in answers.values() if isinstance(answer, OwnershipDocument)]
    if not given:
        reasons = "; ".join(str(answer) for answer in answers.values()) or "there is nobody to ask"
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
        raft_trouble=answer.raft_trouble,
    )


def fleet_status(answers: Answers, urls: Mapping[ProxyId, str]) -> StatusDocument:
    """One picture of the fleet.

    Args:
        answers: of every member that was asked.
        urls: where each was asked.

    Raises:
        AdminError: nobody answered.
    """
    best = best_answer(answers)
    given = [answer for answer in answers.values() if isinstance(answer, OwnershipDocument)]
    return StatusDocument(
        fleet=best.fleet,
        told_by=best.proxy_id,
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
    """What members say is wrong with brokers and between members, with who says so, where not all do."""
    given = [each for each in answers.values() if isinstance(each, OwnershipDocument)]
    said: dict[str, list[ProxyId]] = {}
    for answer in given:
        for trouble in (*(each.trouble for each in answer.broker_troubles), *answer.member_troubles):
            said.setdefault(trouble, []).append(answer.proxy_id)
    return tuple(
        trouble if len(by) == len(given) else f"{trouble} (says {', '.join(by)})"
        for trouble, by in said.items()
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
    """Which member says that it cannot reach which broker."""
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
    """What would move if some members were drained, by the same computation that the leader does.

    Args:
        weighing: what identities weigh; None where that is not asked for: then they are balanced by number,
            or, where the fleet goes by weights, which are not known here, not at all.

    Raises:
        AdminError: nobody answered.
        UnknownMember: one of them is no member.
    """
    told = best_answer(answers)
    members = {each.proxy_id: _member(each) for each in told.members}
    for proxy_id in without:
        if proxy_id not in members:
            raise UnknownMember(f"no member {proxy_id!r}; members are {', '.join(members)}")
    known = {proxy_id: member for proxy_id, member in members.items() if member is not None}
    left = {
        proxy_id: replace(member, drained=True) if proxy_id in without else member
        for proxy_id, member in known.items()
    }
    brokers = {
        each.broker_id: Broker(each.broker_id, each.host, each.port, each.rack) for each in told.brokers
    }
    before = {
        each.broker_id: Ownership(each.committed, each.successors)
        for each in told.identities
        if each.committed
    }
    pins = {each.broker_id: each.pinned_to for each in told.identities if each.pinned_to is not None}
    by = UNKNOWN_WEIGHTS if weighing is None and told.balanced_by == "weights" else weighing
    after = assign(left, brokers, before, pins, _unreachable(answers), by)
    nobody = Ownership(())
    changed = [
        MoveDocument(broker_id, before.get(broker_id, nobody).owners, owned.owners)
        for broker_id, owned in sorted(after.items())
        if set(owned.owners) != set(before.get(broker_id, nobody).owners)
    ]
    moved = {move.broker_id for move in changed}
    loads_before, loads_after = _loads(before, known), _loads(after, known)
    weight_before, weight_after = _weights(before, known, weighing), _weights(after, known, weighing)
    return PlanDocument(
        without=without,
        told_by=told.proxy_id,
        generation=told.generation,
        served=any(member.status is MemberStatus.UP and not member.drained for member in left.values()),
        moves=tuple(changed),
        stays=tuple(broker_id for broker_id in sorted(after) if broker_id not in moved),
        loads=tuple(
            LoadDocument(each, loads_before[each], loads_after[each], weight_before[each], weight_after[each])
            for each in known
        ),
        weighed=weighing is not None,
    )
