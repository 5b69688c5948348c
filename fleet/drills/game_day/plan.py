"""Whether a game day can begin, whom it happens to, and what it is going to do. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fleet.admin.documents import MemberDocument, OwnershipDocument
from fleet.admin.rolling_restart import unrest
from fleet.admin.status import Answers, best_answer
from fleet.core.errors import GameDayError
from fleet.core.model import BrokerId, ProxyId
from fleet.drills.game_day.report import Auditor
from fleet.drills.game_day.scenarios import SCENARIOS, Role, Scenario

TAKEOVER_SLACK_S: Final = 2.0
"""What a takeover may last in addition to ``suspect_after_s``, unless the operator says otherwise."""
_PARTITIONS_A_BROKER = 2
_REPLICATION = 3


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for.

    Args:
        templates: of commands, by option.
        member: to whom it happens; whoever the scenario is about where None.
        duration_s: how long it lasts.
        calm_s: how long to look on before, and after the fleet is at rest again.
        limit_s: for each wait, and each command.
        takeover_limit_s: by when the others must be advertised alone; by the fleet's timing where None.
        rate_per_s: records, on each partition.
        client_config: further settings of the clients.
        folder: where the clients' histories and logs are to stay.
        audit: who says what became of records.
    """

    scenario: str
    templates: dict[str, str] = field(default_factory=dict)
    member: ProxyId | None = None
    duration_s: float = 10.0
    calm_s: float = 5.0
    limit_s: float = 60.0
    takeover_limit_s: float | None = None
    rate_per_s: int = 30
    topic_prefix: str = "fleet-chaos"
    keep_topic: bool = False
    listener: str | None = None
    client_config: Path | None = None
    picture: Path | None = None
    folder: Path | None = None
    audit: Auditor = "checker"

    @property
    def what(self) -> Scenario:
        return SCENARIOS[self.scenario]


@dataclass(frozen=True, slots=True)
class Plan:
    """A game day on the fleet as it is now.

    Args:
        victim: None where it happens to nobody, or to everybody.
        life: the victim's incarnation.
        takeover_limit_s: by when the others must be advertised alone.
    """

    fleet: str
    victim: ProxyId | None
    was_leader: bool
    life: int
    broker_ids: tuple[BrokerId, ...]
    takeover_limit_s: float

    @property
    def partitions(self) -> int:
        return _PARTITIONS_A_BROKER * len(self.broker_ids)

    @property
    def assignment(self) -> list[list[BrokerId]]:
        """The replicas of each partition, its leader first: every broker leads as many."""
        count = len(self.broker_ids)
        replicas = min(_REPLICATION, count)
        return [
            [self.broker_ids[(partition + each) % count] for each in range(replicas)]
            for partition in range(self.partitions)
        ]

    @property
    def min_in_sync(self) -> int:
        return 2 if len(self.broker_ids) >= _REPLICATION else 1


def make_plan(answers: Answers, options: Options, suspect_after_s: float) -> Plan:
    """What will happen to whom.

    Args:
        answers: of every configured member.

    Raises:
        AdminError: nobody answers.
        GameDayError: the fleet is not fit for it.
    """
    told = best_answer(answers)
    why = unrest(answers) or _unfit(told)
    if why:
        raise GameDayError(f"a game day begins with a fleet that is whole and at rest: {why}")
    victim = choose(options.what.role, options.member, told)
    if victim is not None:
        why = _cannot_do_without(victim, told, options.what)
        if why:
            raise GameDayError(f"{options.scenario} of {victim}: {why}")
    limit_s = options.takeover_limit_s
    return Plan(
        fleet=told.fleet,
        victim=victim,
        was_leader=victim is not None and victim == told.leader,
        life=0 if victim is None else _incarnation(answers, victim),
        broker_ids=tuple(sorted(each.broker_id for each in told.brokers)),
        takeover_limit_s=suspect_after_s + TAKEOVER_SLACK_S if limit_s is None else limit_s,
    )


def choose(role: Role, wish: ProxyId | None, told: OwnershipDocument) -> ProxyId | None:
    """To whom it happens: of the followers, to the one that stands for most.

    Raises: GameDayError: there is nobody of that role.
    """
    if role == "nobody":
        return None
    if wish is not None:
        return wish
    if role == "leader":
        return told.leader
    followers = [each.proxy_id for each in _carriers(told) if each.proxy_id != told.leader]
    if not followers:
        raise GameDayError("there is no member but the leader that owns identities; name one with --member")
    owners = [owner for each in told.identities for owner in each.committed]
    return max(followers, key=owners.count)


def lines(plan: Plan, options: Options) -> list[str]:
    """What is going to happen, for the operator's confirmation."""
    replicas = len(plan.assignment[0])
    said = [
        f"{options.scenario} on fleet {plan.fleet}: {options.what.summary}",
        f"  a topic {options.topic_prefix}-… of {plan.partitions} partitions, {replicas} replicas each, "
        f"{plan.partitions * options.rate_per_s} records a second; "
        + ("it stays" if options.keep_topic else "deleted in the end"),
    ]
    if plan.victim is not None:
        said.append(
            f"  it happens to {plan.victim}{', the Raft leader' if plan.was_leader else ''}, "
            f"for {options.duration_s:g} s"
        )
    if options.what.cuts_off:
        said.append(
            f"  the others have to be advertised in its place within {plan.takeover_limit_s:.1f} s"
            " (--takeover-timeout)"
        )
    said += [f"  --{option}: {template}" for option, template in options.templates.items()]
    return said


def _carriers(told: OwnershipDocument) -> list[MemberDocument]:
    return [each for each in told.members if not each.witness and not each.drained]


def _incarnation(answers: Answers, proxy_id: ProxyId) -> int:
    answer = answers[proxy_id]
    return answer.incarnation if isinstance(answer, OwnershipDocument) else 0


def _unfit(told: OwnershipDocument) -> str:
    if not told.brokers:
        return "it has not seen any broker yet"
    down = [str(each.broker_id) for each in told.brokers if each.up is False]
    if down:
        return f"broker {', '.join(down)} is down, as {told.proxy_id} says"
    return ""


def _cannot_do_without(victim: ProxyId, told: OwnershipDocument, scenario: Scenario) -> str:
    carriers = {each.proxy_id for each in _carriers(told)}
    voters = set(told.quorum.voters)
    if not carriers - {victim}:
        return "no other member could own anything; it takes two that carry traffic"
    if scenario.effect == "drained" and victim not in carriers:
        return "it owns nothing that could move"
    if scenario.cuts_off and victim in voters and 2 * (len(voters) - 1) <= len(voters):
        return f"without it there is no quorum of {len(voters)} voters; it takes three, or one without a vote"
    return ""
