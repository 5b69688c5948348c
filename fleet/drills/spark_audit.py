"""Audits the records of one drill with the data pipeline on Spark, instead of this program's own audit."""

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
    """The acknowledgements and deliveries of one workload, and its log, as the pipeline's ledger entries."""
    yield from _ledger(stream, "acknowledged", stream.acknowledged, wall_us)
    received: Iterable[Event] = stream.received
    if not stream.promise.ordered:
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
    """The offset between the machine's clocks in a run.

    Args:
        wall_us: wall clock minus monotonic clock, at the end.
        drift_us: change of this offset since the beginning.
    """

    wall_us: int
    drift_us: int


def audit_alone(stream: Stream) -> Audit:
    """Audit one workload with the data pipeline. The ledger goes through a file instead of Kafka.

    Raises: PipelineError: the ledger cannot be read.
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
    """By workload with a compacted topic, the number of keys of each partition."""
    return {stream.name: stream.keys for stream in history.streams if stream.keys}


def to_us(at_s: float) -> int:
    return round(at_s * 1_000_000)
