"""Commands on their way into the log: submitted again until they are seen applied, or their time is up."""

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
"""After this long a command that was sent to another member counts as lost, and is sent again (its id
tells).
"""


@dataclass(slots=True)
class Proposal:
    """One command that somebody waits for."""

    command_id: str
    encoded: bytes
    deadline_s: float
    future: Future[Outcome] = field(default_factory=Future)
    submitted_to: tuple[ProxyId, int] | None = None
    """Leader and term that it was last handed to."""
    submitted_s: float = 0.0


class Proposals:
    """The commands that this member waits for, by id. Used on the Raft thread alone."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Proposal]] = {}
        self._done: list[tuple[Proposal, Outcome]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, proposal: Proposal) -> None:
        self._waiting.setdefault(proposal.command_id, []).append(proposal)

    def applied(self, command_id: str, outcome: Outcome) -> None:
        """The command came out of the log: whoever waits for it will be told, the first time."""
        self._done += [(proposal, outcome) for proposal in self._waiting.pop(command_id, ())]

    def tell(self) -> None:
        """Tell those whose command was applied; to be called once the state that came of it can be seen."""
        done, self._done = self._done, []
        for proposal, outcome in done:
            with contextlib.suppress(InvalidStateError):
                proposal.future.set_result(outcome)

    def submit(
        self, leader: ProxyId | None, term: int, me: ProxyId, now_s: float, hand_over: Callable[[bytes], None]
    ) -> None:
        """Hand over what is new, what a former leader was given, and what seems to be lost.

        What this member itself holds as leader is in its log, and cannot get lost while it leads.
        """
        if leader is None:
            return
        for proposals in self._waiting.values():
            proposal = proposals[0]
            fresh = proposal.submitted_to == (leader, term)
            if fresh and (leader == me or now_s - proposal.submitted_s < RESEND_S):
                continue
            proposal.submitted_to, proposal.submitted_s = (leader, term), now_s
            hand_over(proposal.encoded)

    def expire(self, now_s: float, why_not: str) -> None:
        """Fail those whose time is up, and forget those that nobody waits for any more."""
        if not self._waiting:
            return
        for command_id, proposals in list(self._waiting.items()):
            late = [proposal for proposal in proposals if proposal.deadline_s <= now_s]
            kept = [
                proposal for proposal in proposals if proposal not in late and not proposal.future.cancelled()
            ]
            if kept:
                self._waiting[command_id] = kept
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
    """End the wait: with NoQuorum where no leader ever got the command, so that it cannot be committed
    later.
    """
    error: NoQuorum | CommandTimeout
    if proposal.submitted_to is None:
        error = NoQuorum(f"command {proposal.command_id}: {why_not}")
    else:
        error = CommandTimeout(f"command {proposal.command_id}: {why_not}; it may yet be committed")
    with contextlib.suppress(InvalidStateError):
        proposal.future.set_exception(error)
