"""All that the jobs find out about one stretch of a fleet's life, small enough to be held in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from fleet.core.errors import PipelineError
from fleet.pipeline.audit import audit, by_record
from fleet.pipeline.availability import windows
from fleet.pipeline.documents import AvailabilityDocument
from fleet.pipeline.jobs import OBSERVATION_TOPICS, Site, finish, start_connections, start_timeline
from fleet.pipeline.observations import KINDS
from fleet.pipeline.parse import REASON, events, parse
from fleet.pipeline.queries import availability
from fleet.pipeline.streams import Kafka, records
from fleet.pipeline.timeline_job import current, read

OBJECTIVE: Final = 0.9999


@dataclass(frozen=True, slots=True)
class BatchAudit:
    """What came out.

    Args:
        audits: by client; the columns of `fleet.pipeline.audit.audit`.
        took_us: by outage.
        available: what operators are told.
        owners: by broker id and the generation from which on they were it.
    """

    events: int
    gaps: int
    overlaps: int
    audits: Mapping[str, Mapping[str, int]]
    took_us: Mapping[str, int | None]
    owners: Mapping[tuple[int, int], tuple[str, ...]]
    available: AvailabilityDocument


def judge(
    spark: SparkSession, servers: str, prefix: str, out: str, keys: Mapping[str, int], until_ms: int
) -> BatchAudit:
    """Run the jobs once, over the fleet's topics and over the one with what was seen from outside.

    Args:
        prefix: of the topics.
        out: where Parquet and checkpoints go.
        keys: see `fleet.pipeline.audit.audit`.
        until_ms: the end of what has not ended.
    Raises: PipelineError: a job failed, or a record was no event.
    """
    site = Site(Kafka(servers), prefix, out)
    queries = [start(spark, site, True) for start in (start_timeline, start_connections)]
    count = sum(map(finish, queries))
    timeline = current(read(spark, site.timeline)).collect()
    available = availability(spark, site, 0, until_ms, OBJECTIVE, "day")

    topics = [prefix + each for each in OBSERVATION_TOPICS]
    parsed = parse(records(spark, site.kafka, [], streaming=False, optional=topics), KINDS).persist()
    by_records = by_record(events(parsed, "ledger")).persist()
    try:
        reasons = [row.reason for row in parsed.where(F.col(REASON).isNotNull()).limit(1).collect()]
        if reasons:
            raise PipelineError(f"topics {', '.join(topics)}: a record is not an observation: {reasons[0]}")
        verdicts = [row.asDict() for row in audit(by_records, keys).collect()]
        timed = windows(events(parsed, "outage"), events(parsed, "view")).collect()
        seen = parsed.count()
    finally:
        by_records.unpersist()
        parsed.unpersist()
    return BatchAudit(
        events=count + seen,
        gaps=sum(row.what == "gap" for row in timeline),
        overlaps=sum(row.what == "overlap" for row in timeline),
        audits={verdict.pop("client"): verdict for verdict in verdicts},
        took_us={row.id: row.took_us for row in timed},
        owners={
            (row.broker_id, row.generation): tuple(row.owners) for row in timeline if row.what == "interval"
        },
        available=available,
    )
