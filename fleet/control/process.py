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
from fleet.admin.view import Moment, Takeover
from fleet.config import Settings
from fleet.control.broker_watch import BrokerWatch
from fleet.control.detector import Detector, ProbeOutcome
from fleet.control.directory_publisher import Directories
from fleet.control.leader import Leader, Report
from fleet.control.links import Kind, PeerLinks, digest_voters
from fleet.control.probes import HoldEnd, HoldPace, Target, hold, probe_member, resolve
from fleet.control.status import ControlSource, moment
from fleet.control.takeover_watch import TakeoverWatch
from fleet.control.worker_channels import Workers
from fleet.core.errors import ConfigError
from fleet.core.log_limit import LogLimit
from fleet.core.model import Broker, BrokerId, Endpoint, FleetState, Liveness, MemberStatus, ProxyId
from fleet.core.state import Command, Outcome, OwnershipSet, stamp
from fleet.raft_state import Applied, RaftNode, RaftSettings, RaftStatus
from fleet.runtime import child, stderr_log
from fleet.runtime.child import ADMIN_FD, CONTROL_FD, PEER_FD, ChildSpec
from fleet.runtime.ipc import TrafficMessage
from fleet.runtime.outbound import LocalFailure, Resolver
from fleet.runtime.resolving_loop import ResolvingLoop
from fleet.tls import admin, listeners, peers
from fleet.tls.broker_credentials import KafkaAccess
from fleet.tls.tokens import Gate

if TYPE_CHECKING:
    from fleet.control.tracing import Tracing
    from fleet.events.stream import EventStream
    from fleet.events.weights import WeightReader

log = logging.getLogger(__name__)

_REPORT: TypeAdapter[Report] = TypeAdapter(Report)

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
LATE = 6.0
"""How many ``probe_timeout_s`` an answer may take that comes too late to count as one at first."""
LOG_INTERVAL_S = 10.0
"""Between two log lines on what goes on failing."""
GIVE_UP_PERIODS = 2.0
"""How many ``suspect_after_s`` a held connection may be silent before another one is tried."""
HOLD_AGAIN_S = 0.25
"""After a held connection has ended, or could not be had."""
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
        self.reports: dict[ProxyId, Report] = {}
        self.heard_s: dict[ProxyId, float] = {}
        self._stopping = False
        self._handed_over = asyncio.Event()
        self._wake = self._loop.call_later(0.0, lambda: None)
        self._workerless_since_s: float | None = self.started_s
        self.tracing = _tracing(settings, self.me)
        self.takeovers = TakeoverWatch(self._on_takeover_ended)
        self._noticed: dict[ProxyId, Moment] = {}
        """When a peer's worker was lost: the first sign of a death, before it is one."""

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
        self.detector = Detector(self.me, tuple(self._peers), self._timing, self.started_s)
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
            tls=peers.of_member(settings, self.me),
            voter_digests=(digest_voters(settings.voters),),
        )
        self._resolver = Resolver()
        self.local_failures = 0
        """Probes and links that failed for a reason of this member's own, each of which says nothing of a
        peer."""
        self.member_troubles: dict[ProxyId, str] = {}
        """Why this member cannot ask a peer now."""
        self._local_failures_logged = LogLimit(LOG_INTERVAL_S, most=len(settings.members))
        self._tls_of_probes = listeners.probes(settings, self.me)
        for each in self._tls_of_probes.values():
            each.get()  # here, where it says what is wrong, and not in the midst of detecting
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
            ControlSource(self),
            _inherited(self.spec.fds[ADMIN_FD]),
            gate=None if secured.tokens is None else Gate(secured.tokens, self.settings.source),
            tls=None if secured.tls is None else admin.following(secured.tls.of(self.me)),
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
                self._spawn(self._hold_worker(peer))
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
        self._failed_here(peer, error)
        self.detector.link_failed_here(peer, time.monotonic())

    def on_broken(self, error: BaseException) -> None:
        """LinkEvents: there will be no more links."""
        self._fail(error)

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
            self._spawn(self._probe(peer))
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
        now, noticed = moment(), self._noticed.pop(proxy_id, None)
        if noticed is None or now.mono_s - noticed.mono_s > self._timing.suspect_after_s:
            noticed = now
        well = reason == DRAIN or proxy_id == self.me
        alive_s = None if well else self.detector.alive_s(proxy_id)
        self.takeovers.detected(proxy_id, reason, state, noticed, alive_s)
        self.takeovers.published(self.directories.current)
        # A doubt may have had it advertised elsewhere before it was a takeover.
        self.takeovers.applied(self.workers.applied_revision, moment())

    def _listeners(self, peer: ProxyId) -> list[Target]:
        """Where a peer's advertised listeners are reached, and how."""
        member = self.state.members.get(peer) or self._peers[peer].advertised(self.settings)
        return [
            Target(
                Endpoint(each.host, each.bootstrap_port),
                self._tls_of_probes[each.name].get() if each.name in self._tls_of_probes else None,
            )
            for each in member.listeners
        ]

    async def _probe(self, peer: ProxyId) -> None:
        """Ask a peer's advertised listeners whether a worker lives behind them."""
        patience_s = self._timing.probe_timeout_s
        try:
            targets = await resolve(self._listeners(peer), self._resolver, patience_s)
        except LocalFailure as error:
            self._probe_failed_here(peer, error)
            return
        sent_s = time.monotonic()
        self.detector.probe_sent(peer, sent_s)
        answer = asyncio.create_task(probe_member(targets, patience_s * LATE))
        try:
            async with asyncio.timeout(patience_s):
                outcome = await asyncio.shield(answer)
        except TimeoutError:
            self._probed(peer, ProbeOutcome.TIMED_OUT)
            await self._await_late_answer(peer, answer, sent_s)
        except LocalFailure as error:
            self._probe_failed_here(peer, error)
        else:
            self._probed(peer, outcome)
        finally:
            answer.cancel()

    async def _await_late_answer(
        self, peer: ProxyId, answer: asyncio.Task[ProbeOutcome], sent_s: float
    ) -> None:
        """Of a probe that counts as timed out already: another one may be under way by then."""
        try:
            if await answer is ProbeOutcome.ANSWERED:
                self.detector.answered_late(peer, sent_s, time.monotonic())
                self._evaluate()
        except LocalFailure as error:
            self._failed_here(peer, error)

    def _probed(self, peer: ProxyId, outcome: ProbeOutcome) -> None:
        self.member_troubles.pop(peer, None)
        self.detector.probe_result(peer, outcome, time.monotonic())
        self._evaluate()

    def _probe_failed_here(self, peer: ProxyId, error: LocalFailure) -> None:
        self._failed_here(peer, error)
        self.detector.probe_failed_here(peer, time.monotonic())
        self._evaluate()

    def _failed_here(self, peer: ProxyId, error: LocalFailure) -> None:
        """Count, and say now and then, that this member cannot ask a peer."""
        self.local_failures += 1
        self.member_troubles[peer] = f"{self.me} cannot ask {peer}: {error}"
        if self._local_failures_logged.is_due(time.monotonic(), peer):
            log.warning("this member cannot ask %s, which says nothing of %s: %s", peer, peer, error)

    async def _hold_worker(self, peer: ProxyId) -> None:
        """Hold a connection to a peer's worker, and tell the detector what comes of it."""
        timing = self._timing
        silence_s = GIVE_UP_PERIODS * timing.suspect_after_s
        pace = HoldPace(timing.probe_timeout_s * LATE, timing.heartbeat_s, silence_s)
        while True:
            # One that was committed as a witness has none until its new life is committed.
            with suppress(LocalFailure):  # probes tell of it
                for target in await resolve(self._listeners(peer)[:1], self._resolver, pace.first_s):
                    end = await hold(
                        target,
                        pace,
                        lambda: self.detector.worker_asked(peer, time.monotonic()),
                        lambda: self.detector.worker_answered(peer, time.monotonic()),
                    )
                    self._held_no_more(peer, end)
            # Soon: while none is held, silence in one direction is noticed late.
            await asyncio.sleep(min(HOLD_AGAIN_S, timing.probe_interval_s))

    def _held_no_more(self, peer: ProxyId, end: HoldEnd) -> None:
        now_s, report = time.monotonic(), self.reports.get(peer)
        leaves = self._stopping or (report is not None and report.stopping)
        if end is HoldEnd.LET_GO and not leaves:
            self.detector.worker_lost(peer, now_s)
            self._noticed[peer] = moment()
            self._evaluate()
        elif end is not HoldEnd.NOBODY:
            self.detector.worker_given_up(peer, now_s)
            self._evaluate()

    def _broadcast(self) -> None:
        report = self._report_bytes()
        for peer in self.links.connected:
            self.links.send(peer, Kind.REPORT, report)

    def report(self) -> Report:
        held = self.detector.liveness
        suspects = tuple(sorted(peer for peer in held if held[peer] is Liveness.SUSPECT))
        failed_probes = self.detector.failed_probes
        return Report(
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


def _decisive(report: Report) -> tuple[object, ...]:
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

