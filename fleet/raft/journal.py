"""Raft's log, term and vote on disk, in one file of checksummed frames.

File     magic (8) | commit index (8) | CRC-32 of it (4) | identity (12) | frame …
Identity id of the journal (5) | flags (1) | number of starts (4) | low half of their CRC-32 (2);
         zeros in a journal of an earlier release, which skips these bytes
Frame    marker (4) | length (4) | CRC-32 of length and body (4) | body
Body     msgpack list of operations, which take effect together or not at all:
         ["member", id], ["term", term, voted for or nil], ["add", index, term, command], ["cut", index]

Operations are collected in memory. Each ``sync`` writes them to disk as one frame, before any message that
reflects them is sent. A crash can therefore tear only the last frame, whose content no other member knows.
The commit index is written in place and not flushed. Raft works without it; with it, a member without
reachable peers can show its last state after a restart.
"""

from __future__ import annotations

import logging
import os
import struct
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import msgpack  # type: ignore[import-untyped]
from pysyncobj.journal import Journal as LibraryJournal

from fleet.core.errors import JournalError
from fleet.raft.files import replace, write_all
from fleet.raft.identity import IDENTITY_BYTES, NO_IDENTITY, Identity, Standing, make_life

log = logging.getLogger(__name__)

MAGIC: Final = b"FLEETRJ1"
MARKER: Final = b"\xf1\xeeRF"
_HEADER: Final = struct.Struct(f">8sQI{IDENTITY_BYTES}s")
_FRAME: Final = struct.Struct(">4sII")
FIRST_FRAME: Final = _HEADER.size
_SLOW_S: Final = 0.2
"""A member whose disk blocks for longer than this is silent for so long that the others elect a leader."""

ADVICE: Final = (
    "This member does not take part in Raft. To repair it, stop the member, run `fleet journal reset "
    "--config FILE --node ID`, which sets the files aside, and start the member again. It then fetches "
    "everything from the other members and votes again once it has caught up. To inspect the files, run "
    "`fleet journal check`"
)


class Entry(NamedTuple):
    """One entry of Raft's log, equal to the plain tuple that pysyncobj uses."""

    command: bytes
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not used
    term: int


Operation: TypeAlias = tuple[str | int | bytes | None, ...]


class Journal(LibraryJournal):  # type: ignore[misc]  # pysyncobj has no types
    """The journal interface of the library, on top of the file. The module describes the format.

    Args:
        path: the file; created if it does not exist.
        member: id of the member that owns the journal. No other member may use the vote in it.
        base: the last two entries that the snapshot on disk covers; the log is trimmed to them.
        writable: False leaves the file unchanged, and the object is for reading only.

    Raises: JournalError: the file is corrupt, belongs to another member, does not match the snapshot, or
        cannot be read or written
    """

    def __init__(
        self, path: Path, member: str, base: tuple[Entry, Entry] | None = None, writable: bool = True
    ) -> None:
        self._path = path
        self._member = member
        self._entries: list[Entry] = []
        self._term = 0
        self._voted_for: str | None = None
        self._commit_index = 1
        self.pending: list[Operation] = []
        self._descriptor = -1
        self._torn: tuple[int, int] | None = None
        self._life = make_life()
        self.identity: Identity | None = None
        self.is_of_earlier_release = False
        """Whether the file existed and was last written by an earlier release."""
        self._read(base)
        self._align_with_snapshot(base)
        if not writable:
            return
        if self._torn:
            log.warning("trimmed an interrupted write: path=%s bytes=%d offset=%d", path, *self._torn)
        # On disk before any message of this life: peers would take an uncounted start for a copy.
        if self.identity is None:
            self.identity = Identity.make(was_erased=self.is_of_earlier_release)
        else:
            self.identity = self.identity.at_next_start()
        # Always rewritten: this trims the log, and after a failed flush only a new file is certainly on disk.
        self._rewrite()

    # Methods that pysyncobj calls, under its names.

    def add(self, command: bytes, idx: int, term: int) -> None:
        """Append an entry. An equal entry is kept; a conflicting one is removed with all that follow it.

        Raises: JournalError: the entry leaves a gap, or would replace a committed entry
        """
        if self._entries:
            first, last = self._entries[0].index, self._entries[-1].index
            if first <= idx <= last:
                if self._entries[idx - first].term == term:
                    return
                self._refuse_to_cut_committed(idx)
                self.deleteEntriesFrom(idx - first)
            elif idx != last + 1:
                raise JournalError(f"{self._path}: entry {idx} does not follow entry {last}")
        self._entries.append(Entry(command, idx, term))
        self.pending.append(("add", idx, term, command))

    def clear(self) -> None:
        self._entries.clear()
        self.pending.append(("cut", 0))

    def deleteEntriesFrom(self, entryFrom: int) -> None:
        """Drop the entries from a position (not an index) to the end."""
        if entryFrom < len(self._entries):
            self.pending.append(("cut", self._entries[entryFrom].index))
            del self._entries[entryFrom:]

    def deleteEntriesTo(self, entryTo: int) -> None:
        """Drop the entries before a position, which a snapshot now covers.

        Raises: JournalError: the new file cannot be written; the former file is unchanged
        """
        if entryTo > 0:
            del self._entries[:entryTo]
            self._rewrite()

    def __getitem__(self, item: int | slice) -> Entry | list[Entry]:
        return self._entries[item]

    def __len__(self) -> int:
        return len(self._entries)

    def _destroy(self) -> None:
        """Close the file without writing unsynced operations: no other member knows them."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:
        """Record the commit index, after making the entries up to it durable.

        Raises: JournalError: the file cannot be written
        """
        if raftCommitIndex == self._commit_index:
            return
        self.sync()
        self._commit_index = raftCommitIndex
        try:
            os.pwrite(self._descriptor, self._header(), 0)
        except OSError as error:
            raise self._io_error("written", error) from error

    def getRaftCommitIndex(self) -> int:
        return self._commit_index

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:
        self._term, self._voted_for = term, votedForNodeId
        self.pending.append(("term", term, votedForNodeId))

    def getCurrentTerm(self) -> int:
        return self._term

    def getVotedForNodeId(self) -> str | None:
        return self._voted_for

    # The fleet's own methods.

    @property
    def last_index(self) -> int:
        return self._entries[-1].index if self._entries else 0

    @property
    def standing(self) -> Standing | None:
        """The state of this journal that peers must remember, once it is synced; None if it is read-only."""
        if self.identity is None:
            return None
        last_term, last_index = (self._entries[-1].term, self.last_index) if self._entries else (0, 0)
        return Standing(self.identity, self._life, self._term, self._voted_for, last_term, last_index)

    def renew_identity(self) -> None:
        """Set a new id that states that the voter has caught up; durable on return.

        Raises: JournalError: the file cannot be written
        """
        self.sync()
        self.identity = Identity.make(has_caught_up=True)
        self._rewrite()

    def has_entry(self, index: int, term: int) -> bool:
        """Whether the log has the entry with this index and term."""
        position = index - self._entries[0].index if self._entries else -1
        return 0 <= position < len(self._entries) and self._entries[position].term == term

    def sync(self) -> None:
        """Make everything durable. Call it before a message is sent.

        Raises: JournalError: the file cannot be written; this object must no longer be used
        """
        if not self.pending:
            return
        began_s = time.monotonic()
        try:
            write_all(self._descriptor, _frame(self.pending))
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise self._io_error("written", error) from error
        self.pending.clear()
        took_s = time.monotonic() - began_s
        if took_s > _SLOW_S:
            log.warning("slow disk, flushed Raft's journal: took_s=%.2f", took_s)

    # Reading and rewriting the file.

    def _read(self, base: tuple[Entry, Entry] | None) -> None:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._io_error("read", error) from error
        if len(data) < FIRST_FRAME or not data.startswith(MAGIC):
            raise JournalError(f"{self._path}: is not a Raft journal of the fleet (offset 0). {ADVICE}")
        _, commit_index, checksum, spare = _HEADER.unpack_from(data)
        self.identity = Identity.unpack(spare)
        self.is_of_earlier_release = spare == NO_IDENTITY
        if self.identity is None and not self.is_of_earlier_release:
            log.warning("journal id is damaged, creating a new one: path=%s", self._path)
        position = FIRST_FRAME
        while position < len(data):
            body = body_at(data, position)
            if body is None:
                self._expect_torn_tail(data, position)
                break
            self._replay(body, position)
            position += _FRAME.size + len(body)
        if checksum == zlib.crc32(data[8:16]):
            self._expect_committed(commit_index, base)
            self._commit_index = max(1, min(commit_index, self.last_index))
        else:
            log.warning("commit index is damaged, waiting for a leader to apply the log: path=%s", self._path)

    def _expect_committed(self, commit_index: int, base: tuple[Entry, Entry] | None) -> None:
        """Refuse a log without all committed entries: they were on disk, whatever write was interrupted."""
        last = max(self.last_index, base[1].index if base else 0, 1)
        if commit_index > last:
            raise JournalError(
                f"{self._path}: truncated: entries up to {commit_index} were committed, but the log ends at "
                f"entry {last}. {ADVICE}"
            )

    def _expect_torn_tail(self, data: bytes, position: int) -> None:
        later = data.find(MARKER, position + 1)
        while later >= 0:
            if body_at(data, later) is not None:
                raise JournalError(
                    f"{self._path}: corrupt at offset {position}: this frame fails its checksum, but a later "
                    f"frame at offset {later} is complete, so the cause is not an interrupted write. {ADVICE}"
                )
            later = data.find(MARKER, later + 1)
        self._torn = (len(data) - position, position)

    def _replay(self, body: bytes, position: int) -> None:
        try:
            for operation in msgpack.unpackb(body, use_list=False):
                self._apply(operation)
        except JournalError:
            raise
        except Exception as error:
            raise JournalError(
                f"{self._path}: cannot decode the frame at offset {position}: {error}. {ADVICE}"
            ) from error

    def _apply(self, operation: Operation) -> None:
        match operation:
            case ("member", str(member)):
                if member != self._member:
                    raise JournalError(
                        f"{self._path}: belongs to member {member}, but this is member {self._member}; "
                        "configure a separate data_dir for each member"
                    )
            case ("term", int(term), str() | None as voted_for):
                self._term, self._voted_for = term, voted_for
            case ("add", int(index), int(term), bytes(command)):
                if self._entries and index != self._entries[-1].index + 1:
                    raise ValueError(f"entry {index} follows entry {self._entries[-1].index}")
                self._entries.append(Entry(command, index, term))
            case ("cut", int(index)):
                self._entries = [entry for entry in self._entries if entry.index < index]
            case _:
                raise ValueError(f"unknown operation {operation[:1]!r}")

    def _align_with_snapshot(self, base: tuple[Entry, Entry] | None) -> None:
        """Align the log with the snapshot: a crash may have happened between writing one and the other."""
        first = self._entries[0].index if self._entries else None
        if base is None:
            if first is not None and first > 1:
                raise JournalError(
                    f"{self._path}: begins at entry {first}, and no snapshot covers earlier entries. {ADVICE}"
                )
            return
        if first is not None and first > base[0].index:
            raise JournalError(
                f"{self._path}: begins at entry {first}, but the snapshot ends at {base[1].index}. {ADVICE}"
            )
        if all(self.has_entry(entry.index, entry.term) for entry in base):
            self._entries = [entry for entry in self._entries if entry.index >= base[0].index]
        else:
            # The snapshot came from a leader. A log without its last entry has only uncommitted entries.
            self._entries = list(base)
        self._commit_index = min(max(self._commit_index, base[1].index), self.last_index)

    def _rewrite(self) -> None:
        operations: list[Operation] = [("member", self._member), ("term", self._term, self._voted_for)]
        operations += [("add", entry.index, entry.term, entry.command) for entry in self._entries]
        try:
            descriptor = replace(self._path, self._header() + _frame(operations))
        except OSError as error:
            raise self._io_error("written", error) from error
        self._destroy()
        self._descriptor = descriptor
        self.pending.clear()

    def _header(self) -> bytes:
        index = struct.pack(">Q", self._commit_index)
        identity = NO_IDENTITY if self.identity is None else self.identity.pack()
        return _HEADER.pack(MAGIC, self._commit_index, zlib.crc32(index), identity)

    def _refuse_to_cut_committed(self, index: int) -> None:
        if index <= self._commit_index:
            raise JournalError(
                f"{self._path}: entry {index} of the leader differs from the committed entry of this member: "
                f"the logs belong to different fleets, or the other members have lost their data. {ADVICE}"
            )

    def _io_error(self, action: str, error: OSError) -> JournalError:
        return JournalError(f"{self._path}: cannot be {action}: {error.strerror or error}")


def _frame(operations: Sequence[Operation]) -> bytes:
    body: bytes = msgpack.packb(operations)
    length = struct.pack(">I", len(body))
    return _FRAME.pack(MARKER, len(body), zlib.crc32(body, zlib.crc32(length))) + body


def frame_bytes(body: bytes) -> int:
    """Length of the whole frame of a body."""
    return _FRAME.size + len(body)


def check_journal(path: Path, member: str, base: tuple[Entry, Entry] | None) -> None:
    """Check whether a member can start with a journal. The file is not changed.

    Raises: JournalError: the member cannot start; the text states the reason
    """
    Journal(path, member, base, writable=False)


def body_at(data: bytes, position: int) -> bytes | None:
    """The body of the frame at a position; None if there is no complete frame."""
    if len(data) - position < _FRAME.size:
        return None
    marker, length, checksum = _FRAME.unpack_from(data, position)
    body = data[position + _FRAME.size : position + _FRAME.size + length]
    if marker != MARKER or len(body) != length:
        return None
    return body if zlib.crc32(body, zlib.crc32(data[position + 4 : position + 8])) == checksum else None
