"""The delivery audit: what producers were told, what groups were given and what the log holds, joined.

The ledger has one entry for each acknowledgement, each delivery to a group and each record in the log. All is
grouping by key, so it scales with the machines: nothing is collected, and no partition is sorted as a whole
(see `_inverted`). The verdict is that of `fleet.drills.workload.audit`, for every client at once.

    records = by_record(ledger).persist()       one pass over the ledger
    audit(records), by_takeover(records, taken)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from types import MappingProxyType
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

BUCKET: Final = 100_000
"""Records of one producer and partition that are sorted together."""
NO_KEYS: Final = MappingProxyType[str, int]({})

_RECORD: Final = ("client", "partition", "producer_id", "sequence")
_LINE: Final = ("client", "partition", "producer_id")
_FIGURES: Final = ("lost", "duplicated", "out_of_order")


def by_record(ledger: DataFrame) -> DataFrame:
    """One row for each record of each client: client, partition, producer_id, sequence, and

    - acknowledged, kept: whether it was, and whether the log has it where the last acknowledgement said
    - copies, first_offset, last_offset: of it in the log
    - given, first_number, given_offset: at how many places a group was given it, when that was first in what
      the group was given, and the last of these places
    - deliveries: how often a group was given it
    - at_us: when it was acknowledged; else received; else found

    The ledger is sent around once, by record; what follows adds up numbers where they are.

    Args:
        ledger: the columns of `fleet.pipeline.observations.LedgerEntry`; an entry may come more than once.
    """

    def of(what: str, column: str) -> Column:
        return F.when(F.col("what") == what, F.col(column))

    def there(column: str) -> Column:
        return F.count_if(F.col(column).isNotNull())

    entries = ledger.repartition(*_RECORD).groupBy(*_RECORD, "offset", "what", "number")
    at_places = (
        entries.agg(F.min("at_us").alias("at_us"))
        .groupBy(*_RECORD, "offset")
        .agg(
            F.max(of("acknowledged", "number")).alias("told"),
            F.max(of("log", "offset")).alias("held"),
            F.min(of("received", "number")).alias("first_number"),
            F.count(of("received", "number")).alias("deliveries"),
            *(F.min(of(what, "at_us")).alias(f"{what}_us") for what in ("acknowledged", "received", "log")),
        )
    )
    # An acknowledgement that does not say where is not wrong about it.
    kept = F.when(F.col("held").isNotNull() | F.col("offset").isNull(), F.col("told"))
    given_offset = F.when(F.col("first_number").isNotNull(), F.col("offset"))
    last = F.max("told")
    return at_places.groupBy(*_RECORD).agg(
        last.isNotNull().alias("acknowledged"),
        last.eqNullSafe(F.max(kept)).alias("kept"),
        there("held").alias("copies"),
        F.min("held").alias("first_offset"),
        F.max("held").alias("last_offset"),
        there("first_number").alias("given"),
        F.min("first_number").alias("first_number"),
        F.max(given_offset).alias("given_offset"),
        F.sum("deliveries").alias("deliveries"),
        F.coalesce(*(F.min(f"{what}_us") for what in ("acknowledged", "received", "log"))).alias("at_us"),
    )


def audit(records: DataFrame, keys: Mapping[str, int] = NO_KEYS) -> DataFrame:
    """One row for each client: acknowledged, received, redelivered, lost, duplicated, out_of_order.

    Args:
        records: what `by_record` gives.
        keys: client → how many keys each partition of its compacted topic has, which its records take in
            turn. What is lost are then the keys of which a reader has an older record than the last
            acknowledged.
    """
    counts = records.groupBy("client").agg(
        F.count_if("acknowledged").alias("acknowledged"),
        F.count_if(F.col("given") > 0).alias("received"),
        F.sum(F.col("deliveries") - F.col("given")).alias("redelivered"),
    )
    figures = _faults(records, keys).groupBy("client").agg(*_figures())
    return counts.join(figures, "client", "left").na.fill(0)


def by_takeover(records: DataFrame, taken: DataFrame, keys: Mapping[str, int] = NO_KEYS) -> DataFrame:
    """One row for each takeover: fleet, generation, broker_ids, began_ms, and the lost, duplicated,
    out_of_order of records from then on until the next one of the same fleet began, by their `at_us`; in one
    without a fleet, those of before all.

    Args:
        records, keys: as of `audit`; times are Unix time.
        taken: what `fleet.pipeline.slo.takeovers` gives.
    """
    faults = _faults(records, keys).withColumn("at_ms", F.floor(F.col("at_us") / 1000))
    takeovers = taken.groupBy("fleet", "generation").agg(
        F.array_sort(F.collect_set("broker_id")).alias("broker_ids"), F.min("began_ms").alias("began_ms")
    )
    next_ms = F.lead("began_ms").over(Window.partitionBy("fleet").orderBy("began_ms", "generation"))
    spans = takeovers.withColumn("next_ms", next_ms)
    within = (F.col("at_ms") >= F.col("began_ms")) & (
        F.col("next_ms").isNull() | (F.col("at_ms") < F.col("next_ms"))
    )
    columns = ("fleet", "generation", "broker_ids", "began_ms")
    # Takeovers are few, and faults are to be: one is sent to wherever the others are.
    found = spans.join(faults, within, "left")
    before = faults.join(F.broadcast(spans), within, "leftanti")
    rows = found.unionByName(before, allowMissingColumns=True).groupBy(*columns).agg(*_figures())
    return rows.where(F.col("fleet").isNotNull() | (F.greatest(*_FIGURES) > 0)).select(*columns, *_FIGURES)


def _figures() -> tuple[Column, ...]:
    """What a group of faults comes to."""

    def times(kind: str) -> Column:
        return F.coalesce(F.sum(F.when(F.col("fault") == kind, F.col("times"))), F.lit(0))

    unordered = F.greatest(times("inverted_in_log"), times("inverted_in_group"))
    return times("lost").alias("lost"), times("repeated").alias("duplicated"), unordered.alias("out_of_order")


def _faults(records: DataFrame, keys: Mapping[str, int]) -> DataFrame:
    """One row for each fault: client, at_us, fault, times."""
    lost = records.where("acknowledged and (copies = 0 or given = 0 or not kept)")
    if keys:
        compacted = F.col("client").isin(*keys)
        lost = (
            lost.where(~compacted)
            .select("client", "at_us")
            .union(_stale_keys(records.where(compacted), keys))
        )
    kinds = {
        "lost": lost.withColumn("times", F.lit(1)),
        "repeated": records.where("copies > 1").withColumn("times", F.col("copies") - 1),
        "inverted_in_log": _inverted(records, "first_offset").withColumn("times", F.lit(1)),
        "inverted_in_group": _inverted(records, "first_number").withColumn("times", F.lit(1)),
    }
    return reduce(
        DataFrame.union,
        (rows.select("client", "at_us", F.lit(kind).alias("fault"), "times") for kind, rows in kinds.items()),
    )


def _stale_keys(records: DataFrame, keys: Mapping[str, int]) -> DataFrame:
    """The client and the time of each key's last acknowledged write, where a reader has none from it on."""
    modulus = F.create_map(*(F.lit(each) for item in keys.items() for each in item))[F.col("client")]
    keyed = records.withColumn("key", F.col("sequence") % modulus)
    promised = F.max(F.when(F.col("acknowledged"), F.struct("sequence", "at_us")))
    found = keyed.groupBy("client", "partition", "key").agg(
        promised.alias("promised"),
        F.max_by("sequence", "last_offset").alias("log"),
        F.max_by("sequence", "given_offset").alias("received"),
    )
    fresh = (F.col("log") >= F.col("promised.sequence")) & (F.col("received") >= F.col("promised.sequence"))
    stale = found.where(F.col("promised").isNotNull() & ~F.coalesce(fresh, F.lit(False)))
    return stale.select("client", F.col("promised.at_us").alias("at_us"))


def _inverted(records: DataFrame, order: str) -> DataFrame:
    """The records that first come after a later one of the same producer on the same partition.

    Each is compared with the greatest sequence before it. That is found in two steps, so that no more than
    `BUCKET` records are sorted together: within buckets of the order, and over the maxima of buckets.
    """
    there = records.where(F.col(order).isNotNull()).withColumn("bucket", F.floor(F.col(order) / BUCKET))
    maxima = there.groupBy(*_LINE, "bucket").agg(F.max("sequence").alias("greatest"))
    earlier = Window.partitionBy(*_LINE).orderBy("bucket").rowsBetween(Window.unboundedPreceding, -1)
    maxima = maxima.select(*_LINE, "bucket", F.max("greatest").over(earlier).alias("before_bucket"))
    within = Window.partitionBy(*_LINE, "bucket").orderBy(order).rowsBetween(Window.unboundedPreceding, -1)
    ranked = there.withColumn("in_bucket", F.max("sequence").over(within)).join(maxima, [*_LINE, "bucket"])
    return ranked.where(F.col("sequence") < F.greatest("in_bucket", "before_bucket"))
