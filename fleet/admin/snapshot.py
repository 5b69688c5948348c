"""A frozen view of the fleet as one control process sees it, taken for each scrape or request.

Control builds a ``FleetView`` and owns a ``TakeoverLog``. Metrics, health checks and the ownership page are
made from the view alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, get_args

from fleet.admin.documents import Condition, Role
from fleet.core.model import (
    BrokerId,
    Directory,
    Endpoint,
    FleetState,
    Liveness,
    Member,
    MemberStatus,
    ProxyId,
)
from fleet.core.state import Outcome
from fleet.core.takeover import Moment, TakeoverLog
from fleet.core.weights import BalancedBy
from fleet.events.progress import EventsView
from fleet.runtime.ephemeral_ports import PortTrouble
from fleet.runtime.ipc import WorkerCounters

CONDITIONS: Final[tuple[Condition, ...]] = get_args(Condition)


@dataclass(frozen=True, slots=True)
class RaftView:
    """The status of the Raft node, without types of the library behind it.

    Args:
        quorum_lost_mono_s: when the quorum was lost; None with a quorum, or if there never was one.
        error: why this member, a voter, cannot vote (disk full, journal reset); None if it can.
        distrusted: voters whose journals lack promises that this member remembers: their votes do not count.
    """

    role: Role = "follower"
    leader: ProxyId | None = None
    term: int = 0
    commit_index: int = 0
    has_quorum: bool = False
    quorum_lost_mono_s: float | None = None
    error: str | None = None
    distrusted: tuple[ProxyId, ...] = ()


@dataclass(frozen=True, slots=True)
class MemberView:
    """One configured member, as the member that takes the view sees it.

    Args:
        committed: the member as committed in Raft; None if Raft has never admitted it.
        liveness: by this member's detector; a member is always up for itself.
        ready, generation, stopping: from the last report of the member; None and False without a report.
        connected: whether the link to the member is up.
        silent_s: the time since its last message; 0 for this member, None without any message.
        has_voter_digest: whether the member reports which voters it counts; None without a link.
    """

    proxy_id: ProxyId
    rack: str | None
    voter: bool
    witness: bool
    admin: Endpoint
    committed: Member | None = None
    liveness: Liveness = Liveness.UNKNOWN
    ready: bool | None = None
    generation: int | None = None
    stopping: bool = False
    connected: bool = False
    silent_s: float | None = None
    has_voter_digest: bool | None = None

    @property
    def condition(self) -> Condition:
        """Liveness and committed status in one word: the worst comes first."""
        if self.committed is not None and self.committed.status is MemberStatus.DOWN:
            return "down"
        if self.liveness is Liveness.SUSPECT:
            return "suspect"
        if self.stopping or (self.committed is not None and self.committed.status is MemberStatus.DRAINING):
            return "leaving"
        if self.committed is not None and self.committed.drained:
            return "drained"
        if self.liveness is Liveness.UNKNOWN:
            return "unknown"
        return "up"


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker that is connected to the control process."""

    index: int
    pid: int
    counters: WorkerCounters


@dataclass(frozen=True, slots=True)
class Check:
    """One condition of ``/readyz``.

    Args:
        name: "workers", "directory" or "upstream"; a witness has no checks.
        detail: the result, in a few words.
    """

    name: str
    ok: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class FleetView:
    """Everything that one member shows.

    Args:
        me: the member that takes the view.
        now: the time of the view.
        started_mono_s: when this control process started.
        state, directory: the replicated state, and the directory that the workers have.
        members: all configured members, in the order of the file.
        workers: the workers that are connected now.
        retired: sum of the last counters of workers that have ended, so that no total ever falls.
        worker_restarts: workers that replaced an earlier one since control started.
        local_failures: probes of other members and links to them that failed because of a fault of this
            member.
        dropped_log_lines: of the control process alone.
        upstream_up: broker → whether this member can reach the broker.
        broker_troubles: broker → its fault, in words for an operator.
        member_troubles: faults of this member that keep it from reaching other members.
        port_trouble: ports that may be taken when this member restarts; None if no port is at risk.
        checks: the checks of ``/readyz``.
        events: None if this member sends no events.
        thread_restarts: thread of the control process → how often it ended with an error and was restarted.
        traced: whether takeovers are recorded in traces.
        balanced_by: the measure by which the leader balances proxies.
        certificate_expiry_s: configuration field of a certificate → when it expires, in Unix time.
    """

    fleet: str
    me: ProxyId
    now: Moment
    started_mono_s: float
    incarnation: int = 0
    state: FleetState = field(default_factory=FleetState)
    directory: Directory = field(default_factory=Directory)
    raft: RaftView = field(default_factory=RaftView)
    members: tuple[MemberView, ...] = ()
    workers: tuple[WorkerView, ...] = ()
    retired: WorkerCounters = field(default_factory=WorkerCounters)
    worker_restarts: int = 0
    local_failures: int = 0
    dropped_log_lines: int = 0
    upstream_up: Mapping[BrokerId, bool] = field(default_factory=dict)
    broker_troubles: Mapping[BrokerId, str] = field(default_factory=dict)
    member_troubles: tuple[str, ...] = ()
    port_trouble: PortTrouble | None = None
    takeovers: TakeoverLog = field(default_factory=TakeoverLog)
    checks: tuple[Check, ...] = ()
    certificate_expiry_s: Mapping[str, float] = field(default_factory=dict)
    events: EventsView | None = None
    thread_restarts: Mapping[str, int] = field(default_factory=dict)
    traced: bool = False
    balanced_by: BalancedBy = "identities"

    @property
    def staleness_s(self) -> float:
        """0 with a quorum, otherwise the time since its loss (since the start, if there never was one)."""
        if self.raft.has_quorum:
            return 0.0
        lost = self.raft.quorum_lost_mono_s
        return max(0.0, self.now.mono_s - (self.started_mono_s if lost is None else lost))

    @property
    def ready(self) -> bool:
        return all(check.ok for check in self.checks)


class AdminSource(Protocol):
    """The control process, as far as the admin interface uses it."""

    def view(self) -> FleetView:
        """The current view; cheap, and never waits. Counters of workers may be half a minute old."""
        ...

    async def counted_view(self) -> FleetView:
        """The current view with current counters of the workers; waits for the workers, but not for long."""
        ...

    async def drain(self, proxy_id: ProxyId, drained: bool) -> Outcome:
        """Commits that a member must own nothing, or (False) that it may own identities again.

        Raises:
            UnknownMember: there is no such member.
            NoQuorum, CommandTimeout: nothing is known to be committed.
        """
        ...

    async def pin(self, broker_id: BrokerId, proxy_id: ProxyId | None) -> Outcome:
        """Commits that one member owns an identity while it is alive, or (None) that any member may own it.

        Raises:
            UnknownMember: there is no such member.
            NoQuorum, CommandTimeout: nothing is known to be committed.
        """
        ...
