"""What was seen of a fleet from outside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from fleet.admin.status import Answers
from fleet.core.model import BrokerId, Endpoint, ProxyId
from fleet.proxy.wire.metadata import Table


@dataclass(frozen=True, slots=True)
class Address:
    """Where clients may find something of the fleet's.

    Args:
        proxy_id: the member that is there.
        broker_id: the identity; None for the bootstrap address.
    """

    proxy_id: ProxyId
    listener: str
    endpoint: Endpoint
    broker_id: BrokerId | None = None

    def __str__(self) -> str:
        what = "bootstrap" if self.broker_id is None else f"broker {self.broker_id}"
        return f"{self.proxy_id} {self.listener} {what} at {self.endpoint}"


@dataclass(frozen=True, slots=True)
class Asked:
    """One question at a bootstrap address: the brokers in its Metadata.

    Args:
        table: None where there was no answer; ``why`` says why.
    """

    address: Address
    table: Table | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class ShownCertificate:
    """A certificate that somebody shows, or has; where it could not be seen, ``why`` says so."""

    who: str
    expires: datetime | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """All that was seen.

    Args:
        answers: what each member says of the fleet, or why it says nothing.
        offsets_s: by how much each member's clock is ahead of this machine's, at least.
        addresses: of members, each with what keeps it from answering; None where nothing does.
        metadata: what clients are told, at each bootstrap address.
        brokers: the real ones, asked straight from here, each with what keeps it from answering.
        certificates: of whoever speaks TLS, and what members have for one another and the brokers.
        now: by this machine's clock.
    """

    answers: Answers
    offsets_s: Mapping[ProxyId, float]
    addresses: Mapping[Address, str | None]
    metadata: tuple[Asked, ...]
    brokers: Mapping[tuple[BrokerId, Endpoint], str | None]
    certificates: tuple[ShownCertificate, ...]
    now: datetime
