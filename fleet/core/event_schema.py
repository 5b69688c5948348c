"""The schema of the fleet's events: one JSON object per record.

Every object has a `kind`, a `version` and an `id`. Records with the same id report the same event: delivery
is at least once, and every member that learns of a commit reports it. A version may gain fields; a reader
ignores unknown fields.

The *reporter* of an event is the member that published it. Times are wall-clock milliseconds since 1970, on
the reporter's clock unless the field's description names another clock.
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
    """The owners that one committed generation gave to one identity.

    Args:
        id: the same from every member.
        generation: the first generation with these owners.
        before: the previous owners; null if the reporter does not know them.
        owners: the new owners; empty if the identity was removed with its broker.
        proposed_at_ms: on the clock of the leader at that time; the same from every member.
        committed_at_ms: when the reporter learned of the commit.
        detected_at_ms: when the reporter saw the first sign that an owner had to be replaced; null if the
            ownership changed for another reason.
        advertised_at_ms: when all workers of the reporter bypassed that owner; null while they do not. A
            second event with this id follows once they do.
        alive_at_ms: the last moment at which the worker of the lost owner was certainly alive: when the last
            question was sent that it answered. Null if the reporter knows no such moment, and in events of
            older releases.
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
    """A committed change of a member.

    Args:
        id: the same from every member.
        incarnation: identifies one life of the member.
        drained: whether an operator has drained the member.
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
    """A change of a member's liveness, as one other member judges it.

    Args:
        reason: the reason of the change, in one word.
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
    """The traffic between one listener of one worker and one broker, in a period of about a second.

    Args:
        broker_id: -1 for connections to a bootstrap port, whichever broker they use.
        at_ms: the end of the period.
        period_ms: the length of the period.
        opened: number of new connections, the fleet's own probes included.
        connections: number of open connections at the end.
        bytes_to_broker, bytes_to_client: bytes in each direction.
        in_flight_peak: the most requests in flight on one connection, as far as sampled.
        apis: api key → traffic.
        clients: client id → sampled requests, for the busiest clients.
        requests: number of requests of all APIs; null in events of older releases.
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


ConnectionChange: TypeAlias = Literal["opened", "closed", "moved", "cut"]


@dataclass(frozen=True, slots=True)
class ConnectionEvent:
    """A client's connection has sent its first request to a broker, or has ended.

    Args:
        id: the id of this event; the start and the end of a connection have different ids.
        connection: the id of the connection, the same in both events.
        what: "closed" by the client; "moved" by the worker, because the identity has another owner; "cut" for
            lack of a broker or of an answer, or because of its content.
        why: as in `fleet.runtime.ipc.ConnectionRow.end`; null if the connection was opened.
        broker_id: -1 for a connection to a bootstrap port.
        owned: whether the reporter owned that broker's identity then.
        client: the address of the client.
        open_ms: how long the connection was open.
    """

    id: str
    fleet: str
    told_by: ProxyId
    connection: str
    what: ConnectionChange
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
    """The weight of an identity. The pipeline writes this event, and the members read it.

    Args:
        weight: the estimated cost for a proxy, in microseconds of processor time per second.
        at_ms: the end of the traffic from which the weight was computed.
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
"""The topic of each kind, without the configured prefix."""
LATEST: Final = "ownership.latest"
"""The compacted copy: the newest ownership event of each identity."""
WEIGHTS: Final = TOPICS["weight"]
EXPENDABLE: Final = frozenset((TOPICS["traffic"], TOPICS["connection"]))
"""Topics with many events. If there is no room, these events are dropped first."""
OBSERVATIONS: Final = "observations"
"""What applications and external observers have seen of the fleet; see `fleet.pipeline.observations`."""
DEPRECATED_OBSERVATIONS: Final = "outside"
"""The name of `OBSERVATIONS` before 0.3.0. The pipeline still reads it; the fleet no longer creates it."""
DEAD_LETTERS: Final = "dead_letters"
"""The topic for records of the other topics that `fleet.pipeline` could not read as events."""

EVENTS: Final[Codec[Event]] = Codec(Annotated[Event, Field(discriminator="kind")])  # type: ignore[arg-type]


def key(event: Event) -> bytes:
    """The record key of an event. The events of one identity, or of one member, keep their order."""
    subject = event.proxy_id if isinstance(event, MemberEvent | LivenessEvent) else event.broker_id
    return f"{event.fleet}/{subject}".encode()
