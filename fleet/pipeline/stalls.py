"""Finds stalls in the ledgers of clients: intervals in which a partition had no record.

All queries use only Spark's own expressions. They sort at most a minute of one client's partition together.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

_MINUTE_US: Final = 60_000_000
_PARTITION_KEY: Final = ("client", "what", "partition")


def stalls(ledger: DataFrame, min_ms: int) -> DataFrame:
    """Return one row for each stall of one partition: client, what, partition, from_ms, took_ms.

    A stall is an interval without an acknowledgement (`what` is "acknowledged") or without a delivery to the
    group ("received").

    Args:
        ledger: the columns of `fleet.pipeline.observations.LedgerEntry`; entries may be repeated.
        min_ms: shortest stall that is returned.
    """
    seen = ledger.where("what in ('acknowledged', 'received')").withColumn(
        "minute", F.floor(F.col("at_us") / _MINUTE_US)
    )
    within = Window.partitionBy(*_PARTITION_KEY, "minute").orderBy("at_us")
    inside = seen.select(*_PARTITION_KEY, "at_us", F.lag("at_us").over(within).alias("from_us"))
    minutes = seen.groupBy(*_PARTITION_KEY, "minute").agg(
        F.min("at_us").alias("at_us"), F.max("at_us").alias("last_us")
    )
    along = Window.partitionBy(*_PARTITION_KEY).orderBy("minute")
    between = minutes.select(*_PARTITION_KEY, "at_us", F.lag("last_us").over(along).alias("from_us"))
    took_ms = F.floor((F.col("at_us") - F.col("from_us")) / 1000)
    return (
        inside.union(between)
        .withColumn("took_ms", took_ms)
        .where(F.col("took_ms") >= min_ms)
        .select(*_PARTITION_KEY, F.floor(F.col("from_us") / 1000).alias("from_ms"), "took_ms")
    )
