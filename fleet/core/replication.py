"""What the replicated state shows of itself: a member's role, its Raft log, and what was applied."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from fleet.core.model import ProxyId
from fleet.core.state import Command, Outcome, Unknown

Role: TypeAlias = Literal["leader", "follower", "candidate", "observer"]


@dataclass(frozen=True, slots=True)
class RaftStatus:
    """What Raft knows of itself at one moment.

    Args:
        leader: whom this member follows and has heard of lately; itself where it leads.
        has_quorum: links to a majority of the voters, and a leader heard of lately.
        quorum_lost_mono_s: since when it has not, on the monotonic clock; None while it has.
        journal_error: why this member takes no part (disk full, write error) until it is gone.
        dropped_messages: number of messages refused since the start.
        rejoining: whether it was reset, or has lost its files, and does not vote until it is caught up.
        distrusted: voters whose journals lack promises that this one remembers; their votes do not count.
    """

    role: Role
    leader: ProxyId | None
    term: int
    commit_index: int
    has_quorum: bool
    quorum_lost_mono_s: float | None
    journal_error: str | None = None
    dropped_messages: int = field(default=0, compare=False)
    rejoining: bool = False
    distrusted: tuple[ProxyId, ...] = ()


@dataclass(frozen=True, slots=True)
class Applied:
    """A command that came out of the log, and what it came to."""

    command: Command | Unknown
    outcome: Outcome
