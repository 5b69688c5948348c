"""The JSON documents of the commands `fleet pipeline` and `fleet report`."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from fleet.core.codec import Codec
from fleet.core.model import BrokerId, ProxyId
from fleet.core.renamed_keys import RenamedKeys


@dataclass(frozen=True, slots=True)
class JobDocument:
    """One job of a run.

    Args:
        name: name of the job.
        records: number of records that the job has read in this run.
        dead_letters: number of these records that were not events; only for the job `dead-letters`.
    """

    name: str
    records: int
    dead_letters: int | None = None


@dataclass(frozen=True, slots=True)
class PipelineDocument:
    """The output of ``fleet pipeline run --json`` at its end.

    Args:
        out: where the jobs write their tables.
        jobs: the jobs of the run.
    """

    out: str
    jobs: tuple[JobDocument, ...]


@dataclass(frozen=True, slots=True)
class TakeoverDocument:
    """One identity in one takeover. Times are Unix milliseconds, and null if no member reported them.

    Args:
        alive_ms: last time at which the owner is known to have been alive.
        began_ms: first sign of the failure.
        advertised_ms: when the last reporting survivor advertised another owner.
        committed_ms: when the first member learned of the new owners.
        first_request_ms: first request of a client to a new owner.
    """

    fleet: str
    broker_id: BrokerId
    generation: int
    owners: tuple[ProxyId, ...]
    alive_ms: int | None
    began_ms: int
    advertised_ms: int
    committed_ms: int
    first_request_ms: int | None

    @property
    def since_ms(self) -> int:
        """Start of the time in which the identity counts as unavailable."""
        return self.began_ms if self.alive_ms is None else self.alive_ms

    def after_ms(self, moment_ms: int | None) -> int | None:
        """Return the time from `since_ms` to a moment."""
        return None if moment_ms is None else moment_ms - self.since_ms


@dataclass(frozen=True, slots=True)
class OutageDocument:
    """A period in which no owner of an identity could reach its broker. Times are Unix milliseconds.

    Args:
        began_ms: when an owner first rejected a client.
        ended_ms: when an owner next served a client; null if the outage lasts.
        cuts: number of connections that were closed because of the outage.
    """

    fleet: str
    broker_id: BrokerId
    began_ms: int
    ended_ms: int | None
    cuts: int


@dataclass(frozen=True, slots=True)
class AttainmentDocument:
    """Availability of one identity, or of all identities together (broker_id null), in one period.

    Args:
        period: first day of the period, in UTC.
        known_ms: time in which the identity had an owner.
        unavailable_ms: time in which the identity was unavailable.
        available: available part of `known_ms`, from 0 to 1.
        budget_ms, left_ms: error budget of the objective, and the rest of it.
    """

    fleet: str
    broker_id: BrokerId | None
    period: str
    known_ms: int
    unavailable_ms: int
    available: float
    budget_ms: int
    left_ms: int


@dataclass(frozen=True, slots=True)
class AvailabilityDocument:
    """The output of ``fleet pipeline availability --json``."""

    from_ms: int
    to_ms: int
    objective: float
    takeovers: tuple[TakeoverDocument, ...]
    outages: tuple[OutageDocument, ...]
    fleets: tuple[AttainmentDocument, ...]
    identities: tuple[AttainmentDocument, ...]


@dataclass(frozen=True, slots=True)
class FlappingDocument(RenamedKeys):
    """``reported_by`` suspected ``proxy_id`` repeatedly."""

    fleet: str
    reported_by: ProxyId
    proxy_id: ProxyId
    from_ms: int
    to_ms: int
    flaps: int


@dataclass(frozen=True, slots=True)
class OneSidedDocument(RenamedKeys):
    """``reported_by`` suspected ``proxy_id``, which did not suspect ``reported_by``."""

    fleet: str
    reported_by: ProxyId
    proxy_id: ProxyId
    from_ms: int
    to_ms: int


@dataclass(frozen=True, slots=True)
class StaleClientDocument(RenamedKeys):
    """A client connected ``opens`` times to ``reported_by``, which did not own the client's broker."""

    fleet: str
    host: str
    client_id: str
    broker_id: BrokerId
    reported_by: ProxyId
    from_ms: int
    to_ms: int
    opens: int


@dataclass(frozen=True, slots=True)
class AnomaliesDocument:
    """The output of ``fleet pipeline anomalies --json``."""

    from_ms: int
    to_ms: int
    flapping: tuple[FlappingDocument, ...]
    one_sided: tuple[OneSidedDocument, ...]
    stale_clients: tuple[StaleClientDocument, ...]


@dataclass(frozen=True, slots=True)
class IntervalDocument:
    """``owners`` owned a broker's identity from ``from_ms`` to ``to_ms``; null: to the end of the report."""

    fleet: str
    broker_id: BrokerId
    generation: int
    owners: tuple[ProxyId, ...]
    reason: str
    from_ms: int
    to_ms: int | None


@dataclass(frozen=True, slots=True)
class HotBrokerDocument:
    """Load of one broker's identity.

    Args:
        share: share of the processor time of all identities.
        at_ms, cpu_us_per_s: processor time over the period, downsampled.
    """

    fleet: str
    broker_id: BrokerId
    requests: int
    bytes: int
    cpu_us: float
    share: float
    at_ms: tuple[int, ...]
    cpu_us_per_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ClientAuditDocument:
    """Audit of the records of one client; the figures are those of `drills.workload.audit.Audit`."""

    client: str
    acknowledged: int
    received: int
    redelivered: int
    lost: int
    duplicated: int
    out_of_order: int


@dataclass(frozen=True, slots=True)
class TakeoverAuditDocument:
    """Audit of the records from one takeover to the next takeover of the same fleet.

    Args:
        fleet, generation, began_ms: null for the time before all takeovers.
        broker_ids: identities that were taken over.
    """

    fleet: str | None
    generation: int | None
    broker_ids: tuple[BrokerId, ...]
    began_ms: int | None
    lost: int
    duplicated: int
    out_of_order: int


def is_faulty(each: ClientAuditDocument | TakeoverAuditDocument) -> bool:
    """Whether any record was lost, duplicated or out of order."""
    return bool(each.lost or each.duplicated or each.out_of_order)


@dataclass(frozen=True, slots=True)
class StallDocument:
    """An interval in which a client got nothing from a partition.

    Args:
        what: "acknowledged": the producers waited for acknowledgements; "received": the group waited for
            records.
        took_ms: length of the interval.
    """

    client: str
    what: Literal["acknowledged", "received"]
    partition: int
    from_ms: int
    took_ms: int


@dataclass(frozen=True, slots=True)
class AuditDocument:
    """The output of ``fleet pipeline audit --json``.

    Args:
        stalls: the longest stalls between the two moments, the longest first.
    """

    from_ms: int
    to_ms: int
    clients: tuple[ClientAuditDocument, ...]
    takeovers: tuple[TakeoverAuditDocument, ...]
    stalls: tuple[StallDocument, ...]


@dataclass(frozen=True, slots=True)
class ReportDocument:
    """The content of the page of ``fleet report``, and the output of its ``--json``."""

    availability: AvailabilityDocument
    anomalies: AnomaliesDocument
    intervals: tuple[IntervalDocument, ...]
    hot_brokers: tuple[HotBrokerDocument, ...]
    audit: AuditDocument


TAKEOVER_COLUMNS: Final = ("last alive (UTC)", "detected", "advertised", "committed", "first request")


def elapsed_times(takeover: TakeoverDocument) -> tuple[int | None, ...]:
    """Return the milliseconds from the time last alive to each of the other `TAKEOVER_COLUMNS`."""
    detected_ms = None if takeover.alive_ms is None else takeover.began_ms
    moments = (detected_ms, takeover.advertised_ms, takeover.committed_ms, takeover.first_request_ms)
    return tuple(map(takeover.after_ms, moments))


STALL_KINDS: Final = MappingProxyType({"acknowledged": "acknowledgements", "received": "records"})
"""`what` of a stall → what the client waited for, as people read it."""
MAX_STALLS_SHOWN: Final = 20
"""Stalls of a document that people see."""

REPORT: Final = Codec(ReportDocument)
PIPELINE: Final = Codec(PipelineDocument)
AVAILABILITY: Final = Codec(AvailabilityDocument)
ANOMALIES: Final = Codec(AnomaliesDocument)
AUDIT: Final = Codec(AuditDocument)
