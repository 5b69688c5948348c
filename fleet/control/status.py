"""The status of a control process for the admin interface, built for each request."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Future
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from fleet.admin.snapshot import Check, FleetView, MemberView, RaftView
from fleet.config import MemberSettings, Settings
from fleet.control.broker_watch import BrokerWatch
from fleet.control.clock import moment
from fleet.control.detector import FailureDetector
from fleet.control.directory_publisher import DirectoryPublisher
from fleet.control.links import PeerLinks
from fleet.control.prober import Prober
from fleet.control.reports import MemberReport
from fleet.control.takeover_watch import TakeoverWatch
from fleet.control.worker_channels import WorkerChannels
from fleet.core.errors import UnknownMember
from fleet.core.model import BrokerId, FleetState, Liveness, ProxyId
from fleet.core.replication import RaftStatus
from fleet.core.state import Command, DrainSet, Outcome, PinSet
from fleet.runtime.child import ChildSpec
from fleet.runtime.ephemeral_ports import (
    EphemeralPorts,
    PortTrouble,
    port_trouble,
    read_ephemeral_ports,
)
from fleet.runtime.sockets import listening_ports
from fleet.runtime.stderr_log import dropped_lines
from fleet.tls.reloading import Reloading

if TYPE_CHECKING:
    from fleet.control.tracing import Tracing
    from fleet.events.stream import EventStream


class ControlState(Protocol):
    """The parts of a control process that the admin interface shows, and the command that it accepts."""

    spec: ChildSpec
    settings: Settings
    me: ProxyId
    own_settings: MemberSettings
    started_s: float
    state: FleetState
    status: RaftStatus | None
    reports: dict[ProxyId, MemberReport]
    report_received_s: dict[ProxyId, float]
    prober: Prober
    detector: FailureDetector
    links: PeerLinks
    workers: WorkerChannels
    brokers: BrokerWatch
    directories: DirectoryPublisher
    takeovers: TakeoverWatch
    events: EventStream | None
    tracing: Tracing | None

    @property
    def thread_restarts(self) -> Mapping[str, int]: ...

    def report(self) -> MemberReport:
        """The report that this member sends to its peers."""
        ...

    def propose(self, command: Command) -> Future[Outcome]:
        """Propose a command to Raft."""
        ...


REJOINING_NOTICE: Final = (
    "has forgotten promises (reset, emptied or restored): votes again once it has caught up and has heard "
    "all other voters"
)


class StatusSource:
    """``AdminSource`` for a control process; runs on the event loop of the process."""

    def __init__(self, control: ControlState) -> None:
        self._control = control
        self._expiry: dict[Path, Reloading[datetime | None]] = {}
        self._checked_ports: tuple[EphemeralPorts | None, PortTrouble | None] = (None, None)

    async def drain(self, proxy_id: ProxyId, drained: bool) -> Outcome:
        """Commit that a member must own nothing, or may own again."""
        self._require_member(proxy_id)
        return await asyncio.wrap_future(self._control.propose(DrainSet(proxy_id, drained)))

    async def pin(self, broker_id: BrokerId, proxy_id: ProxyId | None) -> Outcome:
        """Commit that one member must own an identity, or (None) that any member may."""
        if proxy_id is not None:
            self._require_member(proxy_id)
        return await asyncio.wrap_future(self._control.propose(PinSet(broker_id, proxy_id)))

    def _require_member(self, proxy_id: ProxyId) -> None:
        members = self._control.settings.members
        if proxy_id not in members:
            raise UnknownMember(f"no member {proxy_id!r}; members are {', '.join(members)}")

    async def counted_view(self) -> FleetView:
        """Everything that this member shows, and what its workers have counted by now."""
        await self._control.workers.refresh_counters()
        return self.view()

    def view(self) -> FleetView:
        """The current status of this member, with the last counters that its workers sent."""
        control = self._control
        now = moment()
        return FleetView(
            fleet=control.settings.fleet,
            me=control.me,
            now=now,
            started_mono_s=control.started_s,
            incarnation=control.spec.incarnation,
            state=control.state,
            directory=control.directories.current,
            raft=_raft_view(control.status),
            members=tuple(self._member_view(proxy_id, now.mono_s) for proxy_id in control.settings.members),
            workers=control.workers.views(),
            retired=control.workers.retired,
            worker_restarts=control.workers.restarts,
            local_failures=control.prober.local_failures,
            dropped_log_lines=dropped_lines(),
            upstream_up=control.brokers.reachable,
            broker_troubles=control.brokers.troubles,
            member_troubles=tuple(control.prober.member_troubles.values()),
            port_trouble=self.find_port_trouble(),
            takeovers=control.takeovers.log,
            checks=self._checks(),
            certificate_expiry_s=self.certificate_expiry(),
            events=None if control.events is None else control.events.progress,
            thread_restarts=control.thread_restarts,
            traced=control.tracing is not None,
            balanced_by=control.settings.balance.by,
        )

    def find_port_trouble(self) -> PortTrouble | None:
        """Check the ports only after a change of the kernel's settings: there may be thousands of ports."""
        kernel = read_ephemeral_ports()
        if kernel != self._checked_ports[0]:
            ports = listening_ports(self._control.settings, self._control.own_settings)
            self._checked_ports = (kernel, port_trouble(ports, kernel))
        return self._checked_ports[1]

    def certificate_expiry(self) -> Mapping[str, float]:
        settings, me = self._control.settings, self._control.me
        sections: dict[str, Mapping[str, Path]] = {
            f"listener_tls.{name}": tls.for_member(me).files for name, tls in settings.listener_tls.items()
        }
        if settings.peer_tls is not None:
            own = settings.peer_tls.files(me)
            sections["peer_tls"] = {"ca": own.ca, "certificate": own.certificate}
        if settings.admin.tls is not None:
            sections["admin.tls"] = settings.admin.tls.for_member(me).files
        if settings.upstream.tls is not None:
            sections["upstream.tls"] = settings.upstream.tls.files
        files = {
            f"{section}.{field}": path
            for section, named in sections.items()
            for field, path in named.items()
            if "key" not in field
        }
        found = {field: self._expiry_of(path) for field, path in files.items()}
        return {field: expires.timestamp() for field, expires in found.items() if expires is not None}

    def _expiry_of(self, path: Path) -> datetime | None:
        """The expiry of a certificate, read once per change of its file: requests may come often."""
        if path not in self._expiry:
            from fleet.tls import checking  # saves a fleet without certificates 15 MB

            self._expiry[path] = Reloading((path,), lambda: checking.file_expiry(path), "certificate")
        return self._expiry[path].get()

    def _member_view(self, proxy_id: ProxyId, now_s: float) -> MemberView:
        control = self._control
        settings = control.settings.members[proxy_id]
        own = proxy_id == control.me
        connected = own or proxy_id in control.links.connected
        report = control.report() if own else control.reports.get(proxy_id)
        received_s = control.report_received_s.get(proxy_id)
        return MemberView(
            proxy_id,
            settings.rack,
            settings.voter,
            settings.witness,
            settings.admin,
            committed=control.state.members.get(proxy_id),
            liveness=Liveness.UP if own else control.detector.liveness[proxy_id],
            ready=None if report is None else report.ready,
            generation=None if report is None else report.generation,
            stopping=report is not None and report.stopping,
            connected=connected,
            silent_s=0.0 if own else None if received_s is None else now_s - received_s,
            has_voter_digest=proxy_id not in control.links.without_digests if connected else None,
        )

    def _checks(self) -> tuple[Check, ...]:
        control = self._control
        if control.own_settings.witness:
            return ()
        connected = control.workers.connected
        generation, brokers = control.directories.current.generation, control.directories.current.brokers
        up = sorted(broker_id for broker_id, reachable in control.brokers.reachable.items() if reachable)
        return (
            Check("workers", connected > 0, f"{connected} of {control.own_settings.workers} connected"),
            Check(
                "directory",
                generation > 0 and bool(brokers),
                f"generation {generation}, {len(brokers)} brokers",
            ),
            Check("upstream", bool(up), f"reachable brokers: {up}" if up else "no broker answers"),
        )


def _raft_view(status: RaftStatus | None) -> RaftView:
    if status is None:
        return RaftView()
    return RaftView(
        status.role,
        status.leader,
        status.term,
        status.commit_index,
        status.has_quorum,
        status.quorum_lost_mono_s,
        status.journal_error or (REJOINING_NOTICE if status.rejoining else None),
        status.distrusted,
    )
