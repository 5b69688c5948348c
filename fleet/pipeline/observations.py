"""Observations of a fleet by applications and by external observers, as the jobs read them.

The fleet creates the topic of observations but does not write to it. Chaos runs write to it, and applications
may write a ledger of their records to it. Times are Unix time in microseconds.
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
    """One entry of a ledger.

    Args:
        client: name of the client. Its producers write to one topic, which one group reads.
        what: "acknowledged" by the brokers, "received" by the group, or "log": found in the topic.
        partition: partition of the record.
        producer_id, sequence: identify the record; producers count from 0 on each partition.
        offset: offset of the record; null if the acknowledgement does not contain it.
        number: position of this entry among the entries of the same client and `what`, in order of arrival.
        at_us: time of the entry.
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
    """The member that one member's Metadata names for one identity, from a moment on.

    Args:
        seen_at: member that answered.
        number: position of the answer among the answers of this member; events of one answer share it.
        broker_id: the identity.
        owner: member in the answer; null if the answer leaves out the identity.
        at_us: time of the answer.
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
    """A period in which some members are unreachable.

    Args:
        victims: members that are unreachable.
        survivors: members that are reachable.
        at_us: start of the outage.
        until_us: when its repair began.
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
OBSERVATION_CLASSES: Final = MappingProxyType[str, type[Any]](
    {"ledger": LedgerEntry, "view": ViewEvent, "outage": OutageEvent}
)
