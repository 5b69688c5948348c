"""All jobs at once over a small fleet's events and observations."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from fleet.core import event_schema
from fleet.core.event_schema import DEPRECATED_OBSERVATIONS, OBSERVATIONS
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.pipeline.batch_audit import run_batch_audit
from fleet.pipeline.observations import EVENTS, LedgerEntry, Observation, OutageEvent, ViewEvent
from tests.pipeline_samples import START_MS, expected_timeline, make_reports, make_topics, produce

pytestmark = pytest.mark.size("test")

PREFIX = "batch-audit."
START_US = 1_000 * START_MS


def test_batch_audit_reads_events_and_observations(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    reports = make_reports(random.Random(7), 20)
    ledger: list[Observation] = [
        LedgerEntry("orders", "acknowledged", 0, 1, number, number, number, START_US) for number in range(5)
    ]
    ledger += [LedgerEntry("orders", "log", 0, 1, number, number, number, START_US) for number in range(4)]
    ledger += [
        LedgerEntry("orders", "received", 0, 1, number, number, number, START_US) for number in range(4)
    ]
    seen: list[Observation] = [
        OutageEvent("kill", ("p1",), ("p2", "p3"), START_US, START_US + 900),
        *(ViewEvent(member, 0, 1, "p1", START_US - 5) for member in ("p2", "p3")),
        *(ViewEvent(member, 1, 1, "p2", START_US + 40) for member in ("p2", "p3")),
    ]
    make_topics(kafka, PREFIX)
    produce(kafka, f"{PREFIX}ownership", [event_schema.EVENTS.encode(each) for each in reports])
    produce(kafka, PREFIX + OBSERVATIONS, [EVENTS.encode(each) for each in ledger])
    # The broker creates this topic, as one that an application of before 0.3.0 writes to.
    produce(kafka, PREFIX + DEPRECATED_OBSERVATIONS, [EVENTS.encode(each) for each in seen])

    until_ms = START_MS + 60_000
    found = run_batch_audit(spark, kafka.bootstrap_servers, PREFIX, str(tmp_path), {}, until_ms)
    assert found.events == len(reports) + len(ledger) + len(seen)
    assert found.audits["orders"] == {
        "acknowledged": 5,
        "received": 4,
        "redelivered": 0,
        "lost": 1,
        "duplicated": 0,
        "out_of_order": 0,
    }
    assert found.took_us == {"kill": 40}
    intervals = {(row[1], row[3]): row[4] for row in expected_timeline(reports) if row[2] == "interval"}
    assert found.owners == intervals
    assert {each.broker_id for each in found.available.identities} == {
        broker_id for broker_id, _ in intervals
    }
