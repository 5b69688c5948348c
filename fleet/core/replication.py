"""The status of Raft at one member, and the commands that it has applied."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from fleet.core.model import ProxyId
from fleet.core.state import Command, Outcome, Unknown

Role: TypeAlias = Literal["leader", "follower", "candidate", "observer"]


@dataclass(frozen=True, slots=True)
class RaftStatus:
    """The status of Raft at one member, at one moment.

    Args:
        leader: the leader that this member follows and has heard recently; itself if it leads.
        has_quorum: whether there are links to a majority of the voters, and a leader was heard recently.
        quorum_lost_mono_s: when the quorum was lost, on the monotonic clock; None while there is a quorum.
        journal_error: why this member does not take part (disk full, write error); None without an error.
        dropped_messages: number of messages refused since the start.
        rejoining: whether this member was reset or lost its files, and does not vote until it has caught up.
        distrusted: voters whose journals lack promises that this member remembers; their votes do not count.
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
    """A command that was applied from the log, and its outcome."""

    command: Command | Unknown
    outcome: Outcome
