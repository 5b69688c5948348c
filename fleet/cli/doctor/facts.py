"""Facts about a fleet, as collected from outside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from fleet.admin.status import Answers
from fleet.core.model import BrokerId, Endpoint, ProxyId
from fleet.proxy.wire.metadata import Table


@dataclass(frozen=True, slots=True)
class Address:
    """An address that the fleet advertises to clients.

    Args:
        proxy_id: the member at this address.
        broker_id: the broker that the member serves at this address; None for the bootstrap address.
    """

    proxy_id: ProxyId
    listener: str
    endpoint: Endpoint
    broker_id: BrokerId | None = None

    def __str__(self) -> str:
        name = "bootstrap" if self.broker_id is None else f"broker {self.broker_id}"
        return f"{self.proxy_id} {self.listener} {name} at {self.endpoint}"


@dataclass(frozen=True, slots=True)
class MetadataAnswer:
    """The answer to Metadata at a bootstrap address.

    Args:
        table: the brokers in the answer; None without an answer.
        reason: why there is no answer.
    """

    address: Address
    table: Table | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CertificateExpiry:
    """When a certificate expires.

    Args:
        owner: whose certificate it is: a member, and a listener or a field of the configuration.
        expires: None if the certificate could not be read.
        reason: why it could not be read.
    """

    owner: str
    expires: datetime | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that was collected.

    Args:
        answers: the view of each member, or why it did not answer.
        offsets_s: lower bound of the offset of each member's clock from this machine's; positive if ahead.
        addresses: the advertised addresses of members -> why one does not answer; None if it answers.
        metadata: the answers to Metadata, one for each bootstrap address.
        brokers: the real brokers -> why this machine cannot reach one directly; None if it can.
        certificates: certificates of TLS servers, and those that members use for each other and the brokers.
        now: time of this machine's clock.
    """

    answers: Answers
    offsets_s: Mapping[ProxyId, float]
    addresses: Mapping[Address, str | None]
    metadata: tuple[MetadataAnswer, ...]
    brokers: Mapping[tuple[BrokerId, Endpoint], str | None]
    certificates: tuple[CertificateExpiry, ...]
    now: datetime
