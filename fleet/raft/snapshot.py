"""Snapshots of the replicated state: one checksummed file, which is also sent to a member that is far behind.

This module replaces the library's Serializer. Files of that class are pickles, are not flushed, and replace
the last good file before they are checked. File and wire have the same bytes:

    magic (8) | CRC-32 of the rest (4) | msgpack [state, previous entry, last entry], an entry being [command,
    index, term]
"""

from __future__ import annotations

import logging
import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgpack  # type: ignore[import-untyped]
from pysyncobj.config import SERIALIZER_STATE

from fleet.core.errors import JournalError
from fleet.core.model import FleetState
from fleet.core.state import decode_state, encode_state
from fleet.raft.files import replace
from fleet.raft.journal import ADVICE, Entry

log = logging.getLogger(__name__)

MAGIC: Final = b"FLEETRS1"
_HEAD: Final = struct.Struct(">8sI")
CHUNK_BYTES: Final = 1 << 20
MAX_SNAPSHOT_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after ``last`` was applied, and the two entries with which the log continues."""

    state: FleetState
    previous: Entry
    last: Entry


def encode_snapshot(snapshot: Snapshot) -> bytes:
    body: bytes = msgpack.packb([encode_state(snapshot.state), snapshot.previous, snapshot.last])
    return _HEAD.pack(MAGIC, zlib.crc32(body)) + body


def decode_snapshot(data: bytes) -> Snapshot:
    """Decode and check a whole snapshot.

    Raises: ValueError: the data is not a snapshot, or is damaged
    """
    if len(data) < _HEAD.size:
        raise ValueError("the file is too short")
    magic, checksum = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if magic != MAGIC:
        raise ValueError("the file is not a Raft snapshot of the fleet")
    if checksum != zlib.crc32(body):
        raise ValueError("the checksum is wrong")
    try:
        state, previous, last = msgpack.unpackb(body, use_list=False)
        snapshot = Snapshot(decode_state(state), _entry(previous), _entry(last))
    except Exception as error:
        raise ValueError(f"the content cannot be decoded: {error}") from error
    if snapshot.last.index != snapshot.previous.index + 1:
        raise ValueError("the two entries are not consecutive")
    return snapshot


def _entry(value: object) -> Entry:
    match value:
        case (bytes(command), int(index), int(term)):
            return Entry(command, index, term)
    raise ValueError("an entry is not [bytes, int, int]")


@dataclass(slots=True)
class _Transmission:
    data: bytes
    sent_bytes: int = 0


class SnapshotStore:
    """The newest snapshot, on disk and in memory, with the method names that pysyncobj calls.

    Args:
        path: the file.
        capture: returns the state after the last applied entry.
        restore: sets the state from a snapshot that was read or received.
        covered: whether this member's log already contains the last entry of a received snapshot.

    Raises: JournalError: the file exists and cannot be used
    """

    def __init__(
        self,
        path: Path,
        capture: Callable[[], FleetState],
        restore: Callable[[FleetState], None],
        covered: Callable[[Entry], bool],
    ) -> None:
        self._path = path
        self._capture = capture
        self._restore = restore
        self._covered = covered
        self._encoded = b""
        self._written: bytes | None = None
        self._written_id: int | None = None
        self._outgoing: dict[object, _Transmission] = {}
        self._incoming: bytearray | None = None
        self.newest: Snapshot | None = None
        self._read()

    @property
    def base(self) -> tuple[Entry, Entry] | None:
        """The last two entries that the snapshot covers."""
        return (self.newest.previous, self.newest.last) if self.newest else None

    def _read(self) -> None:
        try:
            data = self._path.read_bytes()
            self.newest, self._encoded = decode_snapshot(data), data
        except FileNotFoundError:
            return
        except OSError as error:
            raise JournalError(f"{self._path}: cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            raise JournalError(f"{self._path}: corrupt (offset 0): {error}. {ADVICE}") from error

    def _store(self, encoded: bytes) -> None:
        try:
            os.close(replace(self._path, encoded))
        except OSError as error:
            raise JournalError(f"{self._path}: cannot be written: {error.strerror or error}") from error

    # Methods that pysyncobj calls, under its names.

    def serialize(self, data: tuple[object, Entry, Entry, object], id: int) -> None:
        """Write a snapshot of the current state; ``data`` has the last two applied entries.

        Raises: JournalError: the file cannot be written; the former snapshot is unchanged
        """
        snapshot = Snapshot(self._capture(), Entry(*data[2]), Entry(*data[1]))
        encoded = encode_snapshot(snapshot)
        self._store(encoded)
        self.newest = snapshot
        self._written, self._written_id = encoded, id

    def checkSerializing(self) -> tuple[int, int | None]:
        """Report once that a snapshot was written. From then on the log begins after it, and it is sent."""
        if self._written is None:
            return SERIALIZER_STATE.NOT_SERIALIZING, None
        self._encoded, self._written = self._written, None
        self._outgoing.clear()
        return SERIALIZER_STATE.SUCCESS, self._written_id

    def deserialize(self) -> tuple[None, Entry, Entry, tuple[()]]:
        """Restore the state of the newest snapshot. It is already checked, so this cannot fail half-way."""
        if self.newest is None:
            raise JournalError(f"{self._path}: no snapshot found")
        self._restore(self.newest.state)
        return None, self.newest.last, self.newest.previous, ()

    def getTransmissionData(self, transmissionID: object) -> tuple[bytes, bool, bool] | None:
        """The next piece for a member, as (bytes, is first, is last). The last piece is empty."""
        if not self._encoded:
            return None
        outgoing = self._outgoing.setdefault(transmissionID, _Transmission(self._encoded))
        first = outgoing.sent_bytes == 0
        piece = outgoing.data[outgoing.sent_bytes : outgoing.sent_bytes + CHUNK_BYTES]
        outgoing.sent_bytes += len(piece)
        if not piece:
            del self._outgoing[transmissionID]
        return piece, first, not piece

    def setTransmissionData(self, data: tuple[bytes, bool, bool] | None) -> bool:
        """Receive one piece. Returns True once a whole snapshot is checked and stored, to be loaded now.

        A snapshot whose last entry is already in the log is dropped. Otherwise pysyncobj would clear the log,
        including entries that this member has acknowledged.

        Raises: JournalError: the file cannot be written; the former snapshot is unchanged
        """
        if not data:
            return False
        piece, first, last = data
        if first:
            self._incoming = bytearray()
        if self._incoming is None:
            return False
        self._incoming += piece
        if len(self._incoming) > MAX_SNAPSHOT_BYTES:
            self._incoming = None
            return False
        if not last:
            return False
        encoded, self._incoming = bytes(self._incoming), None
        return self.install(encoded)

    def install(self, encoded: bytes) -> bool:
        try:
            snapshot = decode_snapshot(encoded)
        except ValueError as error:
            log.warning("dropped a received snapshot: %s", error)
            return False
        if self._covered(snapshot.last):
            return False
        self._store(encoded)
        self.newest, self._encoded, self._written = snapshot, encoded, None
        self._outgoing.clear()
        return True

    def cancelTransmisstion(self, id: object) -> None:  # the library's spelling
        self._outgoing.pop(id, None)
