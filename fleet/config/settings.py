"""The settings of a whole fleet as frozen values, and the failures that such a fleet tolerates."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

from fleet.config.secrets import Secret
from fleet.core.errors import UnknownMember
from fleet.core.model import (
    BROKER_ID,
    Addressing,
    AdvertisedListener,
    BrokerId,
    Endpoint,
    IdentitySpace,
    Member,
    ProxyId,
)
from fleet.core.weights import BalancedBy

SaslMechanism: TypeAlias = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]

CONTROL_SOCKET = "control.sock"
PRIVATE_FOLDER = "member"
TRACES_PATH: Final = "/v1/traces"
"""Source: the specification of OTLP/HTTP."""
PROXY_ID = "{proxy_id}"
"""Placeholder in paths of certificates and keys: the id of the member that reads them."""


CHILD_PING_SHARE: Final = 0.5
"""The share of ``freeze_timeout_s`` after which the supervisor pings a child that shows no sign of life."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Every period and time-out of a member, in seconds. ``docs/configuration.md`` describes each field."""

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
    def ping_child_after_s(self) -> float:
        """Silence of a child before it is pinged. It has the rest of ``freeze_timeout_s`` to answer."""
        return self.freeze_timeout_s * CHILD_PING_SHARE


@dataclass(frozen=True, slots=True)
class Limits:
    """The resources that clients may use at one member. ``docs/configuration.md`` describes each field.

    ``max_connections`` None: as many as the limit of open files allows. Other fields: None turns a limit off.
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
    """The topics of events, and the size of the spool.

    Args:
        topic_prefix: the start of the name of every topic.
        replication_factor: for topics that the fleet creates; None for the number of brokers, at most three.
        spool_bytes: the room on disk for events that are not sent yet.
    """

    topic_prefix: str = "fleet."
    replication_factor: int | None = None
    spool_bytes: int = 67_108_864


@dataclass(frozen=True, slots=True)
class TracingSettings:
    """Where the control process sends its traces.

    Args:
        endpoint: the URL of a collector that accepts OTLP over HTTP, without ``/v1/traces``.
        headers: the headers of each request, by name.
        line: the line of the section, for the error if OpenTelemetry is not installed.
    """

    endpoint: str
    headers: Mapping[str, Secret] = field(default_factory=dict)
    line: int = 0

    @property
    def url(self) -> str:
        """The URL to which spans are posted."""
        return f"{self.endpoint.rstrip('/')}{TRACES_PATH}"


@dataclass(frozen=True, slots=True)
class BalanceSettings:
    """How identities are balanced between proxies.

    Args:
        by: ``identities`` balances their number; ``weights`` balances traffic, from the topic of weights.
        min_gain: the share of the highest load that a rebalance by weight must remove.
        every_s: the minimum time between two rebalances by weight.
    """

    by: BalancedBy = "identities"
    min_gain: float = 0.2
    every_s: float = 300.0


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """A named listener of one member: the address that it binds and the address that it advertises."""

    name: str
    bind_host: str
    bootstrap_port: int
    first_port: int
    advertised_host: str
    advertised_bootstrap_port: int
    advertised_first_port: int
    broker_host: str | None = None
    """The host name template of ``AdvertisedListener``. If set, one socket serves all identities."""
    first_address: str | None = None
    """The IP address that is bound for the first identity. If set, all sockets have the bootstrap port."""
    advertised_first_address: str | None = None
    is_shared: bool = False
    """Whether the bootstrap port serves all identities, and requests say which one is meant."""

    @property
    def same_host(self) -> bool:
        """Whether all identities have one host name, so that some clients take them for one broker."""
        return self.is_shared and BROKER_ID not in (self.broker_host or "")

    @property
    def bootstrap(self) -> Endpoint:
        return Endpoint(self.bind_host, self.bootstrap_port)

    def bound(self, identities: IdentitySpace) -> Iterator[tuple[BrokerId, Endpoint]]:
        """The socket of each identity; nothing if the bootstrap socket serves all of them."""
        if self.broker_host is not None:
            return
        bound = AdvertisedListener(
            self.name,
            self.bind_host,
            self.bootstrap_port,
            self.first_port,
            first_address=self.first_address,
        )
        for broker_id, offset in identities.offsets():
            yield broker_id, bound.endpoint(broker_id, offset)

    def to_advertised(self) -> AdvertisedListener:
        """The part of these settings that clients and other members see."""
        return AdvertisedListener(
            self.name,
            self.advertised_host,
            self.advertised_bootstrap_port,
            self.advertised_first_port,
            self.broker_host,
            self.advertised_first_address,
        )


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """The settings of one member."""

    proxy_id: ProxyId
    rack: str | None
    voter: bool
    witness: bool
    """The member votes and has no data plane."""
    peer: Endpoint
    admin: Endpoint
    data_dir: Path
    workers: int
    listeners: tuple[ListenerSettings, ...]

    @property
    def private_dir(self) -> Path:
        """The folder in ``data_dir`` that only the member's user can enter. All its files are there."""
        return self.data_dir / PRIVATE_FOLDER

    @property
    def control_socket(self) -> Path:
        """The Unix socket on which the workers reach the control process."""
        return self.private_dir / CONTROL_SOCKET

    def to_member(self, settings: Settings) -> Member:
        """The member as it enters the replicated state: up, without an incarnation."""
        return Member(
            proxy_id=self.proxy_id,
            rack=self.rack,
            listeners=tuple(listener.to_advertised() for listener in self.listeners),
            identities=IdentitySpace() if self.witness else settings.identities,
            known_addressing=get_args(Addressing),
        )


@dataclass(frozen=True, slots=True)
class PeerTlsFiles:
    """The three PEM files for the links of one member."""

    ca: Path
    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class PeerTlsSettings:
    """The certificates for links between members. ``{proxy_id}`` in a path is the id of a member.

    Args:
        lines: the line of each field, for errors in the certificates.
    """

    ca: Path
    certificate: Path
    key: Path
    lines: Mapping[str, int]

    def files(self, proxy_id: ProxyId) -> PeerTlsFiles:
        """The files of one member."""
        paths = (self.ca, self.certificate, self.key)
        return PeerTlsFiles(*(_member_file(path, proxy_id) for path in paths))


ClientCertificates: TypeAlias = Literal["none", "allowed", "required"]
TlsVersion: TypeAlias = Literal["1.2", "1.3"]


@dataclass(frozen=True, slots=True)
class ListenerTlsSettings:
    """TLS of one listener. ``{proxy_id}`` in a path is the id of a member.

    Args:
        certificate, key: the certificate that clients see, and its key.
        client_ca: the authorities that may issue certificates of clients.
        client_certificates: whether clients may, or must, present a certificate.
        ciphers: for TLS 1.2, as an OpenSSL cipher list; None for OpenSSL's default.
        probe_certificate, probe_key: what members present to each other if clients must have a certificate.
        lines: the line of each field, for errors.
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
        """The configured files, by field."""
        fields = ((name, getattr(self, name)) for name in LISTENER_TLS_FILES)
        return {name: path for name, path in fields if path is not None}

    def for_member(self, proxy_id: ProxyId) -> ListenerTlsSettings:
        """These settings with the paths of one member."""
        own = {name: _member_file(path, proxy_id) for name, path in self.files.items()}
        return replace(
            self,
            certificate=own["certificate"],
            key=own["key"],
            client_ca=own.get("client_ca"),
            probe_certificate=own.get("probe_certificate"),
            probe_key=own.get("probe_key"),
        )


LISTENER_TLS_FILES: Final = ("certificate", "key", "client_ca", "probe_certificate", "probe_key")


def _member_file(path: Path, proxy_id: ProxyId) -> Path:
    return Path(str(path).replace(PROXY_ID, proxy_id))


@dataclass(frozen=True, slots=True)
class AdminTlsSettings:
    """TLS of the admin addresses. ``{proxy_id}`` in a path is the id of a member.

    Args:
        ca: the authorities by which commands verify the certificates; None for those of the system.
        lines: the line of each field, for errors.
    """

    ca: Path | None
    certificate: Path
    key: Path
    lines: Mapping[str, int]

    @property
    def files(self) -> dict[str, Path]:
        """The configured files, by field."""
        own = {"certificate": self.certificate, "key": self.key}
        return own if self.ca is None else {"ca": self.ca, **own}

    def for_member(self, proxy_id: ProxyId) -> AdminTlsSettings:
        """These settings with the paths of one member."""
        certificate = _member_file(self.certificate, proxy_id)
        return replace(self, certificate=certificate, key=_member_file(self.key, proxy_id))


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """The places of the two tokens of the admin addresses. ``write`` also allows reading."""

    read: Secret
    write: Secret


@dataclass(frozen=True, slots=True)
class AdminSettings:
    """Security of the admin addresses.

    Args:
        tls: None for plain HTTP.
        tokens: None for read access without a token, and write access from loopback only.
        open_to_read: allows read access without a token on addresses that are not loopback.
    """

    tls: AdminTlsSettings | None = None
    tokens: TokenSettings | None = None
    open_to_read: bool = False


@dataclass(frozen=True, slots=True)
class UpstreamTlsSettings:
    """TLS towards the brokers.

    Args:
        ca: the authorities that may issue certificates of brokers; None for those of the system.
        certificate, key: what the fleet presents to a broker that requests a certificate; both or neither.
        check_hostname: whether the certificate of a broker must name the dialled host.
        lines: the line of each field, for errors in the certificates.
    """

    ca: Path | None
    certificate: Path | None
    key: Path | None
    check_hostname: bool
    lines: Mapping[str, int]

    @property
    def files(self) -> Mapping[str, Path]:
        """The configured files, by field."""
        fields = {"ca": self.ca, "certificate": self.certificate, "key": self.key}
        return {field: path for field, path in fields.items() if path is not None}


@dataclass(frozen=True, slots=True)
class SaslSettings:
    """The credentials of the fleet's own connections to the brokers. Clients use their own credentials.

    Args:
        username: None for OAUTHBEARER, because the token names the user.
        secret: the password; for OAUTHBEARER the token.
    """

    mechanism: SaslMechanism
    username: str | None
    secret: Secret


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """The connections to the brokers.

    Args:
        tls: None for plaintext.
        sasl: None if the fleet has no credentials.
    """

    tls: UpstreamTlsSettings | None = None
    sasl: SaslSettings | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """The content of one configuration file, validated as a whole.

    Args:
        members: in the order of the file.
        peer_tls: None if the links between members are neither authenticated nor encrypted.
        listener_tls: by the name of the listener; other listeners are plaintext.
        admin: security of the admin addresses.
        upstream: the connections to the brokers.
        events: None if no events are sent.
        tracing: None if no traces are sent.
        balance: how identities are balanced between proxies.
        source: the file, as the caller named it.
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
        """The settings of one member.

        Raises:
            UnknownMember: the file has no such member.
        """
        try:
            return self.members[proxy_id]
        except KeyError:
            known = ", ".join(self.members)
            raise UnknownMember(f"{self.source}: no member {proxy_id!r}; use one of {known}") from None

    @property
    def voters(self) -> tuple[ProxyId, ...]:
        return tuple(proxy_id for proxy_id, member in self.members.items() if member.voter)

    @property
    def hosts(self) -> frozenset[str]:
        """Every host name or address of a member in the file: admin, peer and advertised ones."""
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
    """Whether other machines cannot reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_address(host: str) -> bool:
    """Whether a host is an IP address and not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_wildcard(host: str) -> bool:
    """Whether a host is the wildcard that binds every address of the machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def describe_tolerance(settings: Settings) -> tuple[str, ...]:
    """The failures that a fleet with these settings tolerates, in sentences for an operator."""
    voters = len(settings.voters)
    quorum = voters // 2 + 1
    spare = voters - quorum
    proxies = sum(1 for member in settings.members.values() if not member.witness)
    sentences = [f"{_count(voters, 'voter')}: ownership is committed while {quorum} of them are alive"]
    if spare == 0:
        sentences.append("if one voter dies, commits stop; the other members continue with the last state")
    else:
        sentences.append(f"any {_count(spare, 'voter')} may die and ownership can still be committed")
    if proxies == 1:
        sentences.append("one proxy: if it dies, clients wait until it runs again")
    else:
        sentences.append(
            f"{proxies} proxies: the data plane tolerates the death of {proxies - 1}, because a single proxy "
            "can own every broker"
        )
    witnesses = [proxy_id for proxy_id, member in settings.members.items() if member.witness]
    observers = [proxy_id for proxy_id, member in settings.members.items() if not member.voter]
    if witnesses:
        sentences.append(f"witnesses, which vote and carry no traffic: {', '.join(witnesses)}")
    if observers:
        sentences.append(
            f"observers, which carry traffic, do not vote and may all die: {', '.join(observers)}"
        )
    return tuple(sentences)


def advice(settings: Settings) -> tuple[str, ...]:
    """Settings that are allowed but probably unintended, in sentences for an operator."""
    sentences = []
    voters = len(settings.voters)
    if voters % 2 == 0:
        sentences.append(
            f"{voters} voters tolerate no more deaths than {voters - 1}; "
            "prefer an odd number (a member with `witness: true` votes without a data plane)"
        )
    for proxy_id, member in settings.members.items():
        if not is_loopback(member.admin.host) and settings.admin.tokens is None:
            sentences.append(
                f"members.{proxy_id}.admin: {member.admin} is not loopback and has no tokens, so anyone who "
                "can reach it may read, and drain and undrain are refused; add admin.tls and admin.tokens"
            )
    sasl = settings.upstream.sasl
    exposed_secrets = {"PLAIN": "password", "OAUTHBEARER": "token"}
    if sasl is not None and sasl.mechanism in exposed_secrets and settings.upstream.tls is None:
        exposed = [str(each) for each in settings.bootstrap_servers if not is_loopback(each.host)]
        if exposed:
            sentences.append(
                f"upstream.sasl: {sasl.mechanism} without TLS sends the {exposed_secrets[sasl.mechanism]} "
                f"unencrypted to {', '.join(exposed)}; add `tls: {{}}` to upstream, or use SCRAM-SHA-512"
            )
    names = {each.name for member in settings.members.values() for each in member.listeners if each.same_host}
    sentences += [
        f"listeners.{name}: all brokers have the same host name, so kafkajs and librdkafka before 2.10 take "
        "them for one broker and lose records, and @platformatic/kafka uses one connection for all of them; "
        f"add `broker_host: broker-{BROKER_ID}.{PROXY_ID}.kafka.example`"
        for name in sorted(names)
    ]
    tracing = settings.tracing
    if tracing is not None and tracing.headers:
        url = urlsplit(tracing.endpoint)
        if url.scheme == "http" and not is_loopback(url.hostname or ""):
            sentences.append(
                f"tracing.headers: headers are sent unencrypted to {url.netloc}; "
                "use https, or a collector on this machine"
            )
    carriers = [member for member in settings.members.values() if not member.witness]
    without_rack = [member.proxy_id for member in carriers if member.rack is None]
    if without_rack and len(without_rack) < len(carriers):
        sentences.append(f"some members have no rack: {', '.join(without_rack)}; set `rack:` on all or none")
    return tuple(sentences)
