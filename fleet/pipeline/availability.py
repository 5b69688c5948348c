"""Computes how long identities were advertised at unreachable members, from external observations.

All queries use only Spark's own expressions, joined by member: no view is collected.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def outage_windows(outages: DataFrame, views: DataFrame) -> DataFrame:
    """Return one row for each outage: id, at_us, until_us, took_us.

    `took_us` is the time from the start of the outage until the Metadata of every survivor named only
    survivors for the rest of the outage; null if that did not happen before the outage ended.

    Args:
        outages: the columns of `fleet.pipeline.observations.OutageEvent`.
        views: the columns of `ViewEvent`; events may be repeated.
    """
    survivors = outages.select("id", "until_us", "survivors", F.explode("survivors").alias("seen_at"))
    seen = views.dropDuplicates(["seen_at", "number", "broker_id"])
    dead = F.col("owner").isNull() | ~F.array_contains("survivors", F.col("owner"))
    answers = (
        survivors.join(seen, "seen_at")
        .where(F.col("at_us") < F.col("until_us"))
        .groupBy("id", "seen_at", "number", "at_us")
        .agg(F.max(dead).alias("bad"))
    )
    of_member = F.when(F.col("bad"), F.col("number"))
    last_bad = answers.groupBy("id", "seen_at").agg(F.coalesce(F.max(of_member), F.lit(-1)).alias("last_bad"))
    since = (
        answers.join(last_bad, ["id", "seen_at"])
        .where(F.col("number") > F.col("last_bad"))
        .groupBy("id", "seen_at")
        .agg(F.min("at_us").alias("since_us"))
    )
    reached = (
        survivors.join(since, ["id", "seen_at"], "left")
        .groupBy("id")
        .agg(F.max("since_us").alias("last_us"), F.max(F.col("since_us").isNull()).alias("never"))
    )
    took = F.greatest(F.col("last_us") - F.col("at_us"), F.lit(0))
    joined = outages.select("id", "at_us", "until_us").join(reached, "id", "left")
    return joined.select("id", "at_us", "until_us", F.when(~F.col("never"), took).alias("took_us"))
