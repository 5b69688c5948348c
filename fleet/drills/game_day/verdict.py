"""Derives the verdict, the report and the timeline of a game day from its observations. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from fleet.core.model import ProxyId
from fleet.drills.game_day.plan import Options, Plan
from fleet.drills.game_day.report import (
    BrokenPromise,
    FaultDocument,
    GameDayDocument,
    RecordsDocument,
    ReportedError,
    StallDocument,
    Step,
)
from fleet.drills.game_day.timeline import (
    Span,
    Timeline,
    advertised_spans,
    committed_spans,
    find_stalls,
)
from fleet.drills.workload.audit import Audit, longest_stall_ms
from fleet.drills.workload.checker import (
    History,
    Outage,
    Sighting,
    Stream,
    View,
    Violation,
    audit_of,
    check,
    takeover_s,
)
from fleet.drills.workload.history import Event


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A fault with a proof. Times are on the machine's monotonic clock.

    Args:
        at_s: the victim's last sign of life.
        until_s: when healing began, or the member was back by itself.
        incarnation: the victim's incarnation at the end; None without an answer or without a victim.
    """

    at_s: float
    until_s: float
    proof: str
    incarnation: int | None = None


@dataclass(frozen=True, slots=True)
class ClientReport:
    """An error that a client reported to its application."""

    at_s: float
    text: str


@dataclass(frozen=True)
class Observations:
    """All observations of a game day. Times are on the machine's monotonic clock.

    Args:
        began: start of the run in UTC, as text.
        window: from the first records until the producer stopped.
        injected_s: when the injection began.
        fault: None for a scenario without a fault.
        whole_s: when the fleet was at rest again, or the time limit was over.
        carriers: the members that can own identities.
        reports: errors that clients reported to their applications.
        refused: number of undelivered records, by reason.
        problems: other problems of the run, in sentences.
        folder: folder of the clients' histories; None if they were not kept.
        audited: Spark's audit; None without one.
    """

    options: Options
    plan: Plan
    began: str
    window: Span
    injected_s: float
    fault: InjectedFault | None
    whole_s: float
    carriers: Sequence[ProxyId]
    topic: str
    stream: Stream
    sightings: Sequence[Sighting]
    views: Mapping[ProxyId, Sequence[View]]
    reports: Sequence[ClientReport]
    refused: Mapping[str, int]
    problems: Sequence[str]
    steps: Sequence[tuple[float, str]]
    folder: str | None = None
    audited: Audit | None = None

    @cached_property
    def audit(self) -> Audit:
        """The checker's audit of the records."""
        return audit_of(self.stream)

    @cached_property
    def outage(self) -> Outage | None:
        """The interval in which the others had to take over; None without one."""
        victim = self.plan.victim
        if self.fault is None or victim is None or not self.options.definition.cuts_off:
            return None
        survivors = tuple(each for each in self.carriers if each != victim)
        at_s, until_s = self.fault.at_s, self.fault.until_s
        return Outage(self.options.scenario, (victim,), survivors, at_s, until_s, self.plan.takeover_limit_s)

    @cached_property
    def violations(self) -> list[Violation]:
        """Every broken promise."""
        history = History(
            broker_ids=frozenset(self.plan.broker_ids),
            streams=[self.stream],
            sightings=self.sightings,
            views=self.views,
            outages=[] if self.outage is None else [self.outage],
            whole_since_s=self.whole_s,
            brokers_failed=False,
        )
        return [
            *(Violation("broke", problem) for problem in self.problems),
            *(
                Violation(
                    "broke", f"{count} records were reported to the application as undelivered: {reason}"
                )
                for reason, count in self.refused.items()
            ),
            *self._wrong_effect(),
            *check(history),
            *(
                Violation(
                    "broke", f"the audits differ: Spark's is {self.audited}, the checker's is {self.audit}"
                )
                for _ in range(self.audited not in (None, self.audit))
            ),
        ]

    def _wrong_effect(self) -> list[Violation]:
        """A violation if the victim did not die although it had to, or died although it must not."""
        if self.fault is None or self.fault.incarnation is None:
            return []
        victim, same = self.plan.victim, self.fault.incarnation == self.plan.incarnation
        if self.options.definition.effect == "killed" and same:
            return [Violation("no_effect", f"{victim} has not restarted: it was cut off, not killed")]
        if self.options.definition.effect == "silent" and not same:
            return [Violation("no_effect", f"{victim} has restarted: it died instead of staying silent")]
        return []


def document(seen: Observations) -> GameDayDocument:
    """The report of a game day."""
    audit = seen.audited or seen.audit
    began_s = seen.window.from_s
    return GameDayDocument(
        fleet=seen.plan.fleet,
        scenario=seen.options.scenario,
        kept=not seen.violations,
        began=seen.began,
        lasted_s=_round(seen.window.until_s - began_s),
        topic=seen.topic,
        fault=_fault(seen),
        records=RecordsDocument(
            acknowledged=audit.acknowledged,
            received=audit.received,
            redelivered=audit.redelivered,
            lost=audit.lost,
            duplicated=audit.duplicated,
            reordered=audit.out_of_order,
            refused=sum(seen.refused.values()),
            audited_by="checker" if seen.audited is None else "spark",
        ),
        producer_stall=_stall(seen, seen.stream.acknowledged),
        consumer_stall=_stall(seen, seen.stream.received),
        violations=tuple(BrokenPromise(each.rule, each.detail) for each in seen.violations),
        errors=tuple(ReportedError(_round(each.at_s - began_s), each.text) for each in seen.reports),
        steps=tuple(Step(_round(at_s - began_s), what) for at_s, what in seen.steps),
        picture=None if seen.options.picture is None else str(seen.options.picture),
        folder=seen.folder,
    )


def timeline(seen: Observations) -> Timeline:
    """The timeline of a game day, for the picture."""
    within, fault, plan = seen.window, seen.fault, seen.plan
    victim = "" if plan.victim is None else f", {plan.victim}"
    return Timeline(
        title=f"{seen.options.scenario} on fleet {plan.fleet}{victim}, {seen.began}",
        lasted_s=within.until_s - within.from_s,
        members=seen.carriers,
        broker_ids=plan.broker_ids,
        partitions=plan.partitions,
        fault=None if fault is None else Span(fault.at_s - within.from_s, fault.until_s - within.from_s),
        whole_s=None if fault is None else seen.whole_s - within.from_s,
        advertised=advertised_spans(seen.views, plan.broker_ids, within),
        committed=committed_spans(seen.sightings, plan.broker_ids, within),
        stalls=[
            *find_stalls(seen.stream.acknowledged, "acknowledged", plan.partitions, within),
            *find_stalls(seen.stream.received, "delivered", plan.partitions, within),
        ],
        errors=[
            each.at_s - within.from_s for each in seen.reports if within.from_s <= each.at_s <= within.until_s
        ],
    )


def _fault(seen: Observations) -> FaultDocument | None:
    fault, outage, began_s = seen.fault, seen.outage, seen.window.from_s
    if fault is None:
        return None
    took_s = None if outage is None else takeover_s(outage, frozenset(seen.plan.broker_ids), seen.views)
    return FaultDocument(
        victim=seen.plan.victim,
        was_leader=seen.plan.was_leader,
        at_s=_round(fault.at_s - began_s),
        until_s=_round(fault.until_s - began_s),
        whole_s=_round(seen.whole_s - began_s),
        proof=fault.proof,
        takeover_ms=None if took_s is None else round(took_s * 1000.0, 1),
        takeover_limit_ms=None if outage is None else round(outage.bound_s * 1000.0, 1),
    )


def _stall(seen: Observations, events: Sequence[Event]) -> StallDocument:
    partitions, injected_s = seen.plan.partitions, seen.injected_s
    before_ms = longest_stall_ms(events, partitions, seen.window.from_s, injected_s)
    since_ms = longest_stall_ms(events, partitions, injected_s, seen.window.until_s)
    return StallDocument(round(before_ms, 1), round(since_ms, 1))


def _round(seconds: float) -> float:
    return round(seconds, 3)
