"""The job `timeline`, from a real topic to Parquet by real Spark."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fleet.core import event_schema
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.pipeline.jobs import Site, finish, start_timeline
from fleet.pipeline.run import run
from fleet.pipeline.streams import Kafka
from tests.integration.clients import read_all
from tests.pipeline_samples import expected_timeline, make_reports, make_topics, produce, read_timeline

pytestmark = pytest.mark.size("test")


def make_site(kafka: KafkaCluster, prefix: str, folder: Path) -> Site:
    make_topics(kafka, prefix)
    return Site(Kafka(kafka.bootstrap_servers), prefix, str(folder / "out"))


def test_late_repeated_unordered_batches_give_same_timeline(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    chance = random.Random(11)
    reports = make_reports(chance)
    site = make_site(kafka, "timeline-a.", tmp_path)
    rest, read = [*reports], 0
    while rest:
        size = chance.randrange(60, 160)
        produce(kafka, f"{site.prefix}ownership", [event_schema.EVENTS.encode(each) for each in rest[:size]])
        del rest[:size]
        read += finish(start_timeline(spark, site, True))
    assert read == len(reports)
    assert {row[2] for row in expected_timeline(reports)} == {"interval", "gap", "overlap"}
    assert read_timeline(spark, site) == expected_timeline(reports)

    produce(kafka, f"{site.prefix}ownership", [event_schema.EVENTS.encode(each) for each in reports])
    before = spark.read.parquet(site.timeline).count()
    finish(start_timeline(spark, site, True))
    assert spark.read.parquet(site.timeline).count() == before, "repeated reports add no row"


def test_malformed_record_becomes_dead_letter_with_reason(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    site = make_site(kafka, "timeline-b.", tmp_path)
    good = make_reports(random.Random(3))[0]
    whole: dict[str, Any] = json.loads(event_schema.EVENTS.encode(good))
    bad = {
        b"\xff\xfe nothing": "not a JSON object",
        b"{": "not a JSON object",
        b'"text"': "not a JSON object",
        b'{"kind": "ownership"}': "no version",
        b'{"version": 1}': "no kind",
        json.dumps({**whole, "version": 2}).encode(): "version 2",
        json.dumps({**whole, "kind": "mood"}).encode(): "unknown kind mood",
        json.dumps({**whole, "kind": "traffic"}).encode(): "no listener",
        json.dumps({**whole, "broker_id": "one"}).encode(): "a field of another type",
        json.dumps({k: v for k, v in whole.items() if k != "owners"}).encode(): "no owners",
    }
    with_unknown_field = json.dumps({**whole, "mood": "good"}).encode()
    produce(kafka, f"{site.prefix}ownership", [event_schema.EVENTS.encode(good), *bad, with_unknown_field])
    assert finish(start_timeline(spark, site, True)) == len(bad) + 2
    assert read_timeline(spark, site) == expected_timeline([good])

    lines: list[str] = []
    (counted,) = run(spark, site, ["dead-letters"], once=True, say=lines.append).jobs
    assert (counted.records, counted.dead_letters) == (len(bad) + 2, len(bad))
    assert any(f"{len(bad)} of them not events" in line for line in lines)
    letters = [
        json.loads(each.value() or b"")
        for each in read_all(kafka.bootstrap_servers, f"{site.prefix}dead_letters", len(bad))
    ]
    assert sorted(letter["reason"] for letter in letters) == sorted(bad.values())
    for letter in letters:
        assert letter["id"] == f"{site.prefix}ownership/{letter['partition']}/{letter['offset']}"
