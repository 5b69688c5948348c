"""A bounded queue on disk: what is put in outlives the process, and a Kafka that is away.

    with Spool(folder / "spool.sqlite", limit_bytes=64 << 20) as spool:
        spool.append(records)
        batch = spool.oldest(500)              # the same ones, as often as it is asked
        spool.forget(batch[-1].number)         # they have arrived

Nothing is forced to the disk: a power cut may cost the last seconds, and may have some records come again.
Where there is no room the oldest go, because what has happened lately is asked for most; those of expendable
topics before all others.

Every method may block on the disk. Only the thread that has made it may use it.
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
LEAST_PAGES: Final = 64
"""SQLite itself needs some."""
_SHARE_TO_DROP: Final = 8
"""Where there is no room, so much goes at once: one part in as many."""
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS record (
    number INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT NOT NULL, key BLOB, value BLOB NOT NULL
)"""


@dataclass(frozen=True, slots=True)
class Record:
    """What is to be produced."""

    topic: str
    key: bytes | None
    value: bytes


@dataclass(frozen=True, slots=True)
class Spooled:
    """A record that waits; later ones have greater numbers."""

    number: int
    record: Record


class Spool:
    """See the module.

    Args:
        path: of the file; it and its folder are made where they do not exist. One that is damaged is put
            aside as ``….damaged``.
        limit_bytes: of the file.
        expendable: topics.

    Raises: SpoolError: the file cannot be had.
    """

    def __init__(self, path: Path, limit_bytes: int, expendable: Collection[str] = ()) -> None:
        self._path = path
        self._expendable = tuple(expendable)
        self._pages = max(LEAST_PAGES, limit_bytes // PAGE_BYTES)
        self.dropped = 0
        """Records that were given up for want of room."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._database = self._open()
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):
                    raise
                log.error("%s is damaged, and is put aside: %s", path, error)
                path.replace(path.with_name(f"{path.name}.damaged"))
                self._database = self._open()
        except (OSError, sqlite3.Error) as error:
            raise SpoolError(f"{path}: {error}") from error

    def append(self, records: Iterable[Record]) -> None:
        """Put records in, all or none. Raises: SpoolError: the disk does not take them."""
        rows = [(record.topic, record.key, record.value) for record in records]
        try:
            while not self._insert(rows):
                if not self._drop_oldest():
                    self.dropped += len(rows)  # they alone are too much
                    return
        except sqlite3.Error as error:
            raise SpoolError(f"{self._path}: {error}") from error

    def oldest(self, limit: int) -> list[Spooled]:
        """The records that have waited longest, in their order. Raises: SpoolError."""
        try:
            rows = self._database.execute(
                "SELECT number, topic, key, value FROM record ORDER BY number LIMIT ?", (limit,)
            )
            return [Spooled(number, Record(topic, key, value)) for number, topic, key, value in rows]
        except sqlite3.Error as error:
            raise SpoolError(f"{self._path}: {error}") from error

    def forget(self, number: int) -> None:
        """All records up to this one have arrived. Raises: SpoolError."""
        try:
            with self._database:
                self._database.execute("DELETE FROM record WHERE number <= ?", (number,))
        except sqlite3.Error as error:
            raise SpoolError(f"{self._path}: {error}") from error

    @property
    def waiting(self) -> int:
        """How many records there are."""
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
        """Put rows in; False where there is no room."""
        try:
            with self._database:
                self._database.executemany("INSERT INTO record (topic, key, value) VALUES (?, ?, ?)", rows)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
                raise
            return False
        return True

    def _drop_oldest(self) -> bool:
        """Make room; False where there is nothing to drop."""
        places = ", ".join("?" * len(self._expendable))
        return self._drop(f"topic IN ({places})", self._expendable) or self._drop("TRUE", ())

    def _drop(self, which: str, values: tuple[str, ...]) -> bool:
        bounds = f"SELECT min(number), max(number) FROM record WHERE {which}"
        oldest, newest = self._database.execute(bounds, values).fetchone()
        if oldest is None:
            return False
        until = oldest + (newest - oldest) // _SHARE_TO_DROP
        delete = f"DELETE FROM record WHERE {which} AND number <= ?"
        with self._database:
            self.dropped += self._database.execute(delete, (*values, until)).rowcount
        return True
