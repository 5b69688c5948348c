"""The leader's proposals: state, reports and liveness in, commands out. Pure, with the clock passed in.

The leader is level-triggered. Each call compares the committed state with the observations, and proposes the
difference. A new leader continues where the previous leader stopped, because the only memory of earlier
calls is how long each condition has held.

The leader does not repeat a proposed command for ``PROPOSAL_RETRY_S``, unless a changed state requires a
different command. Ownership is computed from one generation, so the leader proposes no second change of
ownership before the first one is committed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from math import inf
from typing import Final, Protocol

from fleet.assign import assign, take_over
from fleet.control.flap_damping import FlapDamper
from fleet.control.reports import MemberReport
from fleet.core.model import (
    Broker,
    BrokerId,
    FleetState,
    Liveness,
    MemberStatus,
    Ownership,
    ProxyId,
    is_address,
)
from fleet.core.state import (
    BrokerGone,
    BrokersSeen,
    Command,
    MemberStatusChanged,
    MemberUp,
    OwnershipReason,
    split_ownership,
)
from fleet.core.weights import UNKNOWN_WEIGHTS, Weights

PROPOSAL_RETRY_S: Final = 1.0
"""A proposal without effect for this long counts as lost. Repeating a command does no harm."""

STOPPING_BATCH_DELAY_S: Final = 0.15
"""How long a member must have been stopping before it is committed as draining. Members that stop together
must be seen together, before an identity moves from one to the next."""

BROKER_REMOVAL_DELAY_S: Final = 60.0
"""A broker that no member has listed for this long is removed."""
MAX_BROKERS_PER_COMMAND: Final = 100
BROKER_UNREACHABLE_PERIODS: Final = 2
"""For how many ``suspect_after_s`` a member must fail to reach a broker before the leader acts on it."""


class LeaderTiming(Protocol):
    """The part of the settings' timing that proposals depend on."""

    @property
    def suspect_after_s(self) -> float: ...
    @property
    def steady_after_s(self) -> float: ...
    @property
    def rest_after_move_s(self) -> float: ...
    @property
    def grace_s(self) -> float: ...


class WeightBalance(Protocol):
    """The part of the settings' balance that proposals depend on."""

    @property
    def min_gain(self) -> float: ...
    @property
    def every_s(self) -> float: ...


@dataclass(frozen=True, slots=True)
class _Observed:
    """The committed state and the observations at one moment; the fields are those of `Leader.propose`."""

    state: FleetState
    reports: Mapping[ProxyId, MemberReport]
    liveness: Mapping[ProxyId, Liveness]
    heard: AbstractSet[ProxyId]
    now_s: float


class _Durations:
    """For how long each of some conditions has held without a break."""

    def __init__(self) -> None:
        self._since_s: dict[Hashable, float] = {}

    def update(self, now: Iterable[Hashable], now_s: float) -> None:
        """Set the conditions that hold now; all others end."""
        self._since_s = {key: self._since_s.get(key, now_s) for key in now}

    def duration_s(self, key: Hashable, now_s: float) -> float:
        """For how long a condition has held; negative if it does not hold."""
        return now_s - self._since_s[key] if key in self._since_s else -1.0


@dataclass(frozen=True, slots=True)
class _Outstanding:
    command: Command
    first_s: float
    last_s: float


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The inputs of one computed ownership, compared by object identity: cheap, and never wrongly equal."""

    state: FleetState
    unreachable: frozenset[tuple[ProxyId, BrokerId]]
    weights: Weights | None
    balanced: bool

    def covers(self, other: _Inputs) -> bool:
        return (
            self.state.members is other.state.members
            and self.state.brokers is other.state.brokers
            and self.state.ownership is other.state.ownership
            and self.state.pins is other.state.pins
            and self.unreachable == other.unreachable
            and self.weights is other.weights
            and (self.balanced or not other.balanced)
        )


class Leader:
    """The proposals of a member while it leads.

    Args:
        timing: the settings' timing.
        voters: the members whose majority decides which member is down.
        members: all configured members that may own; the first assignment waits for them.
        balance: None if identities are balanced by number.
    """

    def __init__(
        self,
        timing: LeaderTiming,
        voters: Iterable[ProxyId],
        members: Iterable[ProxyId],
        balance: WeightBalance | None = None,
    ) -> None:
        self._timing = timing
        self._balance = balance
        self._weights: Mapping[BrokerId, float] | None = None
        self._voters = frozenset(voters)
        self._members = frozenset(members)
        self._flap_damper = FlapDamper(timing.steady_after_s)
        self._moved_s = -inf
        self.reset()

    def reset(self) -> None:
        """Forget the observations. Call it while this member does not lead."""
        self._leading_since_s: float | None = None
        self._ready = _Durations()
        self._stopping = _Durations()
        self._missing = _Durations()
        self._replaceable = _Durations()
        self._settled = _Durations()
        self._outstanding: dict[Hashable, _Outstanding] = {}
        self._ownership_until = (-1, 0.0)
        self._settled_inputs: _Inputs | None = None
        self._current_weights: Weights | None = None
        self._weights_taken_s = 0.0

    def update_weights(self, weights: Mapping[BrokerId, float]) -> None:
        """Set new weights of identities. Call it at every member, leader or not."""
        self._weights = weights

    def on_committed(self, before: FleetState, after: FleetState, now_s: float) -> None:
        """Raft has committed ``after`` in place of ``before``. Call it at every member, leader or not."""
        self._flap_damper.on_committed(before, after, now_s)
        if before.pins is not after.pins:
            self._moved_s = -inf  # a pin of an operator takes effect without a rest
        if any(
            _loses_owner(owned, after.ownership.get(broker_id))
            for broker_id, owned in before.ownership.items()
        ):
            self._moved_s = now_s

    def propose(
        self,
        state: FleetState,
        reports: Mapping[ProxyId, MemberReport],
        liveness: Mapping[ProxyId, Liveness],
        heard: AbstractSet[ProxyId],
        now_s: float,
    ) -> list[Command]:
        """The commands to propose now, in this order, without id and time.

        Args:
            state: the newest state that is committed at this member.
            reports: the last report of each member whose link is up, and of this member.
            liveness: the liveness of every member as this member judges it; its own is UP.
            heard: the members whose heartbeats arrive here, and this member.
        """
        if self._leading_since_s is None:
            self._leading_since_s = now_s
        seen = _Observed(state, reports, liveness, heard, now_s)
        self._observe(seen)
        if _whole_fleet_stops(seen):
            # No member is left to take over, and the fleet should come back with the same ownership.
            return []
        due: dict[Hashable, Command] = {}
        for proxy_id in sorted(state.members.keys() | reports.keys()):
            command = self._member_command(proxy_id, seen)
            if command is not None:
                due["member", proxy_id] = command
        for command in self._broker_commands(seen):
            due[_key(command)] = command
        commands = self._not_pending(due, now_s)
        return commands + self._ownership_commands(seen)

    # -- observations and their duration -------------------------------------------------------------------

    def _observe(self, seen: _Observed) -> None:
        state, reports, now_s = seen.state, seen.reports, seen.now_s
        up = [
            (p, r.incarnation)
            for p, r in reports.items()
            if r.ready
            and not r.stopping
            and seen.liveness.get(p) is Liveness.UP
            and not self._is_suspected(p, reports)
        ]
        self._ready.update(up, now_s)
        self._stopping.update(((p, r.incarnation) for p, r in reports.items() if r.stopping), now_s)
        listed = {broker.broker_id for report in reports.values() for broker in report.brokers}
        missing = (state.brokers.keys() | state.ownership.keys()) - listed if listed else ()
        self._missing.update(missing, now_s)
        able = {p for p, r in reports.items() if r.ready and p in state.members and state.members[p].eligible}
        lost_by = Counter(b for p in able for b in set(reports[p].unreachable))
        # When a fault of all members ends, the last member to notice must not lose its identities.
        replaceable = ((p, b) for p, r in reports.items() for b in r.unreachable if lost_by[b] < len(able))
        self._replaceable.update(replaceable, now_s)

    def _not_pending(self, due: Mapping[Hashable, Command], now_s: float) -> list[Command]:
        """The due commands that are not proposed already, or whose proposal counts as lost."""
        new = []
        outstanding: dict[Hashable, _Outstanding] = {}
        for key, command in due.items():
            before = self._outstanding.get(key)
            if before is None or before.command != command:
                before = _Outstanding(command, now_s, now_s)
                new.append(command)
            elif now_s - before.last_s >= PROPOSAL_RETRY_S:
                before = replace(before, last_s=now_s)
                new.append(command)
            outstanding[key] = before
        self._outstanding = outstanding
        return new

    def _has_pending(self, now_s: float, kind: str = "") -> bool:
        """Whether proposed commands of a kind (all kinds by default) are about to change the state.

        A command without effect for ``PROPOSAL_RETRY_S`` does not count: no decision waits for it for ever.
        """
        return any(
            now_s - each.first_s < PROPOSAL_RETRY_S
            for each in self._outstanding.values()
            if each.command.kind.startswith(kind)
        )

    # -- members -------------------------------------------------------------------------------------------

    def _member_command(self, proxy_id: ProxyId, seen: _Observed) -> Command | None:
        """The command that is due for one member; None if none is due."""
        now_s, committed, report = seen.now_s, seen.state.members.get(proxy_id), seen.reports.get(proxy_id)
        can_go_down = committed is not None and committed.status is not MemberStatus.DOWN
        if committed is not None and can_go_down and self._is_down(proxy_id, seen):
            return MemberStatusChanged(proxy_id, MemberStatus.DOWN, committed.incarnation)
        if report is None:
            return None
        if report.stopping:
            is_same_life = committed is not None and committed.incarnation == report.incarnation
            if committed is None or not is_same_life or committed.status is not MemberStatus.UP:
                return None
            if self._stopping.duration_s((proxy_id, report.incarnation), now_s) < STOPPING_BATCH_DELAY_S:
                return None
            return MemberStatusChanged(proxy_id, MemberStatus.DRAINING, committed.incarnation)
        ready_for_s = self._ready.duration_s((proxy_id, report.incarnation), now_s)
        if ready_for_s < 0:
            return None
        member = replace(report.member, incarnation=report.incarnation, status=MemberStatus.UP)
        if committed is not None and committed.status is MemberStatus.UP:
            member = replace(member, drained=committed.drained)
            return None if member == committed else MemberUp(member)
        # At the very first start there is no ownership to disturb.
        first_start = committed is None and seen.state.generation == 0
        steady_s = self._flap_damper.steady_s(proxy_id)
        return MemberUp(member) if first_start or ready_for_s >= steady_s else None

    def _is_suspected(self, proxy_id: ProxyId, reports: Mapping[ProxyId, MemberReport]) -> bool:
        """Whether a majority of all voters suspects the member; its own report "not ready" is a vote, too."""
        votes = [
            proxy_id in reports[voter].suspects or (voter == proxy_id and not reports[voter].ready)
            for voter in self._voters
            if voter in reports
        ]
        return self._are_majority(votes)

    def _is_down(self, proxy_id: ProxyId, seen: _Observed) -> bool:
        """Whether to commit a member as down.

        A member whose heartbeats arrive here is not down just because others cannot reach it. To commit such
        a member as down requires its own report "not ready", or failed probes of its listeners by a majority.
        """
        if not self._is_suspected(proxy_id, seen.reports):
            return False
        if proxy_id not in seen.heard:
            return True
        own = seen.reports.get(proxy_id)
        if own is not None and not own.ready:
            return True
        reports = [seen.reports[voter] for voter in self._voters if voter in seen.reports]
        return self._are_majority(proxy_id in report.failed_probes for report in reports)

    def _are_majority(self, votes: Iterable[bool]) -> bool:
        return sum(votes) > len(self._voters) // 2

    # -- brokers -------------------------------------------------------------------------------------------

    def _broker_commands(self, seen: _Observed) -> list[Command]:
        """Commands for brokers that are new, moved or gone, each small enough for the log."""
        listed: dict[BrokerId, list[Broker]] = {}
        for _, report in sorted(seen.reports.items()):
            for broker in report.brokers:
                if broker.broker_id >= 0 and is_address(broker.host, broker.port):
                    listed.setdefault(broker.broker_id, []).append(broker)
        # Two members that disagree must not make the committed address flap: it stays while any member
        # reports it.
        new = [
            versions[0]
            for broker_id, versions in sorted(listed.items())
            if seen.state.brokers.get(broker_id) not in versions
        ]
        commands: list[Command] = [
            BrokersSeen(tuple(new[start : start + MAX_BROKERS_PER_COMMAND]))
            for start in range(0, len(new), MAX_BROKERS_PER_COMMAND)
        ]
        commands += [
            BrokerGone(broker_id)
            for broker_id in sorted(seen.state.brokers)
            if self._missing.duration_s(broker_id, seen.now_s) >= BROKER_REMOVAL_DELAY_S
        ]
        return commands

    # -- ownership -----------------------------------------------------------------------------------------

    def _ownership_commands(self, seen: _Observed) -> list[Command]:
        state, now_s = seen.state, seen.now_s
        unreachable = self._unreachable(seen)
        steady = self._is_steady(seen, unreachable)
        generation, proposed_s = self._ownership_until
        if state.generation < generation and now_s - proposed_s < PROPOSAL_RETRY_S:
            return []
        # If two members die together, the second must not get the identities of the first.
        if not state.brokers or self._has_pending(now_s, "member"):
            return []
        weights = self._weights_to_use(now_s)
        inputs = _Inputs(state, unreachable, weights, steady and not self._has_pending(now_s))
        if self._settled_inputs is not None and self._settled_inputs.covers(inputs):
            return []
        if state.ownership:
            after = take_over(state.members, state.brokers, state.ownership, state.pins, unreachable)
            if state.ownership.keys() != after.keys() or _changed_owners(state.ownership, after):
                return self._change(state, after, _move_reason(state, after, unreachable), now_s)
            if not inputs.balanced:
                self._settled_inputs = inputs
                return []
        elif self._has_pending(now_s) or not self._may_start(state, now_s):
            return []
        after = assign(state.members, state.brokers, state.ownership, state.pins, unreachable, weights)
        if after == state.ownership:
            self._settled_inputs = inputs
            return []
        return self._change(state, after, _balance_reason(state, after), now_s)

    def _weights_to_use(self, now_s: float) -> Weights | None:
        """The weights to balance by, replaced by newer weights at most every ``balance.every_s``."""
        if self._balance is None:
            return None
        if self._weights is None:
            return UNKNOWN_WEIGHTS
        old = self._current_weights is None or now_s - self._weights_taken_s >= self._balance.every_s
        if self._current_weights is None or (old and self._current_weights.weights is not self._weights):
            self._current_weights = Weights(self._weights, self._balance.min_gain)
            self._weights_taken_s = now_s
        return self._current_weights

    def _may_start(self, state: FleetState, now_s: float) -> bool:
        """Whether to assign the first ownership: once all members are up, or with those up after a grace."""
        if not any(member.eligible for member in state.members.values()):
            return False
        up = {p for p, member in state.members.items() if member.status is MemberStatus.UP}
        leading_since_s = now_s if self._leading_since_s is None else self._leading_since_s
        return up >= self._members or now_s - leading_since_s >= self._timing.grace_s

    def _is_steady(self, seen: _Observed, unreachable: AbstractSet[tuple[ProxyId, BrokerId]]) -> bool:
        """Whether eligibility, reachability and ownership have been stable for long enough to rebalance.

        Ownership must rest for clients' sake. librdkafka doubles its wait before each connection to a broker,
        from reconnect.backoff.ms to reconnect.backoff.max.ms (10 s), unless the last one is longer ago than
        reconnect.backoff.max.ms.
        """
        eligible = {p: seen.liveness.get(p) for p, member in seen.state.members.items() if member.eligible}
        key = (frozenset(eligible.items()), frozenset(unreachable))
        self._settled.update([key], seen.now_s)
        # After a cold start, members that have not been heard yet keep their identities.
        unheard = any(each in (None, Liveness.UNKNOWN) for each in eligible.values())
        rested = seen.now_s - self._moved_s >= self._timing.rest_after_move_s
        settled = self._settled.duration_s(key, seen.now_s) >= self._timing.steady_after_s
        return not unheard and rested and settled

    def _unreachable(self, seen: _Observed) -> frozenset[tuple[ProxyId, BrokerId]]:
        """Pairs of a member and a broker that it could not reach for a while, when another member could."""
        steady_s = BROKER_UNREACHABLE_PERIODS * self._timing.suspect_after_s
        return frozenset(
            (proxy_id, broker_id)
            for proxy_id, report in seen.reports.items()
            for broker_id in report.unreachable
            if self._replaceable.duration_s((proxy_id, broker_id), seen.now_s) >= steady_s
        )

    def _change(
        self, state: FleetState, after: Mapping[BrokerId, Ownership], reason: OwnershipReason, now_s: float
    ) -> list[Command]:
        changes = {b: ownership for b, ownership in after.items() if state.ownership.get(b) != ownership}
        removed = state.ownership.keys() - after.keys()
        commands = split_ownership(state.generation, changes, removed, reason)
        self._ownership_until = (state.generation + len(commands), now_s)
        return list(commands)


def _whole_fleet_stops(seen: _Observed) -> bool:
    serving = [
        report
        for proxy_id, report in seen.reports.items()
        if report.member.listeners and seen.liveness.get(proxy_id) is Liveness.UP
    ]
    return bool(serving) and all(report.stopping for report in serving)


def _key(command: Command) -> Hashable:
    return (command.kind, command)


def _changed_owners(
    before: Mapping[BrokerId, Ownership], after: Mapping[BrokerId, Ownership]
) -> list[BrokerId]:
    """The identities whose owners differ."""
    return [b for b, o in after.items() if b not in before or before[b].owners != o.owners]


def _loses_owner(before: Ownership, after: Ownership | None) -> bool:
    """Whether an owner loses the identity, so that its clients must reconnect elsewhere."""
    return after is not before and (after is None or not set(before.owners) <= set(after.owners))


def _move_reason(
    state: FleetState,
    after: Mapping[BrokerId, Ownership],
    unreachable: AbstractSet[tuple[ProxyId, BrokerId]],
) -> OwnershipReason:
    lost = [
        (proxy_id, broker_id)
        for broker_id in _changed_owners(state.ownership, after)
        if broker_id in state.ownership
        for proxy_id in state.ownership[broker_id].owners
        if proxy_id not in after[broker_id].owners
    ]
    for pair in lost:
        member = state.members.get(pair[0])
        if member is None or member.status is MemberStatus.DOWN or pair in unreachable:
            return "takeover"
    return "drain" if lost else "brokers"


def _balance_reason(state: FleetState, after: Mapping[BrokerId, Ownership]) -> OwnershipReason:
    if not state.ownership:
        return "bootstrap"
    moved = _changed_owners(state.ownership, after)
    if any(after[b].owners == (state.pins.get(b),) for b in moved):
        return "pin"
    owning = {proxy_id for ownership in state.ownership.values() for proxy_id in ownership.owners}
    joined = {proxy_id for b in moved for proxy_id in after[b].owners} - owning
    return "join" if joined else "rebalance"
