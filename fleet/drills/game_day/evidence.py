"""What shows from outside that a member is as broken as it was to be. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fleet.admin.documents import MemberDocument, OwnershipDocument
from fleet.core.errors import FaultNotObserved
from fleet.core.model import BrokerId, Liveness, MemberStatus, ProxyId
from fleet.drills.game_day.scenarios import Effect

SILENT_S: Final = 0.5
"""Without an answer for so long, a member is held for silent."""


@dataclass(frozen=True, slots=True)
class Glimpse:
    """What is seen of a fleet while one member is being broken.

    Args:
        life: its incarnation before.
        silent_s: for how long it has not answered.
        answers: of every member, as far as they came after the breaking had begun.
        advertised: who stands for each identity, as far as each member's Metadata is seen.
    """

    victim: ProxyId
    life: int
    silent_s: float
    answers: Mapping[ProxyId, OwnershipDocument]
    advertised: Mapping[ProxyId, Mapping[BrokerId, ProxyId | None]]

    @property
    def of_survivors(self) -> dict[ProxyId, MemberDocument]:
        """What each other member says of it."""
        return {
            proxy_id: next(each for each in answer.members if each.proxy_id == self.victim)
            for proxy_id, answer in self.answers.items()
            if proxy_id != self.victim
        }

    @property
    def in_another_life(self) -> bool:
        answer = self.answers.get(self.victim)
        return answer is not None and answer.incarnation != self.life


def proof_of(effect: Effect, glimpse: Glimpse) -> str:
    """What shows that an effect is there, in words; empty while nothing does.

    Raises: NotProved: what is seen is something else.
    """
    if effect == "drained":
        return _drained(glimpse)
    survivors = glimpse.of_survivors
    if any(each.status is MemberStatus.DRAINING for each in survivors.values()):
        raise FaultNotObserved(
            f"{glimpse.victim} has said goodbye: it was told to stop, and hands its identities over; "
            "--inject-command has to send SIGKILL"
        )
    if glimpse.in_another_life:
        if effect == "silent":
            raise FaultNotObserved(f"{glimpse.victim} was started again: it was to say nothing, not to die")
        return f"{glimpse.victim} is in another life already"
    silent = glimpse.silent_s >= SILENT_S
    if silent and survivors and all(each.liveness is not Liveness.UP for each in survivors.values()):
        return f"{glimpse.victim} does not answer, and is given up by {', '.join(sorted(survivors))}"
    return ""


def what_is_missing(effect: Effect, glimpse: Glimpse) -> str:
    """Why there is no proof yet, for the operator of a command that did nothing."""
    victim, survivors = glimpse.victim, glimpse.of_survivors
    if not survivors:
        return "no other member answers"
    if effect == "drained":
        owned = sorted(_owned(glimpse))
        return f"{victim} still owns {owned}" if owned else f"{victim} is not drained by what all members say"
    if glimpse.silent_s < SILENT_S:
        return f"{victim} answers clients as before, in the same life"
    believers = sorted(each for each, said in survivors.items() if said.liveness is Liveness.UP)
    return f"{victim} does not answer here, but {', '.join(believers)} still hear it"


def _drained(glimpse: Glimpse) -> str:
    told = [each for answer in glimpse.answers.values() for each in answer.members]
    everybody = {each.proxy_id for each in told}
    if not everybody or glimpse.answers.keys() < everybody or _owned(glimpse):
        return ""
    if not all(each.drained for each in told if each.proxy_id == glimpse.victim):
        return ""
    return f"{glimpse.victim} is drained, and owns nothing any more, as all {len(everybody)} members say"


def _owned(glimpse: Glimpse) -> set[BrokerId]:
    """The identities that anything seen still gives to the victim."""
    told = {
        identity.broker_id
        for answer in glimpse.answers.values()
        for identity in answer.identities
        if glimpse.victim in identity.committed + identity.advertised
    }
    seen = {
        broker_id
        for owners in glimpse.advertised.values()
        for broker_id, owner in owners.items()
        if owner == glimpse.victim
    }
    return told | seen
