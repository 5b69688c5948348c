"""The report of chaos runs: the JSON object of `--json`, and a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fleet.core.codec import Codec
from fleet.drills.workload.checker import Rule, Violation


@dataclass(frozen=True, slots=True)
class Measures:
    """Milliseconds over all runs; null without a measurement."""

    p50: float | None
    p99: float | None
    max: float | None


@dataclass(frozen=True, slots=True)
class Noticed:
    """Events of clients of one kind, including those without a promise.

    Args:
        lost: acknowledged records; for a compacted topic, keys without their last acknowledged write.
        redelivered: records that a group received again.
        refused: records that the client reported as undelivered.
        gave_up: producers that librdkafka ended permanently, as it does without a fleet, too.
        sent_again: duplicates that their producer sent again under another epoch after a broker had ended, as
            librdkafka does without a fleet, too.
    """

    acknowledged: int
    lost: int
    duplicated: int
    reordered: int
    redelivered: int
    refused: int
    gave_up: int
    sent_again: int = 0


@dataclass(frozen=True, slots=True)
class FoundViolation:
    """One broken promise.

    Args:
        plan: the seed, or the name of the plan.
        replay: the command that runs the same plan again.
        folder: folder of the run's history and logs.
    """

    plan: str
    rule: Rule
    detail: str
    replay: str
    folder: str


@dataclass(frozen=True, slots=True)
class ChaosDocument:
    """What ``make chaos ARGS="--runs N --seed S --json"`` prints.

    Args:
        runs: number of runs that began.
        violations: number of broken promises in all runs; the goal is 0.
        lost: acknowledged records that were lost against a promise.
        duplicated, reordered: records of idempotent producers, in the log or in the group's deliveries,
            without records that the producer sent again under another epoch.
        faults: number of proved faults, by kind.
        takeover_ms: from an outage until every reachable member advertised only reachable members.
        stall_ms: by client, the longest interval of a run in which one partition had no record.
        noticed: by client, all events, promised or not.
        details: each violation.
    """

    runs: int
    violations: int
    lost: int
    duplicated: int
    reordered: int
    faults: Mapping[str, int]
    takeover_ms: Measures
    stall_ms: Mapping[str, Measures]
    noticed: Mapping[str, Noticed]
    details: tuple[FoundViolation, ...]


CHAOS: Final = Codec(ChaosDocument)


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run.

    Args:
        plan: the seed, or the name of the plan.
        faults: the kind of each proved fault.
        stalls_ms: longest stalls, by client.
    """

    plan: str
    replay: str
    folder: str
    violations: Sequence[Violation]
    faults: Sequence[str] = ()
    takeovers_ms: Sequence[float] = ()
    stalls_ms: Mapping[str, float] = field(default_factory=dict)
    noticed: Mapping[str, Noticed] = field(default_factory=dict)
    exact: frozenset[str] = frozenset()
    """The clients whose records may be neither repeated nor swapped."""
    durable: frozenset[str] = frozenset()
    """The clients whose acknowledged records must not be lost, given the failures of this run."""


def measures(values_ms: Iterable[float]) -> Measures:
    """Nearest-rank percentiles."""
    ordered = sorted(values_ms)
    if not ordered:
        return Measures(None, None, None)

    def rank(share: float) -> float:
        return round(ordered[max(0, -(-int(share * 100) * len(ordered) // 100) - 1)], 1)

    return Measures(rank(0.5), rank(0.99), round(ordered[-1], 1))


def summarize(results: Sequence[RunResult]) -> ChaosDocument:
    """All runs as one document."""
    clients = sorted({client for result in results for client in result.stalls_ms})
    found = [
        FoundViolation(result.plan, each.rule, each.detail, result.replay, result.folder)
        for result in results
        for each in result.violations
    ]
    return ChaosDocument(
        runs=len(results),
        violations=len(found),
        lost=sum(result.noticed[each].lost for result in results for each in result.durable),
        duplicated=sum(_unexplained(result.noticed[each]) for result in results for each in result.exact),
        reordered=sum(result.noticed[each].reordered for result in results for each in result.exact),
        faults=dict(sorted(Counter(kind for result in results for kind in result.faults).items())),
        takeover_ms=measures(each for result in results for each in result.takeovers_ms),
        stall_ms={
            client: measures(result.stalls_ms[client] for result in results if client in result.stalls_ms)
            for client in clients
        },
        noticed=_total(results),
        details=tuple(found),
    )


def _unexplained(noticed: Noticed) -> int:
    return noticed.duplicated - noticed.sent_again


def _total(results: Sequence[RunResult]) -> dict[str, Noticed]:
    total: dict[str, Noticed] = {}
    for result in results:
        for client, each in result.noticed.items():
            before = total.get(client, Noticed(0, 0, 0, 0, 0, 0, 0))
            total[client] = Noticed(
                before.acknowledged + each.acknowledged,
                before.lost + each.lost,
                before.duplicated + each.duplicated,
                before.reordered + each.reordered,
                before.redelivered + each.redelivered,
                before.refused + each.refused,
                before.gave_up + each.gave_up,
                before.sent_again + each.sent_again,
            )
    return dict(sorted(total.items()))


def page(document: ChaosDocument, first_seed: int) -> str:
    """The report as a page for docs/reliability.md."""
    last_seed = first_seed + document.runs - 1
    lines = [
        "# Reliability",
        "",
        "Written by `make test-long`; what the figures mean is explained in",
        "[chaos.schema.json](schemas/chaos.schema.json). The same faults again:",
        f'`make chaos ARGS="--runs {document.runs} --seed {first_seed} --json"`.',
        "",
        f"{document.runs} runs, seeds {first_seed} to {last_seed}: **{document.violations} violations**; "
        f"acknowledged records lost {document.lost}, duplicated {document.duplicated}, "
        f"reordered {document.reordered}.",
        "",
        "| fault | times |",
        "|---|---|",
        *(f"| {kind.replace('_', ' ')} | {count} |" for kind, count in document.faults.items()),
        "",
        "| milliseconds | p50 | p99 | max |",
        "|---|---|---|---|",
        _row("takeover: from an outage until advertised elsewhere", document.takeover_ms),
        *(_row(f"longest stall of a run: {client}", each) for client, each in document.stall_ms.items()),
        "",
        "What came through of each client. Only idempotent and transactional producers are promised no",
        "repetition; acks=1 may lose records where a broker fails, acks=0 anywhere. Sent again: by their own",
        "producer, under another epoch, after a broker had ended; no broker can know such a record.",
        "",
        "| client | acknowledged | lost | duplicated | sent again | reordered | redelivered | refused "
        "| gave up |",
        "|---|---|---|---|---|---|---|---|---|",
        *(
            f"| {client} | {each.acknowledged} | {each.lost} | {each.duplicated} | {each.sent_again} | "
            f"{each.reordered} | {each.redelivered} | {each.refused} | {each.gave_up} |"
            for client, each in document.noticed.items()
        ),
    ]
    if document.details:
        lines += ["", "## Violations", ""]
        lines += [
            f"- {each.plan}, {each.rule}: {each.detail.splitlines()[0]} (`{each.replay}`)"
            for each in document.details
        ]
    return "\n".join(lines) + "\n"


def _row(what: str, each: Measures) -> str:
    cells = ("-" if value is None else f"{value:.0f}" for value in (each.p50, each.p99, each.max))
    return f"| {what} | {' | '.join(cells)} |"
