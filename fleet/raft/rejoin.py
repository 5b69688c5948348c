"""The rejoin of a voter that has forgotten its vote and its entries, without breaking a promise.

A member that lost its journal may have voted in a term, and may have acknowledged entries that are committed
because of it. A file that survives restarts therefore marks the member as rejoining. A marked member follows
a leader, but neither votes nor becomes a candidate. Its acknowledgements report its position to the leader
and do not count. The mark is removed once all of these conditions hold:

- every other voter has reported its term since the reset. The fleet tolerates the loss of N voters: at most
  N - 1 of the other voters may be rejoining themselves;
- the member follows a leader whose term is not below any reported term;
- the member has on disk the log of that leader up to its end when the leader was asked, after the reset.

An entry that was committed with the help of this member is also in the log of a voter that has not forgotten
it. The term of that voter was not below the term of the entry. The term of the leader is therefore not below
it either, and its log has the entry. A candidate that got the vote of this member knows that term as its own.
Up to the term of the leader, no other log is up to date enough to get a vote.
``docs/adr/0010-journal-repair.md`` has the whole argument.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from fleet.core.errors import JournalError
from fleet.core.model import ProxyId
from fleet.raft.files import replace, sync_folder
from fleet.raft.messages import Message

MARK: Final = "rejoin"
"""Name of the file in the raft folder; its content is the id of the reset."""


def write_mark(folder: Path, reset_id: str) -> None:
    """Mark this member as rejoining; durable on return.

    Raises: OSError: the file cannot be written
    """
    os.close(replace(folder / MARK, reset_id.encode()))


def read_mark(folder: Path) -> str | None:
    """The id of the reset after which this member is still rejoining; None if it is not rejoining.

    Raises: JournalError: the file exists and cannot be read
    """
    try:
        return (folder / MARK).read_text("ascii", errors="replace").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise JournalError(f"{folder / MARK}: cannot be read: {error.strerror or error}") from error


def remove_mark(folder: Path) -> None:
    """End the rejoin. Call it only after the fetched log is on disk.

    Raises: JournalError: the file cannot be removed
    """
    try:
        (folder / MARK).unlink(missing_ok=True)
        sync_folder(folder)
    except OSError as error:
        raise JournalError(f"{folder / MARK}: cannot be removed: {error.strerror or error}") from error


def max_forgetful_voters(voters: int) -> int:
    """How many voters may have forgotten their promises at one time without loss of committed entries."""
    return (voters - 1) // 2


class Rejoin:
    """The progress of a marked voter: answers of the other voters, and whether they suffice.

    Args:
        reset_id: from the mark; identifies answers to questions of an earlier reset.
        others: all other voters.
    """

    def __init__(self, reset_id: str, others: Iterable[ProxyId]) -> None:
        self.reset_id = reset_id
        self._others = frozenset(others)
        self.terms: dict[ProxyId, int] = {}
        self._forgetful: set[ProxyId] = set()
        self._ends: dict[tuple[ProxyId, int], int] = {}
        self._stored: tuple[ProxyId, int, int] = ("", 0, 0)

    @property
    def question(self) -> Message:
        return {"type": "rejoin", "reset": self.reset_id}

    def record_answer(self, peer: ProxyId, message: Message) -> None:
        """Record the term of a voter, the end of its log, and whether it leads."""
        if message["reset"] != self.reset_id:
            return
        term = message["term"]
        if message["rejoining"]:
            self._forgetful.add(peer)
            return
        self._forgetful.discard(peer)
        self.terms.setdefault(peer, term)
        if message["leads"]:
            self._ends.setdefault((peer, term), message["last_log_index"])

    def record_log(self, leader: ProxyId, term: int, index: int) -> None:
        """Record that the log equals the log of a leader, in a term, up to an index."""
        before = self._stored
        if before[:2] != (leader, term) or index > before[2]:
            self._stored = (leader, term, index)

    def is_complete(self, term: int) -> bool:
        """Whether the member may vote again in this term."""
        leader, stored_term, index = self._stored
        end = self._ends.get((leader, stored_term))
        if end is None or index < end or stored_term != term:
            return False
        if len(self._forgetful) >= max_forgetful_voters(len(self._others) + 1):
            return False
        if self.terms.keys() | self._forgetful != self._others:
            return False
        return all(each <= term for each in self.terms.values())
