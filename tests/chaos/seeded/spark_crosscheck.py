"""Results of the Spark cross-check of chaos runs, as a document, as a line and as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from fleet.core.codec import Codec


@dataclass(frozen=True, slots=True)
class AuditTotals:
    """The audit of all clients together."""

    lost: int
    duplicated: int
    reordered: int


@dataclass(frozen=True, slots=True)
class CrossCheckDocument:
    """The output of ``make pipeline ARGS=--json``.

    Args:
        events: number of records that the jobs have read.
        gaps, overlaps: number of such rows in the timelines of the identities.
        windows: number of outages with a time until every survivor advertised other owners.
        audit: totals of the audit.
        differs_from_checker: verdicts on clients, windows and owners in which Spark and the checker differ.
    """

    events: int
    gaps: int
    overlaps: int
    windows: int
    audit: AuditTotals
    differs_from_checker: int


@dataclass(frozen=True, slots=True)
class CrossCheckedRun:
    """The results of one run.

    Args:
        document: the document of the run.
        takeovers, outages: number of takeovers and outages of identities, as operators see them.
        seen_missing: number of identities that an external observer saw at members that were down.
        before_ms, after_ms: for each of these identities, how much earlier the reported window begins than
            the observed window, and how much later it ends.
    """

    document: CrossCheckDocument
    takeovers: int
    outages: int
    seen_missing: int
    before_ms: tuple[int, ...]
    after_ms: tuple[int, ...]


CROSSCHECK: Final = Codec(CrossCheckDocument)

_PAGE: Final = """\
# Spark cross-check

The checker and Spark judged {runs} chaos runs of a real fleet
(`python -m tests.chaos.seeded.spark_check`). They differ in {differences} verdicts. Lost,
duplicated and out-of-order records belong to clients without a guarantee: `acks=0`, or no
idempotence.

*Outages timed* are outages of members: both verdicts state the time until every survivor advertised
other owners.

*Taken over* and *unreachable* are identities, as `fleet pipeline availability` reports them:
takeovers with all of their times, outages, and the time for which each identity was unavailable.
They are compared, to the millisecond, with a computation from the same events in plain Python
(`tests/chaos/seeded/availability_windows.py`).

*Seen missing* are identities that a member's Metadata put at a member that was down. An external
observer sees responses: not when a member dies, and not when a worker learns of it. So the reported
window must contain the observed window. It must begin no later than the time at which the fault was
certain, and end no earlier than the last request that was answered with such an address. The
comparison has no tolerance except the drift between the machine's two clocks in a run, and a
rounded millisecond. The reported window begins {before} before the fault: members probe each other
every 100 ms, and *last alive* is the time of the last answered probe. The window ends {after} after
the first correct response: a control process records the end when its workers have confirmed the
change, and in these runs all processes share two cores.

"""


def total(runs: Sequence[CrossCheckedRun]) -> CrossCheckedRun:
    """Return the sums of all runs."""
    documents = [each.document for each in runs]
    audits = [each.audit for each in documents]
    return CrossCheckedRun(
        CrossCheckDocument(
            events=sum(each.events for each in documents),
            gaps=sum(each.gaps for each in documents),
            overlaps=sum(each.overlaps for each in documents),
            windows=sum(each.windows for each in documents),
            audit=AuditTotals(
                sum(each.lost for each in audits),
                sum(each.duplicated for each in audits),
                sum(each.reordered for each in audits),
            ),
            differs_from_checker=sum(each.differs_from_checker for each in documents),
        ),
        takeovers=sum(each.takeovers for each in runs),
        outages=sum(each.outages for each in runs),
        seen_missing=sum(each.seen_missing for each in runs),
        before_ms=tuple(each for run in runs for each in run.before_ms),
        after_ms=tuple(each for run in runs for each in run.after_ms),
    )


def page(runs: Mapping[str, CrossCheckedRun]) -> str:
    """Return the page, in Markdown."""
    together = total(list(runs.values()))
    heads = (
        "seed",
        "events",
        "gaps",
        "overlaps",
        "outages timed",
        "taken over",
        "seen missing",
        "unreachable",
    )
    verdicts = ("lost", "duplicated", "out of order", "differences")
    head = _PAGE.format(
        runs=len(runs),
        differences=together.document.differs_from_checker,
        before=_spread(together.before_ms),
        after=_spread(together.after_ms),
    )
    lines = [
        "| " + " | ".join((*heads, *verdicts)) + " |",
        "|---" * (len(heads) + len(verdicts)) + "|",
    ]
    for name, each in {**runs, "**all**": together}.items():
        document, audit = each.document, each.document.audit
        figures = (document.events, document.gaps, document.overlaps, document.windows)
        identities = (each.takeovers, each.seen_missing, each.outages)
        verdict = (audit.lost, audit.duplicated, audit.reordered, document.differs_from_checker)
        lines.append("| " + " | ".join((name, *map(str, (*figures, *identities, *verdict)))) + " |")
    return head + "\n".join(lines) + "\n"


def text(run: CrossCheckedRun) -> str:
    """Return the results in a line."""
    document, audit = run.document, run.document.audit
    return (
        f"{document.events} events; {document.gaps} gaps and {document.overlaps} overlaps in the timelines; "
        f"{document.windows} outages timed; {run.takeovers} identities taken over, "
        f"{run.seen_missing} seen missing, {run.outages} that no owner could reach; "
        f"{audit.lost} lost, {audit.duplicated} duplicated, {audit.reordered} reordered; "
        f"{document.differs_from_checker} differences from the checker"
    )


def _spread(times_ms: Sequence[int]) -> str:
    if not times_ms:
        return "nowhere"
    return f"{median(times_ms):.0f} ms (median of {len(times_ms)}; {min(times_ms)} to {max(times_ms)} ms)"
