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
"""Header that drain, undrain, pin and unpin require, with the value 1, unless there are tokens."""

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
    """Any failure: the body of an HTTP error, and the output of a failed command with ``--json``."""

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
    """Whether a majority of the voters is reachable.

    Args:
        lost_s: the time without a majority, in seconds; 0 with a majority.
    """

    present: bool
    voters: tuple[ProxyId, ...]
    lost_s: float


@dataclass(frozen=True, slots=True)
class MemberDocument(RenamedKeys):
    """One configured member.

    Args:
        condition: one word that combines status, liveness and drained; the worst comes first.
        status: the status committed in Raft; null if Raft has never admitted the member.
        ready, generation: from the last report of the member; null without a report.
        listeners, identities, incarnation: as committed in Raft.
        has_voter_digest: whether the member reports which voters it counts, so that a member that counts
            other voters gets no link; false for a release before 0.3.0, null without a link.
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
    """The current addresses of an identity on one listener, one for each advertised owner."""

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
    """One real broker; ``up`` is null if the member has not tried to reach the broker."""

    broker_id: BrokerId
    host: str
    port: int
    rack: str | None
    up: bool | None


@dataclass(frozen=True, slots=True)
class BrokerTroubleDocument:
    """A fault of one real broker, as a member found it."""

    broker_id: BrokerId
    trouble: str


@dataclass(frozen=True, slots=True)
class MachineTroubleDocument:
    """A fault of a member's machine, as the member found it, and its fix."""

    trouble: str
    fix: str


@dataclass(frozen=True, slots=True)
class TakeoverDocument:
    """One takeover, with wall milliseconds for people and monotonic seconds to compute intervals."""

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
    """Body of ``/ownership``: one member's view of the fleet.

    Args:
        proxy_id: the member that answers.
        now_ms, now_mono_s: the time of the answer.
        revision: of the member's directory; changes of the bypassed members count, too.
        staleness_s: 0 with a quorum, otherwise the time for which no ownership could be committed.
        suspects: the members that the answering member bypasses.
        takeovers: the most recent takeovers, oldest first.
        raft_error: why the member, a voter, cannot vote; null if it can.
        balanced_by: the measure by which the leader balances proxies.
        distrusted_voters: voters whose journals lack promises that this member remembers (an empty disk, a
            restored copy). Their votes do not count until they have caught up.
        broker_troubles: faults of brokers: unreachable, without a port, or with an address of the fleet.
        member_troubles: faults of this member that keep it from reaching other members.
        machine_troubles: faults that may keep this member from restarting on its machine.
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
    """Traffic of one identity at one member: open connections, and bytes since the member started."""

    broker_id: BrokerId
    connections: int
    to_broker_bytes: int
    to_client_bytes: int


@dataclass(frozen=True, slots=True)
class TrafficDocument:
    """Body of ``/traffic``: the traffic of one member.

    Args:
        now_mono_s: the time of the count, on that member's monotonic clock.
        incarnation: of the member; the counts start at 0 in each incarnation.
        workers: process ids of the workers whose bytes are included. When a new worker appears in the list,
            the counts rise by all bytes of its life at once.
    """

    proxy_id: ProxyId
    incarnation: int
    now_mono_s: float
    workers: tuple[int, ...]
    identities: tuple[IdentityTraffic, ...]


@dataclass(frozen=True, slots=True)
class IdentityRate:
    """Traffic of one identity over all members that answered; byte rates over about the last second."""

    broker_id: BrokerId
    connections: int
    to_broker_bytes_per_s: float
    to_client_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class RateSource:
    """Whether the rates include the counters of a member.

    Args:
        error: why neither its connections nor its bytes are included; null if they are.
        rated: whether its bytes are included, which takes two counts in the same incarnation.
    """

    proxy_id: ProxyId
    error: str | None
    rated: bool


@dataclass(frozen=True, slots=True)
class LiveDocument(RenamedKeys):
    """One message of ``/live``: one member's current view of the fleet.

    Args:
        rates: of each identity with connections or traffic.
        rate_sources: the members that were asked for their counters, and whether each answered.
    """

    ownership: OwnershipDocument
    rates: tuple[IdentityRate, ...]
    rate_sources: tuple[RateSource, ...]

    @property
    def unrated(self) -> tuple[ProxyId, ...]:
        """Members that were counted only once, so that their rates are unknown."""
        return tuple(each.proxy_id for each in self.rate_sources if each.error is None and not each.rated)

    @property
    def rates_known(self) -> bool:
        """Whether the rates include every member that answers."""
        return bool(self.rate_sources) and not self.unrated


@dataclass(frozen=True, slots=True)
class PinDocument:
    """Answer to pin and unpin; ``applied`` is false if nothing had to change."""

    broker_id: BrokerId
    proxy_id: ProxyId | None
    applied: bool
    generation: int


@dataclass(frozen=True, slots=True)
class DrainDocument:
    """Answer to drain and undrain; ``applied`` is false if nothing had to change."""

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
    """Output of ``fleet check`` for a file without mistakes.

    Args:
        tolerates: the failures that the fleet survives, in sentences.
    """

    source: str
    fleet: str
    members: tuple[CheckedMember, ...]
    voters: tuple[ProxyId, ...]
    tolerates: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CertificateDocument:
    """Files of one member's certificate; ``expires`` (UTC) is null if they are not on this machine."""

    proxy_id: ProxyId
    ca: str
    certificate: str
    key: str
    expires: str | None


@dataclass(frozen=True, slots=True)
class CertsDocument:
    """Output of ``fleet certs``: the certificates of the members, and the remaining steps."""

    fleet: str
    members: tuple[CertificateDocument, ...]
    next_steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeDocument:
    """Output of ``fleet node --json`` when the member has stopped."""

    proxy_id: ProxyId
    exit_code: int


@dataclass(frozen=True, slots=True)
class AnswerDocument(RenamedKeys):
    """Answer of one member to ``fleet status``: ``error`` without an answer, otherwise all other fields."""

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
    """Output of ``fleet status``, from all members that answered.

    Args:
        reported_by: the member whose table is shown. Members with a quorum come first, then the newest
            generation.
        agree: whether all members that answered have the same generation.
        answers: the answer of each member, or its error.
        troubles: faults of brokers and between members, as the members report them.
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
    """Number of a member's identities, and their weight if known; a shared identity counts by its share."""

    proxy_id: ProxyId
    before: int
    after: int
    weight_before: float | None
    weight_after: float | None


@dataclass(frozen=True, slots=True)
class PlanDocument(RenamedKeys):
    """Output of ``fleet plan``.

    Args:
        reported_by: the member whose table the plan starts from.
        weighed: whether identities are balanced by weight.
        moves: the identities whose owners would change.
        stays: the identities that keep their owners.
        loads: the load of each member, before and after.
        feasible: false if no member is left that may own an identity; then nothing moves.
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
    """One result of ``fleet doctor``.

    Args:
        subject: the member, the address or the broker that was checked.
        fix: the action that removes the fault; empty if there is nothing to do.
    """

    check: DoctorCheck
    subject: str
    verdict: Verdict
    detail: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class DoctorDocument:
    """Output of ``fleet doctor``; ``ok`` is true if no finding has failed."""

    fleet: str
    ok: bool
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class ClientConfigDocument:
    """Output of ``fleet client-config``.

    Args:
        listener: the listener that the client connects to.
        bootstrap_servers: the address of that listener at each member.
        basis: whether any of the settings was measured with that client.
    """

    client: Client
    listener: str
    bootstrap_servers: tuple[str, ...]
    settings: tuple[ClientSetting, ...]
    basis: Basis


@dataclass(frozen=True, slots=True)
class RestartedMember:
    """One restarted member; ``took_s`` is the time until it was back and the fleet at rest."""

    proxy_id: ProxyId
    was_leader: bool
    took_s: float


@dataclass(frozen=True, slots=True)
class RollingRestartDocument:
    """Output of ``fleet rolling-restart``: the members in the order of their restarts."""

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
