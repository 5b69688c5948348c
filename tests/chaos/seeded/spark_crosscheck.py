"""What comes of chaos runs that are judged twice, as a document, as a line and as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from fleet.core.codec import Codec


@dataclass(frozen=True, slots=True)
class AuditTotals:
    """Of all clients together."""

    lost: int
    duplicated: int
    reordered: int


@dataclass(frozen=True, slots=True)
class CrossCheckDocument:
    """What ``make pipeline ARGS=--json`` prints.

    Args:
        events: how many records the jobs have read.
        gaps, overlaps: in the timelines of the identities.
        windows: outages of which Spark says how long it took until all was advertised elsewhere.
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
    """What came of a run, with what the page says of identities beside it.

    Args:
        takeovers, outages: of identities, as operators are told of them.
        seen_missing: identities that were seen from outside at members that were not there.
        before_ms, after_ms: of these, by how much what operators are told begins earlier, and ends later.
    """

    document: CrossCheckDocument
    takeovers: int
    outages: int
    seen_missing: int
    before_ms: tuple[int, ...]
    after_ms: tuple[int, ...]


CROSSCHECK: Final = Codec(CrossCheckDocument)

_PAGE: Final = """\
# Judged twice

{runs} chaos runs of a real fleet, each judged by the checker and by Spark
(`python -m tests.chaos.seeded.spark_check`); they differ in {differences} verdicts. What is lost, repeated or
out of order is of clients that are promised nothing: `acks=0`, or no idempotence.

*Outages timed* are those of members: both say how long it took until all was advertised elsewhere.

*Taken over* and *unreachable* are identities, as `fleet pipeline availability` tells operators of them:
takeovers with all of their times, outages, and for how long each identity was missing. They are compared,
to the millisecond, with what the same events come to in plain Python
(`tests/chaos/seeded/availability_windows.py`).

*Seen missing* are identities that a member's Metadata put at a member that was not there. Whoever looks on
from outside does not see when a member dies, nor when a worker has heard of it, but what is answered. So
what operators are told has to contain what was seen: it begins no later than the fault was there for
certain, and ends no earlier than the last question was asked that was answered with such an address. There
is no tolerance but for what the machine's two clocks have drifted apart in a run, and for a rounded
millisecond. What is told begins {before} before the fault: members ask one another every 100 ms,
and one is known to have been alive when it was asked what it has answered. It ends {after} after the first
better answer came: a control process writes down when its workers have told it that they are done, and on
these runs everything shares two cores.

"""


def total(runs: Sequence[CrossCheckedRun]) -> CrossCheckedRun:
    """All of them together."""
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
    """The report, in Markdown."""
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
    verdicts = ("lost", "repeated", "out of order", "differences")
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
        said, audit = each.document, each.document.audit
        figures = (said.events, said.gaps, said.overlaps, said.windows)
        identities = (each.takeovers, each.seen_missing, each.outages)
        verdict = (audit.lost, audit.duplicated, audit.reordered, said.differs_from_checker)
        lines.append("| " + " | ".join((name, *map(str, (*figures, *identities, *verdict)))) + " |")
    return head + "\n".join(lines) + "\n"


def text(run: CrossCheckedRun) -> str:
    """The same in a line."""
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
