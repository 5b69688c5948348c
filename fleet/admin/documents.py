"""The JSON documents that members serve and commands print, as typed values.

``docs/schemas/`` has the JSON Schema of each; ``tools/gen_schemas.py`` writes them from these classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from fleet.admin.client_settings import Basis, Client, ClientSetting
from fleet.core.codec import Codec
from fleet.core.model import (
    AdvertisedListener,
    BrokerId,
    IdentitySpace,
    Liveness,
    MemberStatus,
    ProxyId,
)
from fleet.core.renamed_keys import RenamedKeys
from fleet.core.weights import BalancedBy

ADMIN_HEADER: Final = "X-Fleet-Admin"
"""Drain and undrain want it, with the value 1."""

ErrorKind: TypeAlias = Literal[
    "usage",
    "config",
    "certificates",
    "start",
    "unknown_member",
    "unreachable",
    "no_quorum",
    "timeout",
    "conflict",
    "unauthorized",
    "forbidden",
    "not_found",
    "command",
    "restart",
    "game_day",
    "journal",
    "demo",
    "pipeline",
    "internal",
]

Role: TypeAlias = Literal["leader", "follower", "candidate", "observer"]
Condition: TypeAlias = Literal["up", "unknown", "suspect", "down", "leaving", "drained"]


@dataclass(frozen=True, slots=True)
class ErrorDetail:
    kind: ErrorKind
    message: str


@dataclass(frozen=True, slots=True)
class ErrorDocument:
    """Any failure: the body of an HTTP error, and what a command with ``--json`` then prints."""

    error: ErrorDetail


@dataclass(frozen=True, slots=True)
class CheckDocument:
    name: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class ReadyDocument:
    """Body of ``/readyz``."""

    ready: bool
    checks: tuple[CheckDocument, ...]


@dataclass(frozen=True, slots=True)
class QuorumDocument:
    """Whether a majority of the voters is there.

    Args:
        lost_s: for how long it has not been; 0 where it is.
    """

    present: bool
    voters: tuple[ProxyId, ...]
    lost_s: float


@dataclass(frozen=True, slots=True)
class MemberDocument(RenamedKeys):
    """One configured member.

    Args:
        state: the one word to show; made of status, liveness and drained.
        status: what Raft has committed; null where it never was taken in.
        ready, generation: of its last report; null without one.
        listeners, identities, incarnation: as committed.
        has_voter_digest: whether it says which voters it counts, so that a member that counts others gets no
            link; false for a release before 0.3.0, null where there is no link to it.
    """

    proxy_id: ProxyId
    condition: Condition
    status: MemberStatus | None
    liveness: Liveness
    drained: bool
    ready: bool | None
    generation: int | None
    voter: bool
    witness: bool
    rack: str | None
    admin: str
    connected: bool
    silent_s: float | None
    incarnation: int
    listeners: tuple[AdvertisedListener, ...]
    identities: IdentitySpace
    has_voter_digest: bool | None = None


@dataclass(frozen=True, slots=True)
class ListenerEndpoints:
    """Where clients of one listener find an identity now, one address for each advertised owner."""

    listener: str
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class IdentityDocument:
    broker_id: BrokerId
    committed: tuple[ProxyId, ...]
    advertised: tuple[ProxyId, ...]
    successors: tuple[ProxyId, ...]
    pinned_to: ProxyId | None
    endpoints: tuple[ListenerEndpoints, ...]


@dataclass(frozen=True, slots=True)
class BrokerDocument:
    """One real broker; ``up`` is null where the member has not tried it."""

    broker_id: BrokerId
    host: str
    port: int
    rack: str | None
    up: bool | None


@dataclass(frozen=True, slots=True)
class BrokerTroubleDocument:
    """What is wrong with one real broker, as a member found it."""

    broker_id: BrokerId
    trouble: str


@dataclass(frozen=True, slots=True)
class MachineTroubleDocument:
    """What is wrong with a member's machine, as the member found it, and what to do about it."""

    trouble: str
    fix: str


@dataclass(frozen=True, slots=True)
class TakeoverDocument:
    """One takeover: wall milliseconds for people, seconds of the machine's monotonic clock for intervals."""

    proxy_id: ProxyId
    reason: str
    broker_ids: tuple[BrokerId, ...]
    detected_ms: int
    detected_mono_s: float
    advertised_ms: int | None
    advertised_mono_s: float | None
    committed_ms: int | None
    committed_mono_s: float | None


@dataclass(frozen=True, slots=True)
class OwnershipDocument(RenamedKeys):
    """Body of ``/ownership``: all that one member knows of the fleet.

    Args:
        proxy_id: the member that answers.
        now_ms, now_mono_s: when it answered.
        revision: of its directory, overlay changes included.
        staleness_s: 0 with a quorum, else since when ownership cannot be committed.
        suspects: the members that it advertises around.
        takeovers: the last ones, oldest first.
        raft_error: why it does not vote although it should; null where it does.
        balanced_by: what makes two proxies equal.
        distrusted_voters: those whose journals lack promises that this member remembers (an empty disk, a
            copy): it counts none of their votes until they have caught up.
        broker_troubles: of brokers that this member does not reach, or that have no port, or lead back here.
        member_troubles: why this member cannot ask others, for reasons of its own.
        machine_troubles: what may keep this member from starting again on its machine.
    """

    fleet: str
    proxy_id: ProxyId
    version: str
    now_ms: int
    now_mono_s: float
    incarnation: int
    generation: int
    revision: int
    role: Role
    leader: ProxyId | None
    term: int
    commit_index: int
    quorum: QuorumDocument
    staleness_s: float
    suspects: tuple[ProxyId, ...]
    members: tuple[MemberDocument, ...]
    brokers: tuple[BrokerDocument, ...]
    identities: tuple[IdentityDocument, ...]
    takeovers: tuple[TakeoverDocument, ...]
    raft_error: str | None
    balanced_by: BalancedBy
    distrusted_voters: tuple[ProxyId, ...] = ()
    broker_troubles: tuple[BrokerTroubleDocument, ...] = ()
    member_troubles: tuple[str, ...] = ()
    machine_troubles: tuple[MachineTroubleDocument, ...] = ()


@dataclass(frozen=True, slots=True)
class IdentityTraffic:
    """What passes one identity at one member: connections open now, and bytes since the member started."""

    broker_id: BrokerId
    connections: int
    to_broker_bytes: int
    to_client_bytes: int


@dataclass(frozen=True, slots=True)
class TrafficDocument:
    """Body of ``/traffic``: what passes one member.

    Args:
        now_mono_s: when it was counted, on that member's monotonic clock.
        incarnation: of the member; in another one it counts from 0 again.
        workers: process ids of those whose bytes are in it; what others had passed comes with them.
    """

    proxy_id: ProxyId
    incarnation: int
    now_mono_s: float
    workers: tuple[int, ...]
    identities: tuple[IdentityTraffic, ...]


@dataclass(frozen=True, slots=True)
class IdentityRate:
    """What passes one identity, at all members that were asked; bytes in the last second or so."""

    broker_id: BrokerId
    connections: int
    to_broker_bytes_per_s: float
    to_client_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class CountedMember:
    """Whether a member's numbers are in the rates.

    Args:
        error: why neither its connections nor its bytes are.
        rated: whether its bytes are: not until it was counted twice in the same life.
    """

    proxy_id: ProxyId
    error: str | None
    rated: bool


@dataclass(frozen=True, slots=True)
class LiveDocument(RenamedKeys):
    """One message of ``/live``: all that changes, as one member sees it now.

    Args:
        rates: of identities that anything has passed, or that have connections.
        rate_sources: the members that were asked for their counters, and whether each answered.
    """

    ownership: OwnershipDocument
    rates: tuple[IdentityRate, ...]
    rate_sources: tuple[CountedMember, ...]

    @property
    def unrated(self) -> tuple[ProxyId, ...]:
        """Members that were counted, and not long enough for a rate."""
        return tuple(each.proxy_id for each in self.rate_sources if each.error is None and not each.rated)

    @property
    def rates_known(self) -> bool:
        """Whether the rates are those of all members that can be counted."""
        return bool(self.rate_sources) and not self.unrated


@dataclass(frozen=True, slots=True)
class PinDocument:
    """Answer to pin and unpin; ``applied`` is false where it was so before."""

    broker_id: BrokerId
    proxy_id: ProxyId | None
    applied: bool
    generation: int


@dataclass(frozen=True, slots=True)
class DrainDocument:
    """Answer to drain and undrain; ``applied`` is false where it was so before."""

    proxy_id: ProxyId
    drained: bool
    applied: bool
    generation: int


@dataclass(frozen=True, slots=True)
class CheckedMember:
    proxy_id: ProxyId
    rack: str | None
    voter: bool
    witness: bool
    listeners: tuple[AdvertisedListener, ...]


@dataclass(frozen=True, slots=True)
class ConfigDocument(RenamedKeys):
    """What ``fleet check`` prints for a file without mistakes."""

    source: str
    fleet: str
    members: tuple[CheckedMember, ...]
    voters: tuple[ProxyId, ...]
    tolerates: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CertificateDocument:
    """Where one member's certificate is; ``expires`` (UTC) is null where it is not on this machine."""

    proxy_id: ProxyId
    ca: str
    certificate: str
    key: str
    expires: str | None


@dataclass(frozen=True, slots=True)
class CertsDocument:
    """What ``fleet certs`` prints: the members' certificates, and what is left to do with them."""

    fleet: str
    members: tuple[CertificateDocument, ...]
    next_steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeDocument:
    """What ``fleet node --json`` prints when the member has stopped."""

    proxy_id: ProxyId
    exit_code: int


@dataclass(frozen=True, slots=True)
class AnswerDocument(RenamedKeys):
    """What one member said to ``fleet status``: ``error`` where it did not answer, else the rest."""

    proxy_id: ProxyId
    admin: str
    error: str | None
    generation: int | None
    role: Role | None
    leader: ProxyId | None
    term: int | None
    has_quorum: bool | None
    staleness_s: float | None
    raft_error: str | None


@dataclass(frozen=True, slots=True)
class StatusDocument(RenamedKeys):
    """What ``fleet status`` prints, from all the members that answered.

    Args:
        reported_by: the member whose table is shown: one with a quorum, if any has, and of these the newest.
        agree: whether all members that answered are of the same generation.
        answers: who was asked, and what came of it.
        troubles: what the members say is wrong with brokers, and between members.
    """

    fleet: str
    reported_by: ProxyId
    generation: int
    agree: bool
    leader: ProxyId | None
    term: int
    quorum: QuorumDocument
    staleness_s: float
    answers: tuple[AnswerDocument, ...]
    members: tuple[MemberDocument, ...]
    brokers: tuple[BrokerDocument, ...]
    identities: tuple[IdentityDocument, ...]
    troubles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MoveDocument:
    broker_id: BrokerId
    before: tuple[ProxyId, ...]
    after: tuple[ProxyId, ...]


@dataclass(frozen=True, slots=True)
class LoadDocument:
    """How many identities a member owns; and what they weigh, its share of each, where weights are known."""

    proxy_id: ProxyId
    before: int
    after: int
    weight_before: float | None
    weight_after: float | None


@dataclass(frozen=True, slots=True)
class PlanDocument(RenamedKeys):
    """What ``fleet plan`` prints.

    Args:
        weighed: whether identities are balanced by weight.
        moves: the identities whose owners would change.
        stays: the identities that keep their owners.
        loads: identities for each member, now and then.
        served: false where nobody could own anything any more, so that nothing moves.
    """

    without: tuple[ProxyId, ...]
    reported_by: ProxyId
    generation: int
    feasible: bool
    moves: tuple[MoveDocument, ...]
    stays: tuple[BrokerId, ...]
    loads: tuple[LoadDocument, ...]
    weighed: bool


DoctorCheck: TypeAlias = Literal["members", "clocks", "addresses", "leaks", "brokers", "certificates"]
Verdict: TypeAlias = Literal["ok", "warning", "failed"]


@dataclass(frozen=True, slots=True)
class Finding(RenamedKeys):
    """One thing that ``fleet doctor`` has to say.

    Args:
        subject: what it is about: a member, an address, a broker.
        fix: what to do about it; empty where there is nothing to do.
    """

    check: DoctorCheck
    subject: str
    verdict: Verdict
    detail: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class DoctorDocument:
    """What ``fleet doctor`` prints; ``ok`` where nothing has failed."""

    fleet: str
    ok: bool
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class ClientConfigDocument:
    """What ``fleet client-config`` prints.

    Args:
        listener: the one that the client comes to.
        bootstrap_servers: where each member has it.
        basis: whether anything of it was measured with that client.
    """

    client: Client
    listener: str
    bootstrap_servers: tuple[str, ...]
    settings: tuple[ClientSetting, ...]
    basis: Basis


@dataclass(frozen=True, slots=True)
class RestartedMember:
    """One member that was restarted: how long until it was back and the fleet at rest."""

    proxy_id: ProxyId
    was_leader: bool
    took_s: float


@dataclass(frozen=True, slots=True)
class RollingRestartDocument:
    """What ``fleet rolling-restart`` prints: the members in the order of their restarts."""

    members: tuple[RestartedMember, ...]


ERROR: Final = Codec(ErrorDocument)
READY: Final = Codec(ReadyDocument)
OWNERSHIP: Final = Codec(OwnershipDocument)
DOCTOR: Final = Codec(DoctorDocument)
DRAIN: Final = Codec(DrainDocument)
LIVE: Final = Codec(LiveDocument)
NODE: Final = Codec(NodeDocument)
PIN: Final = Codec(PinDocument)
TRAFFIC: Final = Codec(TrafficDocument)
CHECK: Final = Codec(ConfigDocument)
CERTS: Final = Codec(CertsDocument)
CLIENT_CONFIG: Final = Codec(ClientConfigDocument)
STATUS: Final = Codec(StatusDocument)
PLAN: Final = Codec(PlanDocument)
ROLLING_RESTART: Final = Codec(RollingRestartDocument)
