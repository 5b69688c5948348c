"""Prints the documents of `fleet pipeline` as text and tables for people."""

from __future__ import annotations

from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table

from fleet.core.console import escape
from fleet.pipeline.documents import (
    MAX_STALLS_SHOWN,
    STALL_KINDS,
    TAKEOVER_COLUMNS,
    AnomaliesDocument,
    AuditDocument,
    AvailabilityDocument,
    PipelineDocument,
    elapsed_times,
    is_faulty,
)


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
