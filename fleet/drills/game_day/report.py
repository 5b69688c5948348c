"""What a game day has found, as the one JSON object of `--json` and as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from rich.console import Console

from fleet.core.codec import Codec
from fleet.core.console import escape
from fleet.core.model import ProxyId
from fleet.drills.workload.checker import Rule

Auditor: TypeAlias = Literal["checker", "spark"]
"""The checker of the chaos runs; or the data pipeline, beside it."""


@dataclass(frozen=True, slots=True)
class Step:
    """What happened when, in seconds from the moment that records flowed."""

    at_s: float
    what: str


@dataclass(frozen=True, slots=True)
class FaultDocument:
    """What was done to whom.

    Args:
        victim: null where it was done to all members, one by one, or to nobody.
        at_s: when the last sign of life had come; of a drain, when it was asked for.
        until_s: when mending began, or the member was back by itself.
        whole_s: when the fleet was whole and at rest again, or the wait for it was over.
        proof: what showed from outside that it had happened.
        takeover_ms: from `at_s` until every other member advertised others alone; null where it did not come
            to that, or nothing had to be taken over.
        takeover_limit_ms: by when it had to be; null where nothing had to be taken over.
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
    """What came through.

    Args:
        acknowledged: different records whose producer was told that they are safe.
        received: different records that the group was given.
        redelivered: what the group was given again.
        lost: acknowledged records that are not in the log, or never reached the group.
        duplicated, reordered: in the log, or as the group got them.
        refused: records that the producer has told the application it could not deliver.
        audited_by: who says so, of all but `refused`.
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
    """The longest interval of a partition without a record, in milliseconds: before the fault, and since."""

    before_ms: float
    since_ms: float


@dataclass(frozen=True, slots=True)
class ReportedError:
    """What a client has reported to its application; most are followed by a retry that succeeds."""

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
        kept: whether all promises were.
        began: UTC.
        fault: null where nothing was done.
        violations: the promises that were broken.
        errors: what clients reported to their applications.
        picture: the file, where one was asked for.
        folder: where the clients' histories and logs are, where they were kept.
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
    """The report for people."""
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
        f"whole and at rest again: {fault.whole_s - fault.at_s:.1f} s after it began",
    ]
    if fault.takeover_limit_ms is not None:
        took = "not seen" if fault.takeover_ms is None else f"{fault.takeover_ms:.0f} ms"
        lines.append(f"the others advertised in its place: {took} (limit {fault.takeover_limit_ms:.0f} ms)")
    return lines


def _client_lines(document: GameDayDocument) -> list[str]:
    records, producer, consumer = document.records, document.producer_stall, document.consumer_stall
    return [
        f"records: acknowledged {records.acknowledged}, received {records.received} "
        f"(and {records.redelivered} once more), refused {records.refused}",
        f"lost {records.lost}, duplicated {records.duplicated}, reordered {records.reordered}"
        + (", says Spark, too" if records.audited_by == "spark" else ""),
        f"longest stall: producer {producer.since_ms:.0f} ms (before: {producer.before_ms:.0f} ms), "
        f"consumer {consumer.since_ms:.0f} ms (before: {consumer.before_ms:.0f} ms)",
        f"errors reported to applications: {len(document.errors)}",
    ]
