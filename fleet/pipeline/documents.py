"""The JSON documents of the commands `fleet pipeline` and `fleet report`, and their output as text."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final, Literal

from rich.console import Console
from rich.table import Table

from fleet.core.codec import Codec
from fleet.core.console import escape
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


def print_pipeline(document: PipelineDocument, console: Console) -> None:
    """Print the jobs of a run for people."""
    for job in document.jobs:
        dead = "" if job.dead_letters is None else f", {job.dead_letters} of them not events"
        console.print(f"{escape(job.name)}: {job.records} records read{dead}")
    console.print(escape(f"results: {document.out}"))


def print_availability(document: AvailabilityDocument, console: Console) -> None:
    """Print takeovers, outages and error budgets for people."""
    table = _table(
        "Takeovers, ms after the owner was last alive", "fleet", "broker", *TAKEOVER_COLUMNS, "new owners"
    )
    for each in document.takeovers:
        times = ("" if after_ms is None else str(after_ms) for after_ms in elapsed_times(each))
        identity = (escape(each.fleet), str(each.broker_id), _when(each.since_ms))
        table.add_row(*identity, *times, escape(", ".join(each.owners)))
    console.print(table)
    for outage in document.outages:
        until = (
            "until now"
            if outage.ended_ms is None
            else f"for {(outage.ended_ms - outage.began_ms) / 1000:.3f} s"
        )
        event = f"no owner could reach broker {outage.broker_id} of {escape(outage.fleet)}"
        console.print(f"{event} from {_when(outage.began_ms)} {until}; {outage.cuts} connections were closed")
    table = _table(
        f"Availability, objective {document.objective:%}",
        "fleet",
        "broker",
        "from",
        "available",
        "unavailable",
        "budget left",
    )
    for period in (*document.fleets, *document.identities):
        broker = "all" if period.broker_id is None else str(period.broker_id)
        unavailable, left = f"{period.unavailable_ms / 1000:.3f} s", f"{period.left_ms / 1000:.3f} s"
        available = f"{period.available:.5%}"
        style = "red" if period.left_ms < 0 else None
        table.add_row(
            escape(period.fleet), broker, escape(period.period), available, unavailable, left, style=style
        )
    console.print(table)


def print_anomalies(document: AnomaliesDocument, console: Console) -> None:
    """Print anomalies for people."""
    for flaps in document.flapping:
        suspicion = f"{escape(flaps.reported_by)} suspected {escape(flaps.proxy_id)} {flaps.flaps} times"
        console.print(f"{suspicion}, {_when(flaps.from_ms)} to {_when(flaps.to_ms)}")
    for pair in document.one_sided:
        suspicion = f"{escape(pair.reported_by)} suspected {escape(pair.proxy_id)}, but not the reverse"
        console.print(f"{suspicion}, {_when(pair.from_ms)} to {_when(pair.to_ms)}")
    for client in document.stale_clients:
        connected = (
            f"client {escape(client.client_id)} at {escape(client.host)} connected {client.opens} times"
        )
        member = f"to {escape(client.reported_by)}, which did not own broker {client.broker_id}"
        console.print(f"{connected} {member}, {_when(client.from_ms)} to {_when(client.to_ms)}")
    if not (document.flapping or document.one_sided or document.stale_clients):
        console.print("no anomalies found")


def print_audit(document: AuditDocument, console: Console) -> None:
    """Print the audit for people."""
    table = _table(
        "Records", "client", "acknowledged", "received", "redelivered", "lost", "duplicated", "out of order"
    )
    for each in document.clients:
        figures = (each.acknowledged, each.received, each.redelivered, each.lost, each.duplicated)
        row = (escape(each.client), *map(str, figures), str(each.out_of_order))
        table.add_row(*row, style="red" if is_faulty(each) else None)
    console.print(table)
    table = _table(
        "Faults from each takeover to the next",
        "fleet",
        "brokers",
        "began (UTC)",
        "lost",
        "duplicated",
        "out of order",
    )
    for takeover in document.takeovers:
        began = "before all takeovers" if takeover.began_ms is None else _when(takeover.began_ms)
        brokers = ", ".join(map(str, takeover.broker_ids))
        counts = (str(takeover.lost), str(takeover.duplicated), str(takeover.out_of_order))
        table.add_row(
            escape(takeover.fleet or ""),
            brokers,
            began,
            *counts,
            style="red" if is_faulty(takeover) else None,
        )
    console.print(table)
    table = _table("Longest stalls", "client", "waiting for", "partition", "began (UTC)", "ms")
    for stall in document.stalls[:MAX_STALLS_SHOWN]:
        partition = (escape(stall.client), STALL_KINDS[stall.what], str(stall.partition))
        table.add_row(*partition, _when(stall.from_ms), str(stall.took_ms))
    console.print(table)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title)
    for column in columns:
        table.add_column(column)
    return table


def _when(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
