"""Spark says what became of the records of one drill, in place of this program's own audit."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.drills.workload.audit import Audit
from fleet.drills.workload.checker import History, Stream
from fleet.drills.workload.history import NO_OFFSET, Event
from fleet.pipeline.audit import audit, by_record
from fleet.pipeline.observations import EVENTS, OBSERVATION_CLASSES, LedgerEntry
from fleet.pipeline.parse import events, parse
from fleet.pipeline.streams import session


def ledger(stream: Stream, wall_us: int = 0) -> Iterator[LedgerEntry]:
    """What one client was told and given, and what its topic holds."""
    yield from _ledger(stream, "acknowledged", stream.acknowledged, wall_us)
    received: Iterable[Event] = stream.received
    if not stream.promise.in_turn:
        received = sorted(received, key=lambda event: (event.partition, event.offset))
    yield from _ledger(stream, "received", received, wall_us)
    yield from _ledger(stream, "log", stream.log, wall_us)


def _ledger(stream: Stream, what: Any, events: Iterable[Event], wall_us: int) -> Iterator[LedgerEntry]:
    for number, event in enumerate(events):
        offset = None if event.offset == NO_OFFSET else event.offset
        record = event.record
        yield LedgerEntry(
            stream.name,
            what,
            event.partition,
            record.producer_id,
            record.sequence,
            offset,
            number,
            wall_us + to_us(event.at_s),
        )


@dataclass(frozen=True, slots=True)
class Clocks:
    """The machine's two clocks in a run.

    Args:
        wall_us: how far the wall clock is before the monotonic one, at the end.
        drift_us: by how much that has changed since its beginning.
    """

    wall_us: int
    drift_us: int


def audit_alone(stream: Stream) -> Audit:
    """What the data pipeline says of one client, without Kafka: its ledger goes through a file.

    Raises: PipelineError: it cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="fleet-ledger-") as folder:
        path = Path(folder, "ledger.jsonl")
        with path.open("wb") as file:
            file.writelines(EVENTS.encode(entry) + b"\n" for entry in ledger(stream))
        spark = session()
        try:
            entries = events(parse(spark.read.text(str(path)), OBSERVATION_CLASSES), "ledger")
            keys = {stream.name: stream.keys} if stream.keys else {}
            (row,) = audit(by_record(entries).persist(), keys).collect()
        finally:
            spark.stop()
    return Audit(**{name: count for name, count in row.asDict().items() if name != "client"})


def keys_of(history: History) -> dict[str, int]:
    """Of clients with a compacted topic, how many keys each partition has."""
    return {stream.name: stream.keys for stream in history.streams if stream.keys}


def to_us(at_s: float) -> int:
    return round(at_s * 1_000_000)
