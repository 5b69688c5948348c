"""Values of the failure detector: probe outcomes, suspicions and transitions of peers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

from fleet.core.model import Liveness, ProxyId

Suspicion: TypeAlias = Literal["reset", "silent", "control_gone", "unreachable", "not_ready", "never_heard"]
"""The reason to suspect a peer, in one word that is usable as a metric label."""


class ProbeOutcome(StrEnum):
    """The outcome of probing the advertised listeners of a peer."""

    ANSWERED = "answered"
    REFUSED = "refused"
    """Refused, reset or closed: no worker serves the address."""
    TIMED_OUT = "timed_out"


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of a peer's liveness, with the reason."""

    peer: ProxyId
    before: Liveness
    after: Liveness
    reason: str
    at_s: float
