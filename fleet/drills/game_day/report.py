"""The report of a game day: the JSON object of `--json`, and text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from rich.console import Console

from fleet.core.codec import Codec
from fleet.core.console import escape
from fleet.core.model import ProxyId
from fleet.drills.workload.checker import Rule

Auditor: TypeAlias = Literal["checker", "spark"]
"""What audits the records: the drills' own checker, or the data pipeline on Spark as well."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the run; `at_s` is in seconds since records flowed."""

    at_s: float
    what: str


@dataclass(frozen=True, slots=True)
class FaultDocument:
    """The injected fault.

    Args:
        victim: null if all members were restarted one by one.
        at_s: the victim's last sign of life; for a drain, the time of the request.
        until_s: when healing began, or the member was back by itself.
        whole_s: when the fleet was whole and at rest again, or the time limit was over.
        proof: the effect that was visible from outside.
        takeover_ms: from `at_s` until every other member advertised only other members; null if this did not
            happen, or no takeover was necessary.
        takeover_limit_ms: time limit of the takeover; null if no takeover was necessary.
    """

    victim: ProxyId | None
    was_leader: bool
    at_s: float
    until_s: float
    whole_s: float
    proof: str
    takeover_ms: float | None
    takeover_limit_ms: float | None


@dataclass(frozen=True, slots=True)
class RecordsDocument:
    """The audit of the records.

    Args:
        acknowledged: distinct records that the brokers acknowledged.
        received: distinct records that the group received.
        redelivered: repeated deliveries to the group.
        lost: acknowledged records that are not in the log, or never reached the group.
        duplicated, reordered: records in the log, or in the group's deliveries.
        refused: records that the producer reported as undelivered.
        audited_by: what counted the records, except `refused`.
    """

    acknowledged: int
    received: int
    redelivered: int
    lost: int
    duplicated: int
    reordered: int
    refused: int
    audited_by: Auditor


@dataclass(frozen=True, slots=True)
class StallDocument:
    """The longest interval of a partition without a record, in milliseconds: before and since the fault."""

    before_ms: float
    since_ms: float


@dataclass(frozen=True, slots=True)
class ReportedError:
    """An error that a client reported to its application. Most are followed by a successful retry."""

    at_s: float
    text: str


@dataclass(frozen=True, slots=True)
class BrokenPromise:
    rule: Rule
    detail: str


@dataclass(frozen=True, slots=True)
class GameDayDocument:
    """What ``fleet game-day --json`` prints.

    Args:
        kept: whether all promises were kept.
        began: start of the run, in UTC.
        fault: null for a scenario without a fault.
        violations: the broken promises.
        errors: errors that clients reported to their applications.
        picture: the file of the timeline; null without one.
        folder: the folder of the clients' histories and logs; null if they were not kept.
    """

    fleet: str
    scenario: str
    kept: bool
    began: str
    lasted_s: float
    topic: str
    fault: FaultDocument | None
    records: RecordsDocument
    producer_stall: StallDocument
    consumer_stall: StallDocument
    violations: tuple[BrokenPromise, ...]
    errors: tuple[ReportedError, ...]
    steps: tuple[Step, ...]
    picture: str | None
    folder: str | None


GAME_DAY: Final = Codec(GameDayDocument)


def print_report(document: GameDayDocument, console: Console) -> None:
    """Print the report as text."""
    verdict = (
        "[green]all promises kept[/]"
        if document.kept
        else f"[red]{len(document.violations)} promises broken[/]"
    )
    console.print(
        f"[bold]{escape(document.scenario)}[/] on fleet {escape(document.fleet)}, "
        f"{escape(document.began)}: {verdict}"
    )
    for violation in document.violations:
        console.print(f"[red]{escape(violation.rule)}[/]: {escape(violation.detail)}")
    for line in [*_fault_lines(document.fault), *_client_lines(document)]:
        console.print(escape(line))
    for path, what in ((document.picture, "timeline"), (document.folder, "histories and logs")):
        if path is not None:
            console.print(escape(f"{what}: {path}"))


def _fault_lines(fault: FaultDocument | None) -> list[str]:
    if fault is None:
        return []
    leader = f" ({fault.victim} was the Raft leader)" if fault.was_leader else ""
    lines = [
        f"proof: {fault.proof}{leader}",
        f"whole and at rest again: {fault.whole_s - fault.at_s:.1f} s after the fault",
    ]
    if fault.takeover_limit_ms is not None:
        took = "not observed" if fault.takeover_ms is None else f"{fault.takeover_ms:.0f} ms"
        lines.append(f"only other members advertised: after {took} (limit {fault.takeover_limit_ms:.0f} ms)")
    return lines


def _client_lines(document: GameDayDocument) -> list[str]:
    records, producer, consumer = document.records, document.producer_stall, document.consumer_stall
    return [
        f"records: acknowledged {records.acknowledged}, received {records.received} "
        f"({records.redelivered} redelivered), undelivered {records.refused}",
        f"lost {records.lost}, duplicated {records.duplicated}, reordered {records.reordered}"
        + (" (confirmed by Spark)" if records.audited_by == "spark" else ""),
        f"longest stall: producer {producer.since_ms:.0f} ms (before: {producer.before_ms:.0f} ms), "
        f"consumer {consumer.since_ms:.0f} ms (before: {consumer.before_ms:.0f} ms)",
        f"errors reported to applications: {len(document.errors)}",
    ]
