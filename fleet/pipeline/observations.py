"""What is seen of a fleet from outside, as the jobs read it: by applications, and by who asks for Metadata.

A fleet makes the topic, and does not write to it; chaos runs do, and applications may keep their ledger
there. Times are Unix time in microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field

from fleet.core.codec import Codec
from fleet.core.model import BrokerId, ProxyId


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One line of the ledger.

    Args:
        client: whose; its producers write to one topic, which one group reads.
        what: "acknowledged" by the brokers, "received" by the group, or "log": found in the topic.
        producer_id, sequence: which record; producers count on each partition from 0.
        offset: where in the partition; null where an acknowledgement does not say.
        number: the place of this entry among those of the same client and `what`, as they came.
        at_us: when.
    """

    client: str
    what: Literal["acknowledged", "received", "log"]
    partition: int
    producer_id: int
    sequence: int
    offset: int | None
    number: int
    at_us: int
    kind: Literal["ledger"] = "ledger"
    version: Literal[1] = 1


@dataclass(frozen=True, slots=True)
class ViewEvent:
    """Whom one member's Metadata names for one identity, from a moment on.

    Args:
        number: the place among all that were seen of this member; what is seen at once has the same one.
        owner: null where Metadata leaves the identity out.
    """

    seen_at: ProxyId
    number: int
    broker_id: BrokerId
    owner: ProxyId | None
    at_us: int
    kind: Literal["view"] = "view"
    version: Literal[1] = 1


@dataclass(frozen=True, slots=True)
class OutageEvent:
    """Members that cannot be reached for a while.

    Args:
        survivors: those that can.
        until_us: when that began to be mended.
    """

    id: str
    victims: tuple[ProxyId, ...]
    survivors: tuple[ProxyId, ...]
    at_us: int
    until_us: int
    kind: Literal["outage"] = "outage"
    version: Literal[1] = 1


Observation: TypeAlias = LedgerEntry | ViewEvent | OutageEvent

EVENTS: Final[Codec[Observation]] = Codec(Annotated[Observation, Field(discriminator="kind")])  # type: ignore[arg-type]
KINDS: Final = MappingProxyType[str, type[Any]](
    {"ledger": LedgerEntry, "view": ViewEvent, "outage": OutageEvent}
)
