"""Finds anomalies that lose no records: flapping members, one-sided links, clients with stale addresses.

All queries use only Spark's own expressions, over liveness and connection events.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

MIN_FLAPS: Final = 3
FLAP_WINDOW_MS: Final = 10 * 60_000
"""A member flaps if another member suspects it at least `MIN_FLAPS` times in a window of this length."""
MIN_ONE_SIDED_MS: Final = 10_000
"""Shortest one-sided suspicion: a member suspects another member, which does not suspect the first."""
MIN_STALE_OPENS: Final = 3
MIN_STALE_MS: Final = 30_000
"""A client has a stale address if it connects at least `MIN_STALE_OPENS` times, over at least this time, to a
member that does not own the broker's identity."""

_SUSPICION_KEY: Final = ("fleet", "told_by", "proxy_id")


def flapping(liveness: DataFrame) -> DataFrame:
    """Return members that are suspected repeatedly: fleet, told_by, proxy_id, from_ms, to_ms, flaps.

    Args:
        liveness: a column for each field of a `LivenessEvent`; events may be repeated.
    """
    suspected = liveness.dropDuplicates(["id"]).where("after = 'suspect'")
    windows = suspected.groupBy(*_SUSPICION_KEY, F.floor(F.col("at_ms") / FLAP_WINDOW_MS).alias("window"))
    found = windows.agg(
        F.min("at_ms").alias("from_ms"), F.max("at_ms").alias("to_ms"), F.count("id").alias("flaps")
    )
    return found.where(F.col("flaps") >= MIN_FLAPS).drop("window")


def one_sided(liveness: DataFrame, until_ms: int) -> DataFrame:
    """Return suspicions that the suspect does not return: fleet, told_by, proxy_id, from_ms, to_ms.

    Args:
        liveness: see `flapping`.
        until_ms: end of suspicions that still last.
    """
    suspicions = _suspicions(liveness, until_ms).where(F.col("to_ms") - F.col("from_ms") >= MIN_ONE_SIDED_MS)
    other = _suspicions(liveness, until_ms).select(
        "fleet",
        F.col("told_by").alias("proxy_id"),
        F.col("proxy_id").alias("told_by"),
        F.col("from_ms").alias("other_from_ms"),
        F.col("to_ms").alias("other_to_ms"),
    )
    meanwhile = (F.col("other_from_ms") < F.col("to_ms")) & (F.col("from_ms") < F.col("other_to_ms"))
    shared = (
        suspicions.join(other, list(_SUSPICION_KEY))
        .where(meanwhile)
        .select(*_SUSPICION_KEY, "from_ms")
        .distinct()
    )
    return suspicions.join(shared, [*_SUSPICION_KEY, "from_ms"], "left_anti")


def stale_clients(connections: DataFrame) -> DataFrame:
    """Return clients with stale addresses: fleet, host, client_id, broker_id, told_by, from_ms, to_ms, opens.

    Args:
        connections: a column for each field of a `ConnectionEvent`; events may be repeated.
    """
    opened = connections.dropDuplicates(["id"]).where("what = 'opened' and not owned and broker_id >= 0")
    host = F.regexp_replace("client", ":[0-9]+$", "")
    found = (
        opened.withColumn("host", host)
        .groupBy("fleet", "host", "client_id", "broker_id", "told_by")
        .agg(F.min("at_ms").alias("from_ms"), F.max("at_ms").alias("to_ms"), F.count("id").alias("opens"))
    )
    return found.where(
        (F.col("opens") >= MIN_STALE_OPENS) & (F.col("to_ms") - F.col("from_ms") >= MIN_STALE_MS)
    )


def _suspicions(liveness: DataFrame, until_ms: int) -> DataFrame:
    """Return periods of suspicion: the columns of `_SUSPICION_KEY`, from_ms, to_ms."""
    of_pair = Window.partitionBy(*_SUSPICION_KEY).orderBy("at_ms", "id")
    transitions = liveness.dropDuplicates(["id"]).withColumn("to_ms", F.lead("at_ms").over(of_pair))
    return transitions.where("after = 'suspect'").select(
        *_SUSPICION_KEY, F.col("at_ms").alias("from_ms"), F.coalesce("to_ms", F.lit(until_ms)).alias("to_ms")
    )
