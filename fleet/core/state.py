"""The replicated state machine: applies committed commands to the fleet's state. Pure.

Every function gives the same result on every member and at every replay: no clock, no randomness, no I/O. The
proposer stamps such values on the command. ``apply`` never raises, because an exception in a replicated
method stops the cluster for good.
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
"""How many command ids the state remembers, so that a command that is proposed twice is applied once."""

_STAMP_BYTES = 512
"""Room that ``split_ownership`` leaves for the other fields of a command, the stamp included."""

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
    """A member is ready to own identities, or has new addresses. Its committed ``drained`` stays."""

    member: Member
    command_id: str = ""
    proposed_at_ms: int = 0
    kind: Literal["member_up"] = "member_up"


@dataclass(frozen=True, slots=True)
class MemberStatusChanged:
    """One life (incarnation) of a member is down or draining. Other lives are not affected."""

    proxy_id: ProxyId
    status: MemberStatus
    incarnation: int
    command_id: str = ""
    proposed_at_ms: int = 0
    kind: Literal["member_status_changed"] = "member_status_changed"


@dataclass(frozen=True, slots=True)
class DrainSet:
    """An operator drains a member, so that it owns nothing, or lets it own again."""

    proxy_id: ProxyId
    drained: bool
    command_id: str = ""
    proposed_at_ms: int = 0
    kind: Literal["drain_set"] = "drain_set"


@dataclass(frozen=True, slots=True)
class BrokersSeen:
    """Brokers are new, or have a new address or rack."""

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
    """A change of ownership that the leader computed from exactly one generation."""

    expected_generation: int
    changes: Mapping[BrokerId, Ownership]
    removed: tuple[BrokerId, ...] = ()
    reason: OwnershipReason = "rebalance"
    command_id: str = ""
    proposed_at_ms: int = 0
    kind: Literal["ownership_set"] = "ownership_set"


@dataclass(frozen=True, slots=True)
class PinSet:
    """An operator pins an identity to a member, or (None) unpins it."""

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
    """Bytes from the log that are not a command of this version. Every member ignores them."""

    detail: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of applying a command.

    Args:
        applied: whether the state changed.
        reason: empty if the command was applied, otherwise the reason why not.
        generation: the generation of the state afterwards.
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
    """Encode a command for the log.

    Raises:
        ValueError: the command has 64 KiB or more; split it (``split_ownership``).
    """
    encoded = _COMMANDS.dump_json(command)
    if len(encoded) > MAX_COMMAND_BYTES:
        raise ValueError(f"{command.kind}: {len(encoded)} bytes, the limit is {MAX_COMMAND_BYTES}")
    return encoded


def decode(encoded: bytes) -> Command | Unknown:
    """Decode a command from the log. Never raises."""
    try:
        return _COMMANDS.validate_json(encoded)
    except ValidationError as error:
        # Only the message of the first mistake, without the input: the input may be large and arbitrary.
        return Unknown(detail=f"{error.errors(include_url=False, include_input=False)[0]['msg']:.200}")
    except Exception as error:
        return Unknown(detail=type(error).__name__)


def encode_state(state: FleetState) -> bytes:
    """Encode the state as JSON, for snapshots."""
    return _STATES.dump_json(state)


def decode_state(encoded: bytes) -> FleetState:
    """Decode a state that ``encode_state`` wrote.

    Raises:
        ValueError: the bytes are not a state.
    """
    return _STATES.validate_json(encoded)


def stamp(command: Command, command_id: str, proposed_at_ms: int) -> Command:
    """The command with the proposer's id and time."""
    return replace(command, command_id=command_id, proposed_at_ms=proposed_at_ms)


def split_ownership(
    expected_generation: int,
    changes: Mapping[BrokerId, Ownership],
    removed: Iterable[BrokerId] = (),
    reason: OwnershipReason = "rebalance",
    limit_bytes: int = MAX_COMMAND_BYTES,
) -> list[OwnershipSet]:
    """Split a change of ownership into commands that each fit the log. Propose them in this order.

    Each command expects the generation that the previous command leaves. Most changes are one command.

    Args:
        expected_generation: the generation from which the change was computed.
        limit_bytes: the size limit of an encoded command.
    Returns: the commands; empty if there is no change.
    Raises:
        ValueError: a single identity is above the limit.
    """
    parts: list[tuple[dict[BrokerId, Ownership], list[BrokerId]]] = [({}, [])]
    room = limit_bytes - _STAMP_BYTES
    entries: list[tuple[BrokerId, Ownership | None]] = [(key, changes[key]) for key in sorted(changes)]
    entries += [(key, None) for key in sorted(set(removed))]
    for broker_id, ownership in entries:
        size = len(str(broker_id)) + 4 + (len(_OWNERSHIPS.dump_json(ownership)) if ownership else 0)
        if size > limit_bytes - _STAMP_BYTES:
            raise ValueError(f"the owners of identity {broker_id} do not fit in one command")
        if size > room:
            parts.append(({}, []))
            room = limit_bytes - _STAMP_BYTES
        room -= size
        if ownership is None:
            parts[-1][1].append(broker_id)
        else:
            parts[-1][0][broker_id] = ownership
    return [
        OwnershipSet(expected_generation + index, changed, tuple(removed_ids), reason)
        for index, (changed, removed_ids) in enumerate(parts)
        if changed or removed_ids
    ]


def apply(state: FleetState, command: Command | Unknown) -> tuple[FleetState, Outcome]:
    """Apply a committed command to the state. Total, pure, and idempotent by ``command_id``."""
    try:
        return _apply(state, command)
    except _Refused as refused:
        return state, Outcome(False, refused.reason, state.generation)
    except Exception:
        # Every replica runs the same code on the same bytes, so all replicas reach this line together.
        return state, Outcome(False, "invalid", state.generation)


def _apply(state: FleetState, command: Command | Unknown) -> tuple[FleetState, Outcome]:
    if isinstance(command, Unknown):
        raise _Refused("unknown_command")
    if command.command_id and command.command_id in state.recent_commands:
        raise _Refused("repeated")
    # Remember a refused command, too: it must not take effect if it is repeated after the state has changed
    # (drain, undrain, and the first drain again).
    seen = _remember(state, command.command_id)
    try:
        changed = _change(seen, command)
    except _Refused as refused:
        return seen, Outcome(False, refused.reason, seen.generation)
    return changed, Outcome(True, "", changed.generation)


def _remember(state: FleetState, command_id: str) -> FleetState:
    if not isinstance(command_id, str):
        raise _Refused("invalid")
    if not command_id:
        return state
    return replace(state, recent_commands=(*state.recent_commands, command_id)[-RECENT_COMMANDS:])


def _change(state: FleetState, command: Command) -> FleetState:
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


def _require_member(state: FleetState, proxy_id: ProxyId) -> Member:
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
    # A drained member stays drained when it restarts; only DrainSet changes the flag.
    drained = before.drained if before is not None else False
    return _with_member(state, replace(command.member, status=MemberStatus.UP, drained=drained))


def _member_status_changed(state: FleetState, command: MemberStatusChanged) -> FleetState:
    member = _require_member(state, command.proxy_id)
    if member.incarnation != command.incarnation:
        raise _Refused("stale_incarnation")
    return _with_member(state, replace(member, status=MemberStatus(command.status)))


def _drain_set(state: FleetState, command: DrainSet) -> FleetState:
    return _with_member(
        state, replace(_require_member(state, command.proxy_id), drained=bool(command.drained))
    )


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
        pins[command.broker_id] = _require_member(state, command.proxy_id).proxy_id
    return replace(state, pins=pins)


def _ownership_set(state: FleetState, command: OwnershipSet) -> FleetState:
    if command.expected_generation != state.generation:
        raise _Refused("stale_generation")
    for ownership in command.changes.values():
        if not ownership.owners or len(set(ownership.owners)) != len(ownership.owners):
            raise _Refused("invalid")
        for proxy_id in ownership.owners + ownership.successors:
            _require_member(state, proxy_id)
    if not command.changes.keys().isdisjoint(command.removed):
        raise _Refused("invalid")
    removed_ids = set(command.removed)
    ownership_after = {
        k: v for k, v in {**state.ownership, **command.changes}.items() if k not in removed_ids
    }
    if ownership_after == state.ownership:
        raise _Refused("no_change")
    return replace(state, generation=state.generation + 1, ownership=ownership_after)
