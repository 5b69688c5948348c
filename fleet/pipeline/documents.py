"""What a run of the pipeline's jobs says at its end."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from rich.console import Console
from rich.table import Table

from fleet.core.codec import Codec
from fleet.core.console import escape
from fleet.core.model import BrokerId, ProxyId
from fleet.core.renamed_keys import RenamedKeys


@dataclass(frozen=True, slots=True)
class JobDocument:
    """One job.

    Args:
        records: how many it has read in this run.
        dead_letters: how many of them were no event; of the job `dead-letters` alone.
    """

    name: str
    records: int
    dead_letters: int | None = None


@dataclass(frozen=True, slots=True)
class PipelineDocument:
    """What ``fleet pipeline run --json`` prints when it ends."""

    out: str
    jobs: tuple[JobDocument, ...]


@dataclass(frozen=True, slots=True)
class TakenDocument:
    """One identity in one takeover; times are Unix milliseconds, null where nobody told.

    Args:
        alive_ms: the last moment at which its owner is known to have been alive.
        began_ms: the first sign that it was gone.
        advertised_ms: when the last survivor that told advertised another one.
        first_request_ms: when a client first asked a new owner for something.
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
        """From when on it is taken for missing."""
        return self.began_ms if self.alive_ms is None else self.alive_ms

    def after_ms(self, moment_ms: int | None) -> int | None:
        """How long after that something was."""
        return None if moment_ms is None else moment_ms - self.since_ms


@dataclass(frozen=True, slots=True)
class OutageDocument:
    """A while in which no owner of an identity could reach its broker; times are Unix milliseconds.

    Args:
        began_ms: when the first client was turned away.
        ended_ms: when one was served again; null where none has been.
        cuts: how many connections were cut for it.
    """

    fleet: str
    broker_id: BrokerId
    began_ms: int
    ended_ms: int | None
    cuts: int


@dataclass(frozen=True, slots=True)
class AttainmentDocument:
    """One identity, or (broker_id null) all of them together, in one period.

    Args:
        period: its first day, in UTC.
        known_ms: for how long it was owned at all.
        available: the part of that in which it was to be had.
        budget_ms, left_ms: what the objective allows to be missing, and what is left of it.
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
    """What ``fleet pipeline availability --json`` prints."""

    from_ms: int
    to_ms: int
    objective: float
    takeovers: tuple[TakenDocument, ...]
    outages: tuple[OutageDocument, ...]
    fleets: tuple[AttainmentDocument, ...]
    identities: tuple[AttainmentDocument, ...]


@dataclass(frozen=True, slots=True)
class FlappingDocument(RenamedKeys):
    """``reported_by`` held ``proxy_id`` for dead again and again."""

    fleet: str
    reported_by: ProxyId
    proxy_id: ProxyId
    from_ms: int
    to_ms: int
    flaps: int


@dataclass(frozen=True, slots=True)
class OneSidedDocument(RenamedKeys):
    """``reported_by`` held ``proxy_id`` for dead, which did not hold it for dead."""

    fleet: str
    reported_by: ProxyId
    proxy_id: ProxyId
    from_ms: int
    to_ms: int


@dataclass(frozen=True, slots=True)
class StaleClientDocument(RenamedKeys):
    """A client came to ``reported_by``, which did not stand for the broker that it wanted, so often."""

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
    """What ``fleet pipeline anomalies --json`` prints."""

    from_ms: int
    to_ms: int
    flapping: tuple[FlappingDocument, ...]
    one_sided: tuple[OneSidedDocument, ...]
    stale_clients: tuple[StaleClientDocument, ...]


@dataclass(frozen=True, slots=True)
class IntervalDocument:
    """``owners`` stood for a broker from one moment to another; ``to_ms`` null: to the end of the report."""

    fleet: str
    broker_id: BrokerId
    generation: int
    owners: tuple[ProxyId, ...]
    reason: str
    from_ms: int
    to_ms: int | None


@dataclass(frozen=True, slots=True)
class HotBrokerDocument:
    """What passed one broker's identity.

    Args:
        share: of the processor time of all.
        at_ms, cpu_us_per_s: its course, thinned out.
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
    """What became of the records of one client; the figures are those of `drills.workload.audit.Audit`."""

    client: str
    acknowledged: int
    received: int
    redelivered: int
    lost: int
    duplicated: int
    out_of_order: int


@dataclass(frozen=True, slots=True)
class TakeoverAuditDocument:
    """What became of records from one takeover until the next one of the same fleet.

    Args:
        fleet, generation, began_ms: null where it is about the time before all of them.
        broker_ids: what was taken over.
    """

    fleet: str | None
    generation: int | None
    broker_ids: tuple[BrokerId, ...]
    began_ms: int | None
    lost: int
    duplicated: int
    out_of_order: int


def is_faulty(each: ClientAuditDocument | TakeoverAuditDocument) -> bool:
    """Whether any record was not there, or not once, or not in its place."""
    return bool(each.lost or each.duplicated or each.out_of_order)


@dataclass(frozen=True, slots=True)
class StallDocument:
    """For so long a partition had nothing for a client.

    Args:
        what: "acknowledged": its producers waited; "received": its group did.
    """

    client: str
    what: Literal["acknowledged", "received"]
    partition: int
    from_ms: int
    took_ms: int


@dataclass(frozen=True, slots=True)
class AuditDocument:
    """What ``fleet pipeline audit --json`` prints.

    Args:
        stalls: the longest between the two moments, the longest first.
    """

    from_ms: int
    to_ms: int
    clients: tuple[ClientAuditDocument, ...]
    takeovers: tuple[TakeoverAuditDocument, ...]
    stalls: tuple[StallDocument, ...]


@dataclass(frozen=True, slots=True)
class ReportDocument:
    """What the page of ``fleet report`` tells, and its ``--json`` prints."""

    availability: AvailabilityDocument
    anomalies: AnomaliesDocument
    intervals: tuple[IntervalDocument, ...]
    hot_brokers: tuple[HotBrokerDocument, ...]
    audit: AuditDocument


TAKEOVER_HEADS: Final = ("last alive (UTC)", "detected", "advertised", "committed", "first request")


def times_of(taken: TakenDocument) -> tuple[int | None, ...]:
    """Of a takeover, how many milliseconds after its owner was last alive the other heads were."""
    detected_ms = None if taken.alive_ms is None else taken.began_ms
    moments = (detected_ms, taken.advertised_ms, taken.committed_ms, taken.first_request_ms)
    return tuple(map(taken.after_ms, moments))


STALLS_SHOWN: Final = 20
"""Of those in a document, to people."""

REPORT: Final = Codec(ReportDocument)
PIPELINE: Final = Codec(PipelineDocument)
AVAILABILITY: Final = Codec(AvailabilityDocument)
ANOMALIES: Final = Codec(AnomaliesDocument)
AUDIT: Final = Codec(AuditDocument)


def print_report(document: PipelineDocument, console: Console) -> None:
    """The same for people."""
    for job in document.jobs:
        dead = "" if job.dead_letters is None else f", {job.dead_letters} of them no event"
        console.print(f"{escape(job.name)}: {job.records} records read{dead}")
    console.print(escape(f"results: {document.out}"))


def print_availability(document: AvailabilityDocument, console: Console) -> None:
    """The same for people."""
    table = _table("Takeovers, ms after the owner was last alive", "fleet", "broker", *TAKEOVER_HEADS, "by")
    for each in document.takeovers:
        times = ("" if after_ms is None else str(after_ms) for after_ms in times_of(each))
        identity = (escape(each.fleet), str(each.broker_id), _when(each.since_ms))
        table.add_row(*identity, *times, escape(", ".join(each.owners)))
    console.print(table)
    for out in document.outages:
        until = "to this day" if out.ended_ms is None else f"for {(out.ended_ms - out.began_ms) / 1000:.3f} s"
        who = f"no owner could reach broker {out.broker_id} of {escape(out.fleet)}"
        console.print(f"{who} from {_when(out.began_ms)} {until}; {out.cuts} connections were cut")
    table = _table(
        f"Available, of {document.objective:%}", "fleet", "broker", "from", "available", "missing", "left"
    )
    for period in (*document.fleets, *document.identities):
        broker = "all" if period.broker_id is None else str(period.broker_id)
        missing, left = f"{period.unavailable_ms / 1000:.3f} s", f"{period.left_ms / 1000:.3f} s"
        available = f"{period.available:.5%}"
        style = "red" if period.left_ms < 0 else None
        table.add_row(
            escape(period.fleet), broker, escape(period.period), available, missing, left, style=style
        )
    console.print(table)


def print_anomalies(document: AnomaliesDocument, console: Console) -> None:
    """The same for people."""
    for flaps in document.flapping:
        who = f"{escape(flaps.reported_by)} held {escape(flaps.proxy_id)} for dead {flaps.flaps} times"
        console.print(f"{who}, {_when(flaps.from_ms)} to {_when(flaps.to_ms)}")
    for one in document.one_sided:
        who = f"{escape(one.reported_by)} held {escape(one.proxy_id)} for dead, and not the other way round"
        console.print(f"{who}, {_when(one.from_ms)} to {_when(one.to_ms)}")
    for client in document.stale_clients:
        who = (
            f"client {escape(client.client_id)} at {escape(client.host)} came to {escape(client.reported_by)}"
        )
        times = f"{client.opens} times, {_when(client.from_ms)} to {_when(client.to_ms)}"
        console.print(f"{who} for broker {client.broker_id}, which was elsewhere, {times}")
    if not (document.flapping or document.one_sided or document.stale_clients):
        console.print("nothing odd")


def print_audit(document: AuditDocument, console: Console) -> None:
    """The same for people."""
    table = _table("Records", "client", "acknowledged", "received", "again", "lost", "repeated", "unordered")
    for each in document.clients:
        figures = (each.acknowledged, each.received, each.redelivered, each.lost, each.duplicated)
        row = (escape(each.client), *map(str, figures), str(each.out_of_order))
        table.add_row(*row, style="red" if is_faulty(each) else None)
    console.print(table)
    table = _table(
        "From one takeover to the next", "fleet", "brokers", "began (UTC)", "lost", "repeated", "unordered"
    )
    for taken in document.takeovers:
        began = "before all" if taken.began_ms is None else _when(taken.began_ms)
        brokers = ", ".join(map(str, taken.broker_ids))
        counts = (str(taken.lost), str(taken.duplicated), str(taken.out_of_order))
        table.add_row(
            escape(taken.fleet or ""), brokers, began, *counts, style="red" if is_faulty(taken) else None
        )
    console.print(table)
    table = _table("Longest stalls", "client", "without a record", "partition", "began (UTC)", "ms")
    for stall in document.stalls[:STALLS_SHOWN]:
        where = (escape(stall.client), escape(stall.what), str(stall.partition))
        table.add_row(*where, _when(stall.from_ms), str(stall.took_ms))
    console.print(table)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title)
    for column in columns:
        table.add_column(column)
    return table


def _when(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
