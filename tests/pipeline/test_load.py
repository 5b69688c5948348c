"""Load and weight of identities, by Spark and by a naive twin."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from fleet.core import event_schema
from fleet.core.event_schema import TrafficEvent
from fleet.core.traffic import ApiTraffic
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.events.weights import read_weights
from fleet.pipeline.forecast import MINUTE_MS, SeasonalForecast
from fleet.pipeline.jobs import Site, finish, start_load, start_weights
from fleet.pipeline.load import CPU_US_PER_BYTE, CPU_US_PER_REQUEST, FORECAST_MINUTES
from fleet.pipeline.streams import Kafka
from tests.conftest import PLAINTEXT
from tests.pipeline_samples import START_MS, make_topics, produce

pytestmark = pytest.mark.size("test")

FLEET = "f"
MINUTES = 8
BEGIN_MS = START_MS // MINUTE_MS * MINUTE_MS
Sums = dict[tuple[int, int], tuple[int, int]]
"""Identity and minute → requests and bytes."""


def make_traffic(chance: random.Random) -> list[TrafficEvent]:
    """Return traffic events of two members for three identities and the bootstrap port; some are repeated.

    There is an event every second. Two of three seconds have events of a version without `requests`.
    """
    events = []
    for second in range(MINUTES * 60):
        at_ms = BEGIN_MS + 1000 * second + chance.randrange(1000)
        for member in ("p1", "p2"):
            for broker_id in (-1, 1, 2, 3):
                if chance.random() < 0.3:
                    continue
                apis = {key: ApiTraffic(chance.randrange(broker_id + 5), 1, 5, 6, {40: 1}) for key in (0, 1)}
                event = TrafficEvent(
                    id=f"{FLEET}/{member}/0-1-1/{at_ms}/inside/{broker_id}",
                    fleet=FLEET,
                    told_by=member,
                    listener="inside",
                    broker_id=broker_id,
                    at_ms=at_ms,
                    period_ms=1000,
                    opened=0,
                    connections=2,
                    bytes_to_broker=chance.randrange(100_000 * (broker_id + 2)),
                    bytes_to_client=chance.randrange(100_000),
                    in_flight_peak=1,
                    apis=apis,
                    clients={"c": 1},
                    # Events of older versions have no sum.
                    requests=None if second % 3 else sum(each.requests for each in apis.values()),
                )
                events += [event] * chance.choice((1, 1, 1, 2))
    return events


def sums(events: Iterable[TrafficEvent]) -> Sums:
    found: dict[tuple[int, int], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for each in {each.id: each for each in events}.values():
        if each.broker_id >= 0:
            key = each.broker_id, each.at_ms // MINUTE_MS * MINUTE_MS
            requests, passed = found[key]
            requests += sum(api.requests for api in each.apis.values())
            found[key] = requests, passed + each.bytes_to_broker + each.bytes_to_client
    return dict(found)


def read_load(spark: SparkSession, site: Site) -> Sums:
    rows = spark.read.parquet(site.load).selectExpr(
        "broker_id", "unix_millis(minute) as minute_ms", "requests", "bytes", "cpu_us", "fleet"
    )
    found = {}
    for row in rows.collect():
        assert row.fleet == FLEET
        assert row.cpu_us == pytest.approx(row.requests * CPU_US_PER_REQUEST + row.bytes * CPU_US_PER_BYTE)
        assert (row.broker_id, row.minute_ms) not in found, "a minute is written once"
        found[row.broker_id, row.minute_ms] = row.requests, row.bytes
    return found


def twin(loads: Sums, broker_id: int) -> float:
    known = SeasonalForecast()
    for (identity, minute_ms), (requests, passed) in sorted(loads.items()):
        if identity == broker_id:
            known = known.learn(minute_ms, requests * CPU_US_PER_REQUEST + passed * CPU_US_PER_BYTE)
    return known.predict(FORECAST_MINUTES) / 60


def split(events: Sequence[TrafficEvent], parts: int) -> list[Sequence[TrafficEvent]]:
    size = -(-len(events) // parts)
    return [events[start : start + size] for start in range(0, len(events), size)]


def test_minutes_and_weights_equal_naive_twin(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    """Several runs read repeated events. The last minutes have not ended, so they are not written yet."""
    make_topics(kafka, "load-a.")
    site = Site(Kafka(kafka.bootstrap_servers), "load-a.", str(tmp_path / "out"))
    events = make_traffic(random.Random(5))
    for part in split(events, 2):
        produce(kafka, f"{site.prefix}traffic", [event_schema.EVENTS.encode(each) for each in part])
        assert finish(start_load(spark, site, True)) == len(part)
        finish(start_weights(spark, site, True))

    found, expected = read_load(spark, site), sums(events)
    minutes = sorted({minute_ms for _, minute_ms in found})
    assert minutes == [BEGIN_MS + number * MINUTE_MS for number in range(len(minutes))]
    assert MINUTES - 3 <= len(minutes) < MINUTES
    assert found == {key: each for key, each in expected.items() if key[1] in minutes}

    weights = asyncio.run(read_weights(kafka.endpoints, PLAINTEXT, site.prefix, FLEET))
    assert weights == {broker_id: pytest.approx(twin(found, broker_id)) for broker_id in (1, 2, 3)}
    assert asyncio.run(read_weights(kafka.endpoints, PLAINTEXT, site.prefix, "another")) == {}
