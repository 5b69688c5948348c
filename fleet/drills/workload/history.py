"""What a workload saw, as files of fixed-size entries that are appended to while it runs.

The workload is a process of its own, so that nobody's drawing or probing delays its time stamps; whoever
wants to know how it goes looks at the files. Every record that it produces carries its `Record`.
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
"""librdkafka's offset of a record that was acknowledged as a repetition of one that is in the log already."""


@dataclass(frozen=True, slots=True)
class Record:
    """Who produced a record, and its number among those of this producer on its partition, from 0."""

    producer_id: int
    sequence: int

    def encode(self, size_bytes: int) -> bytes:
        """The value of a Kafka record, filled up to a size; as Kafka's VerifiableProducer writes them."""
        return f"{self.producer_id}.{self.sequence}".encode().ljust(size_bytes, b".")

    @staticmethod
    def decode(value: bytes | None) -> Record:
        """Undo `encode`. Raises: DemoError: not a value that a workload wrote."""
        try:
            producer_id, sequence = (value or b"").rstrip(b".").split(b".")
            return Record(int(producer_id), int(sequence))
        except ValueError:
            raise DemoError(f"not a record of this workload: {value!r:.80}") from None


@dataclass(frozen=True, slots=True)
class Event:
    """One acknowledgement, one delivery to the consumer group, or one record found in the log.

    Args:
        at_s: when, on the machine's monotonic clock.
        offset: where in the partition; `NO_OFFSET` where an acknowledgement does not say.
    """

    at_s: float
    partition: int
    record: Record
    offset: int


class HistoryWriter:
    """Appends events to a file; `flush` makes them visible."""

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
    """Reads a history from where it stopped the last time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def read(self) -> Iterator[Event]:
        """The events that are new; an entry that is half written is left for later."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        whole = len(data) - len(data) % _EVENT.size
        self._position += whole
        for at_s, partition, producer_id, sequence, offset in _EVENT.iter_unpack(data[:whole]):
            yield Event(at_s, partition, Record(producer_id, sequence), offset)
