"""One member's control process: the shell around the failure detector, the leader's proposals and Raft.

Everything happens on one event loop, except Raft, which has a thread of its own because it waits for the
disk. Observations come in (links, reports, probes, brokers, commits), and one directory goes out to the
workers whenever it differs from the last one. Nothing here is in the way of a request.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import time
import uuid
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop
from pydantic import TypeAdapter

from fleet.admin import server
from fleet.admin.connections import AdminServer
from fleet.admin.peer_client import Peers
from fleet.config import Settings
from fleet.control.broker_watch import BrokerWatch
from fleet.control.clock import moment
from fleet.control.detector import FailureDetector
from fleet.control.directory_publisher import Directories
from fleet.control.leader import Leader
from fleet.control.links import Kind, PeerLinks, digest_voters
from fleet.control.prober import Prober
from fleet.control.reports import MemberReport
from fleet.control.status import StatusSource
from fleet.control.takeover_watch import TakeoverWatch
from fleet.control.worker_channels import Workers
from fleet.core.errors import ConfigError
from fleet.core.model import Broker, BrokerId, FleetState, Liveness, Member, MemberStatus, ProxyId
from fleet.core.replication import Applied, RaftStatus
from fleet.core.state import Command, Outcome, OwnershipSet, stamp
from fleet.core.takeover import Takeover
from fleet.raft_state import RaftNode, RaftSettings
from fleet.runtime import child, stderr_log
from fleet.runtime.child import ADMIN_FD, CONTROL_FD, PEER_FD, ChildSpec
from fleet.runtime.ipc import TrafficMessage
from fleet.runtime.outbound import LocalFailure
from fleet.runtime.resolving_loop import ResolvingLoop
from fleet.tls import admin, peers
from fleet.tls.broker_credentials import KafkaAccess
from fleet.tls.tokens import Gate

if TYPE_CHECKING:
    from fleet.control.tracing import Tracing
    from fleet.events.stream import EventStream
    from fleet.events.weights import WeightReader

log = logging.getLogger(__name__)

_REPORT: TypeAdapter[MemberReport] = TypeAdapter(MemberReport)

COMMAND_TIMEOUT_S = 5.0
HANDOVER_SHARE = 0.45
"""The part of ``drain_timeout_s`` that handing over may take; the supervisor allows a little more."""
RETURN_S = 1.0
"""How long this address is served after its identities have moved: a client whose connection has just ended
comes back to it once, and learns there where it is to go."""
EVENTS_STOP_S = 2.0
"""For events to be brought to the disk in the end, and traces to their collector."""
SHORTEST_PAUSE_S = 0.002
"""Between two evaluations that nothing but time has caused."""
DRAIN = "drain"
"""Why identities move from a member that is alive."""
WORKERS_START_S = 1.0
"""How long peers are kept waiting for a report, so that the first one does not say 'no worker yet'."""


class Control:
    """See the module. One object a process, made and used on its event loop.

    Its public attributes are what the admin interface shows; nothing but this class changes them.

    Args:
        spec: what the supervisor passed on: settings and sockets.
    """

    def __init__(self, spec: ChildSpec) -> None:
        settings = spec.settings
        self.spec = spec
        self.settings = settings
        self._timing = settings.timing
        self.mine = settings.member(spec.proxy_id)
        self.me: ProxyId = spec.proxy_id
        self._member = replace(self.mine.advertised(settings), incarnation=spec.incarnation)
        self._loop = asyncio.get_running_loop()
        self.started_s = time.monotonic()
        self._peers = {p: m for p, m in settings.members.items() if p != self.me}
        self._tasks: set[asyncio.Future[Any]] = set()
        self._failed: asyncio.Future[None] = self._loop.create_future()

        self.state = FleetState()
        self.status: RaftStatus | None = None
        self.reports: dict[ProxyId, MemberReport] = {}
        self.heard_s: dict[ProxyId, float] = {}
        self._stopping = False
        self._handed_over = asyncio.Event()
        self._wake = self._loop.call_later(0.0, lambda: None)
        self._workerless_since_s: float | None = self.started_s
        self.tracing = _tracing(settings, self.me)
        self.takeovers = TakeoverWatch(self._on_takeover_ended)

        self.workers = Workers(
            _inherited(spec.fds[CONTROL_FD]),
            self._on_brokers_seen,
            self._on_brokers_wanted,
            self._on_brokers_lost,
            self._on_directory_applied,
            self._on_traffic,
        )
        self.directories = Directories(None if self.mine.witness else self._member, self.workers, spec.folder)
        self.brokers = BrokerWatch(settings, self._refresh, self.me)
        self.detector = FailureDetector(self.me, tuple(self._peers), self._timing, self.started_s)
        carriers = [proxy_id for proxy_id, member in settings.members.items() if not member.witness]
        by_weight = settings.balance if settings.balance.by == "weights" else None
        self._leader = Leader(self._timing, settings.voters, carriers, by_weight)
        self.links = PeerLinks(
            self.me,
            spec.incarnation,
            settings.fleet,
            {proxy_id: member.peer for proxy_id, member in self._peers.items()},
            _inherited(spec.fds[PEER_FD]),
            self,
            tls=peers.member_tls(settings, self.me),
            voter_digests=(digest_voters(settings.voters),),
        )
        self.prober = Prober(settings, self.me, self.detector, self)
        self._raft = RaftNode(
            _raft_settings(settings, self.me, spec.folder),
            send=self._send_raft,
            on_change=self._on_raft_change,
            on_end=self._on_raft_end,
        )
        self._admin: AdminServer | None = None
        self.events: EventStream | None = None
        self._weights: WeightReader | None = None
        if settings.events is not None:
            # Imported here, before there is another thread: it takes longer than all the rest of a control
            # process, and what imports the same thing in two threads may find it half imported.
            from fleet.events.stream import EventStream

            identity = (settings.fleet, self.me, spec.incarnation)
            access = KafkaAccess(settings.upstream, settings.source)
            self.events = EventStream(
                settings.events, *identity, spec.folder, lambda: self.brokers.servers, access
            )
            if by_weight is not None:
                from fleet.events.weights import WeightReader

                prefix = settings.events.topic_prefix
                self._weights = WeightReader(
                    lambda: self.brokers.servers, access, prefix, settings.fleet, self._on_weights
                )

    @property
    def thread_restarts(self) -> dict[str, int]:
        """Of each thread that is started again, how often that was done."""
        threads = {"events": self.events, "weights": self._weights}
        return {name: thread.restarts for name, thread in threads.items() if thread is not None}

    # -- life ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until SIGTERM, then hand this member's identities over and return."""
        stop = asyncio.Event()
        self._loop.add_signal_handler(signal.SIGTERM, stop.set)
        self._loop.add_signal_handler(signal.SIGINT, lambda: None)
        await self._start()
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((stopped, self._failed), return_when=asyncio.FIRST_COMPLETED)
            if self._failed.done():
                self._failed.result()
            await self._hand_over()
        finally:
            stopped.cancel()
            await self._stop()

    async def _start(self) -> None:
        self._heart = child.Heart(self.spec.heartbeat_fd, self.spec.lifeline_fd)
        self._raft.start()
        await self.workers.start()
        secured = self.settings.admin
        self._admin = await server.serve(
            StatusSource(self),
            _inherited(self.spec.fds[ADMIN_FD]),
            gate=None if secured.tokens is None else Gate(secured.tokens, self.settings.source),
            tls=None if secured.tls is None else admin.reloading_context(secured.tls.for_member(self.me)),
            others=Peers(self.settings, self.me).traffic,
            on_broken=self._fail,
            hosts={*self.settings.hosts, socket.gethostname()},
        )
        self._spawn(self.brokers.run())
        self._spawn(self.directories.save())
        if self.events is not None:
            self.events.start()
        if self._weights is not None:
            self._weights.start()
        if not self.mine.witness:
            with suppress(TimeoutError):
                async with asyncio.timeout(WORKERS_START_S):
                    await self.workers.wait_for_one()
        await self.links.start()
        for peer, member in self._peers.items():
            if not member.witness:
                self._spawn(self.prober.keep_probe_connection(peer))
        self._spawn(self._report_regularly())
        self._evaluate()

    async def _stop(self) -> None:
        await self.links.stop()
        await asyncio.to_thread(self._raft.stop)
        if self._admin is not None:
            await self._admin.cleanup()
        await self.workers.stop()
        self._wake.cancel()
        self._heart.stop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._weights is not None:
            await asyncio.to_thread(self._weights.stop, EVENTS_STOP_S)
        told = [each.stop for each in (self.events, self.tracing) if each is not None]
        await asyncio.gather(*(asyncio.to_thread(stop, EVENTS_STOP_S) for stop in told))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something for as long as this process lives; where it fails, so does the process."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End this process by an error: its supervisor starts the next one."""
        if not self._failed.done():
            self._failed.set_exception(error)

    async def _hand_over(self) -> None:
        """Tell the others that this member goes, and wait until its identities are theirs."""
        self._stopping = True
        log.info("stopping: handing identities over")
        self._evaluate()
        self._broadcast()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timing.drain_timeout_s * HANDOVER_SHARE):
                owned = self._owns()
                await self._handed_over.wait()
                if owned and not self._owns():
                    await asyncio.sleep(RETURN_S)

    def _owns(self) -> bool:
        return any(self.me in ownership.owners for ownership in self.state.ownership.values())

    def _is_handed_over(self) -> bool:
        others = [
            proxy_id
            for proxy_id, report in self.reports.items()
            if self.detector.liveness[proxy_id] is Liveness.UP and not report.stopping
        ]
        if not others or self.status is None or not self.status.has_quorum:
            return True
        if self._owns():
            return False
        # The others have to know it, too, before clients are sent to them.
        return all(self.reports[proxy_id].generation >= self.state.generation for proxy_id in others)

    # -- what comes in -------------------------------------------------------------------------------------

    def on_up(self, peer: ProxyId) -> None:
        """LinkEvents: the link to a peer is there."""
        self.detector.link_up(peer, time.monotonic())
        self._raft.link_up(peer)
        self.links.send(peer, Kind.REPORT, self._report_bytes())
        self._evaluate()

    def on_down(self, peer: ProxyId, reason: str) -> None:
        """LinkEvents: the link to a peer is gone."""
        log.info("link to %s is down: %s", peer, reason)
        self.detector.link_down(peer, time.monotonic())
        self._raft.link_down(peer)
        self._evaluate()

    def on_failed_here(self, peer: ProxyId, error: LocalFailure) -> None:
        """LinkEvents: no link can be made, for a reason of this member's own."""
        self.prober.failed_here(peer, error)
        self.detector.link_failed_here(peer, time.monotonic())

    def on_broken(self, error: BaseException) -> None:
        """LinkEvents: there will be no more links."""
        self._fail(error)

    def advertised_by(self, peer: ProxyId) -> Member:
        """ProbeEvents: a peer as it was committed, or else as the configuration has it."""
        return self.state.members.get(peer) or self._peers[peer].advertised(self.settings)

    def is_stopping(self, peer: ProxyId) -> bool:
        """ProbeEvents: whether a peer stops, or this member does: then the loss of a worker is no sign."""
        report = self.reports.get(peer)
        return self._stopping or (report is not None and report.stopping)

    def on_probed(self) -> None:
        """ProbeEvents: the detector has learned something."""
        self._evaluate()

    def on_frame(self, peer: ProxyId, kind: Kind, payload: bytes) -> None:
        """LinkEvents: a peer said something."""
        if kind is Kind.RAFT:
            self._raft.receive(peer, payload)
        elif kind is Kind.REPORT:
            self._on_report(peer, payload)

    def _on_report(self, peer: ProxyId, payload: bytes) -> None:
        try:
            report = _REPORT.validate_json(payload)
        except ValueError as error:
            log.error("a report of %s cannot be read: %s", peer, str(error).splitlines()[0])
            return
        if report.proxy_id != peer:
            log.error("%s reports in the name of %s", peer, report.proxy_id)
            return
        now_s = time.monotonic()
        before = self.reports.get(peer)
        self.reports[peer] = report
        self.heard_s[peer] = now_s
        self.detector.heartbeat(peer, report.ready, report.incarnation, now_s)
        if before is None or _decisive(before) != _decisive(report):
            self._evaluate()

    def _send_raft(self, peer: ProxyId, payload: bytes) -> None:
        """Called on the Raft thread."""
        with suppress(RuntimeError):  # the loop is closed: this process is on its way out
            self._loop.call_soon_threadsafe(self.links.send, peer, Kind.RAFT, payload)

    def _on_raft_change(self, state: FleetState, status: RaftStatus, applied: tuple[Applied, ...]) -> None:
        """Called on the Raft thread."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._raft_changed, state, status, applied)

    def _on_raft_end(self, error: BaseException) -> None:
        """Called on the Raft thread, which does nothing any more."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._fail, error)

    def _raft_changed(self, state: FleetState, status: RaftStatus, applied: tuple[Applied, ...]) -> None:
        if status.leader != (None if self.status is None else self.status.leader):
            log.info(
                "Raft, term %d: %s", status.term, f"{status.leader} leads" if status.leader else "no leader"
            )
        before, self.state, self.status = self.state, state, status
        if self.tracing is not None:
            self.tracing.followed(status)
        self._leader.committed(before, state, time.monotonic())
        for proxy_id, member in state.members.items():
            was = before.members.get(proxy_id)
            if was is not None and was.eligible and not member.eligible:
                self._note_takeover(
                    proxy_id, DRAIN if member.status is not MemberStatus.DOWN else "down", before
                )
        if self.events is not None:
            leads = status.role == "leader"
            self.events.committed(applied, state, self.takeovers.log, moment().wall_ms, leads=leads)
        if state.ownership is not before.ownership:
            commands = (each.command for each in applied if each.outcome.applied)
            changes = [command for command in commands if isinstance(command, OwnershipSet)]
            self.takeovers.committed(state, moment(), changes)
        if state.brokers is not before.brokers:
            self.brokers.learn(before.brokers, state.brokers)
        for each in applied:
            log.debug("applied %s: %s", each.command, each.outcome)
        self._evaluate()

    def _on_weights(self, weights: Mapping[BrokerId, float]) -> None:
        """Called on a thread of its own."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._leader.weigh, weights)

    def _on_brokers_seen(self, brokers: tuple[Broker, ...]) -> None:
        self.brokers.heard(brokers)

    def _on_brokers_wanted(self, broker_ids: tuple[BrokerId, ...]) -> None:
        self.brokers.want(broker_ids)

    def _on_brokers_lost(self, broker_ids: tuple[BrokerId, ...]) -> None:
        self.brokers.lost(broker_ids)

    def _on_traffic(self, passed: TrafficMessage) -> None:
        if self.events is not None:
            self.events.passed(passed)

    def _on_takeover_ended(self, takeover: Takeover) -> None:
        if self.tracing is not None:
            self.tracing.took_over(takeover)

    def _on_directory_applied(self, revision: int) -> None:
        self.takeovers.applied(revision, moment())
        if self.events is not None:
            self.events.advertised(self.takeovers.log)

    # -- what goes out -------------------------------------------------------------------------------------

    async def _report_regularly(self) -> None:
        while True:
            self._broadcast()
            await asyncio.sleep(self._timing.heartbeat_s)

    def _evaluate(self) -> None:
        """Draw the conclusions from whatever has just been observed. Cheap, and idempotent."""
        now_s = time.monotonic()
        transitions = self.detector.tick(now_s)
        for transition in transitions:
            log.log(
                logging.WARNING if transition.after is Liveness.SUSPECT else logging.INFO,
                "%s: %s -> %s (%s)",
                transition.peer,
                transition.before,
                transition.after,
                transition.reason,
            )
        self._publish(now_s)
        for transition in transitions:
            if transition.after is Liveness.SUSPECT:
                self._note_takeover(transition.peer, transition.reason, self.state)
            elif transition.after is Liveness.UP:
                self.takeovers.returned(transition.peer)
        if transitions:
            # The leader commits what a majority suspects, so it has to hear of it now.
            self._broadcast()
            if self.events is not None:
                self.events.observed(transitions, moment().wall_ms)
        for peer in self.detector.probes_due(now_s):
            self._spawn(self.prober.probe(peer))
        self._lead()
        if self._stopping and self._is_handed_over():
            self._handed_over.set()
        self._wake.cancel()
        pause_s = max(SHORTEST_PAUSE_S, self.detector.next_deadline_s(now_s) - now_s)
        self._wake = self._loop.call_later(pause_s, self._evaluate)

    def _refresh(self) -> None:
        """The brokers that are known, or can be reached, have changed."""
        self.workers.tell_reachable(self.brokers.reachable)
        self._publish(time.monotonic())
        self._broadcast()

    def _publish(self, now_s: float) -> None:
        down = frozenset(p for p, m in self.state.members.items() if m.status is MemberStatus.DOWN)
        suspects = self.detector.suspects(now_s, self._has_quorum, down)
        self.directories.publish(self.state, suspects, self.brokers.known)
        self.takeovers.published(self.directories.current)

    def _note_takeover(self, proxy_id: ProxyId, reason: str, state: FleetState) -> None:
        now, noticed = moment(), self.prober.noticed.pop(proxy_id, None)
        if noticed is None or now.mono_s - noticed.mono_s > self._timing.suspect_after_s:
            noticed = now
        well = reason == DRAIN or proxy_id == self.me
        alive_s = None if well else self.detector.alive_s(proxy_id)
        self.takeovers.detected(proxy_id, reason, state, noticed, alive_s)
        self.takeovers.published(self.directories.current)
        # A doubt may have had it advertised elsewhere before it was a takeover.
        self.takeovers.applied(self.workers.applied_revision, moment())

    def _broadcast(self) -> None:
        report = self._report_bytes()
        for peer in self.links.connected:
            self.links.send(peer, Kind.REPORT, report)

    def report(self) -> MemberReport:
        held = self.detector.liveness
        suspects = tuple(sorted(peer for peer in held if held[peer] is Liveness.SUSPECT))
        failed_probes = self.detector.failed_probes
        return MemberReport(
            proxy_id=self.me,
            incarnation=self.spec.incarnation,
            member=self._member,
            ready=self._serving(time.monotonic()),
            stopping=self._stopping,
            suspects=suspects,
            failed_probes=tuple(peer for peer in suspects if peer in failed_probes),
            brokers=self.brokers.listed,
            unreachable=self.brokers.unreachable,
            generation=self.directories.current.generation,
        )

    def _report_bytes(self) -> bytes:
        return _REPORT.dump_json(self.report())

    def _serving(self, now_s: float) -> bool:
        """Whether there is a worker, or one was there a moment ago and is being started again."""
        if self.mine.witness or self.workers.connected:
            self._workerless_since_s = None
            return True
        if self._workerless_since_s is None:
            self._workerless_since_s = now_s
        return now_s - self._workerless_since_s < self._timing.suspect_after_s

    # -- leading -------------------------------------------------------------------------------------------

    @property
    def _has_quorum(self) -> bool:
        return self.status is not None and self.status.has_quorum

    def _lead(self) -> None:
        if self.status is None or self.status.role != "leader":
            self._leader.reset()
            return
        reports = {p: r for p, r in self.reports.items() if p in self.links.connected}
        reports[self.me] = self.report()
        liveness = {**self.detector.liveness, self.me: Liveness.UP}
        now_s = time.monotonic()
        heard = frozenset(peer for peer in self._peers if self.detector.hears(peer, now_s)) | {self.me}
        for command in self._leader.propose(self.state, reports, liveness, heard, now_s):
            self.propose(command).add_done_callback(_log_failure)

    def propose(self, command: Command) -> Future[Outcome]:
        stamped = stamp(command, f"{self.me}-{uuid.uuid4().hex}", time.time_ns() // 1_000_000)
        outcome = self._raft.propose(stamped, COMMAND_TIMEOUT_S)
        if self.tracing is not None:
            self.tracing.proposed(stamped, outcome)
        return outcome


def _decisive(report: MemberReport) -> tuple[object, ...]:
    """The part of a report that something may have to be done about at once."""
    evidence = report.suspects, report.failed_probes
    return report.incarnation, report.ready, report.stopping, evidence, report.member


def _log_failure(future: Future[Outcome]) -> None:
    error = future.exception()
    if error is not None:
        log.info("a proposal came to nothing: %s", error)


def _tracing(settings: Settings, me: ProxyId) -> Tracing | None:
    """What sends traces, where that is asked for; control goes on without it rather than not at all."""
    if settings.tracing is None:
        return None
    try:
        from fleet.control.tracing import Tracing, exporter  # as events are

        sends = exporter(settings.tracing, settings.source)
        return Tracing(sends, settings.tracing.url, settings.fleet, me, moment)
    except (ConfigError, ImportError, ValueError) as error:  # the last: a variable OTEL_… that is no number
        log.error("no traces are sent by this control process: %s", error)
        return None


def _inherited(fd: int) -> socket.socket:
    sock = socket.socket(fileno=fd)
    sock.setblocking(False)
    return sock


def _raft_settings(settings: Settings, me: ProxyId, folder: Path) -> RaftSettings:
    timing = settings.timing
    return RaftSettings(
        me=me,
        voters=settings.voters,
        observers=tuple(proxy_id for proxy_id, member in settings.members.items() if not member.voter),
        folder=folder,
        append_entries_s=timing.append_entries_s,
        election_min_s=timing.election_min_s,
        election_max_s=timing.election_max_s,
        leader_fallback_s=timing.leader_fallback_s,
    )


async def _serve(spec: ChildSpec) -> None:
    await Control(spec).run()


def main() -> None:
    """Be the control process that the supervisor asked for."""
    spec = child.spec_from_argv(sys.argv)
    child.die_with_parent(spec.parent_pid)
    stderr_log.log_to_stderr(f"{spec.proxy_id}/{spec.name}")
    child.freeze_garbage()
    uvloop.run(_serve(spec), loop_factory=ResolvingLoop)
