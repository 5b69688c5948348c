"""Makes events from Raft commits and from a member's own observations; the caller passes the time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from fleet.core.event_schema import (
    ConnectionChange,
    ConnectionEvent,
    Event,
    LivenessEvent,
    MemberEvent,
    OwnershipEvent,
    TrafficEvent,
)
from fleet.core.liveness import Transition
from fleet.core.model import BrokerId, FleetState, Member, MemberStatus, Ownership, ProxyId
from fleet.core.replication import Applied
from fleet.core.state import DrainSet, MemberStatusChanged, MemberUp, OwnershipSet
from fleet.core.takeover import Takeover, TakeoverLog
from fleet.core.traffic import ConnectionEnd
from fleet.runtime.ipc import TrafficMessage

REPLAY_LIMIT_MS: Final = 600_000
"""Age up to which a starting member reports commands that it reads from its log.

The member may have died before it reported them. Older commands were reported before."""
_PENDING_LIMIT: Final = 10_000
"""Changes of ownership that may wait for their advertisement, which never comes if workers are dead."""


class Recorder:
    """Makes the events of one member.

    Args:
        fleet: name of the fleet.
        me: id of this member.
        life: name of this process. It separates the event ids of this process from those of earlier ones.
    """

    def __init__(self, fleet: str, me: ProxyId, life: str) -> None:
        self._fleet = fleet
        self._me = me
        self._life = life
        self._ownership: Mapping[BrokerId, Ownership] = {}
        self._members: Mapping[ProxyId, Member] = {}
        self._observed = 0
        self._unadvertised: dict[str, tuple[OwnershipEvent, Takeover]] = {}

    def record_commit(
        self, applied: Iterable[Applied], after: FleetState, takeovers: TakeoverLog, now_ms: int
    ) -> list[Event]:
        """Return the events of commands that Raft has applied.

        Args:
            applied: the commands and their outcomes, in the order of the log.
            after: the state after the last command.
            takeovers: the takeovers that this member knew before this commit.
            now_ms: Unix time.
        """
        events: list[OwnershipEvent | MemberEvent] = []
        for each in applied:
            if not each.outcome.applied:
                continue
            match each.command:
                case OwnershipSet() as command:
                    events += self._ownership_events(command, each.outcome.generation, takeovers, now_ms)
                case MemberUp() | MemberStatusChanged() | DrainSet() as command:
                    events += self._member_events(command, now_ms)
        # A snapshot changes the state without commands: no member can report these changes one by one.
        self._ownership, self._members = after.ownership, after.members
        return [each for each in events if each.proposed_at_ms >= now_ms - REPLAY_LIMIT_MS]

    def record_advertisement(self, takeovers: TakeoverLog) -> list[Event]:
        """Return ownership events again, with the time of advertisement that was unknown the first time."""
        events: list[Event] = []
        advertised = {(each.proxy_id, each.detected): each.advertised for each in takeovers.recent}
        for event, takeover in list(self._unadvertised.values()):
            now = advertised.get((takeover.proxy_id, takeover.detected))
            if now is not None:
                del self._unadvertised[event.id]
                events.append(replace(event, advertised_at_ms=now.wall_ms))
        return events

    def record_transitions(self, transitions: Iterable[Transition], now_ms: int) -> list[Event]:
        """Return the events of transitions in this member's failure detector."""
        events: list[Event] = []
        for each in transitions:
            self._observed += 1
            name = f"{self._fleet}/liveness/{self._life}/{self._observed}"
            change = (each.before, each.after, each.reason)
            events.append(LivenessEvent(name, self._fleet, self._me, each.peer, *change, at_ms=now_ms))
        return events

    def record_traffic(self, message: TrafficMessage) -> Iterator[Event]:
        """Yield the events of a worker's traffic and of its connections."""
        worker = f"{self._fleet}/{self._me}/{message.worker}"
        for row in message.rows:
            yield TrafficEvent(
                id=f"{worker}/{message.at_ms}-{message.number}/{row.listener}/{row.broker_id}",
                fleet=self._fleet,
                told_by=self._me,
                at_ms=message.at_ms,
                period_ms=message.period_ms,
                listener=row.listener,
                broker_id=row.broker_id,
                opened=row.opened,
                connections=row.connections,
                bytes_to_broker=row.bytes_to_broker,
                bytes_to_client=row.bytes_to_client,
                in_flight_peak=row.in_flight_peak,
                apis=row.apis,
                clients=row.clients,
                requests=sum(each.requests for each in row.apis.values()),
            )
        for each in message.connections:
            connection = f"{worker}/connection/{each.number}"
            yield ConnectionEvent(
                id=connection if each.end is None else f"{connection}/end",
                fleet=self._fleet,
                told_by=self._me,
                connection=connection,
                what=_WHAT[each.end],
                why=each.end,
                listener=each.listener,
                broker_id=each.broker_id,
                owned=each.owned,
                client=each.client,
                client_id=each.client_id,
                open_ms=round(each.open_s * 1000),
                at_ms=each.at_ms,
            )

    def _member_events(
        self, command: MemberUp | MemberStatusChanged | DrainSet, now_ms: int
    ) -> Iterator[MemberEvent]:
        proxy_id = command.member.proxy_id if isinstance(command, MemberUp) else command.proxy_id
        before = self._members.get(proxy_id)
        match command:
            case MemberUp(member=member):
                drained = before is not None and before.drained
                after = replace(member, status=MemberStatus.UP, drained=drained)
            case MemberStatusChanged(status=status):
                if before is None:
                    return
                after = replace(before, status=status)
            case DrainSet(drained=drained):
                if before is None:
                    return
                after = replace(before, drained=drained)
        self._members = {**self._members, proxy_id: after}
        yield MemberEvent(
            id=f"{self._fleet}/member/{command.command_id}",
            fleet=self._fleet,
            told_by=self._me,
            proxy_id=proxy_id,
            incarnation=after.incarnation,
            status=after.status,
            drained=after.drained,
            proposed_at_ms=command.proposed_at_ms,
            committed_at_ms=now_ms,
        )

    def _ownership_events(
        self, command: OwnershipSet, generation: int, takeovers: TakeoverLog, now_ms: int
    ) -> Iterator[OwnershipEvent]:
        removed: dict[BrokerId, Ownership | None] = dict.fromkeys(command.removed)
        for broker_id, ownership in {**command.changes, **removed}.items():
            before = self._ownership.get(broker_id)
            event = OwnershipEvent(
                id=f"{self._fleet}/ownership/{generation}/{broker_id}",
                fleet=self._fleet,
                told_by=self._me,
                generation=generation,
                broker_id=broker_id,
                before=None if before is None else before.owners,
                owners=() if ownership is None else ownership.owners,
                reason=command.reason,
                proposed_at_ms=command.proposed_at_ms,
                committed_at_ms=now_ms,
            )
            yield self._with_takeover(event, takeovers)
        rest = {broker_id: each for broker_id, each in self._ownership.items() if broker_id not in removed}
        self._ownership = {**rest, **command.changes}

    def _with_takeover(self, event: OwnershipEvent, takeovers: TakeoverLog) -> OwnershipEvent:
        takeover = _takeover(event, takeovers)
        if takeover is None:
            return event
        alive_at_ms = None if takeover.alive is None else takeover.alive.wall_ms
        event = replace(event, detected_at_ms=takeover.detected.wall_ms, alive_at_ms=alive_at_ms)
        if takeover.advertised is not None:
            return replace(event, advertised_at_ms=takeover.advertised.wall_ms)
        if len(self._unadvertised) < _PENDING_LIMIT:
            self._unadvertised[event.id] = event, takeover
        return event


_WHAT: Final[Mapping[ConnectionEnd | None, ConnectionChange]] = {
    None: "opened",
    "client": "closed",
    "moved": "moved",
    "unanswered": "cut",
    "broker": "cut",
    "unreachable": "cut",
    "refused": "cut",
}


def _takeover(event: OwnershipEvent, takeovers: TakeoverLog) -> Takeover | None:
    """Return the takeover that a change of ownership completes; None if the change is not a takeover."""
    replaced = set(event.before or ()) - set(event.owners)
    for takeover in reversed(takeovers.recent):
        is_same = takeover.proxy_id in replaced and event.broker_id in takeover.broker_ids
        if is_same and takeover.committed is None:
            return takeover
    return None
