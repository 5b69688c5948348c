"""Histories of a workload: files of fixed-size entries, which grow while the workload runs.

The workload is a process of its own, so that no drawing or probing delays its time stamps. Other processes
follow its progress in the files. The value of every produced Kafka record contains its `Record`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fleet.core.errors import DemoError

_EVENT = struct.Struct("<dIQQq")  # at_s, partition, producer_id, sequence, offset
NO_OFFSET = -1
"""librdkafka's offset of a record that was acknowledged as a repetition of a record in the log."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record's producer, and its number among this producer's records on its partition, from 0."""

    producer_id: int
    sequence: int

    def encode(self, size_bytes: int) -> bytes:
        """The value of a Kafka record, padded to a size, in the format of Kafka's VerifiableProducer."""
        return f"{self.producer_id}.{self.sequence}".encode().ljust(size_bytes, b".")

    @staticmethod
    def decode(value: bytes | None) -> Record:
        """Decode the value of a Kafka record. Raises: DemoError: no workload wrote the value."""
        try:
            producer_id, sequence = (value or b"").rstrip(b".").split(b".")
            return Record(int(producer_id), int(sequence))
        except ValueError:
            raise DemoError(f"not a record of this workload: {value!r:.80}") from None


@dataclass(frozen=True, slots=True)
class Event:
    """One acknowledgement, one delivery to the consumer group, or one record found in the log.

    Args:
        at_s: time on the machine's monotonic clock, in seconds.
        offset: offset in the partition; `NO_OFFSET` if an acknowledgement has none.
    """

    at_s: float
    partition: int
    record: Record
    offset: int


class HistoryWriter:
    """Appends events to a file. `flush` makes them visible to readers."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("ab")

    def append(self, event: Event) -> None:
        record = event.record
        packed = _EVENT.pack(event.at_s, event.partition, record.producer_id, record.sequence, event.offset)
        self._file.write(packed)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class HistoryReader:
    """Reads a history. Each call continues after the last event."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def read(self) -> Iterator[Event]:
        """The new events. An entry that is not written completely is left for the next call."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        whole = len(data) - len(data) % _EVENT.size
        self._position += whole
        for at_s, partition, producer_id, sequence, offset in _EVENT.iter_unpack(data[:whole]):
            yield Event(at_s, partition, Record(producer_id, sequence), offset)
