"""How long clients were kept waiting, by their own ledger: intervals in which a partition saw nothing.

All in Spark's own expressions. No more than a minute of one client's partition is sorted together.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

_MINUTE_US: Final = 60_000_000
_LINE: Final = ("client", "what", "partition")


def stalls(ledger: DataFrame, least_ms: int) -> DataFrame:
    """One row for each interval without an acknowledgement (`what` is "acknowledged"), or without a delivery
    to the group ("received"), of one partition: client, what, partition, from_ms, took_ms.

    Args:
        ledger: the columns of `fleet.pipeline.observations.LedgerEntry`; an entry may come more than once.
        least_ms: shorter ones are left out.
    """
    seen = ledger.where("what in ('acknowledged', 'received')").withColumn(
        "minute", F.floor(F.col("at_us") / _MINUTE_US)
    )
    within = Window.partitionBy(*_LINE, "minute").orderBy("at_us")
    inside = seen.select(*_LINE, "at_us", F.lag("at_us").over(within).alias("from_us"))
    minutes = seen.groupBy(*_LINE, "minute").agg(
        F.min("at_us").alias("at_us"), F.max("at_us").alias("last_us")
    )
    along = Window.partitionBy(*_LINE).orderBy("minute")
    between = minutes.select(*_LINE, "at_us", F.lag("last_us").over(along).alias("from_us"))
    took_ms = F.floor((F.col("at_us") - F.col("from_us")) / 1000)
    return (
        inside.union(between)
        .withColumn("took_ms", took_ms)
        .where(F.col("took_ms") >= least_ms)
        .select(*_LINE, F.floor(F.col("from_us") / 1000).alias("from_ms"), "took_ms")
    )
