"""Decides from outside observations whether a fault has its effect. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fleet.admin.documents import MemberDocument, OwnershipDocument
from fleet.core.errors import FaultNotObserved
from fleet.core.model import BrokerId, Liveness, MemberStatus, ProxyId
from fleet.drills.game_day.scenarios import Effect

SILENT_AFTER_S: Final = 0.5
"""A member without an answer for this time counts as silent."""


@dataclass(frozen=True, slots=True)
class Glimpse:
    """Observations of a fleet while one member is being broken.

    Args:
        incarnation: the victim's incarnation before the fault.
        silent_s: seconds since the victim's last answer.
        answers: by member, the newest answer since the injection began.
        advertised: by member, the owner of each identity in its newest Metadata.
    """

    victim: ProxyId
    incarnation: int
    silent_s: float
    answers: Mapping[ProxyId, OwnershipDocument]
    advertised: Mapping[ProxyId, Mapping[BrokerId, ProxyId | None]]

    @property
    def survivor_reports(self) -> dict[ProxyId, MemberDocument]:
        """By other member, its report about the victim."""
        return {
            proxy_id: next(each for each in answer.members if each.proxy_id == self.victim)
            for proxy_id, answer in self.answers.items()
            if proxy_id != self.victim
        }

    @property
    def has_restarted(self) -> bool:
        """Whether the victim answered with another incarnation."""
        answer = self.answers.get(self.victim)
        return answer is not None and answer.incarnation != self.incarnation


def proof_of(effect: Effect, glimpse: Glimpse) -> str:
    """The proof that an effect is visible, as text; empty if the effect is not visible yet.

    Raises: FaultNotObserved: another effect is visible.
    """
    if effect == "drained":
        return _drain_proof(glimpse)
    survivors = glimpse.survivor_reports
    if any(each.status is MemberStatus.DRAINING for each in survivors.values()):
        raise FaultNotObserved(
            f"{glimpse.victim} drains and hands its identities over, instead of dying; "
            "let --inject-command send SIGKILL"
        )
    if glimpse.has_restarted:
        if effect == "silent":
            raise FaultNotObserved(f"{glimpse.victim} has restarted, instead of staying silent")
        return f"{glimpse.victim} has already restarted"
    silent = glimpse.silent_s >= SILENT_AFTER_S
    if silent and survivors and all(each.liveness is not Liveness.UP for each in survivors.values()):
        return f"{glimpse.victim} does not answer, and is suspect or down for {', '.join(sorted(survivors))}"
    return ""


def explain_missing_proof(effect: Effect, glimpse: Glimpse) -> str:
    """Explain to the operator why there is no proof yet."""
    victim, survivors = glimpse.victim, glimpse.survivor_reports
    if not survivors:
        return "no other member answers"
    if effect == "drained":
        owned = sorted(_owned_identities(glimpse))
        return f"{victim} still owns {owned}" if owned else f"not all members report {victim} as drained"
    if glimpse.silent_s < SILENT_AFTER_S:
        return f"{victim} still answers clients, and has not restarted"
    hearing = sorted(each for each, report in survivors.items() if report.liveness is Liveness.UP)
    return f"{victim} does not answer here, but is up for {', '.join(hearing)}"


def _drain_proof(glimpse: Glimpse) -> str:
    """The proof of a drain: all members report the victim as drained, without identities; or empty."""
    reports = [each for answer in glimpse.answers.values() for each in answer.members]
    members = {each.proxy_id for each in reports}
    if not members or glimpse.answers.keys() < members or _owned_identities(glimpse):
        return ""
    if not all(each.drained for each in reports if each.proxy_id == glimpse.victim):
        return ""
    return f"{glimpse.victim} is drained and owns nothing: reported by all {len(members)} members"


def _owned_identities(glimpse: Glimpse) -> set[BrokerId]:
    """The identities of the victim, in any report or any Metadata."""
    reported = {
        identity.broker_id
        for answer in glimpse.answers.values()
        for identity in answer.identities
        if glimpse.victim in identity.committed + identity.advertised
    }
    advertised = {
        broker_id
        for owners in glimpse.advertised.values()
        for broker_id, owner in owners.items()
        if owner == glimpse.victim
    }
    return reported | advertised
