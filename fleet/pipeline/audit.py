"""The delivery audit: what producers were told, what groups were given and what the log holds, joined.

The ledger has one entry for each acknowledgement, each delivery to a group and each record in the log. All is
grouping and joining by key, so it scales with the machines: nothing is collected, and no partition is sorted
as a whole (see `_inversions`). The verdict is that of `fleet.demo.audit`, for every client at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from types import MappingProxyType
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

BUCKET: Final = 100_000
"""Entries of one producer and partition that are sorted together."""
NO_KEYS: Final = MappingProxyType[str, int]({})

_RECORD: Final = ("client", "partition", "producer_id", "sequence")
_PLACE: Final = ("client", "partition", "offset")
_FIGURES: Final = ("lost", "duplicated", "out_of_order")


class _Sides(NamedTuple):
    """What the ledger says, each side for itself.

    Args:
        firsts: of what was received, the first of each place.
        promised: each record that was acknowledged, with its offset.
        in_log, given: each record that is in the log, or was received.
    """

    entries: DataFrame
    received: DataFrame
    log: DataFrame
    firsts: DataFrame
    promised: DataFrame
    in_log: DataFrame
    given: DataFrame


def audit(ledger: DataFrame, keys: Mapping[str, int] = NO_KEYS) -> DataFrame:
    """One row for each client: acknowledged, received, redelivered, lost, duplicated, out_of_order.

    Args:
        ledger: the columns of `fleet.pipeline.outside.LedgerEntry`; an entry may come more than once.
        keys: client → how many keys each partition of its compacted topic has, which its records take in
            turn. What is lost are then the keys of which a reader has an older record than the last
            acknowledged.
    """
    sides = _sides(ledger)
    verdict = sides.entries.select("client").distinct()
    counts = (
        _count(sides.promised, "acknowledged"),
        _count(sides.given, "received"),
        _count(sides.received, "deliveries"),
        _count(sides.firsts, "first_deliveries"),
        _faults(sides, keys).groupBy("client").agg(*_figures()),
    )
    for each in counts:
        verdict = verdict.join(each, "client", "left")
    redelivered = (F.col("deliveries") - F.col("first_deliveries")).alias("redelivered")
    return verdict.na.fill(0).select("client", "acknowledged", "received", redelivered, *_FIGURES)


def by_takeover(ledger: DataFrame, taken: DataFrame, keys: Mapping[str, int] = NO_KEYS) -> DataFrame:
    """One row for each takeover: fleet, generation, broker_ids, began_ms, and the lost, duplicated,
    out_of_order of records that were acknowledged from then on until the next one of the same fleet began
    (those that never were: received, or else found); in one without a fleet, those of before all.

    Args:
        ledger, keys: as of `audit`; its times are Unix time.
        taken: what `fleet.pipeline.slo.takeovers` gives.
    """
    sides = _sides(ledger)

    def earliest(what: str) -> Column:
        return F.min(F.when(F.col("what") == what, F.col("at_us")))

    at_us = F.coalesce(earliest("acknowledged"), earliest("received"), earliest("log"))
    when = sides.entries.groupBy(*_RECORD).agg(F.floor(at_us / 1000).alias("at_ms"))
    faults = _faults(sides, keys).join(when, [*_RECORD])
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


def _sides(ledger: DataFrame) -> _Sides:
    # An entry that was delivered twice to the ledger is one entry.
    entries = ledger.dropDuplicates(["client", "what", "number"])
    acknowledged, received, log = (
        entries.where(F.col("what") == what) for what in ("acknowledged", "received", "log")
    )
    firsts = received.groupBy(*_PLACE).agg(
        F.min_by(F.struct("producer_id", "sequence", "number"), "number").alias("first")
    )
    firsts = firsts.select(*_PLACE, "first.*")
    return _Sides(
        entries,
        received,
        log,
        firsts,
        acknowledged.groupBy(*_RECORD).agg(F.max_by("offset", "number").alias("offset")),
        log.groupBy(*_RECORD).agg(F.count(F.lit(1)).alias("copies")),
        firsts.select(*_RECORD).distinct(),
    )


def _count(rows: DataFrame, name: str) -> DataFrame:
    return rows.groupBy("client").agg(F.count(F.lit(1)).alias(name))


def _figures() -> tuple[Column, ...]:
    """What a group of faults comes to."""

    def times(kind: str) -> Column:
        return F.coalesce(F.sum(F.when(F.col("fault") == kind, F.col("times"))), F.lit(0))

    unordered = F.greatest(times("inverted_in_log"), times("inverted_in_group"))
    return times("lost").alias("lost"), times("repeated").alias("duplicated"), unordered.alias("out_of_order")


def _faults(sides: _Sides, keys: Mapping[str, int]) -> DataFrame:
    """One row for each record with which something is wrong, with `fault` and `times`."""
    once = F.lit(1).alias("times")
    lost = _lost(sides).select(*_RECORD, once)
    if keys:
        compacted = F.col("client").isin(*keys)
        lost = lost.where(~compacted).union(_stale_keys(sides.entries.where(compacted), keys))
    kinds = {
        "lost": lost,
        "repeated": sides.in_log.select(*_RECORD, (F.col("copies") - 1).alias("times")).where("times > 0"),
        "inverted_in_log": _inversions(sides.log, "offset").select(*_RECORD, once),
        "inverted_in_group": _inversions(sides.firsts, "number").select(*_RECORD, once),
    }
    return reduce(DataFrame.union, (rows.withColumn("fault", F.lit(kind)) for kind, rows in kinds.items()))


def _lost(sides: _Sides) -> DataFrame:
    """Acknowledged records that are not in the log, not where it was said, or never reached the group."""
    held = sides.log.groupBy(*_PLACE).agg(
        F.max_by(F.struct(F.col("producer_id"), F.col("sequence")), "number").alias("held")
    )
    marked = (
        sides.promised.join(sides.in_log, [*_RECORD], "left")
        .join(sides.given.withColumn("given", F.lit(True)), [*_RECORD], "left")
        .join(held, [*_PLACE], "left")
    )
    elsewhere = F.col("offset").isNotNull() & ~F.col("held").eqNullSafe(F.struct("producer_id", "sequence"))
    return marked.where(F.col("copies").isNull() | F.col("given").isNull() | elsewhere)


def _stale_keys(entries: DataFrame, keys: Mapping[str, int]) -> DataFrame:
    """The last acknowledged write of each key of which a reader has neither it nor a later one."""
    modulus = F.create_map(*(F.lit(each) for item in keys.items() for each in item))[F.col("client")]
    keyed = entries.withColumn("key", F.col("sequence") % modulus)
    place = ("client", "partition", "key")
    found = (
        keyed.where(F.col("what") == "acknowledged")
        .groupBy(*place)
        .agg(F.max("sequence").alias("promised"), F.max_by("producer_id", "sequence").alias("producer_id"))
    )
    for what in ("log", "received"):
        newest = F.max_by("sequence", "offset").alias(what)
        found = found.join(keyed.where(F.col("what") == what).groupBy(*place).agg(newest), [*place], "left")
    fresh = (F.col("log") >= F.col("promised")) & (F.col("received") >= F.col("promised"))
    stale = found.where(~F.coalesce(fresh, F.lit(False))).withColumnRenamed("promised", "sequence")
    return stale.select(*_RECORD, F.lit(1).alias("times"))


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
