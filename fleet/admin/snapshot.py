"""What a member's control process shows of itself: one frozen view, taken anew for each scrape or request.

Control builds a ``FleetView`` and owns a ``TakeoverLog``; metrics, health checks and the ownership page
are made of nothing else.
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
    """What ``RaftNode.status`` says, free of the library behind it.

    Args:
        quorum_lost_mono_s: since when there has been no quorum; None where there is one, or never was.
        error: why this member does not vote although it should (disk full, reset); None where it does.
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
    """One configured member, as this one sees it.

    Args:
        committed: as Raft has it; None where it never was taken in.
        liveness: by this member's detector; a member holds itself up.
        ready, generation, stopping: of its last report; None and False without one.
        connected: whether the link to it is up.
        silent_s: since it was last heard of; 0 for this member, None where it never was.
        has_voter_digest: whether it says which voters it counts; None where there is no link to it.
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
        """Liveness and committed status in one word: what is wrong comes first."""
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
    """One worker that is connected to control now."""

    index: int
    pid: int
    counters: WorkerCounters


@dataclass(frozen=True, slots=True)
class Check:
    """One condition of ``/readyz``.

    Args:
        name: "workers", "directory" or "upstream"; a witness has none of them.
        detail: what was found, in a few words.
    """

    name: str
    ok: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class FleetView:
    """Everything that one member shows.

    Args:
        me: the member that tells it.
        now: when the view was taken.
        started_mono_s: when this control process started.
        state, directory: the replicated state, and what the workers have been given.
        members: all that are configured, in the order of the file.
        workers: those connected now.
        retired: sum of the last counters of workers that are gone, so that no total ever falls.
        worker_restarts: workers that came in the place of another since control started.
        local_failures: probes of other members, and links to them, that failed for a reason of this member's
            own.
        dropped_log_lines: of the control process alone.
        upstream_up: broker → whether it can be reached from here.
        broker_troubles: broker → what is wrong with it, in words for an operator.
        member_troubles: why this member cannot ask others, for reasons of its own.
        port_trouble: ports that may be taken when this member starts again; None where all is well.
        checks: what ``/readyz`` asks for.
        events: None where none are sent.
        thread_restarts: thread of the control process → how often it ended by an error, and was restarted.
        traced: whether takeovers are told in traces.
        balanced_by: what makes two proxies equal.
        certificate_expiry_s: field that names a certificate → when it expires, in Unix time.
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
        """0 while there is a quorum, else for how long it is lost (since the start, where it never was)."""
        if self.raft.has_quorum:
            return 0.0
        lost = self.raft.quorum_lost_mono_s
        return max(0.0, self.now.mono_s - (self.started_mono_s if lost is None else lost))

    @property
    def ready(self) -> bool:
        return all(check.ok for check in self.checks)


class AdminSource(Protocol):
    """What the admin interface needs from control."""

    def view(self) -> FleetView:
        """The view as of now; cheap, and never waits. What workers count may be half a minute old."""
        ...

    async def counted(self) -> FleetView:
        """The view as of now, with what workers have counted by now; waits for them, but not for long."""
        ...

    async def drain(self, proxy_id: ProxyId, drained: bool) -> Outcome:
        """Commits that a member is to own nothing, or may own again.

        Raises:
            UnknownMember: no such member.
            NoQuorum, CommandTimeout: nothing is known to be committed.
        """
        ...

    async def pin(self, broker_id: BrokerId, proxy_id: ProxyId | None) -> Outcome:
        """Commits that one member is to own an identity as long as it lives, or (None) that any may.

        Raises:
            UnknownMember: no such member.
            NoQuorum, CommandTimeout: nothing is known to be committed.
        """
        ...
