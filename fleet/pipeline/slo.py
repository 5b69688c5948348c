"""Computes the availability of identities from the fleet's own events, and compares it with an objective.

In a takeover, an identity is unavailable from the last time at which a member knew that the owner was
alive, until the last reporting survivor advertised another owner. That includes the time until the failure
was detected, and a little of the time before, because members probe each other periodically. If no member
reported the last time alive, the identity is unavailable from the first sign of the failure. Only a client
knows how long it waited; the chaos runs measure that.

An outage begins when an owner rejects a client because it cannot reach the broker. It ends when an owner
serves a client again.

All queries use only Spark's own expressions, joined by identity: nothing is collected.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

Period: TypeAlias = Literal["day", "week"]

IDENTITY: Final = ("fleet", "broker_id")
DAY_MS: Final = 24 * 3600 * 1000


def takeovers(intervals: DataFrame, connections: DataFrame) -> DataFrame:
    """Return one row for each identity and takeover.

    The columns are fleet, broker_id, generation, owners, advertised_ms, committed_ms, and

    - alive_ms: last time at which a member knew that the owner was alive
    - began_ms: first sign of the failure
    - first_request_ms: first request of a client to one of the new owners

    Args:
        intervals: current rows of the timeline.
        connections: a column for each field of a `ConnectionEvent`; events may be repeated.
    """
    rows = intervals.where((F.col("reason") == "takeover") & F.col("detected_at_ms").isNotNull()).select(
        *IDENTITY,
        "generation",
        "owners",
        # If one link is broken, a member may know that the owner is alive after another member suspected it.
        F.when(F.col("alive_at_ms") < F.col("detected_at_ms"), F.col("alive_at_ms"))
        .when(F.col("alive_at_ms").isNotNull(), F.col("detected_at_ms"))
        .alias("alive_ms"),
        F.col("detected_at_ms").alias("began_ms"),
        F.coalesce("advertised_at_ms", "committed_at_ms").alias("advertised_ms"),
        F.col("committed_at_ms").alias("committed_ms"),
        "to_ms",
    )
    opened = connections.where("what = 'opened' and owned").select(*IDENTITY, "told_by", "at_ms")
    in_time = (F.col("at_ms") >= F.col("began_ms")) & (
        F.col("to_ms").isNull() | (F.col("at_ms") < F.col("to_ms"))
    )
    first = (
        rows.join(opened, list(IDENTITY))
        .where(F.array_contains("owners", F.col("told_by")) & in_time)
        .groupBy(*IDENTITY, "generation")
        .agg(F.min("at_ms").alias("first_request_ms"))
    )
    return rows.drop("to_ms").join(first, [*IDENTITY, "generation"], "left")


def outages(connections: DataFrame) -> DataFrame:
    """Return one row for each period in which no owner of an identity could reach its broker.

    The columns are fleet, broker_id, began_ms, ended_ms (null if the outage lasts), and `cuts`: the number of
    connections that were closed because of it.

    Args:
        connections: see `takeovers`.
    """
    events = connections.where("owned and broker_id >= 0").dropDuplicates(["id"])
    cut = events.where("what = 'cut' and why = 'unreachable'")
    connection = ["fleet", "connection"]
    # A connection opens at the first request to its broker, even if the broker is unreachable.
    served = events.where("what = 'opened'").join(cut.select(connection), connection, "left_anti")
    hit = served.join(cut.select(*IDENTITY).distinct(), list(IDENTITY), "left_semi")
    both = cut.select(*IDENTITY, "at_ms", F.lit(True).alias("cut")).union(
        hit.select(*IDENTITY, "at_ms", F.lit(False).alias("cut"))
    )
    later = Window.partitionBy(*IDENTITY).orderBy("at_ms").rangeBetween(1, Window.unboundedFollowing)
    again_ms = F.min(F.when(~F.col("cut"), F.col("at_ms"))).over(later)
    return (
        both.withColumn("ended_ms", again_ms)
        .where("cut")
        .groupBy(*IDENTITY, "ended_ms")
        .agg(F.min("at_ms").alias("began_ms"), F.count("*").alias("cuts"))
        .select(*IDENTITY, "began_ms", "ended_ms", "cuts")
    )


def unavailable(takeover_rows: DataFrame, outage_rows: DataFrame, until_ms: int) -> DataFrame:
    """Return the periods in which identities were unavailable: fleet, broker_id, from_ms, to_ms.

    No two periods of an identity overlap.

    Args:
        takeover_rows: rows of `takeovers`.
        outage_rows: rows of `outages`.
        until_ms: end of outages that still last.
    """
    since = F.coalesce("alive_ms", "began_ms").alias("from_ms")
    spans = takeover_rows.select(*IDENTITY, since, F.col("advertised_ms").alias("to_ms"))
    ended = F.coalesce("ended_ms", F.lit(until_ms))
    spans = spans.union(outage_rows.select(*IDENTITY, "began_ms", ended))
    in_order = Window.partitionBy(*IDENTITY).orderBy("from_ms", "to_ms")
    before_ms = F.max("to_ms").over(in_order.rowsBetween(Window.unboundedPreceding, -1))
    is_new = before_ms.isNull() | (before_ms < F.col("from_ms"))
    numbered = spans.withColumn("is_new", is_new.cast("int")).withColumn(
        "number", F.sum("is_new").over(in_order.rowsBetween(Window.unboundedPreceding, 0))
    )
    return (
        numbered.groupBy(*IDENTITY, "number")
        .agg(F.min("from_ms").alias("from_ms"), F.max("to_ms").alias("to_ms"))
        .drop("number")
    )


def attainment(
    intervals: DataFrame, missing: DataFrame, until_ms: int, objective: float, period: Period = "day"
) -> DataFrame:
    """Return one row for each identity and period; periods are in UTC, and weeks begin on Monday.

    The columns are fleet, broker_id, period, known_ms, unavailable_ms, available (0 to 1), budget_ms (the
    unavailability that the objective allows), left_ms (the rest of the budget).

    Args:
        intervals: see `takeovers`. The objective does not apply to an identity without owners: its broker has
            left the cluster.
        missing: rows of `unavailable`.
        until_ms: end of the current intervals.
        objective: required availability, such as 0.9999.
    """
    ends = F.coalesce("to_ms", F.lit(until_ms))
    owned = intervals.where((F.col("what") == "interval") & (F.size("owners") > 0))
    known = _by_period(owned, F.col("from_ms"), ends, period, "known_ms")
    missing_ms = _by_period(missing, F.col("from_ms"), F.col("to_ms"), period, "unavailable_ms")
    joined = known.join(missing_ms, [*IDENTITY, "period"], "left")
    unavailable = F.least(F.coalesce("unavailable_ms", F.lit(0)), F.col("known_ms"))
    budget = F.round(F.col("known_ms") * (1 - objective)).cast("bigint")
    return (
        joined.withColumn("unavailable_ms", unavailable)
        .withColumn("available", 1 - F.col("unavailable_ms") / F.col("known_ms"))
        .withColumn("budget_ms", budget)
        .withColumn("left_ms", budget - F.col("unavailable_ms"))
    )


def _by_period(rows: DataFrame, begins: Column, ends: Column, period: Period, name: str) -> DataFrame:
    """Split the time between two moments by period; the column `name` is the time in each period."""
    spans = rows.select(*IDENTITY, begins.alias("from_ms"), ends.alias("until_ms")).where(
        "until_ms > from_ms"
    )
    first, last = (F.floor(F.col(each) / DAY_MS) for each in ("from_ms", "until_ms"))
    by_day = spans.withColumn("number", F.explode(F.sequence(first, last)))
    begins_ms = F.col("number") * DAY_MS
    part = F.least("until_ms", begins_ms + DAY_MS) - F.greatest("from_ms", begins_ms)
    day = F.date_from_unix_date(F.col("number").cast("int"))
    return (
        by_day.withColumn("part", part)
        .where("part > 0")
        .withColumn("period", F.to_date(F.date_trunc(period, day)))
        .groupBy(*IDENTITY, "period")
        .agg(F.sum("part").alias(name))
    )
