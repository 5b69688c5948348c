"""Runs the jobs once over all events of a fleet, and audits the result in memory.

The events must be few enough for the memory of one process: a chaos run, not a fleet in production.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from fleet.core.errors import PipelineError
from fleet.pipeline.audit import audit, by_record
from fleet.pipeline.availability import outage_windows
from fleet.pipeline.documents import AvailabilityDocument
from fleet.pipeline.jobs import OBSERVATION_TOPICS, Site, finish, start_connections, start_timeline
from fleet.pipeline.observations import OBSERVATION_CLASSES
from fleet.pipeline.parse import REASON, events, parse
from fleet.pipeline.queries import availability
from fleet.pipeline.streams import Kafka, read_records
from fleet.pipeline.timeline_job import current, read

AVAILABILITY_OBJECTIVE: Final = 0.999


@dataclass(frozen=True, slots=True)
class BatchAudit:
    """The results of the jobs.

    Args:
        events: number of records that the jobs have read.
        gaps, overlaps: number of such rows in the timelines of the identities.
        audits: client → the columns of `fleet.pipeline.audit.audit`.
        took_us: outage → `took_us` of `fleet.pipeline.availability.outage_windows`.
        owners: broker id and first generation of an interval → owners.
        available: the document of ``fleet pipeline availability``.
    """

    events: int
    gaps: int
    overlaps: int
    audits: Mapping[str, Mapping[str, int]]
    took_us: Mapping[str, int | None]
    owners: Mapping[tuple[int, int], tuple[str, ...]]
    available: AvailabilityDocument


def run_batch_audit(
    spark: SparkSession, servers: str, prefix: str, out: str, keys: Mapping[str, int], until_ms: int
) -> BatchAudit:
    """Run the jobs once, over the fleet's events and over the observations.

    Args:
        servers: addresses of brokers, separated by commas.
        prefix: prefix of the topic names.
        out: folder for Parquet files and checkpoints.
        keys: see `fleet.pipeline.audit.audit`.
        until_ms: end of outages and intervals that still last.
    Raises: PipelineError: a job failed, or a record of the observations is malformed.
    """
    site = Site(Kafka(servers), prefix, out)
    queries = [start(spark, site, True) for start in (start_timeline, start_connections)]
    count = sum(map(finish, queries))
    rows = current(read(spark, site.timeline)).collect()
    available = availability(spark, site, 0, until_ms, AVAILABILITY_OBJECTIVE, "day")

    topics = [prefix + each for each in OBSERVATION_TOPICS]
    parsed = parse(
        read_records(spark, site.kafka, [], streaming=False, optional=topics), OBSERVATION_CLASSES
    ).persist()
    by_records = by_record(events(parsed, "ledger")).persist()
    try:
        reasons = [row.reason for row in parsed.where(F.col(REASON).isNotNull()).limit(1).collect()]
        if reasons:
            raise PipelineError(f"topics {', '.join(topics)}: a record is not an observation: {reasons[0]}")
        verdicts = [row.asDict() for row in audit(by_records, keys).collect()]
        timed = outage_windows(events(parsed, "outage"), events(parsed, "view")).collect()
        observed = parsed.count()
    finally:
        by_records.unpersist()
        parsed.unpersist()
    return BatchAudit(
        events=count + observed,
        gaps=sum(row.what == "gap" for row in rows),
        overlaps=sum(row.what == "overlap" for row in rows),
        audits={verdict.pop("client"): verdict for verdict in verdicts},
        took_us={row.id: row.took_us for row in timed},
        owners={(row.broker_id, row.generation): tuple(row.owners) for row in rows if row.what == "interval"},
        available=available,
    )
