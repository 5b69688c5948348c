"""A bounded queue on disk. Its records survive a restart of the process and an outage of Kafka.

    with Spool(folder / "spool.sqlite", limit_bytes=64 << 20) as spool:
        spool.append(records)
        batch = spool.oldest(500)              # each call returns the same records
        spool.forget(batch[-1].number)         # Kafka has acknowledged them

The spool does not force writes to the disk: a power cut may lose the records of the last seconds, and may
repeat some records. A full spool drops its oldest records, because recent events are needed most. It drops
records of expendable topics first.

Every method may block on the disk. Only the thread that created the spool may use it.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from fleet.core.errors import SpoolError

log = logging.getLogger(__name__)

PAGE_BYTES: Final = 4096
MIN_PAGES: Final = 64
"""Smallest size of the file: SQLite needs some pages for itself."""
_DROPPED_SHARES: Final = 8
"""A full spool drops one of this many equal parts of its records at once."""
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS record (
    number INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL, key BLOB, value BLOB NOT NULL
)"""


@dataclass(frozen=True, slots=True)
class Record:
    """A record to produce, with the name of its topic without the prefix."""

    topic: str
    key: bytes | None
    value: bytes


@dataclass(frozen=True, slots=True)
class Spooled:
    """A record in the spool; later records have greater numbers."""

    number: int
    record: Record


class Spool:
    """A bounded queue of records in a file; see the module.

    Args:
        path: path of the file. The spool creates the file and its folder if they do not exist, and renames a
            damaged file to ``….damaged``.
        limit_bytes: greatest size of the file.
        expendable: topics whose records are dropped first.

    Raises: SpoolError: the file cannot be opened.
    """

    def __init__(self, path: Path, limit_bytes: int, expendable: Collection[str] = ()) -> None:
        self._path = path
        self._expendable = tuple(expendable)
        self._pages = max(MIN_PAGES, limit_bytes // PAGE_BYTES)
        self.dropped = 0
        """Records that were dropped because the spool was full."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._database = self._open()
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):
                    raise
                log.error(
                    "spool is damaged, renaming it to %s.damaged: path=%s error=%s", path.name, path, error
                )
                path.replace(path.with_name(f"{path.name}.damaged"))
                self._database = self._open()
        except (OSError, sqlite3.Error) as error:
            raise SpoolError(f"{path}: {error}") from error

    def append(self, records: Iterable[Record]) -> None:
        """Add all records or none. Raises: SpoolError: they cannot be written."""
        rows = [(record.topic, record.key, record.value) for record in records]
        try:
            while not self._insert(rows):
                if not self._drop_oldest():
                    self.dropped += len(rows)  # these records alone exceed the limit
                    return
        except sqlite3.Error as error:
            raise SpoolError(f"{self._path}: {error}") from error

    def oldest(self, limit: int) -> list[Spooled]:
        """Return the oldest records, in their order. Raises: SpoolError."""
        try:
            rows = self._database.execute(
                "SELECT number, topic, key, value FROM record ORDER BY number LIMIT ?", (limit,)
            )
            return [Spooled(number, Record(topic, key, value)) for number, topic, key, value in rows]
        except sqlite3.Error as error:
            raise SpoolError(f"{self._path}: {error}") from error

    def forget(self, number: int) -> None:
        """Delete all records up to this number. Raises: SpoolError."""
        try:
            with self._database:
                self._database.execute("DELETE FROM record WHERE number <= ?", (number,))
        except sqlite3.Error as error:
            raise SpoolError(f"{self._path}: {error}") from error

    @property
    def waiting(self) -> int:
        """The number of records in the spool."""
        (count,) = self._database.execute("SELECT count(*) FROM record").fetchone()
        return int(count)

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path)
        try:
            database.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            database.execute("PRAGMA synchronous = OFF")
            database.execute(f"PRAGMA max_page_count = {self._pages}")
            database.execute(_TABLE)
            database.execute("SELECT count(*) FROM record")
        except BaseException:
            database.close()
            raise
        return database

    def _insert(self, rows: list[tuple[str, bytes | None, bytes]]) -> bool:
        """Insert rows. Returns: False if the spool is full."""
        try:
            with self._database:
                self._database.executemany("INSERT INTO record (topic, key, value) VALUES (?, ?, ?)", rows)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
                raise
            return False
        return True

    def _drop_oldest(self) -> bool:
        """Drop some of the oldest records. Returns: False if the spool is empty."""
        places = ", ".join("?" * len(self._expendable))
        return self._drop(f"topic IN ({places})", self._expendable) or self._drop("TRUE", ())

    def _drop(self, which: str, values: tuple[str, ...]) -> bool:
        bounds = f"SELECT min(number), max(number) FROM record WHERE {which}"
        oldest, newest = self._database.execute(bounds, values).fetchone()
        if oldest is None:
            return False
        until = oldest + (newest - oldest) // _DROPPED_SHARES
        delete = f"DELETE FROM record WHERE {which} AND number <= ?"
        with self._database:
            self.dropped += self._database.execute(delete, (*values, until)).rowcount
        return True
