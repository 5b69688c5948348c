"""The delivery audit: what producers were told, what groups were given and what the log holds, joined.

The ledger has one entry for each acknowledgement, each delivery to a group and each record in the log. All is
grouping and joining by key, so it scales with the machines: nothing is collected, and no partition is sorted
as a whole (see `_inversions`). The verdict is that of `fleet.demo.audit`, for every client at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

BUCKET: Final = 100_000
"""Entries of one producer and partition that are sorted together."""

_RECORD: Final = ("client", "partition", "producer_id", "sequence")
_PLACE: Final = ("client", "partition", "offset")


def audit(ledger: DataFrame, keys: Mapping[str, int] = MappingProxyType({})) -> DataFrame:
    """One row for each client: acknowledged, received, redelivered, lost, duplicated, out_of_order.

    Args:
        ledger: the columns of `fleet.pipeline.outside.LedgerEntry`; an entry may come more than once.
        keys: client → how many keys each partition of its compacted topic has, which its records take in
            turn. What is lost are then the keys of which a reader has an older record than the last
            acknowledged.
    """
    # An entry that was delivered twice to the ledger is one entry.
    entries = ledger.dropDuplicates(["client", "what", "number"])
    acknowledged, received, log = (
        entries.where(F.col("what") == what) for what in ("acknowledged", "received", "log")
    )
    firsts = received.groupBy(*_PLACE).agg(
        F.min_by(F.struct("producer_id", "sequence", "number"), "number").alias("first")
    )
    firsts = firsts.select(*_PLACE, "first.*")
    promised = acknowledged.groupBy(*_RECORD).agg(F.max_by("offset", "number").alias("offset"))
    in_log = log.select(*_RECORD).distinct()
    given = firsts.select(*_RECORD).distinct()

    verdict = (
        acknowledged.select("client").union(received.select("client")).union(log.select("client")).distinct()
    )
    lost = _lost(promised, in_log, given, log).select("client")
    if keys:
        compacted = F.col("client").isin(*keys)
        lost = lost.where(~compacted).union(_stale_keys(entries.where(compacted), keys))
    counts = (
        _count(promised, "acknowledged"),
        _count(given, "received"),
        _count(received, "deliveries"),
        _count(firsts, "first_deliveries"),
        _count(log, "entries"),
        _count(in_log, "different"),
        _count(lost, "lost"),
        _count(_inversions(log, "offset"), "inverted_in_log"),
        _count(_inversions(firsts, "number"), "inverted_in_group"),
    )
    for each in counts:
        verdict = verdict.join(each, "client", "left")
    verdict = verdict.na.fill(0)
    return verdict.select(
        "client",
        "acknowledged",
        "received",
        (F.col("deliveries") - F.col("first_deliveries")).alias("redelivered"),
        "lost",
        (F.col("entries") - F.col("different")).alias("duplicated"),
        F.greatest("inverted_in_log", "inverted_in_group").alias("out_of_order"),
    )


def _count(rows: DataFrame, name: str) -> DataFrame:
    return rows.groupBy("client").agg(F.count(F.lit(1)).alias(name))


def _lost(promised: DataFrame, in_log: DataFrame, given: DataFrame, log: DataFrame) -> DataFrame:
    """Acknowledged records that are not in the log, not where it was said, or never reached the group."""
    held = log.groupBy(*_PLACE).agg(
        F.max_by(F.struct(F.col("producer_id"), F.col("sequence")), "number").alias("held")
    )
    marked = (
        promised.join(in_log.withColumn("logged", F.lit(True)), [*_RECORD], "left")
        .join(given.withColumn("given", F.lit(True)), [*_RECORD], "left")
        .join(held, [*_PLACE], "left")
    )
    elsewhere = F.col("offset").isNotNull() & ~F.col("held").eqNullSafe(F.struct("producer_id", "sequence"))
    return marked.where(F.col("logged").isNull() | F.col("given").isNull() | elsewhere)


def _stale_keys(entries: DataFrame, keys: Mapping[str, int]) -> DataFrame:
    """The client of each key whose last acknowledged write, or one after it, a reader does not have."""
    modulus = F.create_map(*(F.lit(each) for item in keys.items() for each in item))[F.col("client")]
    keyed = entries.withColumn("key", F.col("sequence") % modulus)
    place = ("client", "partition", "key")
    found = (
        keyed.where(F.col("what") == "acknowledged").groupBy(*place).agg(F.max("sequence").alias("promised"))
    )
    for what in ("log", "received"):
        newest = F.max_by("sequence", "offset").alias(what)
        found = found.join(keyed.where(F.col("what") == what).groupBy(*place).agg(newest), [*place], "left")
    fresh = (F.col("log") >= F.col("promised")) & (F.col("received") >= F.col("promised"))
    return found.where(~F.coalesce(fresh, F.lit(False))).select("client")


def _inversions(entries: DataFrame, order: str) -> DataFrame:
    """The records that first come after a later one of the same producer on the same partition.

    Each is compared with the greatest sequence before it. That is found in two steps, so that no more than
    `BUCKET` entries are sorted together: within buckets of the order, and over the maxima of buckets.
    """
    line = ("client", "partition", "producer_id")
    firsts = entries.groupBy(*_RECORD).agg(F.min(order).alias("at"))
    bucketed = firsts.withColumn("bucket", F.floor(F.col("at") / BUCKET))
    maxima = bucketed.groupBy(*line, "bucket").agg(F.max("sequence").alias("greatest"))
    earlier = Window.partitionBy(*line).orderBy("bucket").rowsBetween(Window.unboundedPreceding, -1)
    maxima = maxima.select(*line, "bucket", F.max("greatest").over(earlier).alias("before_bucket"))
    within = Window.partitionBy(*line, "bucket").orderBy("at").rowsBetween(Window.unboundedPreceding, -1)
    ranked = bucketed.withColumn("in_bucket", F.max("sequence").over(within)).join(maxima, [*line, "bucket"])
    return ranked.where(F.col("sequence") < F.greatest("in_bucket", "before_bucket"))
