"""Everything a member's Raft is made of, opened from its folder and closed again as one."""

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
from fleet.raft.rejoin import MARK, may_forget, read_mark, remove_mark, write_mark
from fleet.raft.snapshot import SnapshotStore
from fleet.raft.transport import MemberTransport

log = logging.getLogger(__name__)


class Replica:
    """The log of one member, with its files and its transport; replaced as a whole after a failed write.

    Args:
        settings: of the log; its snapshot path says which folder.
        capture, restore: read and set the state that commands are applied to.
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
        self._journal: Journal | None = None
        try:
            snapshots = SnapshotStore(settings.snapshot_path, capture, restore, self._covers)
            self._journal = Journal(folder / "journal", settings.me, snapshots.base)
            self.transport = transport
            self._remember_voters(settings)
            self._expect_rejoin(settings)
            self.log = ReplicatedLog(settings, self._journal, snapshots, transport, on_command)
        except BaseException:
            self._close_files()
            raise

    def tick(self) -> None:
        """Let Raft act on what has arrived and on the time, then send what it has to say.

        Raises:
            JournalForgot: another voter remembers more; the folder is marked, and to be opened again.
            JournalError: the disk does not take it; nothing was sent.
        """
        self._yield_to_distrust()
        self.log.doTick(0.0)
        self.transport.flush(self.sync)
        rejoin = self.transport.rejoin
        if rejoin is not None and self._journal is not None and rejoin.complete(self.log.raftCurrentTerm):
            self._journal.renew_identity()  # before the mark goes: the others trust this id, and no mark
            remove_mark(self._folder)
            self.transport.rejoin = None
            log.warning("caught up in term %d: this member votes again", self.log.raftCurrentTerm)

    def sync(self) -> None:
        """Make durable whatever Raft has noted.

        Raises: JournalError: the disk does not take it
        """
        if self._journal is not None:
            self._journal.sync()

    def close(self) -> None:
        """Let go of the files. What has not been synced is lost, as in a crash."""
        self.log._doDestroy()
        self._close_files()

    def _remember_voters(self, settings: LogSettings) -> None:
        """Have journals compared where a voter may be lost: where none may, the other one has everything."""
        others = [node.id for node in self.transport.other_voters]
        memory, journal = None, self._journal
        if journal is None:
            return
        if settings.is_voter and may_forget(len(others) + 1):
            outdated = journal.is_of_earlier_release
            memory = VoterMemory(self._folder / FILE, others, is_outdated=outdated)
        if settings.is_voter:
            self.transport.remember(lambda: journal.standing, memory)

    def _yield_to_distrust(self) -> None:
        """Mark this member where another voter remembers more of its journal than is in it."""
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
            f"{accuser} remembers more of this member's journal than is in {self._folder}: the disk was "
            "emptied, or restored from a copy. This member votes again once it has caught up; do nothing"
        )

    def _expect_rejoin(self, settings: LogSettings) -> None:
        """Have a voter that has forgotten keep still until it is caught up."""
        voters = len(self.transport.other_voters) + 1
        reset_id = read_mark(self._folder)
        if reset_id is not None and settings.is_voter and may_forget(voters):
            log.warning(
                "%s: this member has forgotten promises (a reset, an empty disk or a copy), and votes again "
                "once all other voters have been heard of and a leader has brought it up to date",
                self._folder / MARK,
            )
            self.transport.forgot(reset_id)

    def _covers(self, last: Entry) -> bool:
        if self._journal is None:
            return False
        reached = max(self.log.raftCommitIndex, self.log.raftLastApplied)
        return last.index <= reached or self._journal.holds(last.index, last.term)

    def _close_files(self) -> None:
        if self._journal is not None:
            self._journal._destroy()
        os.close(self._lock)


def _lock(folder: Path) -> int:
    """Take the folder for this process alone, until the descriptor is closed."""
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
        raise JournalError(f"{folder}: another process uses it; one member runs once") from error
    return descriptor
