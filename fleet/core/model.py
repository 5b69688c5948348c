"""The frozen values that the parts of a fleet exchange. They have no behaviour except look-ups.

Words: an *identity* is a Kafka broker id as clients see it; its *owners* are the proxies whose address is
advertised for it; the *generation* grows by one with every committed change of ownership.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import ip_address
from typing import Final, Literal, TypeAlias

BrokerId: TypeAlias = int
ProxyId: TypeAlias = str


class MemberStatus(StrEnum):
    """The committed status of a member."""

    UP = "up"
    DOWN = "down"
    DRAINING = "draining"
    """The member is shutting down, and hands over its identities first."""


class Liveness(StrEnum):
    """The liveness of a peer, as the failure detector of one member judges it."""

    UNKNOWN = "unknown"
    """Not heard since this member started, and still within ``grace_s``."""
    UP = "up"
    SUSPECT = "suspect"


@dataclass(frozen=True, slots=True)
class Endpoint:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def tls_name(self) -> str:
        """The host name for TLS, without the dot at the end of a complete name.

        Source: RFC 6066, section 3
        """
        return self.host.removesuffix(".")


_HOST_NAME: Final = re.compile(r"(?=.{1,254}$)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
_ZONE: Final = re.compile(r"[A-Za-z0-9_.-]{1,15}")
_MAX_PORT: Final = 65535


def is_address(host: str | None, port: int) -> bool:
    """Whether host and port form an address that can be dialled: a host name or an IP address, and a port.

    Source: RFC 1123
    """
    if host is None or not 0 < port <= _MAX_PORT:
        return False
    if _HOST_NAME.fullmatch(host) is not None:
        return True
    address, has_zone, zone = host.partition("%")
    try:
        version = ip_address(address).version
    except ValueError:
        return False
    return not has_zone or (version == 6 and _ZONE.fullmatch(zone) is not None)


@dataclass(frozen=True, slots=True)
class IdentitySpace:
    """The broker ids that have a port, and the offset of each from a listener's first identity port.

    Either the range ``first_id … first_id + count - 1`` (offset = id - first_id), or exactly the
    ``(broker id, offset)`` pairs in ``explicit`` if it is not empty.
    """

    first_id: BrokerId = 0
    count: int = 0
    explicit: tuple[tuple[BrokerId, int], ...] = ()

    def offset(self, broker_id: BrokerId) -> int | None:
        """Offset of the identity's port from the first identity port; None if the identity has no port."""
        if self.explicit:
            for known, offset in self.explicit:
                if known == broker_id:
                    return offset
            return None
        offset = broker_id - self.first_id
        return offset if 0 <= offset < self.count else None

    def broker_ids(self) -> tuple[BrokerId, ...]:
        return tuple(broker_id for broker_id, _ in self.offsets())

    def offsets(self) -> tuple[tuple[BrokerId, int], ...]:
        """Each identity with its offset."""
        return self.explicit or tuple((self.first_id + offset, offset) for offset in range(self.count))


Addressing: TypeAlias = Literal["identity_ports", "sni", "addresses", "shared"]
"""How a listener distinguishes brokers: by port, by TLS server name, by IP address, or by requests."""
BROKER_ID: Final = "{broker_id}"
"""The placeholder for the identity in ``AdvertisedListener.broker_host``."""


@dataclass(frozen=True, slots=True)
class AdvertisedListener:
    """The addresses at which clients reach one member through one listener, behind NAT and port mapping.

    Args:
        first_port: the first identity port; unused if ``broker_host`` or ``first_address`` is set.
        broker_host: the host name of an identity, mostly with ``{broker_id}`` in it. All such names use the
            bootstrap port.
        first_address: the IP address of the first identity. All such addresses use the bootstrap port.
            Release 0.2.0 ignores this field, see ``fleet.core.addressing``.
    """

    name: str
    host: str
    bootstrap_port: int
    first_port: int
    broker_host: str | None = None
    first_address: str | None = None

    @property
    def addressing(self) -> Addressing:
        """How others see the listener: a ``shared`` one looks like ``sni``."""
        if self.broker_host is not None:
            return "sni"
        return "identity_ports" if self.first_address is None else "addresses"

    def endpoint(self, broker_id: BrokerId, offset: int) -> Endpoint:
        """The address of an identity, which has an offset in the identity space."""
        if self.broker_host is not None:
            return Endpoint(self.broker_host.replace(BROKER_ID, str(broker_id)), self.bootstrap_port)
        if self.first_address is not None:
            return Endpoint(address_at(self.first_address, offset), self.bootstrap_port)
        return Endpoint(self.host, self.first_port + offset)


def address_at(first_address: str, offset: int) -> str:
    """The IP address of an identity: the first address plus the identity's offset.

    Raises: ValueError: there is no address with this number.
    """
    return str(ip_address(first_address) + offset)


@dataclass(frozen=True, slots=True)
class Member:
    """One proxy of the fleet, as committed."""

    proxy_id: ProxyId
    rack: str | None = None
    listeners: tuple[AdvertisedListener, ...] = ()
    identities: IdentitySpace = field(default_factory=IdentitySpace)
    status: MemberStatus = MemberStatus.UP
    drained: bool = False
    """An operator has drained the member: it owns nothing until undrained. The flag survives restarts."""
    incarnation: int = 0
    """Start of its supervisor in wall-clock milliseconds, which distinguishes the lives of a member."""
    known_addressing: tuple[str, ...] = ()
    """The kinds of addressing that the member's release knows; empty for release 0.2.0, which does not state
    them."""

    @property
    def eligible(self) -> bool:
        """Whether the member may own identities."""
        return self.status is MemberStatus.UP and not self.drained

    def serves(self, broker_id: BrokerId) -> bool:
        """Whether the member can serve the identity."""
        return self.identities.offset(broker_id) is not None

    def endpoint(self, listener: str, broker_id: BrokerId) -> Endpoint | None:
        """The member's address for an identity on a listener; None if it has no such address."""
        offset, advertised = self.identities.offset(broker_id), self.listener(listener)
        return None if offset is None or advertised is None else advertised.endpoint(broker_id, offset)

    def listener(self, name: str) -> AdvertisedListener | None:
        """The listener of a name; None if the member has none."""
        return next((each for each in self.listeners if each.name == name), None)


@dataclass(frozen=True, slots=True)
class Broker:
    """One real broker: its id, and the address at which proxies reach it."""

    broker_id: BrokerId
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class Ownership:
    """The owners of one identity, and the successors, in order, if all owners die."""

    owners: tuple[ProxyId, ...]
    successors: tuple[ProxyId, ...] = ()


@dataclass(frozen=True, slots=True)
class FleetState:
    """The replicated state: everything that Raft has committed.

    Args:
        generation: number of committed changes of ownership.
        members, brokers, ownership, pins: keyed by proxy id or broker id; never mutated in place.
        recent_commands: ids of the last applied commands, oldest first, to ignore repeated commands.
    """

    generation: int = 0
    members: Mapping[ProxyId, Member] = field(default_factory=dict)
    brokers: Mapping[BrokerId, Broker] = field(default_factory=dict)
    ownership: Mapping[BrokerId, Ownership] = field(default_factory=dict)
    pins: Mapping[BrokerId, ProxyId] = field(default_factory=dict)
    recent_commands: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Directory:
    """The immutable snapshot that the data plane reads. Each response uses one snapshot.

    Args:
        generation: the committed generation that the directory was built from.
        revision: increases with every directory that a control process publishes, overlay changes included.
        advertised: identity → the proxies to advertise, best first, with the overlay applied.
        committed: identity → the committed owners.
        members, brokers: as committed, except for this member's own configuration and broker addresses.
        suspects: the members that the overlay bypasses.
    """

    generation: int = 0
    revision: int = 0
    advertised: Mapping[BrokerId, tuple[ProxyId, ...]] = field(default_factory=dict)
    committed: Mapping[BrokerId, tuple[ProxyId, ...]] = field(default_factory=dict)
    members: Mapping[ProxyId, Member] = field(default_factory=dict)
    brokers: Mapping[BrokerId, Broker] = field(default_factory=dict)
    suspects: tuple[ProxyId, ...] = ()
