"""What should not be so, though nothing is lost: members that come and go, links of one direction, clients
that do not ask. All in Spark's own expressions, over the events of members and connections.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

FLAPS: Final = 3
FLAPPING_MS: Final = 10 * 60_000
"""So often in this time a member was held for dead and alive again by one and the same member."""
ONE_SIDED_MS: Final = 10_000
"""For so long one held another for dead, who never held the first one for dead."""
STALE_OPENS: Final = 3
STALE_MS: Final = 30_000
"""So often, and for so long, a client came to a member that did not stand for the broker it wanted."""

_LIVENESS: Final = ("fleet", "told_by", "proxy_id")


def flapping(liveness: DataFrame) -> DataFrame:
    """Members that are held for dead again and again: fleet, told_by, proxy_id, from_ms, to_ms, flaps.

    Args:
        liveness: a column for each field of a `LivenessEvent`; an event may be there more than once.
    """
    died = liveness.dropDuplicates(["id"]).where("after = 'suspect'")
    windows = died.groupBy(*_LIVENESS, F.floor(F.col("at_ms") / FLAPPING_MS).alias("window"))
    found = windows.agg(
        F.min("at_ms").alias("from_ms"), F.max("at_ms").alias("to_ms"), F.count("id").alias("flaps")
    )
    return found.where(F.col("flaps") >= FLAPS).drop("window")


def one_sided(liveness: DataFrame, until_ms: int) -> DataFrame:
    """Suspicions that the suspect did not share: fleet, told_by, proxy_id, from_ms, to_ms.

    Args:
        until_ms: when those end that last.
    """
    suspicions = _suspicions(liveness, until_ms).where(F.col("to_ms") - F.col("from_ms") >= ONE_SIDED_MS)
    other = _suspicions(liveness, until_ms).select(
        "fleet",
        F.col("told_by").alias("proxy_id"),
        F.col("proxy_id").alias("told_by"),
        F.col("from_ms").alias("other_from_ms"),
        F.col("to_ms").alias("other_to_ms"),
    )
    meanwhile = (F.col("other_from_ms") < F.col("to_ms")) & (F.col("from_ms") < F.col("other_to_ms"))
    shared = suspicions.join(other, list(_LIVENESS)).where(meanwhile).select(*_LIVENESS, "from_ms").distinct()
    return suspicions.join(shared, [*_LIVENESS, "from_ms"], "left_anti")


def stale_clients(connections: DataFrame) -> DataFrame:
    """Clients with an old address: fleet, host, client_id, broker_id, told_by, from_ms, to_ms, opens.

    Args:
        connections: a column for each field of a `ConnectionEvent`; an event may be there more than once.
    """
    opened = connections.dropDuplicates(["id"]).where("what = 'opened' and not owned and broker_id >= 0")
    host = F.regexp_replace("client", ":[0-9]+$", "")
    found = (
        opened.withColumn("host", host)
        .groupBy("fleet", "host", "client_id", "broker_id", "told_by")
        .agg(F.min("at_ms").alias("from_ms"), F.max("at_ms").alias("to_ms"), F.count("id").alias("opens"))
    )
    return found.where((F.col("opens") >= STALE_OPENS) & (F.col("to_ms") - F.col("from_ms") >= STALE_MS))


def _suspicions(liveness: DataFrame, until_ms: int) -> DataFrame:
    """From when to when one member held another for dead."""
    of_pair = Window.partitionBy(*_LIVENESS).orderBy("at_ms", "id")
    told = liveness.dropDuplicates(["id"]).withColumn("to_ms", F.lead("at_ms").over(of_pair))
    return told.where("after = 'suspect'").select(
        *_LIVENESS, F.col("at_ms").alias("from_ms"), F.coalesce("to_ms", F.lit(until_ms)).alias("to_ms")
    )
