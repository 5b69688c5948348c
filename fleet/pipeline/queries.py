"""Queries over the tables of the jobs, each for a period of time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from fleet.core.errors import PipelineError
from fleet.core.event_schema import ConnectionEvent, LivenessEvent
from fleet.pipeline import anomalies as anomaly_tables
from fleet.pipeline import audit as audit_tables
from fleet.pipeline import slo, timeline_job
from fleet.pipeline.documents import (
    AnomaliesDocument,
    AttainmentDocument,
    AuditDocument,
    AvailabilityDocument,
    ClientAuditDocument,
    FlappingDocument,
    HotBrokerDocument,
    IntervalDocument,
    OneSidedDocument,
    OutageDocument,
    ReportDocument,
    StaleClientDocument,
    StallDocument,
    TakeoverAuditDocument,
    TakeoverDocument,
)
from fleet.pipeline.forecast import MINUTE_MS
from fleet.pipeline.jobs import Site
from fleet.pipeline.observations import LedgerEntry
from fleet.pipeline.spark_schema import ddl_of
from fleet.pipeline.stalls import stalls
from fleet.pipeline.timeline_job import current

T = TypeVar("T")

MAX_TABLE_ROWS: Final = 100_000
"""Rows of one table of a document, at most."""
HOT_BROKERS_SHOWN: Final = 10
MAX_COURSE_POINTS: Final = 500
MIN_STALL_MS: Final = 100
MAX_STALLS: Final = 1_000


def availability(
    spark: SparkSession, site: Site, from_ms: int, to_ms: int, objective: float, period: slo.Period
) -> AvailabilityDocument:
    """Return takeovers, outages and the rest of the error budget between two moments.

    Raises: PipelineError: there is no timeline, or a table exceeds `MAX_TABLE_ROWS`.
    """
    intervals = _intervals(spark, site, from_ms, to_ms)
    ends = F.coalesce("to_ms", F.lit(to_ms))
    connections = _events_between(spark, site.connections, ConnectionEvent, from_ms, to_ms)
    takeover_rows = (
        slo.takeovers(intervals, connections).where(F.col("began_ms").between(from_ms, to_ms)).persist()
    )
    clipped = intervals.withColumn("from_ms", F.greatest("from_ms", F.lit(from_ms))).withColumn(
        "to_ms", F.least(ends, F.lit(to_ms))
    )
    outage_rows = slo.outages(connections).persist()
    try:
        missing = slo.unavailable(takeover_rows, outage_rows, to_ms)
        of_identity = slo.attainment(clipped, missing, to_ms, objective, period)
        takeovers = _rows(takeover_rows.orderBy("began_ms", "broker_id"))
        outages = _rows(outage_rows.orderBy("began_ms", "broker_id"))
        identities = _rows(of_identity.orderBy("fleet", "period", "broker_id"))
    finally:
        takeover_rows.unpersist()
        outage_rows.unpersist()
    attained = tuple(AttainmentDocument(**{**each, "period": str(each["period"])}) for each in identities)
    return AvailabilityDocument(
        from_ms,
        to_ms,
        objective,
        tuple(TakeoverDocument(**{**each, "owners": tuple(each["owners"])}) for each in takeovers),
        tuple(OutageDocument(**each) for each in outages),
        _fleet_attainment(attained, objective),
        attained,
    )


def _intervals(spark: SparkSession, site: Site, from_ms: int, to_ms: int) -> DataFrame:
    """Return the intervals of the timeline that overlap a period."""
    ends = F.coalesce("to_ms", F.lit(to_ms))
    _table(spark, site.timeline, "timeline")
    intervals = current(timeline_job.read(spark, site.timeline)).where("what = 'interval'")
    return intervals.where((F.col("from_ms") < to_ms) & (ends > from_ms))


def _fleet_attainment(
    attained: tuple[AttainmentDocument, ...], objective: float
) -> tuple[AttainmentDocument, ...]:
    """Sum the attainment of all identities of a fleet in each period."""
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for each in attained:
        known_ms, unavailable_ms = sums.get((each.fleet, each.period), (0, 0))
        sums[each.fleet, each.period] = known_ms + each.known_ms, unavailable_ms + each.unavailable_ms
    found = []
    for (fleet, period), (known_ms, unavailable_ms) in sorted(sums.items()):
        budget_ms = round(known_ms * (1 - objective))
        available = 1 - unavailable_ms / known_ms
        left_ms = budget_ms - unavailable_ms
        found.append(
            AttainmentDocument(fleet, None, period, known_ms, unavailable_ms, available, budget_ms, left_ms)
        )
    return tuple(found)


def report(
    spark: SparkSession, site: Site, from_ms: int, to_ms: int, objective: float, period: slo.Period
) -> ReportDocument:
    """Return all documents of the report: availability, anomalies, ownership, hot brokers, audit.

    Raises: PipelineError: there is no timeline, or a table exceeds `MAX_TABLE_ROWS`.
    """
    return ReportDocument(
        availability(spark, site, from_ms, to_ms, objective, period),
        anomalies(spark, site, from_ms, to_ms),
        _ownership_intervals(spark, site, from_ms, to_ms),
        _hot_brokers(spark, site, from_ms, to_ms),
        audit(spark, site, from_ms, to_ms),
    )


def _ownership_intervals(
    spark: SparkSession, site: Site, from_ms: int, to_ms: int
) -> tuple[IntervalDocument, ...]:
    columns = ("fleet", "broker_id", "generation", "owners", "reason", "from_ms", "to_ms")
    rows = _intervals(spark, site, from_ms, to_ms).select(*columns).orderBy("fleet", "broker_id", "from_ms")
    return tuple(IntervalDocument(**{**each, "owners": tuple(each["owners"])}) for each in _rows(rows))


def _hot_brokers(spark: SparkSession, site: Site, from_ms: int, to_ms: int) -> tuple[HotBrokerDocument, ...]:
    """Return the identities with the greatest load; none if the job `load` has written nothing."""
    try:
        loads = spark.read.parquet(site.load)
    except AnalysisException:
        return ()
    at_ms = F.unix_millis("minute")
    loads = loads.where(_day_between(from_ms, to_ms))
    loads = loads.withColumn("at_ms", at_ms).where((at_ms >= from_ms) & (at_ms < to_ms))
    step_ms = max(MINUTE_MS, (to_ms - from_ms) // MAX_COURSE_POINTS // MINUTE_MS * MINUTE_MS)
    spans = loads.withColumn("at_ms", F.floor(F.col("at_ms") / step_ms) * step_ms)
    course = spans.groupBy("fleet", "broker_id", "at_ms").agg(
        *(F.sum(name).alias(name) for name in ("requests", "bytes", "cpu_us"))
    )
    of_identity = course.groupBy("fleet", "broker_id").agg(
        *(F.sum(name).alias(name) for name in ("requests", "bytes", "cpu_us")),
        F.sort_array(F.collect_list(F.struct("at_ms", "cpu_us"))).alias("course"),
    )
    total = of_identity.agg(F.sum("cpu_us").alias("total")).first()
    all_us = (total["total"] if total is not None else None) or 1.0
    found = []
    for row in of_identity.orderBy(F.desc("cpu_us"), "fleet", "broker_id").limit(HOT_BROKERS_SHOWN).collect():
        times, costs = zip(*row.course, strict=True)
        per_s = tuple(1000 * cost / step_ms for cost in costs)
        share = row.cpu_us / all_us
        found.append(
            HotBrokerDocument(
                row.fleet, row.broker_id, row.requests, row.bytes, row.cpu_us, share, tuple(times), per_s
            )
        )
    return tuple(found)


def anomalies(spark: SparkSession, site: Site, from_ms: int, to_ms: int) -> AnomaliesDocument:
    """Return the anomalies between two moments. Raises: PipelineError: a table exceeds `MAX_TABLE_ROWS`."""
    liveness = _events_between(spark, site.liveness, LivenessEvent, from_ms, to_ms)
    connections = _events_between(spark, site.connections, ConnectionEvent, from_ms, to_ms)
    return AnomaliesDocument(
        from_ms,
        to_ms,
        _documents(anomaly_tables.flapping(liveness), FlappingDocument),
        _documents(anomaly_tables.one_sided(liveness, to_ms), OneSidedDocument),
        _documents(anomaly_tables.stale_clients(connections), StaleClientDocument),
    )


def audit(
    spark: SparkSession, site: Site, from_ms: int, to_ms: int, keys: Mapping[str, int] = audit_tables.NO_KEYS
) -> AuditDocument:
    """Audit all records of each client that has a ledger entry between two moments.

    Args:
        keys: see `fleet.pipeline.audit.audit`.
    Raises: PipelineError: there is no timeline, or a table exceeds `MAX_TABLE_ROWS`.
    """
    entries = _events_table(spark, site.ledger, LedgerEntry)
    in_days = entries.where(_day_between(from_ms, to_ms))
    clients_at_work = (
        in_days.where(F.col("at_us").between(1000 * from_ms, 1000 * to_ms)).select("client").distinct()
    )
    ledger = entries.drop("day").join(clients_at_work, "client", "leftsemi")
    connections = _events_between(spark, site.connections, ConnectionEvent, from_ms, to_ms)
    takeover_rows = slo.takeovers(_intervals(spark, site, from_ms, to_ms), connections)
    takeover_rows = takeover_rows.where(F.col("began_ms").between(from_ms, to_ms))
    waits = stalls(ledger, MIN_STALL_MS).where(F.col("from_ms").between(from_ms, to_ms))
    longest = waits.orderBy(F.desc("took_ms"), "from_ms", "client", "what", "partition").limit(MAX_STALLS)
    records = audit_tables.by_record(ledger).persist()
    try:
        clients = _rows(audit_tables.audit(records, keys).orderBy("client"))
        takeovers = _rows(audit_tables.by_takeover(records, takeover_rows, keys).orderBy("began_ms", "fleet"))
    finally:
        records.unpersist()
    return AuditDocument(
        from_ms,
        to_ms,
        tuple(ClientAuditDocument(**each) for each in clients),
        tuple(
            TakeoverAuditDocument(**{**each, "broker_ids": tuple(each["broker_ids"] or ())})
            for each in takeovers
        ),
        tuple(StallDocument(**each) for each in _rows(longest)),
    )


def _documents(rows: DataFrame, kind: type[T]) -> tuple[T, ...]:
    named = rows.withColumnRenamed("told_by", "reported_by")  # events keep the old name
    return tuple(kind(**each) for each in _rows(named.orderBy("from_ms")))


def _rows(table: DataFrame) -> Sequence[Mapping[str, Any]]:
    rows = [row.asDict() for row in table.limit(MAX_TABLE_ROWS + 1).collect()]
    if len(rows) > MAX_TABLE_ROWS:
        raise PipelineError(f"more than {MAX_TABLE_ROWS} rows; choose a shorter period with --from and --to")
    return rows


def _table(spark: SparkSession, place: str, job: str) -> DataFrame:
    try:
        return spark.read.parquet(place)
    except AnalysisException as error:  # the folder is missing or has no files
        raise PipelineError(f"{place}: there is no table; run the job `{job}` first") from error


def _events_table(spark: SparkSession, place: str, kind: type[Any]) -> DataFrame:
    """Read the events of a kind and their day; none if the job has written nothing."""
    try:
        return spark.read.parquet(place)
    except AnalysisException:
        return spark.createDataFrame([], f"{ddl_of(kind)}, day date")


def _events_between(spark: SparkSession, place: str, kind: type[Any], from_ms: int, to_ms: int) -> DataFrame:
    events = _events_table(spark, place, kind).where(_day_between(from_ms, to_ms)).drop("day")
    return events.where(F.col("at_ms").between(from_ms, to_ms))


def _day_between(from_ms: int, to_ms: int) -> Column:
    """Select the folders of a period."""
    first, last = (F.to_date(F.timestamp_millis(F.lit(each))) for each in (from_ms, to_ms))
    return F.col("day").between(first, last)
