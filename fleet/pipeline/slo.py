"""For how long identities were not to be had, by what the fleet itself tells, and how that keeps a promise.

An owner that went is missing from the last moment at which anybody is sure that it was alive, until the last
survivor that told had advertised another one: it takes in the time until its death was detected, and a little
of the time before, as members ask one another now and then. Where nobody told that moment it is missing from
the first sign that it was gone. How long a client waited, only the client can tell: see the chaos runs. An
outage begins when an owner turns a client away because it cannot reach the broker, and ends when one serves
a client again.

All in Spark's own expressions, and joined by identity: nothing is collected.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

Period: TypeAlias = Literal["day", "week"]

IDENTITY: Final = ("fleet", "broker_id")
DAY_MS: Final = 24 * 3600 * 1000


def takeovers(intervals: DataFrame, connections: DataFrame) -> DataFrame:
    """One row for each identity and takeover: fleet, broker_id, generation, owners, `alive_ms` (the last
    moment at which its owner is known to have been alive), `began_ms` (the first sign that it was gone),
    advertised_ms, committed_ms, and `first_request_ms`: when a client first asked one of the new owners for
    something.

    Args:
        intervals: of the timeline that holds.
        connections: a column for each field of a `ConnectionEvent`; an event may be there more than once.
    """
    taken = intervals.where((F.col("reason") == "takeover") & F.col("detected_at_ms").isNotNull()).select(
        *IDENTITY,
        "generation",
        "owners",
        # Another member may have been sure of it after the first one was not, as where a link is broken.
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
        taken.join(opened, list(IDENTITY))
        .where(F.array_contains("owners", F.col("told_by")) & in_time)
        .groupBy(*IDENTITY, "generation")
        .agg(F.min("at_ms").alias("first_request_ms"))
    )
    return taken.drop("to_ms").join(first, [*IDENTITY, "generation"], "left")


def outages(connections: DataFrame) -> DataFrame:
    """One row for each while in which no owner of an identity could reach its broker: fleet, broker_id,
    began_ms, ended_ms (null where it has not ended), and `cuts`: how many connections were cut for it.

    Args:
        connections: as of `takeovers`.
    """
    told = connections.where("owned and broker_id >= 0").dropDuplicates(["id"])
    cut = told.where("what = 'cut' and why = 'unreachable'")
    connection = ["fleet", "connection"]
    # One has opened when its broker is asked for, whether it is there or not.
    served = told.where("what = 'opened'").join(cut.select(connection), connection, "left_anti")
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


def unavailable(taken: DataFrame, out: DataFrame, until_ms: int) -> DataFrame:
    """When identities were not to be had: fleet, broker_id, from_ms, to_ms; no two of an identity overlap.

    Args:
        taken, out: what `takeovers` and `outages` give.
        until_ms: the end of what has not ended.
    """
    since = F.coalesce("alive_ms", "began_ms").alias("from_ms")
    spans = taken.select(*IDENTITY, since, F.col("advertised_ms").alias("to_ms"))
    ended = F.coalesce("ended_ms", F.lit(until_ms))
    spans = spans.union(out.select(*IDENTITY, "began_ms", ended))
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
    """One row for each identity and period (in UTC; weeks begin on Monday): fleet, broker_id, period,
    known_ms, unavailable_ms, available (from 0 to 1), budget_ms (what the objective allows), left_ms.

    Args:
        intervals: as of `takeovers`; what is owned to this day is known until `until_ms`. An identity without
            owners is gone with its broker, and no promise is made of it.
        missing: what `unavailable` gives.
        objective: the part of the time in which an identity is to be there, such as 0.9999.
    """
    ends = F.coalesce("to_ms", F.lit(until_ms))
    owned = intervals.where((F.col("what") == "interval") & (F.size("owners") > 0))
    known = _by_period(owned, F.col("from_ms"), ends, period, "known_ms")
    gone = _by_period(missing, F.col("from_ms"), F.col("to_ms"), period, "unavailable_ms")
    joined = known.join(gone, [*IDENTITY, "period"], "left")
    unavailable = F.least(F.coalesce("unavailable_ms", F.lit(0)), F.col("known_ms"))
    budget = F.round(F.col("known_ms") * (1 - objective)).cast("bigint")
    return (
        joined.withColumn("unavailable_ms", unavailable)
        .withColumn("available", 1 - F.col("unavailable_ms") / F.col("known_ms"))
        .withColumn("budget_ms", budget)
        .withColumn("left_ms", budget - F.col("unavailable_ms"))
    )


def _by_period(rows: DataFrame, begins: Column, ends: Column, period: Period, name: str) -> DataFrame:
    """How much of the time between two moments lies in each period."""
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
