"""The ownership timeline, from a real topic to Parquet by real Spark."""

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
from tests.pipeline_samples import found, make_topics, produce, tellings, wanted

pytestmark = pytest.mark.size("test")


def a_site(kafka: KafkaCluster, prefix: str, folder: Path) -> Site:
    make_topics(kafka, prefix)
    return Site(Kafka(kafka.bootstrap_servers), prefix, str(folder / "out"))


def test_batches_that_come_late_twice_and_in_disorder_make_the_same_timeline(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    chance = random.Random(11)
    told = tellings(chance)
    site = a_site(kafka, "timeline-a.", tmp_path)
    rest, read = [*told], 0
    while rest:
        size = chance.randrange(60, 160)
        produce(kafka, f"{site.prefix}ownership", [event_schema.EVENTS.encode(each) for each in rest[:size]])
        del rest[:size]
        read += finish(start_timeline(spark, site, True))
    assert read == len(told)
    assert {row[2] for row in wanted(told)} == {"interval", "gap", "overlap"}
    assert found(spark, site) == wanted(told)

    produce(kafka, f"{site.prefix}ownership", [event_schema.EVENTS.encode(each) for each in told])
    before = spark.read.parquet(site.timeline).count()
    finish(start_timeline(spark, site, True))
    assert spark.read.parquet(site.timeline).count() == before, "all of it again changes nothing"


def test_what_is_no_event_goes_to_a_topic_with_its_reason(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    site = a_site(kafka, "timeline-b.", tmp_path)
    good = tellings(random.Random(3))[0]
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
    of_a_later_fleet = json.dumps({**whole, "mood": "good"}).encode()
    produce(kafka, f"{site.prefix}ownership", [event_schema.EVENTS.encode(good), *bad, of_a_later_fleet])
    assert finish(start_timeline(spark, site, True)) == len(bad) + 2
    assert found(spark, site) == wanted([good])

    said: list[str] = []
    (counted,) = run(spark, site, ["dead-letters"], once=True, say=said.append).jobs
    assert (counted.records, counted.dead_letters) == (len(bad) + 2, len(bad))
    assert any(f"{len(bad)} of them no event" in line for line in said)
    letters = [
        json.loads(each.value() or b"")
        for each in read_all(kafka.bootstrap_servers, f"{site.prefix}dead_letters", len(bad))
    ]
    assert sorted(letter["reason"] for letter in letters) == sorted(bad.values())
    for letter in letters:
        assert letter["id"] == f"{site.prefix}ownership/{letter['partition']}/{letter['offset']}"
