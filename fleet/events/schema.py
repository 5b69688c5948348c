"""The events of a fleet, as they are in its topics: one JSON object a record.

Every object has a `kind`, a `version` and an `id`. Records with the same id tell of the same thing: some were
sent twice, because delivery is at least once, and what is committed is told of by every member that learns of
it. A field may be added within a version; a reader ignores those that it does not know.

Times are wall-clock milliseconds since 1970, of the clock of whoever is named beside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field

from fleet.admin.documents import Codec
from fleet.model import BrokerId, Liveness, MemberStatus, ProxyId
from fleet.state import OwnershipReason

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


Event: TypeAlias = OwnershipEvent | MemberEvent | LivenessEvent

TOPICS: Final = MappingProxyType({"ownership": "ownership", "member": "members", "liveness": "members"})
"""The topic of each kind, behind the prefix that is configured."""
LATEST: Final = "ownership.latest"
"""The compacted copy: the newest ownership event of each identity."""
DEAD_LETTERS: Final = "dead_letters"
"""Where `fleet.pipeline` puts what it has found in the other topics and is no event."""

EVENTS: Final[Codec[Event]] = Codec(Annotated[Event, Field(discriminator="kind")])  # type: ignore[arg-type]


def key(event: Event) -> bytes:
    """Of its record: what happens to one identity, or one member, keeps its order."""
    subject = event.broker_id if isinstance(event, OwnershipEvent) else event.proxy_id
    return f"{event.fleet}/{subject}".encode()
