"""How a voter that has forgotten its vote and its entries comes back without breaking a promise.

A member that lost its journal may have voted in a term, and acknowledged entries that are committed because
of it. So it is marked as rejoining, in a file that outlives restarts. While it is marked it follows, but it
neither votes nor stands for election, and its acknowledgements tell a leader where to go on and count for
nothing. The mark goes once all of this is true:

- every other voter has said which term it is in, since the reset. Of these at most as many as the fleet can
  lose, less this one, may be rejoining themselves;
- it follows a leader of a term not below any of these;
- it has on disk the log of that leader up to where it ended when that leader was asked, after the reset.

An entry that was committed with this member's help is also in the log of a voter that has not forgotten,
whose term was not below that entry's. So the leader's term is not below it either, and its log has the entry.
A vote that was given to somebody is known to that candidate as its own term; below the leader's term, and in
it, nobody else's log is up to date enough to be voted for. ``docs/adr/0010-journal-repair.md`` has it all.
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
"""Name of the file in the raft folder; it holds the id of the reset."""


def write_mark(folder: Path, reset_id: str) -> None:
    """Note that this member has forgotten; durable when it returns.

    Raises: OSError
    """
    os.close(replace(folder / MARK, reset_id.encode()))


def read_mark(folder: Path) -> str | None:
    """The id of the reset that this member has not come back from; None where there is none.

    Raises: JournalError: the file is there and cannot be read
    """
    try:
        return (folder / MARK).read_text("ascii", errors="replace").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise JournalError(f"{folder / MARK}: cannot be read: {error.strerror or error}") from error


def remove_mark(folder: Path) -> None:
    """Forget that anything was forgotten; call it only after what was fetched is on disk.

    Raises: JournalError: the disk does not take it
    """
    try:
        (folder / MARK).unlink(missing_ok=True)
        sync_folder(folder)
    except OSError as error:
        raise JournalError(f"{folder / MARK}: cannot be removed: {error.strerror or error}") from error


def may_forget(voters: int) -> int:
    """How many voters may have forgotten at one time without anything being lost."""
    return (voters - 1) // 2


class Rejoin:
    """What a marked voter has learned so far, and whether that is enough.

    Args:
        reset_id: from the mark; answers to questions of an earlier reset are told apart by it.
        others: all other voters.
    """

    def __init__(self, reset_id: str, others: Iterable[ProxyId]) -> None:
        self.reset_id = reset_id
        self._others = frozenset(others)
        self._terms: dict[ProxyId, int] = {}
        self._forgetful: set[ProxyId] = set()
        self._ends: dict[tuple[ProxyId, int], int] = {}
        self._stored: tuple[ProxyId, int, int] = ("", 0, 0)

    @property
    def question(self) -> Message:
        return {"type": "rejoin", "reset": self.reset_id}

    def answered(self, peer: ProxyId, message: Message) -> None:
        """A voter said which term it is in, where its log ends, and whether it leads."""
        if message["reset"] != self.reset_id:
            return
        term = message["term"]
        if message["rejoining"]:
            self._forgetful.add(peer)
            return
        self._forgetful.discard(peer)
        self._terms.setdefault(peer, term)
        if message["leads"]:
            self._ends.setdefault((peer, term), message["last_log_index"])

    def stored(self, leader: ProxyId, term: int, index: int) -> None:
        """The log equals the leader's of that term up to an index."""
        before = self._stored
        if before[:2] != (leader, term) or index > before[2]:
            self._stored = (leader, term, index)

    def complete(self, term: int) -> bool:
        """Whether it may vote again, being in this term."""
        leader, stored_term, index = self._stored
        end = self._ends.get((leader, stored_term))
        if end is None or index < end or stored_term != term:
            return False
        if len(self._forgetful) >= may_forget(len(self._others) + 1):
            return False
        if self._terms.keys() | self._forgetful != self._others:
            return False
        return all(each <= term for each in self._terms.values())

    @property
    def waits_for(self) -> frozenset[ProxyId]:
        """The voters that have not answered, or have forgotten themselves."""
        return self._others - self._terms.keys() | self._forgetful
