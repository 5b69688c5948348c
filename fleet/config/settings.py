"""The settings of a whole fleet as frozen values, and what their shape survives."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, TypeAlias
from urllib.parse import urlsplit

from fleet.config.secrets import Secret
from fleet.core.errors import UnknownMember
from fleet.core.model import AdvertisedListener, Endpoint, IdentitySpace, Member, ProxyId
from fleet.core.weights import BalancedBy

SaslMechanism: TypeAlias = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]

CONTROL_SOCKET = "control.sock"
PRIVATE_FOLDER = "member"
TRACES_PATH: Final = "/v1/traces"
"""Source: the specification of OTLP/HTTP."""
PROXY_ID = "{proxy_id}"
"""In paths of certificates and keys: the member that they are read for."""


ASK_SHARE: Final = 0.5
"""The part of ``freeze_timeout_s`` after which the supervisor asks a child of which it has seen nothing."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Every period and time-out of a member, in seconds; described in ``docs/configuration.md``."""

    heartbeat_s: float = 0.1
    suspect_after_s: float = 0.8
    control_grace_s: float = 15.0
    probe_interval_s: float = 1.0
    probe_timeout_s: float = 0.5
    steady_after_s: float = 2.0
    rest_after_move_s: float = 15.0
    grace_s: float = 10.0
    overlay_ttl_s: float = 10.0
    drain_timeout_s: float = 30.0
    move_timeout_s: float = 5.0
    freeze_timeout_s: float = 2.0
    broker_refresh_s: float = 5.0
    upstream_connect_timeout_s: float = 5.0
    append_entries_s: float = 0.05
    election_min_s: float = 0.2
    election_max_s: float = 0.4
    leader_fallback_s: float = 0.5

    @property
    def ask_child_after_s(self) -> float:
        """Without a sign of life from a child; it has the rest of ``freeze_timeout_s`` to answer."""
        return self.freeze_timeout_s * ASK_SHARE


@dataclass(frozen=True, slots=True)
class Limits:
    """What clients may take of one member; described in ``docs/configuration.md``.

    ``max_connections`` is None for as many as there may be files open for; the others that are None are off.
    """

    max_request_bytes: int = 104_857_600
    max_patched_response_bytes: int = 16_777_216
    write_buffer_bytes: int = 1_048_576
    moves_per_second: int = 200
    max_connections: int | None = None
    max_connections_per_source: int | None = None
    first_request_timeout_s: float = 10.0
    request_timeout_s: float = 60.0
    idle_timeout_s: float = 660.0
    vanished_timeout_s: float = 150.0
    to_broker_bytes_per_second: int | None = None
    to_client_bytes_per_second: int | None = None
    listen_backlog: int = 4096


@dataclass(frozen=True, slots=True)
class EventsSettings:
    """Where events go, and how much room there is for those that wait.

    Args:
        topic_prefix: of every topic.
        replication_factor: of topics that are made; None for as many as there are brokers, but three at most.
    """

    topic_prefix: str = "fleet."
    replication_factor: int | None = None
    spool_bytes: int = 67_108_864


@dataclass(frozen=True, slots=True)
class TracingSettings:
    """Where traces of what control does go.

    Args:
        endpoint: a collector that takes OTLP over HTTP; without the path of traces.
        headers: what it is sent with each request, by name.
        line: where the section stands in the file, for what is not installed.
    """

    endpoint: str
    headers: Mapping[str, Secret] = field(default_factory=dict)
    line: int = 0

    @property
    def url(self) -> str:
        """Where spans are posted."""
        return f"{self.endpoint.rstrip('/')}{TRACES_PATH}"


@dataclass(frozen=True, slots=True)
class BalanceSettings:
    """What makes two proxies equal.

    Args:
        by: how many identities each has; or what passes them, as `fleet.weights` says.
        min_gain: the part of the greatest load that a rebalance by weight has to take off it.
        every_s: the least time between two rebalances by weight.
    """

    by: BalancedBy = "identities"
    min_gain: float = 0.2
    every_s: float = 300.0


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """A named way in to one member: what it binds and, apart from it, what it advertises."""

    name: str
    bind_host: str
    bootstrap_port: int
    first_port: int
    advertised_host: str
    advertised_bootstrap_port: int
    advertised_first_port: int
    broker_host: str | None = None
    """As of ``AdvertisedListener``: where it is given, the one socket is for all identities."""

    @property
    def bootstrap(self) -> Endpoint:
        return Endpoint(self.bind_host, self.bootstrap_port)

    def advertised(self) -> AdvertisedListener:
        return AdvertisedListener(
            self.name,
            self.advertised_host,
            self.advertised_bootstrap_port,
            self.advertised_first_port,
            self.broker_host,
        )


@dataclass(frozen=True, slots=True)
class MemberSettings:
    proxy_id: ProxyId
    rack: str | None
    voter: bool
    witness: bool
    """It votes, and has no data plane."""
    peer: Endpoint
    admin: Endpoint
    data_dir: Path
    workers: int
    listeners: tuple[ListenerSettings, ...]

    @property
    def private_dir(self) -> Path:
        """The folder in ``data_dir`` that only its user may enter: all that it writes is there."""
        return self.data_dir / PRIVATE_FOLDER

    @property
    def control_socket(self) -> Path:
        """The Unix socket on which its workers reach its control process."""
        return self.private_dir / CONTROL_SOCKET

    def advertised(self, settings: Settings) -> Member:
        """The member as it enters the replicated state: up, and of no particular incarnation."""
        return Member(
            proxy_id=self.proxy_id,
            rack=self.rack,
            listeners=tuple(listener.advertised() for listener in self.listeners),
            identities=IdentitySpace() if self.witness else settings.identities,
        )


@dataclass(frozen=True, slots=True)
class PeerTlsFiles:
    """The three files that one member's links are made with; PEM."""

    ca: Path
    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class PeerTlsSettings:
    """Where members have the certificates of their links; ``{proxy_id}`` in a path is a member's id.

    Args:
        lines: where each field stands in the file, for what is wrong with the certificates themselves.
    """

    ca: Path
    certificate: Path
    key: Path
    lines: Mapping[str, int]

    def files(self, proxy_id: ProxyId) -> PeerTlsFiles:
        """The files of one member."""
        paths = (self.ca, self.certificate, self.key)
        return PeerTlsFiles(*(_of(path, proxy_id) for path in paths))


ClientCertificates: TypeAlias = Literal["none", "allowed", "required"]
Addressing: TypeAlias = Literal["identity_ports", "sni"]
TlsVersion: TypeAlias = Literal["1.2", "1.3"]


@dataclass(frozen=True, slots=True)
class ListenerTlsSettings:
    """How clients are met at one listener; ``{proxy_id}`` in a path is a member's id.

    Args:
        client_ca: who may issue certificates of clients.
        client_certificates: whether clients are asked for one, and whether they have to have one.
        ciphers: for TLS 1.2, as OpenSSL writes a list; None for OpenSSL's own choice.
        probe_certificate, probe_key: what members show each other where clients need a certificate.
        lines: where each field stands in the file.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None
    client_certificates: ClientCertificates = "none"
    min_version: TlsVersion = "1.2"
    ciphers: str | None = None
    probe_certificate: Path | None = None
    probe_key: Path | None = None
    lines: Mapping[str, int] = field(default_factory=dict)

    @property
    def files(self) -> dict[str, Path]:
        """The files that there are, by field."""
        named = ((name, getattr(self, name)) for name in LISTENER_TLS_FILES)
        return {name: path for name, path in named if path is not None}

    def of(self, proxy_id: ProxyId) -> ListenerTlsSettings:
        """The same with the paths of one member."""
        own = {name: _of(path, proxy_id) for name, path in self.files.items()}
        return replace(
            self,
            certificate=own["certificate"],
            key=own["key"],
            client_ca=own.get("client_ca"),
            probe_certificate=own.get("probe_certificate"),
            probe_key=own.get("probe_key"),
        )


LISTENER_TLS_FILES: Final = ("certificate", "key", "client_ca", "probe_certificate", "probe_key")


def _of(path: Path, proxy_id: ProxyId) -> Path:
    return Path(str(path).replace(PROXY_ID, proxy_id))


@dataclass(frozen=True, slots=True)
class AdminTlsSettings:
    """What the admin addresses answer with; ``{proxy_id}`` in a path is a member's id.

    Args:
        ca: who has issued the certificates, for commands that verify them; None for whom the system believes.
        lines: where each field stands in the file.
    """

    ca: Path | None
    certificate: Path
    key: Path
    lines: Mapping[str, int]

    @property
    def files(self) -> dict[str, Path]:
        """The files that there are, by field."""
        own = {"certificate": self.certificate, "key": self.key}
        return own if self.ca is None else {"ca": self.ca, **own}

    def of(self, proxy_id: ProxyId) -> AdminTlsSettings:
        """The same with the paths of one member."""
        return replace(self, certificate=_of(self.certificate, proxy_id), key=_of(self.key, proxy_id))


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """Where the two tokens of the admin addresses are: who has ``write`` may read, too."""

    read: Secret
    write: Secret


@dataclass(frozen=True, slots=True)
class AdminSettings:
    """How members' admin addresses are secured.

    Args:
        tls: None for plain HTTP.
        tokens: None where everybody may read, and write on loopback.
        open_to_read: whether that is meant where an address is not loopback.
    """

    tls: AdminTlsSettings | None = None
    tokens: TokenSettings | None = None
    open_to_read: bool = False


@dataclass(frozen=True, slots=True)
class UpstreamTlsSettings:
    """How brokers are verified, and what they are shown.

    Args:
        ca: who may issue certificates of brokers; None for whom the system trusts.
        certificate, key: what a broker that asks for a certificate is shown; both or neither.
        check_hostname: whether a broker's certificate has to name the host that was dialled.
        lines: where each field stands in the file, for what is wrong with the certificates themselves.
    """

    ca: Path | None
    certificate: Path | None
    key: Path | None
    check_hostname: bool
    lines: Mapping[str, int]

    @property
    def files(self) -> Mapping[str, Path]:
        """The files, by field; those that are not given are left out."""
        given = {"ca": self.ca, "certificate": self.certificate, "key": self.key}
        return {field: path for field, path in given.items() if path is not None}


@dataclass(frozen=True, slots=True)
class SaslSettings:
    """Who the fleet is to the brokers, on connections of its own; its clients are themselves.

    Args:
        username: None for OAUTHBEARER, where the token says who it is.
        secret: the password, or for OAUTHBEARER the token.
    """

    mechanism: SaslMechanism
    username: str | None
    secret: Secret


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """The way to the brokers.

    Args:
        tls: None where they are spoken to in plaintext.
        sasl: None where the fleet has no credentials.
    """

    tls: UpstreamTlsSettings | None = None
    sasl: SaslSettings | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """What one configuration file says, validated as a whole.

    Args:
        members: in the order of the file.
        peer_tls: None where the links between members are neither authenticated nor encrypted.
        listener_tls: by the name of the listener; those that are not in it are plaintext.
        admin: how the members' admin addresses are secured.
        upstream: the way to the brokers.
        events: None where none are sent.
        tracing: None where no traces are.
        balance: what makes two proxies equal.
        source: the file, as it was named by the caller.
    """

    fleet: str
    bootstrap_servers: tuple[Endpoint, ...]
    identities: IdentitySpace
    members: Mapping[ProxyId, MemberSettings]
    timing: Timing = field(default_factory=Timing)
    limits: Limits = field(default_factory=Limits)
    peer_tls: PeerTlsSettings | None = None
    listener_tls: Mapping[str, ListenerTlsSettings] = field(default_factory=dict)
    admin: AdminSettings = field(default_factory=AdminSettings)
    upstream: UpstreamSettings = field(default_factory=UpstreamSettings)
    events: EventsSettings | None = None
    tracing: TracingSettings | None = None
    balance: BalanceSettings = field(default_factory=BalanceSettings)
    source: str = ""

    def member(self, proxy_id: ProxyId) -> MemberSettings:
        """Settings of one member.

        Raises:
            UnknownMember: the file has no such member.
        """
        try:
            return self.members[proxy_id]
        except KeyError:
            known = ", ".join(self.members)
            raise UnknownMember(f"{self.source}: no member {proxy_id!r}; members are {known}") from None

    @property
    def voters(self) -> tuple[ProxyId, ...]:
        return tuple(proxy_id for proxy_id, member in self.members.items() if member.voter)

    @property
    def hosts(self) -> frozenset[str]:
        """Every host by which the file names a member: for operators, for its peers and for clients."""
        return frozenset(
            host
            for member in self.members.values()
            for host in (
                member.admin.host,
                member.peer.host,
                *(listener.advertised_host for listener in member.listeners),
            )
        )


def is_loopback(host: str) -> bool:
    """Whether an address cannot be reached from another machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_address(host: str) -> bool:
    """Whether it is an IP address, and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_wildcard(host: str) -> bool:
    """Whether binding it means every address of the machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def survives(settings: Settings) -> tuple[str, ...]:
    """What a fleet of this shape lives through, in sentences for an operator."""
    voters = len(settings.voters)
    quorum = voters // 2 + 1
    spare = voters - quorum
    proxies = sum(1 for member in settings.members.values() if not member.witness)
    said = [f"{_count(voters, 'voter')}, of which {quorum} must be alive to commit ownership"]
    if spare == 0:
        said.append("no voter may die without stopping commits; the survivors go on with what they know")
    else:
        said.append(f"any {_count(spare, 'voter')} may die and ownership can still be committed")
    if proxies == 1:
        said.append("one proxy: when it dies, clients wait until it is started again")
    else:
        said.append(
            f"{proxies} proxies: the data plane survives the death of {proxies - 1}, because a single one "
            "can stand for every broker"
        )
    witnesses = [proxy_id for proxy_id, member in settings.members.items() if member.witness]
    observers = [proxy_id for proxy_id, member in settings.members.items() if not member.voter]
    if witnesses:
        said.append(f"vote without carrying traffic: {', '.join(witnesses)}")
    if observers:
        said.append(f"carry traffic without a vote, and may die freely: {', '.join(observers)}")
    return tuple(said)


def advice(settings: Settings) -> tuple[str, ...]:
    """What is allowed and probably not meant, in sentences for an operator."""
    said = []
    voters = len(settings.voters)
    if voters % 2 == 0:
        said.append(
            f"{voters} voters survive no more deaths than {voters - 1} would; "
            "prefer an odd number (a member with `witness: true` is a vote without a data plane)"
        )
    for proxy_id, member in settings.members.items():
        if not is_loopback(member.admin.host) and settings.admin.tokens is None:
            said.append(
                f"members.{proxy_id}.admin: {member.admin} is not loopback, so it is read-only there: "
                "drain and undrain are refused, and whoever reaches it may read; admin.tls and admin.tokens "
                "change that"
            )
    sasl = settings.upstream.sasl
    shown = {"PLAIN": "password", "OAUTHBEARER": "token"}
    if sasl is not None and sasl.mechanism in shown and settings.upstream.tls is None:
        exposed = [str(each) for each in settings.bootstrap_servers if not is_loopback(each.host)]
        if exposed:
            said.append(
                f"upstream.sasl: {sasl.mechanism} without TLS shows the {shown[sasl.mechanism]} to the "
                f"network on the way to {', '.join(exposed)}; "
                "add `tls: {}` to upstream, or use SCRAM-SHA-512"
            )
    tracing = settings.tracing
    if tracing is not None and tracing.headers:
        url = urlsplit(tracing.endpoint)
        if url.scheme == "http" and not is_loopback(url.hostname or ""):
            said.append(
                f"tracing.headers: without TLS the network on the way to {url.netloc} reads them; "
                "use https, or a collector on this machine"
            )
    carriers = [member for member in settings.members.values() if not member.witness]
    without_rack = [member.proxy_id for member in carriers if member.rack is None]
    if without_rack and len(without_rack) < len(carriers):
        said.append(f"some members have a rack and some have none: {', '.join(without_rack)}")
    return tuple(said)
