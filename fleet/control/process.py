"""One member's control process: the shell around the failure detector, the leader's proposals and Raft.

Everything runs on one event loop, except Raft, which has its own thread because it waits for the disk.
Observations come in (links, reports, probes, brokers, commits). One directory goes out to the workers
whenever it changes. No request of a client passes through this process.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import time
import uuid
from collections.abc import Coroutine, Iterator, Mapping
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
from fleet.control.directory_publisher import DirectoryPublisher
from fleet.control.leader import Leader
from fleet.control.links import Kind, PeerLinks, digest_voters
from fleet.control.prober import Prober
from fleet.control.reports import MemberReport
from fleet.control.status import StatusSource
from fleet.control.takeover_watch import TakeoverWatch
from fleet.control.worker_channels import WorkerChannels
from fleet.core.addressing import as_known
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
IDENTITY_HANDOVER_SHARE = 0.45
"""The part of ``drain_timeout_s`` that the handover of identities may take. It is less than
``fleet.runtime.supervisor.HANDOVER_SHARE``, after which the supervisor stops waiting for this process."""
CLIENT_RETURN_GRACE_S = 1.0
"""How long this member serves after its identities have moved. A client whose connection has just ended comes
back once, and learns the new address here."""
EVENTS_STOP_TIMEOUT_S = 2.0
"""Limit for writing the last events to disk, and for sending the last traces to their collector."""
MIN_EVALUATION_PAUSE_S = 0.002
"""Shortest wait between two evaluations that only a deadline causes."""
DRAIN_REASON = "drain"
"""The takeover reason for identities that leave a live member."""
FIRST_WORKER_TIMEOUT_S = 1.0
"""How long the first report to peers waits for a worker, so that the report does not say "not ready"."""


class Control:
    """The control process: observations go to the detector, the leader and Raft; directories go to workers.

    Each process has one object, created and used on its event loop. The admin interface shows the public
    attributes; only this class changes them.

    Args:
        spec: the settings and sockets from the supervisor.
    """

    def __init__(self, spec: ChildSpec) -> None:
        settings = spec.settings
        self.spec = spec
        self.settings = settings
        self._timing = settings.timing
        self.own_settings = settings.member(spec.proxy_id)
        self.me: ProxyId = spec.proxy_id
        self._member = replace(self.own_settings.to_member(settings), incarnation=spec.incarnation)
        self._loop = asyncio.get_running_loop()
        self.started_s = time.monotonic()
        self._peers = {p: m for p, m in settings.members.items() if p != self.me}
        self._tasks: set[asyncio.Future[Any]] = set()
        self._failed: asyncio.Future[None] = self._loop.create_future()

        self.state = FleetState()
        self.status: RaftStatus | None = None
        self.reports: dict[ProxyId, MemberReport] = {}
        self.report_received_s: dict[ProxyId, float] = {}
        self._stopping = False
        self._handed_over = asyncio.Event()
        self._wake = self._loop.call_later(0.0, lambda: None)
        self._workerless_since_s: float | None = self.started_s
        self.tracing = make_tracing(settings, self.me)
        self.takeovers = TakeoverWatch(self._on_takeover_ended)

        self.workers = WorkerChannels(
            _inherited_socket(spec.fds[CONTROL_FD]),
            self._on_brokers_seen,
            self._on_brokers_requested,
            self._on_brokers_lost,
            self._on_directory_applied,
            self._on_traffic,
        )
        self.directories = DirectoryPublisher(
            None if self.own_settings.witness else self._member, self.workers, spec.folder
        )
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
            _inherited_socket(spec.fds[PEER_FD]),
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
            # Imported here because the import takes longer than the rest of a control process. It must happen
            # before a second thread starts: two threads that import the same module may see it half imported.
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
        """How often each supervised thread was started again."""
        threads = {"events": self.events, "weights": self._weights}
        return {name: thread.restarts for name, thread in threads.items() if thread is not None}

    # -- life ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until SIGTERM, then hand over this member's identities and return."""
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
            _inherited_socket(self.spec.fds[ADMIN_FD]),
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
        if not self.own_settings.witness:
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST_WORKER_TIMEOUT_S):
                    await self.workers.wait_for_first()
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
            await asyncio.to_thread(self._weights.stop, EVENTS_STOP_TIMEOUT_S)
        stops = [each.stop for each in (self.events, self.tracing) if each is not None]
        await asyncio.gather(*(asyncio.to_thread(stop, EVENTS_STOP_TIMEOUT_S) for stop in stops))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task until this process ends. If the task fails, the process fails."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End this process with an error. The supervisor starts the next one."""
        if not self._failed.done():
            self._failed.set_exception(error)

    async def _hand_over(self) -> None:
        """Report to the others that this member stops, and wait until they own its identities."""
        self._stopping = True
        log.info("stopping: handing identities over")
        self._evaluate()
        self._broadcast()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timing.drain_timeout_s * IDENTITY_HANDOVER_SHARE):
                owned = self._owns()
                await self._handed_over.wait()
                if owned and not self._owns():
                    await asyncio.sleep(CLIENT_RETURN_GRACE_S)

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
        # The others must have this generation, too, before clients move to them.
        return all(self.reports[proxy_id].generation >= self.state.generation for proxy_id in others)

    # -- observations --------------------------------------------------------------------------------------

    def on_up(self, peer: ProxyId) -> None:
        """LinkEvents: the link to a peer is up."""
        self.detector.link_up(peer, time.monotonic())
        self._raft.link_up(peer)
        self.links.send(peer, Kind.REPORT, self._report_bytes())
        self._evaluate()

    def on_down(self, peer: ProxyId, reason: str) -> None:
        """LinkEvents: the link to a peer is down."""
        log.info("link to %s is down: %s", peer, reason)
        self.detector.link_down(peer, time.monotonic())
        self._raft.link_down(peer)
        self._evaluate()

    def on_failed_here(self, peer: ProxyId, error: LocalFailure) -> None:
        """LinkEvents: a local fault prevents a link to a peer."""
        self.prober.record_local_failure(peer, error)
        self.detector.link_failed_here(peer, time.monotonic())

    def on_broken(self, error: BaseException) -> None:
        """LinkEvents: the links have failed, and there will be no new links."""
        self._fail(error)

    def advertised_by(self, peer: ProxyId) -> Member:
        """ProbeEvents: a peer as Raft has committed it, otherwise as it is configured."""
        return self.state.members.get(peer) or self._peers[peer].to_member(self.settings)

    def is_stopping(self, peer: ProxyId) -> bool:
        """ProbeEvents: whether a peer or this member is stopping, so that a lost worker is expected."""
        report = self.reports.get(peer)
        return self._stopping or (report is not None and report.stopping)

    def on_probed(self) -> None:
        """ProbeEvents: the detector has a new observation."""
        self._evaluate()

    def on_frame(self, peer: ProxyId, kind: Kind, payload: bytes) -> None:
        """LinkEvents: a frame of a peer has arrived."""
        if kind is Kind.RAFT:
            self._raft.receive(peer, payload)
        elif kind is Kind.REPORT:
            self._on_report(peer, payload)

    def _on_report(self, peer: ProxyId, payload: bytes) -> None:
        try:
            report = _REPORT.validate_json(payload)
        except ValueError as error:
            log.error("cannot read a report: peer=%s: %s", peer, str(error).splitlines()[0])
            return
        if report.proxy_id != peer:
            log.error("ignored a report with the id of another member: peer=%s id=%s", peer, report.proxy_id)
            return
        now_s = time.monotonic()
        before = self.reports.get(peer)
        self.reports[peer] = report
        self.report_received_s[peer] = now_s
        self.detector.heartbeat(peer, report.ready, report.incarnation, now_s)
        if before is None or _urgent_part(before) != _urgent_part(report):
            self._evaluate()

    def _send_raft(self, peer: ProxyId, payload: bytes) -> None:
        """Called on the Raft thread."""
        with suppress(RuntimeError):  # the loop is closed because this process is ending
            self._loop.call_soon_threadsafe(self.links.send, peer, Kind.RAFT, payload)

    def _on_raft_change(self, state: FleetState, status: RaftStatus, applied: tuple[Applied, ...]) -> None:
        """Called on the Raft thread."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._apply_raft_change, state, status, applied)

    def _on_raft_end(self, error: BaseException) -> None:
        """Called on the Raft thread, which has failed."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._fail, error)

    def _apply_raft_change(self, state: FleetState, status: RaftStatus, applied: tuple[Applied, ...]) -> None:
        if status.leader != (None if self.status is None else self.status.leader):
            log.info("Raft leader changed: term=%d leader=%s", status.term, status.leader or "none")
        before, self.state, self.status = self.state, state, status
        if self.tracing is not None:
            self.tracing.on_raft_status(status)
        self._leader.on_committed(before, state, time.monotonic())
        for proxy_id, member in state.members.items():
            was = before.members.get(proxy_id)
            if was is not None and was.eligible and not member.eligible:
                self._record_takeover(
                    proxy_id, DRAIN_REASON if member.status is not MemberStatus.DOWN else "down", before
                )
        if self.events is not None:
            leads = status.role == "leader"
            self.events.record_commit(applied, state, self.takeovers.log, moment().wall_ms, leads=leads)
        if state.ownership is not before.ownership:
            commands = (each.command for each in applied if each.outcome.applied)
            changes = [command for command in commands if isinstance(command, OwnershipSet)]
            self.takeovers.on_committed(state, moment(), changes)
        if state.brokers is not before.brokers:
            self.brokers.on_brokers_committed(before.brokers, state.brokers)
        for each in applied:
            log.debug("command applied: command=%s outcome=%s", each.command, each.outcome)
        self._evaluate()

    def _on_weights(self, weights: Mapping[BrokerId, float]) -> None:
        """Called on the thread that reads weights."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._leader.update_weights, weights)

    def _on_brokers_seen(self, brokers: tuple[Broker, ...]) -> None:
        self.brokers.on_brokers_seen(brokers)

    def _on_brokers_requested(self, broker_ids: tuple[BrokerId, ...]) -> None:
        self.brokers.on_brokers_requested(broker_ids)

    def _on_brokers_lost(self, broker_ids: tuple[BrokerId, ...]) -> None:
        self.brokers.on_brokers_lost(broker_ids)

    def _on_traffic(self, passed: TrafficMessage) -> None:
        if self.events is not None:
            self.events.record_traffic(passed)

    def _on_takeover_ended(self, takeover: Takeover) -> None:
        if self.tracing is not None:
            self.tracing.on_takeover_ended(takeover)

    def _on_directory_applied(self, revision: int) -> None:
        self.takeovers.on_applied(revision, moment())
        if self.events is not None:
            self.events.record_advertisement(self.takeovers.log)

    # -- conclusions ---------------------------------------------------------------------------------------

    async def _report_regularly(self) -> None:
        while True:
            self._broadcast()
            await asyncio.sleep(self._timing.heartbeat_s)

    def _evaluate(self) -> None:
        """Act on the latest observations. Cheap and idempotent."""
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
                self._record_takeover(transition.peer, transition.reason, self.state)
            elif transition.after is Liveness.UP:
                self.takeovers.on_returned(transition.peer)
        if transitions:
            # The leader commits a suspicion of a majority, so report the change immediately.
            self._broadcast()
            if self.events is not None:
                self.events.record_transitions(transitions, moment().wall_ms)
        for peer in self.detector.probes_due(now_s):
            self._spawn(self.prober.probe(peer))
        self._lead()
        if self._stopping and self._is_handed_over():
            self._handed_over.set()
        self._wake.cancel()
        pause_s = max(MIN_EVALUATION_PAUSE_S, self.detector.next_deadline_s(now_s) - now_s)
        self._wake = self._loop.call_later(pause_s, self._evaluate)

    def _refresh(self) -> None:
        """The known brokers, or their reachability, have changed."""
        self.workers.publish_reachable(self.brokers.reachable, self.brokers.api_versions)
        self._publish(time.monotonic())
        self._broadcast()

    def _publish(self, now_s: float) -> None:
        down = frozenset(p for p, m in self.state.members.items() if m.status is MemberStatus.DOWN)
        bypassed = self.detector.bypassed(now_s, self._has_quorum, down)
        self.directories.publish(self.state, bypassed, self.brokers.known)
        self.takeovers.on_published(self.directories.current)

    def _record_takeover(self, proxy_id: ProxyId, reason: str, state: FleetState) -> None:
        now, first_sign = moment(), self.prober.worker_losses.pop(proxy_id, None)
        if first_sign is None or now.mono_s - first_sign.mono_s > self._timing.suspect_after_s:
            first_sign = now
        is_alive = reason == DRAIN_REASON or proxy_id == self.me
        alive_s = None if is_alive else self.detector.alive_s(proxy_id)
        self.takeovers.on_detected(proxy_id, reason, state, first_sign, alive_s)
        self.takeovers.on_published(self.directories.current)
        # The member may have been bypassed after its worker was lost, before the takeover was detected.
        self.takeovers.on_applied(self.workers.applied_revision, moment())

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
            member=as_known(self._member, self._others()),
            ready=self._is_serving(time.monotonic()),
            stopping=self._stopping,
            suspects=suspects,
            failed_probes=tuple(peer for peer in suspects if peer in failed_probes),
            brokers=self.brokers.listed,
            unreachable=self.brokers.unreachable,
            generation=self.directories.current.generation,
        )

    def _others(self) -> Iterator[Member]:
        """Every other member as its last report or Raft has it; none for a member that never joined."""
        for peer in self._peers:
            report = self.reports.get(peer)
            known = self.state.members.get(peer) if report is None else report.member
            if known is not None:
                yield known

    def _report_bytes(self) -> bytes:
        return _REPORT.dump_json(self.report())

    def _is_serving(self, now_s: float) -> bool:
        """Whether a worker is connected, or was connected a moment ago and is being restarted."""
        if self.own_settings.witness or self.workers.connected:
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
        heard = frozenset(peer for peer in self._peers if self.detector.receives_heartbeats(peer, now_s)) | {
            self.me
        }
        for command in self._leader.propose(self.state, reports, liveness, heard, now_s):
            self.propose(command).add_done_callback(_log_failure)

    def propose(self, command: Command) -> Future[Outcome]:
        stamped = stamp(command, f"{self.me}-{uuid.uuid4().hex}", time.time_ns() // 1_000_000)
        outcome = self._raft.propose(stamped, COMMAND_TIMEOUT_S)
        if self.tracing is not None:
            self.tracing.on_proposed(stamped, outcome)
        return outcome


def _urgent_part(report: MemberReport) -> tuple[object, ...]:
    """The part of a report whose change requires an immediate evaluation."""
    evidence = report.suspects, report.failed_probes
    return report.incarnation, report.ready, report.stopping, evidence, report.member


def _log_failure(future: Future[Outcome]) -> None:
    error = future.exception()
    if error is not None:
        log.info("proposal failed: %s", error)


def make_tracing(settings: Settings, me: ProxyId) -> Tracing | None:
    """Make the sender of traces if the configuration asks for it.

    None also after a failure: a control process without traces is better than none.
    """
    if settings.tracing is None:
        return None
    try:
        from fleet.control.tracing import Tracing, make_exporter  # imported late, like events

        exporter = make_exporter(settings.tracing, settings.source)
        return Tracing(exporter, settings.tracing.url, settings.fleet, me, moment)
    except (ConfigError, ImportError, ValueError) as error:  # the last: a variable OTEL_… that is no number
        log.error("tracing is off in this control process: %s", error)
        return None


def _inherited_socket(fd: int) -> socket.socket:
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
    """Run the control process. The arguments come from the supervisor."""
    spec = child.spec_from_argv(sys.argv)
    child.die_with_parent(spec.parent_pid)
    stderr_log.log_to_stderr(f"{spec.proxy_id}/{spec.name}")
    child.freeze_garbage()
    uvloop.run(_serve(spec), loop_factory=ResolvingLoop)
