"""What is in a member's Raft files, read without changing them; and the two ways to put them right.

The journal is read frame by frame, also behind a frame that is damaged, and every damage is named. Whether a
member starts with the files is not decided here: the journal and the snapshot store decide it, and are asked.
"""

from __future__ import annotations

import secrets
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgpack  # type: ignore[import-untyped]

from fleet.core.errors import JournalError
from fleet.raft.files import sync_folder
from fleet.raft.identity import IDENTITY_BYTES, Identity
from fleet.raft.journal import FIRST_FRAME, MAGIC, MARKER, Entry, body_at, check_journal, frame_bytes
from fleet.raft.memory import FILE as MEMORY
from fleet.raft.rejoin import MARK, read_mark, write_mark
from fleet.raft.snapshot import Snapshot, decode_snapshot

FILES: Final = ("journal", "snapshot")
LEFTOVERS: Final = tuple(f"{name}.new" for name in (*FILES, MARK, MEMORY))

Verdict: TypeAlias = Literal["empty", "whole", "torn", "corrupt"]
"""torn: the last write was interrupted, and nobody was told what was in it."""


@dataclass(frozen=True, slots=True)
class Damage:
    """One place in one file that is not as it was written."""

    file: str
    offset: int
    detail: str


@dataclass(frozen=True, slots=True)
class Survey:
    """What the files say.

    Args:
        member: whose journal it is; None where it does not say.
        first_index, last_index: of the entries that can be read; 0 where there are none.
        term, voted_for: as of the last frame that can be read.
        commit_index: None where it is damaged, or there is no journal.
        snapshot_index: the last entry that the snapshot covers; None where there is no usable one.
        torn_bytes: length of a tail that the next start trims.
        refusal: why a member does not start with the files; empty where it does.
        rejoining: whether it was reset, and has not been caught up since.
        journal_id, starts: by which the others know the journal again; None and 0 where it has no id yet.
    """

    verdict: Verdict
    member: str | None
    entries: int
    first_index: int
    last_index: int
    term: int
    voted_for: str | None
    commit_index: int | None
    snapshot_index: int | None
    snapshot_term: int | None
    journal_bytes: int
    snapshot_bytes: int
    torn_bytes: int
    damage: tuple[Damage, ...]
    refusal: str
    rejoining: bool
    journal_id: str | None
    starts: int


class _Frames:
    """The frames of a journal, and the damage between them."""

    def __init__(self, data: bytes) -> None:
        self.damage: list[Damage] = []
        self.entries: dict[int, int] = {}
        self.member: str | None = None
        self.term = 0
        self.voted_for: str | None = None
        self.commit_index: int | None = None
        self.identity: Identity | None = None
        self.end = 0
        if data:
            self._read(data)

    def _read(self, data: bytes) -> None:
        if len(data) < FIRST_FRAME or not data.startswith(MAGIC):
            self.damage.append(Damage("journal", 0, "this is not a journal of the fleet's Raft"))
            return
        (commit_index, checksum) = struct.unpack_from(">QI", data, len(MAGIC))
        if checksum == zlib.crc32(data[8:16]):
            self.commit_index = commit_index
        self.identity = Identity.unpack(data[FIRST_FRAME - IDENTITY_BYTES : FIRST_FRAME])
        position = self.end = FIRST_FRAME
        while position < len(data):
            body = body_at(data, position)
            if body is None:
                self.damage.append(Damage("journal", position, "the frame here fails its checksum"))
                position = _next_frame(data, position + 1)
                continue
            self._replay(body, position)
            position = self.end = position + frame_bytes(body)

    def _replay(self, body: bytes, position: int) -> None:
        try:
            for operation in msgpack.unpackb(body, use_list=False):
                match operation:
                    case ("member", str(member)):
                        self.member = member
                    case ("term", int(term), str() | None as voted_for):
                        self.term, self.voted_for = term, voted_for
                    case ("add", int(index), int(term), bytes()):
                        self.entries[index] = term
                    case ("cut", int(index)):
                        self.entries = {i: term for i, term in self.entries.items() if i < index}
                    case _:
                        raise ValueError("an operation of another version")
        except Exception as error:
            self.damage.append(Damage("journal", position, f"the frame here is not understood: {error}"))


def _next_frame(data: bytes, position: int) -> int:
    """Where the next whole frame begins; the end of the data where none does."""
    found = data.find(MARKER, position)
    while found >= 0 and body_at(data, found) is None:
        found = data.find(MARKER, found + 1)
    return found if found >= 0 else len(data)


def survey(folder: Path, member: str) -> Survey:
    """Read the files of a member.

    Raises: JournalError: one of them cannot be read at all
    """
    journal, snapshot_data = (_bytes(folder / name) for name in FILES)
    frames = _Frames(journal)
    damage = list(frames.damage)
    snapshot: Snapshot | None = None
    try:
        snapshot = decode_snapshot(snapshot_data) if snapshot_data else None
    except ValueError as error:
        damage.append(Damage("snapshot", 0, str(error)))
    refusal = _refusal(folder, member, snapshot, damage)
    torn_bytes = len(journal) - frames.end if journal and not refusal else 0
    verdict: Verdict = "empty"
    if refusal:
        verdict = "corrupt"
    elif torn_bytes:
        verdict = "torn"
    elif journal or snapshot_data:
        verdict = "whole"
    return Survey(
        verdict=verdict,
        member=frames.member,
        entries=len(frames.entries),
        first_index=min(frames.entries, default=0),
        last_index=max(frames.entries, default=0),
        term=frames.term,
        voted_for=frames.voted_for,
        commit_index=frames.commit_index,
        snapshot_index=snapshot.last.index if snapshot else None,
        snapshot_term=snapshot.last.term if snapshot else None,
        journal_bytes=len(journal),
        snapshot_bytes=len(snapshot_data),
        torn_bytes=torn_bytes,
        damage=tuple(damage),
        refusal=refusal,
        rejoining=read_mark(folder) is not None,
        journal_id=frames.identity.journal_id if frames.identity else None,
        starts=frames.identity.starts if frames.identity else 0,
    )


def _refusal(folder: Path, member: str, snapshot: Snapshot | None, damage: list[Damage]) -> str:
    for each in damage:
        if each.file == "snapshot":
            return f"{folder / each.file}: {each.detail}"
    base: tuple[Entry, Entry] | None = (snapshot.previous, snapshot.last) if snapshot else None
    try:
        check_journal(folder / "journal", member, base)
    except JournalError as error:
        return str(error)
    return ""


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError as error:
        raise JournalError(f"{path}: cannot be read: {error.strerror or error}") from error


def trim(folder: Path, length: int) -> tuple[Path, ...]:
    """Cut a torn tail off the journal, and remove what an interrupted rewrite has left beside the files.

    Args:    length: what is to remain of the journal
    Returns: the files that were changed or removed
    Raises:  JournalError: the disk does not take it
    """
    changed = []
    try:
        for name in LEFTOVERS:
            if (folder / name).exists():
                (folder / name).unlink()
                changed.append(folder / name)
        path = folder / "journal"
        if path.exists() and path.stat().st_size > length:
            with path.open("r+b") as file:
                file.truncate(length)
                file.flush()
            changed.append(path)
        if changed:
            sync_folder(folder)
    except OSError as error:
        raise JournalError(f"{folder}: cannot be written: {error.strerror or error}") from error
    return tuple(changed)


def set_aside(folder: Path, suffix: str, mark: bool) -> tuple[Path, ...]:
    """Rename the files, so that the member begins with none; with a mark first, if it has votes to keep.

    Args:
        suffix: what is put behind the names.
        mark: whether it must not vote until it is caught up.

    Returns: the new names
    Raises:  JournalError: the disk does not take it; run it again
    """
    renamed = []
    try:
        # A folder that was lost comes back with its mark: an empty one would be a voter's without promises.
        made = folder if folder.exists() or not mark else folder.with_name(f"{folder.name}.new")
        made.mkdir(parents=True, exist_ok=True, mode=0o700)
        if mark:
            write_mark(made, secrets.token_hex(8))
        if made != folder:
            made.rename(folder)
            sync_folder(folder.parent)
        # What it remembers of the others is as true as before, unless all of them begin with nothing.
        names = FILES if mark else (*FILES, MARK, MEMORY)
        for name in names:
            if (folder / name).exists():
                renamed.append((folder / name).rename(folder / f"{name}.{suffix}"))
        sync_folder(folder)
    except OSError as error:
        raise JournalError(f"{folder}: cannot be written: {error.strerror or error}") from error
    return tuple(renamed)
