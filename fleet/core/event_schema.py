"""The events of a fleet, as they are in its topics: one JSON object a record.

Every object has a `kind`, a `version` and an `id`. Records with the same id tell of the same thing: some were
sent twice, because delivery is at least once, and what is committed is told of by every member that learns of
it. A field may be added within a version; a reader ignores those that it does not know.

Times are wall-clock milliseconds since 1970, of the clock of whoever is named beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field

from fleet.core.codec import Codec
from fleet.core.model import BrokerId, Liveness, MemberStatus, ProxyId
from fleet.core.state import OwnershipReason
from fleet.core.traffic import ApiTraffic, ConnectionEnd

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class OwnershipEvent:
    """Whom one committed generation gave one identity to.

    Args:
        id: the same from every member.
        told_by: the member that tells it.
        generation: the first that has it so.
        before: the owners until then; null where the teller does not know.
        owners: empty where the identity is gone with its broker.
        proposed_at_ms: on the clock of the leader of that time; the same from every member.
        committed_at_ms: when the teller learned of it.
        detected_at_ms: when the teller saw the first sign that an owner had to be replaced; null where the
            owners were not replaced for that.
        advertised_at_ms: when all the teller's workers had gone around that owner; null also while they have
            not: another event with this id follows then.
        alive_at_ms: the last moment at which the teller is sure that the worker of the owner that is gone
            was alive: when it was asked what it has answered since. Null where the teller is sure of none,
            and in events of before there was this field.
    """

    id: str
    fleet: str
    told_by: ProxyId
    generation: int
    broker_id: BrokerId
    before: tuple[ProxyId, ...] | None
    owners: tuple[ProxyId, ...]
    reason: OwnershipReason
    proposed_at_ms: int
    committed_at_ms: int
    detected_at_ms: int | None = None
    advertised_at_ms: int | None = None
    alive_at_ms: int | None = None
    kind: Literal["ownership"] = "ownership"
    version: Literal[1] = 1


@dataclass(frozen=True, slots=True)
class MemberEvent:
    """What the fleet has committed about a member.

    Args:
        id: the same from every member.
        incarnation: which life of it.
        drained: whether an operator wants it to own nothing.
    """

    id: str
    fleet: str
    told_by: ProxyId
    proxy_id: ProxyId
    incarnation: int
    status: MemberStatus
    drained: bool
    proposed_at_ms: int
    committed_at_ms: int
    kind: Literal["member"] = "member"
    version: Literal[1] = 1


@dataclass(frozen=True, slots=True)
class LivenessEvent:
    """What one member holds of another one.

    Args:
        reason: why, in a word.
    """

    id: str
    fleet: str
    told_by: ProxyId
    proxy_id: ProxyId
    before: Liveness
    after: Liveness
    reason: str
    at_ms: int
    kind: Literal["liveness"] = "liveness"
    version: Literal[1] = 1


@dataclass(frozen=True, slots=True)
class TrafficEvent:
    """What passed one listener of one worker, to and from one broker, in a second or so.

    Args:
        broker_id: -1 for what came by a bootstrap port, whichever broker it went to.
        at_ms: until when.
        period_ms: since when.
        opened: connections that came, the fleet's own probes among them.
        connections: those that are open in the end.
        bytes_to_broker, bytes_to_client: all of them.
        in_flight_peak: most requests in flight on one connection, where it was looked.
        apis: by api key.
        clients: client id → requests that were sampled; those that had most.
        requests: of all APIs; null in events of before there was this field.
    """

    id: str
    fleet: str
    told_by: ProxyId
    listener: str
    broker_id: BrokerId
    at_ms: int
    period_ms: int
    opened: int
    connections: int
    bytes_to_broker: int
    bytes_to_client: int
    in_flight_peak: int
    apis: Mapping[int, ApiTraffic]
    clients: Mapping[str, int]
    requests: int | None = None
    kind: Literal["traffic"] = "traffic"
    version: Literal[1] = 1


What: TypeAlias = Literal["opened", "closed", "moved", "cut"]


@dataclass(frozen=True, slots=True)
class ConnectionEvent:
    """A client's connection has sent its first request to a broker, or has ended since.

    Args:
        id: of the beginning, or of the end.
        connection: the same in both.
        what: closed by the client; moved: told to go elsewhere, in order; cut: for want of a broker, or of an
            answer, or for what it carried.
        why: as `fleet.runtime.ipc.ConnectionRow.end`; null where it has opened.
        broker_id: -1 where it came by a bootstrap port.
        owned: whether the teller stood for that broker then.
        client: its address.
        open_ms: for how long it was there.
    """

    id: str
    fleet: str
    told_by: ProxyId
    connection: str
    what: What
    why: ConnectionEnd | None
    listener: str
    broker_id: BrokerId
    owned: bool
    client: str
    client_id: str
    open_ms: int
    at_ms: int
    kind: Literal["connection"] = "connection"
    version: Literal[1] = 1


@dataclass(frozen=True, slots=True)
class WeightEvent:
    """How much passes an identity; told by the pipeline, and read by the members.

    Args:
        weight: what it costs a proxy, as microseconds of processor time a second; an estimate.
        at_ms: the end of the traffic that it was computed from.
    """

    id: str
    fleet: str
    broker_id: BrokerId
    weight: float
    at_ms: int
    kind: Literal["weight"] = "weight"
    version: Literal[1] = 1


Event: TypeAlias = OwnershipEvent | MemberEvent | LivenessEvent | TrafficEvent | ConnectionEvent | WeightEvent

TOPICS: Final = MappingProxyType(
    {
        "ownership": "ownership",
        "member": "members",
        "liveness": "members",
        "traffic": "traffic",
        "connection": "connections",
        "weight": "weights",
    }
)
"""The topic of each kind, behind the prefix that is configured."""
LATEST: Final = "ownership.latest"
"""The compacted copy: the newest ownership event of each identity."""
WEIGHTS: Final = TOPICS["weight"]
EXPENDABLE: Final = frozenset((TOPICS["traffic"], TOPICS["connection"]))
"""There is much of it: where there is no room it goes before anything else does."""
OBSERVATIONS: Final = "observations"
"""What applications and external observers have seen of the fleet; see `fleet.pipeline.observations`."""
DEPRECATED_OBSERVATIONS: Final = "outside"
"""The name of `OBSERVATIONS` before 0.3.0. The pipeline still reads it; the fleet no longer creates it."""
DEAD_LETTERS: Final = "dead_letters"
"""Where `fleet.pipeline` puts what it has found in the other topics and is no event."""

EVENTS: Final[Codec[Event]] = Codec(Annotated[Event, Field(discriminator="kind")])  # type: ignore[arg-type]


def key(event: Event) -> bytes:
    """Of its record: what happens to one identity, or one member, keeps its order."""
    subject = event.proxy_id if isinstance(event, MemberEvent | LivenessEvent) else event.broker_id
    return f"{event.fleet}/{subject}".encode()
