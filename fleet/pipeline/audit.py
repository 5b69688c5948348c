"""The delivery audit: joins acknowledgements, deliveries to groups and the contents of the log.

The ledger has one entry for each acknowledgement, each delivery to a group and each record in the log. The
audit only groups by key, so it scales with the machines: nothing is collected, and no partition is sorted as
a whole (see `_find_inversions`). The verdict equals that of `fleet.drills.workload.audit`, for all clients at
once.

    records = by_record(ledger).persist()       one pass over the ledger
    audit(records), by_takeover(records, takeovers)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from types import MappingProxyType
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

BUCKET_RECORDS: Final = 100_000
"""Greatest number of records of one producer and partition that are sorted together."""
NO_KEYS: Final = MappingProxyType[str, int]({})

_RECORD_KEY: Final = ("client", "partition", "producer_id", "sequence")
_PRODUCER_KEY: Final = ("client", "partition", "producer_id")
_FIGURES: Final = ("lost", "duplicated", "out_of_order")


def by_record(ledger: DataFrame) -> DataFrame:
    """Return one row for each record of each client: client, partition, producer_id, sequence, and

    - acknowledged: whether the record was acknowledged
    - at_acknowledged_offset: whether the log has it at the offset of the last acknowledgement
    - copies, first_offset, last_offset: number of copies in the log, and their first and last offset
    - delivered_offsets: number of offsets at which a group received the record
    - first_number: position of the first delivery among the deliveries to the group
    - last_delivered_offset: greatest offset at which the group received the record
    - deliveries: number of deliveries to the group
    - at_us: time of the acknowledgement; without one, of the delivery; without one, of the record in the log

    The ledger is shuffled once, by record. The later steps aggregate on the same partitions.

    Args:
        ledger: the columns of `fleet.pipeline.observations.LedgerEntry`; entries may be repeated.
    """

    def column_of(what: str, column: str) -> Column:
        return F.when(F.col("what") == what, F.col(column))

    def count_of(column: str) -> Column:
        return F.count_if(F.col(column).isNotNull())

    entries = ledger.repartition(*_RECORD_KEY).groupBy(*_RECORD_KEY, "offset", "what", "number")
    at_places = (
        entries.agg(F.min("at_us").alias("at_us"))
        .groupBy(*_RECORD_KEY, "offset")
        .agg(
            F.max(column_of("acknowledged", "number")).alias("acknowledged_number"),
            F.max(column_of("log", "offset")).alias("log_offset"),
            F.min(column_of("received", "number")).alias("first_number"),
            F.count(column_of("received", "number")).alias("deliveries"),
            *(
                F.min(column_of(what, "at_us")).alias(f"{what}_us")
                for what in ("acknowledged", "received", "log")
            ),
        )
    )
    # An acknowledgement without an offset cannot contradict the log.
    confirmed = F.when(
        F.col("log_offset").isNotNull() | F.col("offset").isNull(), F.col("acknowledged_number")
    )
    delivered_offset = F.when(F.col("first_number").isNotNull(), F.col("offset"))
    last = F.max("acknowledged_number")
    return at_places.groupBy(*_RECORD_KEY).agg(
        last.isNotNull().alias("acknowledged"),
        last.eqNullSafe(F.max(confirmed)).alias("at_acknowledged_offset"),
        count_of("log_offset").alias("copies"),
        F.min("log_offset").alias("first_offset"),
        F.max("log_offset").alias("last_offset"),
        count_of("first_number").alias("delivered_offsets"),
        F.min("first_number").alias("first_number"),
        F.max(delivered_offset).alias("last_delivered_offset"),
        F.sum("deliveries").alias("deliveries"),
        F.coalesce(*(F.min(f"{what}_us") for what in ("acknowledged", "received", "log"))).alias("at_us"),
    )


def audit(records: DataFrame, keys: Mapping[str, int] = NO_KEYS) -> DataFrame:
    """Return one row for each client: acknowledged, received, redelivered, lost, duplicated, out_of_order.

    Args:
        records: rows of `by_record`.
        keys: client with a compacted topic → number of keys in each partition; its records use the keys in
            turn. For such a client, `lost` counts the keys whose newest record at a reader is older than the
            last acknowledged record.
    """
    counts = records.groupBy("client").agg(
        F.count_if("acknowledged").alias("acknowledged"),
        F.count_if(F.col("delivered_offsets") > 0).alias("received"),
        F.sum(F.col("deliveries") - F.col("delivered_offsets")).alias("redelivered"),
    )
    figures = _faults(records, keys).groupBy("client").agg(*_figures())
    return counts.join(figures, "client", "left").na.fill(0)


def by_takeover(records: DataFrame, takeovers: DataFrame, keys: Mapping[str, int] = NO_KEYS) -> DataFrame:
    """Return one row for each takeover.

    The columns are fleet, generation, broker_ids, began_ms, lost, duplicated, out_of_order.

    A takeover has the faults of records from its start to the start of the next takeover of the same fleet,
    by `at_us`. A row without a fleet has the faults before all takeovers.

    Args:
        records, keys: see `audit`; times are Unix time.
        takeovers: rows of `fleet.pipeline.slo.takeovers`.
    """
    faults = _faults(records, keys).withColumn("at_ms", F.floor(F.col("at_us") / 1000))
    takeovers = takeovers.groupBy("fleet", "generation").agg(
        F.array_sort(F.collect_set("broker_id")).alias("broker_ids"), F.min("began_ms").alias("began_ms")
    )
    next_ms = F.lead("began_ms").over(Window.partitionBy("fleet").orderBy("began_ms", "generation"))
    spans = takeovers.withColumn("next_ms", next_ms)
    within = (F.col("at_ms") >= F.col("began_ms")) & (
        F.col("next_ms").isNull() | (F.col("at_ms") < F.col("next_ms"))
    )
    columns = ("fleet", "generation", "broker_ids", "began_ms")
    # Takeovers are few, and faults should be few: Spark can send one side to all tasks of the other.
    found = spans.join(faults, within, "left")
    before = faults.join(F.broadcast(spans), within, "leftanti")
    rows = found.unionByName(before, allowMissingColumns=True).groupBy(*columns).agg(*_figures())
    return rows.where(F.col("fleet").isNotNull() | (F.greatest(*_FIGURES) > 0)).select(*columns, *_FIGURES)


def _figures() -> tuple[Column, ...]:
    """Return the columns of `_FIGURES` for a group of faults."""

    def times(kind: str) -> Column:
        return F.coalesce(F.sum(F.when(F.col("fault") == kind, F.col("times"))), F.lit(0))

    unordered = F.greatest(times("inverted_in_log"), times("inverted_in_group"))
    return times("lost").alias("lost"), times("repeated").alias("duplicated"), unordered.alias("out_of_order")


def _faults(records: DataFrame, keys: Mapping[str, int]) -> DataFrame:
    """Return one row for each fault: client, at_us, fault, times."""
    lost = records.where(
        "acknowledged and (copies = 0 or delivered_offsets = 0 or not at_acknowledged_offset)"
    )
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
        "inverted_in_log": _find_inversions(records, "first_offset").withColumn("times", F.lit(1)),
        "inverted_in_group": _find_inversions(records, "first_number").withColumn("times", F.lit(1)),
    }
    return reduce(
        DataFrame.union,
        (rows.select("client", "at_us", F.lit(kind).alias("fault"), "times") for kind, rows in kinds.items()),
    )


def _stale_keys(records: DataFrame, keys: Mapping[str, int]) -> DataFrame:
    """Return client and time of each key's last acknowledged record that no reader has, nor a later one."""
    modulus = F.create_map(*(F.lit(each) for item in keys.items() for each in item))[F.col("client")]
    keyed = records.withColumn("key", F.col("sequence") % modulus)
    promised = F.max(F.when(F.col("acknowledged"), F.struct("sequence", "at_us")))
    found = keyed.groupBy("client", "partition", "key").agg(
        promised.alias("promised"),
        F.max_by("sequence", "last_offset").alias("log"),
        F.max_by("sequence", "last_delivered_offset").alias("received"),
    )
    fresh = (F.col("log") >= F.col("promised.sequence")) & (F.col("received") >= F.col("promised.sequence"))
    stale = found.where(F.col("promised").isNotNull() & ~F.coalesce(fresh, F.lit(False)))
    return stale.select("client", F.col("promised.at_us").alias("at_us"))


def _find_inversions(records: DataFrame, order: str) -> DataFrame:
    """Return the records that first appear after a later record of the same producer and partition.

    Each record is compared with the greatest sequence before it. Two steps find that sequence: within
    buckets of the order, and over the maxima of the buckets. So Spark sorts at most `BUCKET_RECORDS`
    records together.

    Args:
        order: column that orders the records, such as "first_offset".
    """
    ordered = records.where(F.col(order).isNotNull()).withColumn(
        "bucket", F.floor(F.col(order) / BUCKET_RECORDS)
    )
    maxima = ordered.groupBy(*_PRODUCER_KEY, "bucket").agg(F.max("sequence").alias("greatest"))
    earlier = Window.partitionBy(*_PRODUCER_KEY).orderBy("bucket").rowsBetween(Window.unboundedPreceding, -1)
    maxima = maxima.select(*_PRODUCER_KEY, "bucket", F.max("greatest").over(earlier).alias("before_bucket"))
    within = (
        Window.partitionBy(*_PRODUCER_KEY, "bucket").orderBy(order).rowsBetween(Window.unboundedPreceding, -1)
    )
    ranked = ordered.withColumn("in_bucket", F.max("sequence").over(within)).join(
        maxima, [*_PRODUCER_KEY, "bucket"]
    )
    return ranked.where(F.col("sequence") < F.greatest("in_bucket", "before_bucket"))
