"""The delivery audit: what producers were told, what groups were given and what the log holds, joined.

The ledger has one entry for each acknowledgement, each delivery to a group and each record in the log. All is
grouping by key, so it scales with the machines: nothing is collected, and no partition is sorted as a whole
(see `_inverted`). The verdict is that of `fleet.demo.audit`, for every client at once.

    records = by_record(ledger).persist()       two passes over the ledger, by place and by record
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
_PLACE: Final = ("client", "partition", "offset")
_LINE: Final = ("client", "partition", "producer_id")
_FIGURES: Final = ("lost", "duplicated", "out_of_order")


def by_record(ledger: DataFrame) -> DataFrame:
    """One row for each record of each client: client, partition, producer_id, sequence, and

    - acknowledged, kept: whether it was, and whether the log has it where the last acknowledgement said
    - copies, first_offset, last_offset: of it in the log
    - given, first_number, given_offset: at how many places a group was given it first, when that was in what
      the group was given, and the last of these places
    - deliveries: how often a group was given what is there
    - at_us: when it was acknowledged; else received; else found

    Args:
        ledger: the columns of `fleet.pipeline.outside.LedgerEntry`; an entry may come more than once.
    """
    placed = ledger.where("offset is not null")
    who = F.struct("number", "producer_id", "sequence", "at_us")

    def those(what: str) -> Column:
        return F.when(F.col("what") == what, who)

    places = placed.groupBy(*_PLACE).agg(
        F.collect_set(those("acknowledged")).alias("acknowledged"),
        F.collect_set(those("log")).alias("log"),
        F.min(those("received")).alias("first"),
        F.size(F.collect_set(F.when(F.col("what") == "received", F.col("number")))).alias("deliveries"),
    )
    held = F.array_max("log")

    def same(one: Column, other: Column) -> Column:
        return (one["producer_id"] == other["producer_id"]) & (one["sequence"] == other["sequence"])

    def side(what: str, entry: Column, **more: Column) -> Column:
        """One entry, with what is known of it at its place."""
        known = {"kept": F.lit(None).cast("boolean"), "deliveries": F.lit(None).cast("int"), **more}
        return F.struct(
            F.lit(what).alias("what"),
            *(entry[name].alias(name) for name in ("number", "producer_id", "sequence", "at_us")),
            *(column.alias(name) for name, column in known.items()),
        )

    sides = F.concat(
        F.transform(
            "acknowledged",
            lambda entry: side("acknowledged", entry, kept=F.coalesce(same(entry, held), F.lit(False))),
        ),
        F.transform("log", lambda entry: side("log", entry)),
        F.filter(
            F.array(side("received", F.col("first"), deliveries=F.col("deliveries"))),
            lambda entry: entry["number"].isNotNull(),
        ),
    )
    unplaced = ledger.where("offset is null and what = 'acknowledged'").select(
        *_PLACE, side("acknowledged", who, kept=F.lit(True)).alias("side")
    )
    entries = places.select(*_PLACE, F.explode(sides).alias("side")).union(unplaced)
    flat = entries.select(*_PLACE, "side.*")

    def of(what: str, column: str) -> Column:
        return F.when(F.col("what") == what, F.col(column))

    acknowledged = F.when(F.col("what") == "acknowledged", F.struct("number", "kept"))
    earliest = (F.min(of(what, "at_us")) for what in ("acknowledged", "received", "log"))
    return (
        flat.groupBy(*_RECORD)
        .agg(
            F.max(acknowledged).alias("last"),
            F.count(of("log", "offset")).alias("copies"),
            F.min(of("log", "offset")).alias("first_offset"),
            F.max(of("log", "offset")).alias("last_offset"),
            F.count(of("received", "offset")).alias("given"),
            F.min(of("received", "number")).alias("first_number"),
            F.max(of("received", "offset")).alias("given_offset"),
            F.coalesce(F.sum("deliveries"), F.lit(0)).alias("deliveries"),
            F.coalesce(*earliest).alias("at_us"),
        )
        .withColumn("acknowledged", F.col("last").isNotNull())
        .withColumn("kept", F.col("last.kept"))
        .drop("last")
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
