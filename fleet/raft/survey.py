"""Inspects a member's Raft files without changing them, and repairs them: ``trim`` and ``set_aside``.

The survey reads the journal frame by frame, also after a damaged frame, and reports every damage. The journal
and the snapshot store themselves decide whether a member starts with the files.
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
"""torn: the last write was interrupted, and no other member knows its content."""


@dataclass(frozen=True, slots=True)
class Damage:
    """One damaged place in one file."""

    file: str
    offset: int
    detail: str


@dataclass(frozen=True, slots=True)
class Survey:
    """The content of the files.

    Args:
        member: the owner of the journal; None if the journal does not name it.
        first_index, last_index: of the readable entries; 0 if there are none.
        term, voted_for: from the last readable frame.
        commit_index: None if it is damaged, or there is no journal.
        snapshot_index: the last entry that the snapshot covers; None without a usable snapshot.
        torn_bytes: length of the tail that the next start trims.
        refusal: why a member does not start with the files; empty if it does.
        rejoining: whether the member was reset and has not caught up since.
        journal_id, starts: identify the journal to the other voters; None and 0 if it has no id yet.
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
            self.damage.append(Damage("journal", 0, "is not a Raft journal of the fleet"))
            return
        (commit_index, checksum) = struct.unpack_from(">QI", data, len(MAGIC))
        if checksum == zlib.crc32(data[8:16]):
            self.commit_index = commit_index
        self.identity = Identity.unpack(data[FIRST_FRAME - IDENTITY_BYTES : FIRST_FRAME])
        position = self.end = FIRST_FRAME
        while position < len(data):
            body = body_at(data, position)
            if body is None:
                self.damage.append(Damage("journal", position, "the frame fails its checksum"))
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
            self.damage.append(Damage("journal", position, f"the frame cannot be decoded: {error}"))


def _next_frame(data: bytes, position: int) -> int:
    """The position of the next complete frame; the length of the data if there is none."""
    found = data.find(MARKER, position)
    while found >= 0 and body_at(data, found) is None:
        found = data.find(MARKER, found + 1)
    return found if found >= 0 else len(data)


def survey(folder: Path, member: str) -> Survey:
    """Inspect the files of a member.

    Raises: JournalError: a file cannot be read at all
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
    """Cut a torn tail off the journal, and remove the temporary files of an interrupted rewrite.

    Args:    length: the new length of the journal
    Returns: the files that were changed or removed
    Raises:  JournalError: the files cannot be written
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
    """Rename the files, so that the member starts without any; optionally mark the member first.

    Args:
        suffix: is appended to the names.
        mark: whether the member must not vote until it has caught up.

    Returns: the new names
    Raises:  JournalError: the files cannot be written; run it again
    """
    renamed = []
    try:
        # A lost folder is created together with its mark: in an empty folder a voter would have no promises.
        created = folder if folder.exists() or not mark else folder.with_name(f"{folder.name}.new")
        created.mkdir(parents=True, exist_ok=True, mode=0o700)
        if mark:
            write_mark(created, secrets.token_hex(8))
        if created != folder:
            created.rename(folder)
            sync_folder(folder.parent)
        # The memory of the other voters stays valid, unless all of them start without files.
        names = FILES if mark else (*FILES, MARK, MEMORY)
        for name in names:
            if (folder / name).exists():
                renamed.append((folder / name).rename(folder / f"{name}.{suffix}"))
        sync_folder(folder)
    except OSError as error:
        raise JournalError(f"{folder}: cannot be written: {error.strerror or error}") from error
    return tuple(renamed)
