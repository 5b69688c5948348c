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
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any

import uvloop
from aiohttp import web
from pydantic import TypeAdapter

from fleet import directory, ipc, process
from fleet.admin import http
from fleet.admin.view import Check, FleetView, MemberView, Moment, RaftView
from fleet.brokers import BrokerWatch
from fleet.config import Settings
from fleet.errors import UnknownMember
from fleet.leader import Leader, Report
from fleet.links import Kind, PeerLinks
from fleet.membership import Detector
from fleet.model import (
    Broker,
    Directory,
    Endpoint,
    FleetState,
    Liveness,
    MemberStatus,
    ProxyId,
)
from fleet.probe import probe_member
from fleet.process import ADMIN_FD, CONTROL_FD, PEER_FD, ChildSpec
from fleet.raft_state import Applied, RaftNode, RaftSettings, RaftStatus
from fleet.state import Command, DrainSet, Outcome, stamp
from fleet.takeovers import TakeoverWatch
from fleet.workers import Workers

log = logging.getLogger(__name__)

_REPORT: TypeAdapter[Report] = TypeAdapter(Report)

COMMAND_TIMEOUT_S = 5.0
HANDOVER_SHARE = 0.45
"""The part of ``drain_timeout_s`` that handing over may take; the supervisor allows a little more."""
WORKERS_START_S = 1.0
"""How long peers are kept waiting for a report, so that the first one does not say 'no worker yet'."""


def _moment() -> Moment:
    return Moment(time.time_ns() // 1_000_000, time.monotonic())


class Control:
    """See the module. One object a process, made and used on its event loop.

    Args:
        spec: what the supervisor passed on: settings and sockets.
    """

    def __init__(self, spec: ChildSpec) -> None:
        settings = spec.settings
        self._spec = spec
        self._settings = settings
        self._timing = settings.timing
        self._mine = settings.member(spec.proxy_id)
        self._me: ProxyId = spec.proxy_id
        self._member = replace(self._mine.advertised(settings), incarnation=spec.incarnation)
        self._loop = asyncio.get_running_loop()
        self._started_s = time.monotonic()
        self._peers = {p: m for p, m in settings.members.items() if p != self._me}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failed: asyncio.Future[None] = self._loop.create_future()

        self._state = FleetState()
        self._status: RaftStatus | None = None
        self._reports: dict[ProxyId, Report] = {}
        self._heard_s: dict[ProxyId, float] = {}
        self._directory = Directory()
        self._unsaved: Directory | None = None
        self._saving = asyncio.Event()
        self._stopping = False
        self._handed_over = asyncio.Event()
        self._workerless_since_s: float | None = self._started_s
        self._takeovers = TakeoverWatch()

        self._workers = Workers(
            _inherited(spec.fds[CONTROL_FD]), self._on_brokers_seen, self._on_directory_applied
        )
        self._brokers = BrokerWatch(settings, self._refresh)
        self._detector = Detector(self._me, tuple(self._peers), self._timing, self._started_s)
        carriers = [proxy_id for proxy_id, member in settings.members.items() if not member.witness]
        self._leader = Leader(self._timing, settings.voters, carriers)
        self._links = PeerLinks(
            self._me,
            spec.incarnation,
            settings.fleet,
            {proxy_id: member.peer for proxy_id, member in self._peers.items()},
            _inherited(spec.fds[PEER_FD]),
            self,
        )
        self._raft = RaftNode(
            _raft_settings(settings, self._me),
            send=self._send_raft,
            on_change=self._on_raft_change,
        )
        self._admin: web.AppRunner | None = None

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
        process.watch_lifeline(self._loop, self._spec.lifeline_fd)
        self._spawn(process.beat(self._spec.heartbeat_fd, self._timing.heartbeat_s))
        self._raft.start()
        await self._workers.start()
        self._admin = await http.serve(self, _inherited(self._spec.fds[ADMIN_FD]))
        self._spawn(self._brokers.run())
        self._spawn(self._save_directories())
        if not self._mine.witness:
            with suppress(TimeoutError):
                async with asyncio.timeout(WORKERS_START_S):
                    await self._workers.wait_for_one()
        await self._links.start()
        self._spawn(self._tick())

    async def _stop(self) -> None:
        await self._links.stop()
        await asyncio.to_thread(self._raft.stop)
        if self._admin is not None:
            await self._admin.cleanup()
        await self._workers.stop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something for as long as this process lives; where it fails, so does the process."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._failed.done():
            self._failed.set_exception(error)

    async def _hand_over(self) -> None:
        """Tell the others that this member goes, and wait until its identities are theirs."""
        self._stopping = True
        log.info("stopping: handing identities over")
        self._evaluate()
        self._broadcast()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timing.drain_timeout_s * HANDOVER_SHARE):
                await self._handed_over.wait()

    def _is_handed_over(self) -> bool:
        others = [
            proxy_id
            for proxy_id, report in self._reports.items()
            if self._detector.liveness[proxy_id] is Liveness.UP and not report.stopping
        ]
        if not others or self._status is None or not self._status.has_quorum:
            return True
        if any(self._me in ownership.owners for ownership in self._state.ownership.values()):
            return False
        # The others have to know it, too, before clients are sent to them.
        return all(self._reports[proxy_id].generation >= self._state.generation for proxy_id in others)

    # -- what comes in -------------------------------------------------------------------------------------

    def on_up(self, peer: ProxyId) -> None:
        """LinkEvents: the link to a peer is there."""
        self._detector.link_up(peer, time.monotonic())
        self._raft.link_up(peer)
        self._links.send(peer, Kind.REPORT, self._report_bytes())
        self._evaluate()

    def on_down(self, peer: ProxyId, reason: str) -> None:
        """LinkEvents: the link to a peer is gone."""
        log.info("link to %s is down: %s", peer, reason)
        self._detector.link_down(peer, time.monotonic())
        self._raft.link_down(peer)
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
        before = self._reports.get(peer)
        self._reports[peer] = report
        self._heard_s[peer] = now_s
        self._detector.heartbeat(peer, report.ready, report.incarnation, now_s)
        if before is None or _decisive(before) != _decisive(report):
            self._evaluate()

    def _send_raft(self, peer: ProxyId, payload: bytes) -> None:
        """Called on the Raft thread."""
        with suppress(RuntimeError):  # the loop is closed: this process is on its way out
            self._loop.call_soon_threadsafe(self._links.send, peer, Kind.RAFT, payload)

    def _on_raft_change(self, state: FleetState, status: RaftStatus, applied: tuple[Applied, ...]) -> None:
        """Called on the Raft thread."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._raft_changed, state, status, applied)

    def _raft_changed(self, state: FleetState, status: RaftStatus, applied: tuple[Applied, ...]) -> None:
        before, self._state, self._status = self._state, state, status
        if state.ownership is not before.ownership:
            self._takeovers.committed(state, _moment())
        for proxy_id, member in state.members.items():
            was = before.members.get(proxy_id)
            if was is not None and was.eligible and not member.eligible:
                self._note_takeover(
                    proxy_id, "drain" if member.status is not MemberStatus.DOWN else "down", before
                )
        if state.brokers is not before.brokers:
            self._brokers.learn(state.brokers)
        for each in applied:
            log.debug("applied %s: %s", each.command, each.outcome)
        self._evaluate()

    def _on_brokers_seen(self, brokers: tuple[Broker, ...]) -> None:
        self._brokers.saw(brokers)
        self._refresh()

    def _on_directory_applied(self, revision: int) -> None:
        self._takeovers.applied(revision, _moment())

    # -- what goes out -------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            self._broadcast()
            self._evaluate()
            await asyncio.sleep(self._timing.heartbeat_s)

    def _evaluate(self) -> None:
        """Draw the conclusions from whatever has just been observed. Cheap, and idempotent."""
        now_s = time.monotonic()
        transitions = self._detector.tick(now_s)
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
                self._note_takeover(transition.peer, transition.reason, self._state)
        if transitions:
            # The leader commits what a majority suspects, so it has to hear of it now.
            self._broadcast()
        for peer in self._detector.probes_due(now_s):
            self._spawn(self._probe(peer))
        self._lead()
        if self._stopping and self._is_handed_over():
            self._handed_over.set()

    def _refresh(self) -> None:
        """The brokers that are known, or can be reached, have changed."""
        self._publish(time.monotonic())
        self._broadcast()

    def _publish(self, now_s: float) -> None:
        """Hand the workers a new directory, where it says something new."""
        down = frozenset(p for p, m in self._state.members.items() if m.status is MemberStatus.DOWN)
        newest = directory.build(
            self._state,
            self._detector.suspects(now_s, self._has_quorum, down),
            None if self._mine.witness else self._member,
            self._directory.revision,
            self._brokers.known,
        )
        if newest == self._directory:
            return
        self._directory = replace(newest, revision=self._directory.revision + 1)
        self._workers.publish(self._directory)
        self._unsaved = self._directory
        self._saving.set()

    async def _save_directories(self) -> None:
        """Keep the newest directory on disk, for a worker that starts while there is no control process."""
        path = self._mine.data_dir / ipc.DIRECTORY_FILE
        while True:
            await self._saving.wait()
            self._saving.clear()
            newest, self._unsaved = self._unsaved, None
            if newest is not None:
                try:
                    await asyncio.to_thread(ipc.write_directory, path, newest)
                except OSError as error:
                    log.error("cannot save the directory in %s: %s", path, error)

    def _note_takeover(self, proxy_id: ProxyId, reason: str, state: FleetState) -> None:
        self._takeovers.detected(proxy_id, reason, state, self._directory.revision, _moment())

    async def _probe(self, peer: ProxyId) -> None:
        """Ask a peer's advertised listeners whether a worker lives behind them."""
        member = self._state.members.get(peer) or self._peers[peer].advertised(self._settings)
        endpoints = [Endpoint(each.host, each.bootstrap_port) for each in member.listeners]
        outcome = await probe_member(endpoints, self._timing.probe_timeout_s)
        self._detector.probe_result(peer, outcome, time.monotonic())
        self._evaluate()

    def _broadcast(self) -> None:
        report = self._report_bytes()
        for peer in self._links.connected:
            self._links.send(peer, Kind.REPORT, report)

    def _report(self) -> Report:
        held = self._detector.liveness
        return Report(
            proxy_id=self._me,
            incarnation=self._spec.incarnation,
            member=self._member,
            ready=self._serving(time.monotonic()),
            stopping=self._stopping,
            suspects=tuple(sorted(peer for peer in held if held[peer] is Liveness.SUSPECT)),
            brokers=self._brokers.listed,
            unreachable=self._brokers.unreachable,
            generation=self._directory.generation,
        )

    def _report_bytes(self) -> bytes:
        return _REPORT.dump_json(self._report())

    def _serving(self, now_s: float) -> bool:
        """Whether there is a worker, or one was there a moment ago and is being started again."""
        if self._mine.witness or self._workers.connected:
            self._workerless_since_s = None
            return True
        if self._workerless_since_s is None:
            self._workerless_since_s = now_s
        return now_s - self._workerless_since_s < self._timing.suspect_after_s

    # -- leading -------------------------------------------------------------------------------------------

    @property
    def _has_quorum(self) -> bool:
        return self._status is not None and self._status.has_quorum

    def _lead(self) -> None:
        if self._status is None or self._status.role != "leader":
            self._leader.reset()
            return
        reports = {p: r for p, r in self._reports.items() if p in self._links.connected}
        reports[self._me] = self._report()
        liveness = {**self._detector.liveness, self._me: Liveness.UP}
        for command in self._leader.propose(self._state, reports, liveness, time.monotonic()):
            self._propose(command).add_done_callback(_log_failure)

    def _propose(self, command: Command) -> Future[Outcome]:
        stamped = stamp(command, f"{self._me}-{uuid.uuid4().hex}", time.time_ns() // 1_000_000)
        return self._raft.propose(stamped, COMMAND_TIMEOUT_S)

    # -- AdminSource ---------------------------------------------------------------------------------------

    async def drain(self, proxy_id: ProxyId, drained: bool) -> Outcome:
        """AdminSource: commit that a member is to own nothing, or may own again."""
        if proxy_id not in self._settings.members:
            raise UnknownMember(f"no member {proxy_id!r}; members are {', '.join(self._settings.members)}")
        return await asyncio.wrap_future(self._propose(DrainSet(proxy_id, drained)))

    def view(self) -> FleetView:
        """AdminSource: everything that this member shows, as of now."""
        now = _moment()
        status = self._status
        return FleetView(
            fleet=self._settings.fleet,
            me=self._me,
            now=now,
            started_mono_s=self._started_s,
            incarnation=self._spec.incarnation,
            state=self._state,
            directory=self._directory,
            raft=RaftView()
            if status is None
            else RaftView(
                status.role,
                status.leader,
                status.term,
                status.commit_index,
                status.has_quorum,
                status.quorum_lost_mono_s,
            ),
            members=tuple(self._member_view(proxy_id, now.mono_s) for proxy_id in self._settings.members),
            workers=self._workers.views(),
            retired=self._workers.retired,
            worker_restarts=self._workers.restarts,
            upstream_up=self._brokers.reachable,
            takeovers=self._takeovers.log,
            checks=self._checks(),
        )

    def _member_view(self, proxy_id: ProxyId, now_s: float) -> MemberView:
        settings = self._settings.members[proxy_id]
        own = proxy_id == self._me
        report = self._report() if own else self._reports.get(proxy_id)
        heard_s = self._heard_s.get(proxy_id)
        return MemberView(
            proxy_id,
            settings.rack,
            settings.voter,
            settings.witness,
            settings.admin,
            committed=self._state.members.get(proxy_id),
            liveness=Liveness.UP if own else self._detector.liveness[proxy_id],
            ready=None if report is None else report.ready,
            generation=None if report is None else report.generation,
            stopping=report is not None and report.stopping,
            connected=own or proxy_id in self._links.connected,
            silent_s=0.0 if own else None if heard_s is None else now_s - heard_s,
        )

    def _checks(self) -> tuple[Check, ...]:
        if self._mine.witness:
            return ()
        connected = self._workers.connected
        up = sorted(broker_id for broker_id, reachable in self._brokers.reachable.items() if reachable)
        return (
            Check("workers", connected > 0, f"{connected} of {self._mine.workers} connected"),
            Check(
                "directory",
                self._directory.generation > 0 and bool(self._directory.brokers),
                f"generation {self._directory.generation}, {len(self._directory.brokers)} brokers",
            ),
            Check("upstream", bool(up), f"reachable brokers: {up}" if up else "no broker answers"),
        )


def _decisive(report: Report) -> tuple[object, ...]:
    """The part of a report that something may have to be done about at once."""
    return report.incarnation, report.ready, report.stopping, report.suspects, report.member


def _log_failure(future: Future[Outcome]) -> None:
    error = future.exception()
    if error is not None:
        log.info("a proposal came to nothing: %s", error)


def _inherited(fd: int) -> socket.socket:
    sock = socket.socket(fileno=fd)
    sock.setblocking(False)
    return sock


def _raft_settings(settings: Settings, me: ProxyId) -> RaftSettings:
    timing = settings.timing
    return RaftSettings(
        me=me,
        voters=settings.voters,
        observers=tuple(proxy_id for proxy_id, member in settings.members.items() if not member.voter),
        data_dir=settings.member(me).data_dir,
        append_entries_s=timing.append_entries_s,
        election_min_s=timing.election_min_s,
        election_max_s=timing.election_max_s,
        leader_fallback_s=timing.leader_fallback_s,
    )


async def _serve(spec: ChildSpec) -> None:
    await Control(spec).run()


def main() -> None:
    """Be the control process that the supervisor asked for."""
    spec = process.spec_from_argv(sys.argv)
    process.die_with_parent(spec.parent_pid)
    process.log_to_stderr(f"{spec.proxy_id}/{spec.name}")
    uvloop.run(_serve(spec))


if __name__ == "__main__":
    main()
