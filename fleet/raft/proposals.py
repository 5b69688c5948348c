"""Commands on their way into the log: submitted again until they are applied or time out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Final

from fleet.core.errors import CommandTimeout, NoQuorum
from fleet.core.model import ProxyId
from fleet.core.state import Outcome

RESEND_S: Final = 0.25
"""A command that was sent to another member counts as lost after this time and is sent again. Its id makes
repetition safe."""


@dataclass(slots=True)
class Proposal:
    """One command whose caller waits for the outcome."""

    command_id: str
    encoded: bytes
    deadline_s: float
    future: Future[Outcome] = field(default_factory=Future)
    submitted_to: tuple[ProxyId, int] | None = None
    """The leader that last got the command, and its term."""
    submitted_s: float = 0.0


class Proposals:
    """The commands that this member waits for, by id. Used only on the Raft thread."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Proposal]] = {}
        self._done: list[tuple[Proposal, Outcome]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, proposal: Proposal) -> None:
        self._waiting.setdefault(proposal.command_id, []).append(proposal)

    def mark_applied(self, command_id: str, outcome: Outcome) -> None:
        """Record that a command was applied. Its first outcome counts."""
        self._done += [(proposal, outcome) for proposal in self._waiting.pop(command_id, ())]

    def report(self) -> None:
        """Report the outcomes of applied commands. Call it once the resulting state is visible."""
        done, self._done = self._done, []
        for proposal, outcome in done:
            with contextlib.suppress(InvalidStateError):
                proposal.future.set_result(outcome)

    def submit(
        self, leader: ProxyId | None, term: int, me: ProxyId, now_s: float, hand_over: Callable[[bytes], None]
    ) -> None:
        """Send new commands, commands that a former leader got, and commands that seem to be lost.

        Commands that this member got as leader are in its log, and cannot get lost while it leads.
        """
        if leader is None:
            return
        for proposals in self._waiting.values():
            proposal = proposals[0]
            is_submitted = proposal.submitted_to == (leader, term)
            if is_submitted and (leader == me or now_s - proposal.submitted_s < RESEND_S):
                continue
            proposal.submitted_to, proposal.submitted_s = (leader, term), now_s
            hand_over(proposal.encoded)

    def expire(self, now_s: float, why_not: str) -> None:
        """Fail commands that have timed out, and forget commands whose callers no longer wait."""
        if not self._waiting:
            return
        for command_id, proposals in list(self._waiting.items()):
            late = [proposal for proposal in proposals if proposal.deadline_s <= now_s]
            remaining = [
                proposal for proposal in proposals if proposal not in late and not proposal.future.cancelled()
            ]
            if remaining:
                self._waiting[command_id] = remaining
            else:
                del self._waiting[command_id]
            for proposal in late:
                fail(proposal, why_not)

    def fail_all(self, why_not: str) -> None:
        waiting, self._waiting = self._waiting, {}
        for proposals in waiting.values():
            for proposal in proposals:
                fail(proposal, why_not)


def fail(proposal: Proposal, why_not: str) -> None:
    """Fail a proposal: NoQuorum if no leader ever got the command, so that it cannot be committed later."""
    error: NoQuorum | CommandTimeout
    if proposal.submitted_to is None:
        error = NoQuorum(f"command {proposal.command_id}: {why_not}")
    else:
        error = CommandTimeout(f"command {proposal.command_id}: {why_not}; it may still be committed")
    with contextlib.suppress(InvalidStateError):
        proposal.future.set_exception(error)
