"""The replicated state machine: what a committed command does to the fleet's state. Pure.

Every function here is the same on every member and at every replay: no clock, no randomness, no I/O; what a
command needs of those, its proposer stamps on it. ``apply`` never raises, because an exception in a
replicated method stops the cluster for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeAlias, assert_never

from pydantic import Field, TypeAdapter, ValidationError

from fleet.core.model import Broker, BrokerId, FleetState, Member, MemberStatus, Ownership, ProxyId

MAX_COMMAND_BYTES = 64 * 1024 - 1
"""A command must be below 64 KiB: pysyncobj can never send some of the sizes above."""

RECENT_COMMANDS = 256
"""How many command ids are remembered, so that a command that is proposed twice is applied once."""

_STAMP_BYTES = 512
"""Room that ``split_ownership`` leaves for what surrounds the changes, the stamp included."""

Reason: TypeAlias = Literal[
    "",
    "repeated",
    "stale_generation",
    "stale_incarnation",
    "unknown_command",
    "unknown_member",
    "no_change",
    "invalid",
]
OwnershipReason: TypeAlias = Literal["bootstrap", "takeover", "drain", "join", "pin", "rebalance", "brokers"]


@dataclass(frozen=True, slots=True)
class MemberUp:
    """A member is ready to own identities, or has new addresses; its committed ``drained`` stays."""

    member: Member
    command_id: str = ""
    proposed_at_ms: int = 0
    kind: Literal["member_up"] = "member_up"


@dataclass(frozen=True, slots=True)
class MemberStatusChanged:
    """One life (incarnation) of a member is down or draining; of no effect on another life."""

    proxy_id: ProxyId
    status: MemberStatus
    incarnation: int
    command_id: str = ""
    proposed_at_ms: int = 0
    kind: Literal["member_status_changed"] = "member_status_changed"


@dataclass(frozen=True, slots=True)
class DrainSet:
    """An operator wants a member to own nothing, or lets it own again."""

    proxy_id: ProxyId
    drained: bool
    command_id: str = ""
    proposed_at_ms: int = 0
    kind: Literal["drain_set"] = "drain_set"


@dataclass(frozen=True, slots=True)
class BrokersSeen:
    """Brokers that are new, or whose address or rack is."""

    brokers: tuple[Broker, ...]
    command_id: str = ""
    proposed_at_ms: int = 0
    kind: Literal["brokers_seen"] = "brokers_seen"


@dataclass(frozen=True, slots=True)
class BrokerGone:
    """A broker left the cluster. Its identity is removed by the ``OwnershipSet`` that follows."""

    broker_id: BrokerId
    command_id: str = ""
    proposed_at_ms: int = 0
    kind: Literal["broker_gone"] = "broker_gone"


@dataclass(frozen=True, slots=True)
class OwnershipSet:
    """The leader's computed result, against exactly one generation."""

    expected_generation: int
    changes: Mapping[BrokerId, Ownership]
    removed: tuple[BrokerId, ...] = ()
    reason: OwnershipReason = "rebalance"
    command_id: str = ""
    proposed_at_ms: int = 0
    kind: Literal["ownership_set"] = "ownership_set"


@dataclass(frozen=True, slots=True)
class PinSet:
    """An operator ties an identity to a member, or (None) unties it."""

    broker_id: BrokerId
    proxy_id: ProxyId | None
    command_id: str = ""
    proposed_at_ms: int = 0
    kind: Literal["pin_set"] = "pin_set"


Command: TypeAlias = (
    MemberUp | MemberStatusChanged | DrainSet | BrokersSeen | BrokerGone | OwnershipSet | PinSet
)


@dataclass(frozen=True, slots=True)
class Unknown:
    """Bytes from the log that are no command of this version; ignored, the same way everywhere."""

    detail: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What applying a command came to.

    Args:
        applied: whether the state changed.
        reason: empty where it was applied, otherwise why not.
        generation: the state's generation afterwards.
    """

    applied: bool
    reason: Reason = ""
    generation: int = 0


class _Refused(Exception):
    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


_COMMANDS: TypeAdapter[Command] = TypeAdapter(Annotated[Command, Field(discriminator="kind")])
_STATES: TypeAdapter[FleetState] = TypeAdapter(FleetState)
_OWNERSHIPS: TypeAdapter[Ownership] = TypeAdapter(Ownership)


def encode(command: Command) -> bytes:
    """The bytes of a command, as they go through the log.

    Raises:
        ValueError: 64 KiB or more; split the command (``split_ownership``).
    """
    encoded = _COMMANDS.dump_json(command)
    if len(encoded) > MAX_COMMAND_BYTES:
        raise ValueError(f"{command.kind}: {len(encoded)} bytes, the limit is {MAX_COMMAND_BYTES}")
    return encoded


def decode(encoded: bytes) -> Command | Unknown:
    """The command that the bytes stand for; never raises."""
    try:
        return _COMMANDS.validate_json(encoded)
    except ValidationError as error:
        # The message of the first mistake only: the input itself may be large, and may be anything.
        return Unknown(detail=f"{error.errors(include_url=False, include_input=False)[0]['msg']:.200}")
    except Exception as error:
        return Unknown(detail=type(error).__name__)


def encode_state(state: FleetState) -> bytes:
    """The state as JSON, for snapshots."""
    return _STATES.dump_json(state)


def decode_state(encoded: bytes) -> FleetState:
    """The state that ``encode_state`` wrote.

    Raises:
        ValueError: the bytes are not one.
    """
    return _STATES.validate_json(encoded)


def stamp(command: Command, command_id: str, proposed_at_ms: int) -> Command:
    """The same command with the proposer's id and clock on it."""
    return replace(command, command_id=command_id, proposed_at_ms=proposed_at_ms)


def split_ownership(
    expected_generation: int,
    changes: Mapping[BrokerId, Ownership],
    removed: Iterable[BrokerId] = (),
    reason: OwnershipReason = "rebalance",
    limit_bytes: int = MAX_COMMAND_BYTES,
) -> list[OwnershipSet]:
    """A change of ownership as commands that each fit the log, to be proposed in this order.

    Each takes the generation that the one before leaves. Most changes are one command.

    Args:
        expected_generation: the generation the change was computed from.
        limit_bytes: the largest encoded command.
    Returns: nothing where there is no change.
    Raises:
        ValueError: one identity alone is above the limit.
    """
    parts: list[tuple[dict[BrokerId, Ownership], list[BrokerId]]] = [({}, [])]
    room = limit_bytes - _STAMP_BYTES
    entries: list[tuple[BrokerId, Ownership | None]] = [(key, changes[key]) for key in sorted(changes)]
    entries += [(key, None) for key in sorted(set(removed))]
    for broker_id, ownership in entries:
        size = len(str(broker_id)) + 4 + (len(_OWNERSHIPS.dump_json(ownership)) if ownership else 0)
        if size > limit_bytes - _STAMP_BYTES:
            raise ValueError(f"the owners of identity {broker_id} do not fit a command")
        if size > room:
            parts.append(({}, []))
            room = limit_bytes - _STAMP_BYTES
        room -= size
        if ownership is None:
            parts[-1][1].append(broker_id)
        else:
            parts[-1][0][broker_id] = ownership
    return [
        OwnershipSet(expected_generation + index, changed, tuple(gone), reason)
        for index, (changed, gone) in enumerate(parts)
        if changed or gone
    ]


def apply(state: FleetState, command: Command | Unknown) -> tuple[FleetState, Outcome]:
    """The state after a committed command; total, pure and idempotent by ``command_id``."""
    try:
        return _apply(state, command)
    except _Refused as refused:
        return state, Outcome(False, refused.reason, state.generation)
    except Exception:
        # Every replica runs the same code on the same bytes, so all of them end here together.
        return state, Outcome(False, "invalid", state.generation)


def _apply(state: FleetState, command: Command | Unknown) -> tuple[FleetState, Outcome]:
    if isinstance(command, Unknown):
        raise _Refused("unknown_command")
    if command.command_id and command.command_id in state.recent_commands:
        raise _Refused("repeated")
    # A refused command is remembered as well: it must not take effect when it comes a second time and finds
    # the state changed (drain, undrain, and the first drain again).
    seen = _remember(state, command.command_id)
    try:
        changed = _changed(seen, command)
    except _Refused as refused:
        return seen, Outcome(False, refused.reason, seen.generation)
    return changed, Outcome(True, "", changed.generation)


def _remember(state: FleetState, command_id: str) -> FleetState:
    if not isinstance(command_id, str):
        raise _Refused("invalid")
    if not command_id:
        return state
    return replace(state, recent_commands=(*state.recent_commands, command_id)[-RECENT_COMMANDS:])


def _changed(state: FleetState, command: Command) -> FleetState:
    match command:
        case MemberUp():
            return _member_up(state, command)
        case MemberStatusChanged():
            return _member_status_changed(state, command)
        case DrainSet():
            return _drain_set(state, command)
        case BrokersSeen():
            return _brokers_seen(state, command)
        case BrokerGone():
            return _broker_gone(state, command)
        case OwnershipSet():
            return _ownership_set(state, command)
        case PinSet():
            return _pin_set(state, command)
        case _:
            assert_never(command)


def _known(state: FleetState, proxy_id: ProxyId) -> Member:
    member = state.members.get(proxy_id)
    if member is None:
        raise _Refused("unknown_member")
    return member


def _with_member(state: FleetState, member: Member) -> FleetState:
    if state.members.get(member.proxy_id) == member:
        raise _Refused("no_change")
    return replace(state, members={**state.members, member.proxy_id: member})


def _member_up(state: FleetState, command: MemberUp) -> FleetState:
    if not command.member.proxy_id:
        raise _Refused("invalid")
    before = state.members.get(command.member.proxy_id)
    # What an operator drained stays drained over its restart; only DrainSet changes that.
    drained = before.drained if before is not None else False
    return _with_member(state, replace(command.member, status=MemberStatus.UP, drained=drained))


def _member_status_changed(state: FleetState, command: MemberStatusChanged) -> FleetState:
    member = _known(state, command.proxy_id)
    if member.incarnation != command.incarnation:
        raise _Refused("stale_incarnation")
    return _with_member(state, replace(member, status=MemberStatus(command.status)))


def _drain_set(state: FleetState, command: DrainSet) -> FleetState:
    return _with_member(state, replace(_known(state, command.proxy_id), drained=bool(command.drained)))


def _brokers_seen(state: FleetState, command: BrokersSeen) -> FleetState:
    if any(broker.broker_id < 0 for broker in command.brokers):
        raise _Refused("invalid")
    brokers = {**state.brokers, **{broker.broker_id: broker for broker in command.brokers}}
    if brokers == state.brokers:
        raise _Refused("no_change")
    return replace(state, brokers=brokers)


def _broker_gone(state: FleetState, command: BrokerGone) -> FleetState:
    if command.broker_id not in state.brokers:
        raise _Refused("no_change")
    return replace(state, brokers={k: v for k, v in state.brokers.items() if k != command.broker_id})


def _pin_set(state: FleetState, command: PinSet) -> FleetState:
    if state.pins.get(command.broker_id) == command.proxy_id:
        raise _Refused("no_change")
    pins = {k: v for k, v in state.pins.items() if k != command.broker_id}
    if command.proxy_id is not None:
        pins[command.broker_id] = _known(state, command.proxy_id).proxy_id
    return replace(state, pins=pins)


def _ownership_set(state: FleetState, command: OwnershipSet) -> FleetState:
    if command.expected_generation != state.generation:
        raise _Refused("stale_generation")
    for ownership in command.changes.values():
        if not ownership.owners or len(set(ownership.owners)) != len(ownership.owners):
            raise _Refused("invalid")
        for proxy_id in ownership.owners + ownership.successors:
            _known(state, proxy_id)
    if not command.changes.keys().isdisjoint(command.removed):
        raise _Refused("invalid")
    gone = set(command.removed)
    ownership_after = {k: v for k, v in {**state.ownership, **command.changes}.items() if k not in gone}
    if ownership_after == state.ownership:
        raise _Refused("no_change")
    return replace(state, generation=state.generation + 1, ownership=ownership_after)
