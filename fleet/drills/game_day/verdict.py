"""From all that was seen of a game day to its verdict, its report and its timeline. Pure."""

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
    advertised_stands,
    committed_stands,
    stalls,
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
class Broken:
    """What was done, and proved; times are of the machine's monotonic clock.

    Args:
        at_s: the last sign of life.
        until_s: when mending began, or the member was back by itself.
        life: the victim's incarnation in the end; None where it does not answer, or there is no victim.
    """

    at_s: float
    until_s: float
    proof: str
    life: int | None = None


@dataclass(frozen=True, slots=True)
class ClientReport:
    """What a client has told its application."""

    at_s: float
    text: str


@dataclass(frozen=True)
class Seen:
    """All that was seen; times are of the machine's monotonic clock.

    Args:
        began: in UTC, for people.
        whole: from the first records until the producer was to stop.
        broken_s: when the calm before was over.
        broken: None where nothing was done.
        whole_s: when the fleet was at rest again, or the wait for it was over.
        carriers: the members that stand for identities.
        troubles: what went wrong, in sentences.
        refused: records that could not be delivered, by reason.
        folder: where clients have left their histories, if those stay.
        audited: what Spark says of the records, where it was asked.
    """

    options: Options
    plan: Plan
    began: str
    whole: Span
    broken_s: float
    broken: Broken | None
    whole_s: float
    carriers: Sequence[ProxyId]
    topic: str
    stream: Stream
    sightings: Sequence[Sighting]
    views: Mapping[ProxyId, Sequence[View]]
    reports: Sequence[ClientReport]
    refused: Mapping[str, int]
    troubles: Sequence[str]
    steps: Sequence[tuple[float, str]]
    folder: str | None = None
    audited: Audit | None = None

    @cached_property
    def audit(self) -> Audit:
        """What became of the records."""
        return audit_of(self.stream)

    @cached_property
    def outage(self) -> Outage | None:
        """While others had to be advertised in the victim's place."""
        victim = self.plan.victim
        if self.broken is None or victim is None or not self.options.what.cuts_off:
            return None
        survivors = tuple(each for each in self.carriers if each != victim)
        at_s, until_s = self.broken.at_s, self.broken.until_s
        return Outage(self.options.scenario, (victim,), survivors, at_s, until_s, self.plan.takeover_limit_s)

    @cached_property
    def violations(self) -> list[Violation]:
        """Every promise that was broken."""
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
            *(Violation("broke", trouble) for trouble in self.troubles),
            *(
                Violation(
                    "broke", f"{count} records could not be delivered, as applications were told: {reason}"
                )
                for reason, count in self.refused.items()
            ),
            *self._wrong_effect(),
            *check(history),
            *(
                Violation("broke", f"Spark's audit differs: {self.audited}, and the checker's: {self.audit}")
                for _ in range(self.audited not in (None, self.audit))
            ),
        ]

    def _wrong_effect(self) -> list[Violation]:
        """Whether the victim has died where it was to die, and only there."""
        if self.broken is None or self.broken.life is None:
            return []
        victim, same = self.plan.victim, self.broken.life == self.plan.life
        if self.options.what.effect == "killed" and same:
            return [Violation("no_effect", f"{victim} is in its former life: it was cut off, not killed")]
        if self.options.what.effect == "silent" and not same:
            return [Violation("no_effect", f"{victim} is in another life: it was to be silent, and died")]
        return []


def document(seen: Seen) -> GameDayDocument:
    """The report."""
    audit = seen.audited or seen.audit
    began_s = seen.whole.from_s
    return GameDayDocument(
        fleet=seen.plan.fleet,
        scenario=seen.options.scenario,
        kept=not seen.violations,
        began=seen.began,
        lasted_s=_rounded(seen.whole.until_s - began_s),
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
        errors=tuple(ReportedError(_rounded(each.at_s - began_s), each.text) for each in seen.reports),
        steps=tuple(Step(_rounded(at_s - began_s), what) for at_s, what in seen.steps),
        picture=None if seen.options.picture is None else str(seen.options.picture),
        folder=seen.folder,
    )


def timeline(seen: Seen) -> Timeline:
    """What the picture shows."""
    within, broken, plan = seen.whole, seen.broken, seen.plan
    victim = "" if plan.victim is None else f", {plan.victim}"
    return Timeline(
        title=f"{seen.options.scenario} on fleet {plan.fleet}{victim}, {seen.began}",
        lasted_s=within.until_s - within.from_s,
        members=seen.carriers,
        broker_ids=plan.broker_ids,
        partitions=plan.partitions,
        fault=None if broken is None else Span(broken.at_s - within.from_s, broken.until_s - within.from_s),
        whole_s=None if broken is None else seen.whole_s - within.from_s,
        advertised=advertised_stands(seen.views, plan.broker_ids, within),
        committed=committed_stands(seen.sightings, plan.broker_ids, within),
        stalls=[
            *stalls(seen.stream.acknowledged, "acknowledged", plan.partitions, within),
            *stalls(seen.stream.received, "delivered", plan.partitions, within),
        ],
        errors=[
            each.at_s - within.from_s for each in seen.reports if within.from_s <= each.at_s <= within.until_s
        ],
    )


def _fault(seen: Seen) -> FaultDocument | None:
    broken, outage, began_s = seen.broken, seen.outage, seen.whole.from_s
    if broken is None:
        return None
    took_s = None if outage is None else takeover_s(outage, frozenset(seen.plan.broker_ids), seen.views)
    return FaultDocument(
        victim=seen.plan.victim,
        was_leader=seen.plan.was_leader,
        at_s=_rounded(broken.at_s - began_s),
        until_s=_rounded(broken.until_s - began_s),
        whole_s=_rounded(seen.whole_s - began_s),
        proof=broken.proof,
        takeover_ms=None if took_s is None else round(took_s * 1000.0, 1),
        takeover_limit_ms=None if outage is None else round(outage.bound_s * 1000.0, 1),
    )


def _stall(seen: Seen, events: Sequence[Event]) -> StallDocument:
    partitions, broken_s = seen.plan.partitions, seen.broken_s
    before_ms = longest_stall_ms(events, partitions, seen.whole.from_s, broken_s)
    since_ms = longest_stall_ms(events, partitions, broken_s, seen.whole.until_s)
    return StallDocument(round(before_ms, 1), round(since_ms, 1))


def _rounded(seconds: float) -> float:
    return round(seconds, 3)
