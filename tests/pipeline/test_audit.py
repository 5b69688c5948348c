"""The audit in Spark, compared with the audit of the chaos runs."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fleet.drills.spark_audit import ledger
from fleet.drills.workload.audit import Audit
from fleet.drills.workload.checker import Promise, Stream, audit_of
from fleet.drills.workload.history import NO_OFFSET, Event, Record
from fleet.pipeline.audit import audit, by_record, by_takeover
from fleet.pipeline.observations import LedgerEntry
from fleet.pipeline.spark_schema import ddl_of

pytestmark = pytest.mark.size("test")

CASES = 150
PARTITIONS = 2


def test_audit_equals_checker(spark: SparkSession) -> None:
    chance = random.Random(5)
    streams = [make_stream(f"case-{number}", chance) for number in range(CASES)]
    expected = {each.name: audit_of(each) for each in streams}
    # The comparison tests only figures that some of the cases have.
    for figure in ("lost", "duplicated", "out_of_order", "redelivered"):
        assert sum(getattr(each, figure) > 0 for each in expected.values()) > CASES / 10, figure
        assert sum(getattr(each, figure) == 0 for each in expected.values()) > CASES / 10, figure
    assert found(spark, streams) == expected


def test_repeated_entry_counts_once(spark: SparkSession) -> None:
    stream = make_stream("twice", random.Random(1))
    entries = [*ledger(stream), *ledger(stream)]
    assert verdicts(spark, entries, {"twice": stream.keys}) == {"twice": audit_of(stream)}


def test_fault_counts_for_last_takeover_before_it(spark: SparkSession) -> None:
    chance = random.Random(9)
    streams = [make_stream(f"case-{number}", chance) for number in range(CASES)]
    entries = [entry for stream in streams for entry in ledger(stream)]
    keys = {stream.name: stream.keys for stream in streams if stream.keys}
    # Entries are at 0, 1, … 23 s.
    began_ms = {1: 3_000, 2: 3_000, 5: 11_500, 9: 60_000}
    rows = [
        ("f", broker_id, generation, at_ms) for generation, at_ms in began_ms.items() for broker_id in (7, 4)
    ]
    taken = spark.createDataFrame(rows, "fleet string, broker_id bigint, generation bigint, began_ms bigint")
    table = spark.createDataFrame([astuple(each) for each in entries], ddl_of(LedgerEntry))
    found = {row.generation: row for row in by_takeover(by_record(table), taken, keys).collect()}
    assert found.keys() == {None, *began_ms}
    assert all(row.broker_ids == [4, 7] for generation, row in found.items() if generation)
    for name, figure in (("lost", "lost"), ("duplicated", "duplicated")):
        assert sum(row[name] for row in found.values()) == sum(
            getattr(audit_of(each), figure) for each in streams
        )
        assert found[1][name] == found[9][name] == 0, "no time to the next takeover, or no record after it"
    assert found[None].duplicated == sum(repeated(each, 0, 3) for each in streams)
    assert found[2].duplicated == sum(repeated(each, 3, 11.5) for each in streams)
    assert found[5].duplicated == sum(repeated(each, 11.5, 60) for each in streams)
    assert all(found[each].lost and found[each].out_of_order for each in (None, 2, 5))


def repeated(stream: Stream, since_s: float, until_s: float) -> int:
    """Count the repetitions in the log of records that were acknowledged between two moments."""
    at_s = {(each.partition, each.record): each.at_s for each in stream.acknowledged}
    times = Counter((each.partition, each.record) for each in stream.log)
    return sum(count - 1 for record, count in times.items() if since_s <= at_s[record] < until_s)


def found(spark: SparkSession, streams: Sequence[Stream]) -> dict[str, Audit]:
    entries = [entry for stream in streams for entry in ledger(stream)]
    return verdicts(spark, entries, {stream.name: stream.keys for stream in streams if stream.keys})


def verdicts(spark: SparkSession, entries: Sequence[LedgerEntry], keys: dict[str, int]) -> dict[str, Audit]:
    table = spark.createDataFrame([astuple(each) for each in entries], ddl_of(LedgerEntry))
    rows: list[dict[str, Any]] = [row.asDict() for row in audit(by_record(table), keys).collect()]
    return {row.pop("client"): Audit(**row) for row in rows}


def make_stream(name: str, chance: random.Random) -> Stream:
    """Return a stream of two producers on two partitions, with random kinds of faults."""
    faults = {
        kind: chance.random() < 0.4 for kind in ("lose", "repeat", "swap", "again", "skip", "elsewhere")
    }
    keys = chance.choice([0, 0, 0, 3])
    acknowledged: list[Event] = []
    received: list[Event] = []
    log: list[Event] = []
    for partition in range(PARTITIONS):
        records = [Record(producer, number) for number in range(12) for producer in (1, 2)]
        if faults["swap"] and chance.random() < 0.7:
            place = chance.randrange(len(records) - 3)
            records[place], records[place + 2] = records[place + 2], records[place]
        offset = chance.randrange(5)
        for at, record in enumerate(records):
            if not (faults["lose"] and chance.random() < 0.1):
                log.append(Event(at, partition, record, offset))
            stated_offset = NO_OFFSET if chance.random() < 0.1 else offset
            if faults["elsewhere"] and chance.random() < 0.05:
                stated_offset = offset + 1
            acknowledged.append(Event(at, partition, record, stated_offset))
            offset += 1
            if faults["repeat"] and chance.random() < 0.1:
                log.append(Event(at, partition, record, offset))
                offset += 1
    for event in log:
        if not (faults["skip"] and chance.random() < 0.05):
            received.append(event)
            if faults["again"] and chance.random() < 0.1:
                received += received[-3:]
    if faults["again"] and chance.random() < 0.3:
        chance.shuffle(received)
    return Stream(name, Promise("always", True), PARTITIONS, acknowledged, received, log, keys=keys)
