"""Queries for a period: which files they read, and files of earlier versions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from fleet.core.event_schema import LivenessEvent
from fleet.pipeline.anomalies import MIN_FLAPS
from fleet.pipeline.jobs import Site
from fleet.pipeline.queries import anomalies, availability
from fleet.pipeline.slo import DAY_MS
from fleet.pipeline.streams import Kafka
from fleet.pipeline.timeline import Row
from fleet.pipeline.timeline_job import ROW_SCHEMA
from tests.pipeline.test_anomalies import BEGIN_MS, suspected, table

pytestmark = pytest.mark.size("test")

BEGIN_OF_DAY_MS = BEGIN_MS // DAY_MS * DAY_MS


def test_query_for_a_day_reads_only_files_of_that_day(spark: SparkSession, tmp_path: Path) -> None:
    """The files of the other day are not Parquet, so reading them fails."""
    flaps = []
    for number in range(MIN_FLAPS):
        flaps += suspected("p1", "p2", 20_000 * number, 20_000 * number + 5)
    events = table(spark, LivenessEvent, flaps)
    site = Site(Kafka(""), "fleet.", str(tmp_path))
    days = events.union(events.withColumn("at_ms", F.col("at_ms") + DAY_MS))
    by_day = days.withColumn("day", F.to_date(F.timestamp_millis("at_ms")))
    by_day.write.partitionBy("day").parquet(site.liveness)
    other = max(Path(site.liveness).glob("day=*"))
    for file in other.glob("*.parquet"):
        file.write_bytes(b"not Parquet")
        file.with_name(f".{file.name}.crc").unlink()

    found = anomalies(spark, site, BEGIN_OF_DAY_MS, BEGIN_OF_DAY_MS + DAY_MS - 1)
    assert [(each.reported_by, each.flaps) for each in found.flapping] == [("p1", MIN_FLAPS)]
    with pytest.raises(Py4JJavaError, match=other.name):
        anomalies(spark, site, BEGIN_OF_DAY_MS, BEGIN_OF_DAY_MS + 2 * DAY_MS)


def test_timeline_file_without_alive_column_is_read(spark: SparkSession, tmp_path: Path) -> None:
    """Files of an earlier version lack the column; newer files of the same table have it."""
    site = Site(Kafka(""), "fleet.", str(tmp_path))
    taken = Row("interval", 7, ("p2",), "takeover", BEGIN_MS, None, BEGIN_MS + 9, BEGIN_MS - 5, BEGIN_MS + 4)
    rows = [(1, taken), (2, replace(taken, alive_at_ms=BEGIN_MS - 60))]
    for broker_id, row in rows:
        values = ("f", broker_id, *(getattr(row, name) for name in Row.__dataclass_fields__), 1)
        table = spark.createDataFrame([values], ROW_SCHEMA).withColumn(
            "day", F.to_date(F.timestamp_millis("from_ms"))
        )
        table = table if broker_id == 2 else table.drop("alive_at_ms")
        table.write.mode("append").partitionBy("day").parquet(site.timeline)

    found = availability(spark, site, BEGIN_MS - 1_000, BEGIN_MS + 1_000, 0.999, "day")
    assert [(each.broker_id, each.alive_ms, each.began_ms) for each in found.takeovers] == [
        (1, None, BEGIN_MS - 5),
        (2, BEGIN_MS - 60, BEGIN_MS - 5),
    ]
    assert {each.broker_id: each.unavailable_ms for each in found.identities} == {1: 9, 2: 64}
