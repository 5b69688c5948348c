"""What a member holds of its peers' liveness: the values that the failure detector gives to others."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

from fleet.core.model import Liveness, ProxyId

Suspicion: TypeAlias = Literal["reset", "silent", "control_gone", "unreachable", "not_ready", "never_heard"]
"""Why a peer is to be suspected, in a word that does as a label."""


class ProbeOutcome(StrEnum):
    """What came of asking a peer's advertised listeners for a sign of life."""

    ANSWERED = "answered"
    REFUSED = "refused"
    """Refused, reset or closed: nobody serves there."""
    TIMED_OUT = "timed_out"


@dataclass(frozen=True, slots=True)
class Transition:
    """One change of what is held of a peer, and why."""

    peer: ProxyId
    before: Liveness
    after: Liveness
    reason: str
    at_s: float
