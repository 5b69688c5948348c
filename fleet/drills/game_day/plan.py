"""Plans a game day: checks the fleet, chooses the victim, and announces the steps. Pure."""

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
"""Default of the takeover limit: ``suspect_after_s`` plus this time."""
_PARTITIONS_PER_BROKER = 2
_REPLICATION_FACTOR = 3


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line.

    Args:
        templates: command templates, by option.
        member: the victim; None if the scenario chooses.
        duration_s: duration of the fault.
        calm_s: time to observe before the fault, and after the fleet is at rest again.
        limit_s: time limit of each wait and each command.
        takeover_limit_s: time limit until only survivors are advertised; None to derive it from the fleet's
            timing.
        rate_per_s: records per second, on each partition.
        client_config: file with further settings of the clients.
        folder: folder that keeps the clients' histories and logs; None for a temporary folder.
        audit: what audits the records.
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
    def definition(self) -> Scenario:
        """The scenario of the name `scenario`."""
        return SCENARIOS[self.scenario]


@dataclass(frozen=True, slots=True)
class Plan:
    """A game day on the fleet in its present state.

    Args:
        victim: the member to break; None for a scenario without a single victim.
        incarnation: the victim's incarnation; 0 without a victim.
        takeover_limit_s: time limit until only survivors are advertised.
    """

    fleet: str
    victim: ProxyId | None
    was_leader: bool
    incarnation: int
    broker_ids: tuple[BrokerId, ...]
    takeover_limit_s: float

    @property
    def partitions(self) -> int:
        return _PARTITIONS_PER_BROKER * len(self.broker_ids)

    @property
    def assignment(self) -> list[list[BrokerId]]:
        """The replicas of each partition, its leader first. Every broker leads the same number."""
        count = len(self.broker_ids)
        replicas = min(_REPLICATION_FACTOR, count)
        return [
            [self.broker_ids[(partition + each) % count] for each in range(replicas)]
            for partition in range(self.partitions)
        ]

    @property
    def min_in_sync(self) -> int:
        return 2 if len(self.broker_ids) >= _REPLICATION_FACTOR else 1


def make_plan(answers: Answers, options: Options, suspect_after_s: float) -> Plan:
    """Plan a game day.

    Args:
        answers: the answer of every configured member.
        suspect_after_s: the fleet's ``timing.suspect_after_s``.

    Raises:
        AdminError: no member answers.
        GameDayError: the fleet is not whole and at rest, or cannot do without the victim.
    """
    status = best_answer(answers)
    problem = unrest(answers) or _find_unfitness(status)
    if problem:
        raise GameDayError(f"cannot begin: the fleet must be whole and at rest: {problem}")
    victim = choose_victim(options.definition.role, options.member, status)
    if victim is not None:
        problem = _find_dependency(victim, status, options.definition)
        if problem:
            raise GameDayError(f"{options.scenario} of {victim}: {problem}")
    limit_s = options.takeover_limit_s
    return Plan(
        fleet=status.fleet,
        victim=victim,
        was_leader=victim is not None and victim == status.leader,
        incarnation=0 if victim is None else _incarnation(answers, victim),
        broker_ids=tuple(sorted(each.broker_id for each in status.brokers)),
        takeover_limit_s=suspect_after_s + TAKEOVER_SLACK_S if limit_s is None else limit_s,
    )


def choose_victim(role: Role, member: ProxyId | None, status: OwnershipDocument) -> ProxyId | None:
    """Choose the victim: the named member, the leader, or the follower with the most identities.

    Raises: GameDayError: no follower owns identities.
    """
    if role == "nobody":
        return None
    if member is not None:
        return member
    if role == "leader":
        return status.leader
    followers = [each.proxy_id for each in _carriers(status) if each.proxy_id != status.leader]
    if not followers:
        raise GameDayError("no member but the leader can own identities; name a member with --member")
    owners = [owner for each in status.identities for owner in each.committed]
    return max(followers, key=owners.count)


def announcement(plan: Plan, options: Options) -> list[str]:
    """The steps of a game day as lines, for the operator's confirmation."""
    replicas = len(plan.assignment[0])
    lines = [
        f"{options.scenario} on fleet {plan.fleet}: {options.definition.summary}",
        f"  topic: {options.topic_prefix}-…, {plan.partitions} partitions, {replicas} replicas each, "
        f"{plan.partitions * options.rate_per_s} records per second; "
        + ("kept at the end" if options.keep_topic else "deleted at the end"),
    ]
    if plan.victim is not None:
        lines.append(
            f"  victim: {plan.victim}{', the Raft leader' if plan.was_leader else ''}, "
            f"for {options.duration_s:g} s"
        )
    if options.definition.cuts_off:
        lines.append(
            f"  only the other members must be advertised within {plan.takeover_limit_s:.1f} s"
            " (--takeover-timeout)"
        )
    lines += [f"  --{option}: {template}" for option, template in options.templates.items()]
    return lines


def _carriers(status: OwnershipDocument) -> list[MemberDocument]:
    """The members that can own identities."""
    return [each for each in status.members if not each.witness and not each.drained]


def _incarnation(answers: Answers, proxy_id: ProxyId) -> int:
    answer = answers[proxy_id]
    return answer.incarnation if isinstance(answer, OwnershipDocument) else 0


def _find_unfitness(status: OwnershipDocument) -> str:
    """Why no game day can begin on a fleet, although it is at rest; empty without a reason."""
    if not status.brokers:
        return "no broker has been seen yet"
    down = [str(each.broker_id) for each in status.brokers if each.up is False]
    if down:
        return f"{status.proxy_id} reports broker {', '.join(down)} as down"
    return ""


def _find_dependency(victim: ProxyId, status: OwnershipDocument, scenario: Scenario) -> str:
    """Why the fleet cannot do without a member; empty without a reason."""
    carriers = {each.proxy_id for each in _carriers(status)}
    voters = set(status.quorum.voters)
    if not carriers - {victim}:
        return "no other member can own identities; run at least two members that carry traffic"
    if scenario.effect == "drained" and victim not in carriers:
        return "it owns no identity that could move; name another member with --member"
    if scenario.cuts_off and victim in voters and 2 * (len(voters) - 1) <= len(voters):
        return (
            f"without it {len(voters)} voters have no quorum; run three voters, or name a member that has "
            "no vote"
        )
    return ""
