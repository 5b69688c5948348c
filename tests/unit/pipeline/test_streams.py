"""The options and columns of each Kafka source."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self, cast

import pytest
from pyspark.sql import SparkSession

from fleet.pipeline.load import SummedTraffic
from fleet.pipeline.streams import Kafka, Source, read_records

CLIENT = {"security.protocol": "SASL_SSL"}
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp")


@dataclass
class FakeSpark:
    """Stands in for Spark and for its reader: tests have no jars of Spark's own connector."""

    streaming: bool | None = None
    source: str = ""
    set: dict[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] = ()

    @property
    def read(self) -> Self:
        self.streaming = False
        return self

    @property
    def readStream(self) -> Self:
        self.streaming = True
        return self

    def format(self, name: str) -> Self:
        self.source = name
        return self

    def options(self, **options: str) -> Self:
        self.set.update(options)
        return self

    def load(self) -> Self:
        return self

    def select(self, *columns: str) -> Self:
        self.columns = columns
        return self


def read(source: Source, **more: Any) -> FakeSpark:
    spark = FakeSpark()
    kafka = Kafka("one:1,two:2", source, CLIENT, records_per_batch=500)
    read_records(cast(SparkSession, spark), kafka, ["a", "b"], streaming=True, **more)
    return spark


@pytest.mark.parametrize("event_class", [None, SummedTraffic])
def test_spark_connector_gets_its_own_options(event_class: type[Any] | None) -> None:
    spark = read("jvm", event_class=event_class)
    assert (spark.streaming, spark.source, spark.columns) == (True, "kafka", COLUMNS)
    assert spark.set == {
        "kafka.bootstrap.servers": "one:1,two:2",
        "subscribe": "a,b",
        "startingOffsets": "earliest",
        "kafka.isolation.level": "read_committed",
        "maxOffsetsPerTrigger": "500",
        "kafka.security.protocol": "SASL_SSL",
    }


def test_spark_connector_reads_optional_topics_by_pattern() -> None:
    spark = read("jvm", optional=["f.c"])
    assert "subscribe" not in spark.set
    assert spark.set["subscribePattern"] == r"a|b|f\.c"


def test_python_source_gets_optional_topics() -> None:
    assert read("python", optional=["c", "d"]).set["optional_topics"] == "c,d"


def test_python_source_decodes_one_event_class() -> None:
    plain = {
        "bootstrap.servers": "one:1,two:2",
        "topics": "a,b",
        "records_per_batch": "500",
        "kafka.security.protocol": "SASL_SSL",
    }
    spark = read("python")
    assert (spark.source, spark.set, spark.columns) == ("fleet_kafka", plain, COLUMNS)
    spark = read("python", event_class=SummedTraffic)
    assert spark.set == {**plain, "event_class": "fleet.pipeline.load:SummedTraffic"}
    assert spark.columns == ("value", "decoded")
