"""All parts of a member's Raft, opened from its folder and closed together."""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from fleet.core.errors import JournalError, JournalForgot
from fleet.core.model import FleetState
from fleet.raft.files import sync_folder
from fleet.raft.journal import Entry, Journal
from fleet.raft.machine import LogSettings, ReplicatedLog
from fleet.raft.memory import FILE, VoterMemory
from fleet.raft.rejoin import MARK, max_forgetful_voters, read_mark, remove_mark, write_mark
from fleet.raft.snapshot import SnapshotStore
from fleet.raft.transport import MemberTransport

log = logging.getLogger(__name__)


class Replica:
    """The log of one member, with its files and transport. After a failed write it is replaced as a whole.

    Args:
        settings: of the log; the folder is that of its snapshot path.
        capture, restore: get and set the state that commands are applied to.
        on_command: applies one committed command.

    Raises: JournalError: the files are corrupt, in use by another process, or cannot be read or written
    """

    def __init__(
        self,
        settings: LogSettings,
        transport: MemberTransport,
        capture: Callable[[], FleetState],
        restore: Callable[[FleetState], None],
        on_command: Callable[[bytes], None],
    ) -> None:
        folder = settings.snapshot_path.parent
        self._folder = folder
        self._lock = _lock(folder)
        self.journal: Journal | None = None
        try:
            snapshots = SnapshotStore(settings.snapshot_path, capture, restore, self._covers)
            self.journal = Journal(folder / "journal", settings.me, snapshots.base)
            self.transport = transport
            self._remember_voters(settings)
            self._expect_rejoin(settings)
            self.log = ReplicatedLog(settings, self.journal, snapshots, transport, on_command)
        except BaseException:
            self._close_files()
            raise

    def tick(self) -> None:
        """Let Raft process its input and its timers, then send its messages.

        Raises:
            JournalForgot: another voter remembers more; the folder is now marked, and must be opened again.
            JournalError: the files cannot be written; no message was sent.
        """
        self._yield_to_distrust()
        self.log.doTick(0.0)
        self.transport.flush(self.sync)
        rejoin = self.transport.rejoin
        if rejoin is not None and self.journal is not None and rejoin.is_complete(self.log.raftCurrentTerm):
            self.journal.renew_identity()  # before the mark is removed: the others trust this id only
            remove_mark(self._folder)
            self.transport.rejoin = None
            log.warning("caught up, this member votes again: term=%d", self.log.raftCurrentTerm)

    def sync(self) -> None:
        """Make the journal durable.

        Raises: JournalError: the file cannot be written
        """
        if self.journal is not None:
            self.journal.sync()

    def close(self) -> None:
        """Close the files. Unsynced operations are lost, as in a crash."""
        self.log._doDestroy()
        self._close_files()

    def _remember_voters(self, settings: LogSettings) -> None:
        """Compare journals if the fleet can lose a voter. If it cannot, all voters have every entry."""
        others = [node.id for node in self.transport.other_voters]
        memory, journal = None, self.journal
        if journal is None:
            return
        if settings.is_voter and max_forgetful_voters(len(others) + 1):
            outdated = journal.is_of_earlier_release
            memory = VoterMemory(self._folder / FILE, others, is_outdated=outdated)
        if settings.is_voter:
            self.transport.remember(lambda: journal.standing, memory)

    def _yield_to_distrust(self) -> None:
        """Mark this member as rejoining if another voter remembers more than its journal has."""
        accuser = self.transport.distrusted_by
        if accuser is None:
            return
        try:
            write_mark(self._folder, secrets.token_hex(8))
        except OSError as error:
            raise JournalError(
                f"{self._folder / MARK}: cannot be written: {error.strerror or error}"
            ) from error
        raise JournalForgot(
            f"{accuser} remembers more of this member's journal than {self._folder} has: the disk was "
            "emptied or restored from a copy; wait: this member votes again once it has caught up"
        )

    def _expect_rejoin(self, settings: LogSettings) -> None:
        """Begin the rejoin of a marked voter."""
        voters = len(self.transport.other_voters) + 1
        reset_id = read_mark(self._folder)
        if reset_id is not None and settings.is_voter and max_forgetful_voters(voters):
            log.warning(
                "rejoining after a reset, an empty disk or a copy: %s; this member votes again once all "
                "other voters have answered and a leader has brought its log up to date",
                self._folder / MARK,
            )
            self.transport.begin_rejoin(reset_id)

    def _covers(self, last: Entry) -> bool:
        if self.journal is None:
            return False
        reached = max(self.log.raftCommitIndex, self.log.raftLastApplied)
        return last.index <= reached or self.journal.has_entry(last.index, last.term)

    def _close_files(self) -> None:
        if self.journal is not None:
            self.journal._destroy()
        os.close(self._lock)


def _lock(folder: Path) -> int:
    """Lock the folder for this process, until the descriptor is closed."""
    try:
        if not folder.exists():
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            sync_folder(folder.parent)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise JournalError(f"{folder}: cannot be opened: {error.strerror or error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise JournalError(f"{folder}: another process uses it; stop the other process first") from error
    return descriptor
