"""What Spark is asked for, whichever source reads Kafka."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self, cast

import pytest
from pyspark.sql import SparkSession

from fleet.pipeline.load import Summed
from fleet.pipeline.streams import Kafka, Source, records

CLIENT = {"security.protocol": "SASL_SSL"}
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp")


@dataclass
class Asked:
    """Stands for Spark and for its reader: Spark's own connector cannot be had whole where this runs."""

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


def asked(source: Source, **more: Any) -> Asked:
    spark = Asked()
    kafka = Kafka("one:1,two:2", source, CLIENT, records_per_batch=500)
    records(cast(SparkSession, spark), kafka, ["a", "b"], streaming=True, **more)
    return spark


@pytest.mark.parametrize("told", [None, Summed])
def test_the_connector_of_spark_is_given_its_own_options(told: type[Any] | None) -> None:
    spark = asked("jvm", told=told)
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
    spark = asked("jvm", optional=["f.c"])
    assert "subscribe" not in spark.set
    assert spark.set["subscribePattern"] == r"a|b|f\.c"


def test_python_source_gets_optional_topics() -> None:
    assert asked("python", optional=["c", "d"]).set["optional_topics"] == "c,d"


def test_the_source_in_python_decodes_what_it_is_told_to() -> None:
    plain = {
        "bootstrap.servers": "one:1,two:2",
        "topics": "a,b",
        "records_per_batch": "500",
        "kafka.security.protocol": "SASL_SSL",
    }
    spark = asked("python")
    assert (spark.source, spark.set, spark.columns) == ("fleet_kafka", plain, COLUMNS)
    spark = asked("python", told=Summed)
    assert spark.set == {**plain, "told": "fleet.pipeline.load:Summed"}
    assert spark.columns == ("value", "told")
