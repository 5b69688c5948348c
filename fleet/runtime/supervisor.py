"""The supervisor of one member: it owns the sockets, starts control and workers, and monitors them.

It is a plain loop over a selector: no event loop that could hang, no Raft, no service for clients. Signals
arrive as bytes on the wake-up pipe, heartbeats as bytes on one pipe for each child. Everything else is a
deadline.

A busy child is not pinged, because an answer would wake it up. If a worker has read anything since the last
check, its event loop runs. A child without any sign of life is pinged and must answer with a heartbeat.
"""

from __future__ import annotations

import logging
import os
import re
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from types import FrameType
from typing import Final, TypeAlias

from fleet.config.settings import MemberSettings, Settings
from fleet.core.model import ProxyId
from fleet.runtime import child as process
from fleet.runtime import data_dir, sockets
from fleet.runtime.child import ChildSpec, Kind, ListenerFd
from fleet.runtime.data_dir import DataDirLock
from fleet.runtime.incarnation import next_incarnation

log = logging.getLogger(__name__)

FIRST_BEAT_LIMIT_S: Final = 30.0
"""How long a child may take to start, or to end, before it counts as frozen."""
BACKOFF_FIRST_S: Final = 0.1
BACKOFF_LIMIT_S: Final = 5.0
STEADY_S: Final = 10.0
"""A child that lived for at least this time is restarted as if it had never failed."""
HANDOVER_SHARE: Final = 0.5
"""The share of ``drain_timeout_s`` in which control must hand over its identities."""
KILL_WAIT_S: Final = 2.0
_TICK_S: Final = 0.25
_PAUSE_SHARE: Final = 0.25
"""The share of ``freeze_timeout_s`` by which this loop may be late: less than the time for an answer."""
_READ_BYTES: Final = 4096
_READS: Final = re.compile(rb"^syscr: (\d+)$", re.MULTILINE)
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

Command: TypeAlias = Callable[[ChildSpec], Sequence[str]]
"""The program that a child runs, without its last argument."""


class Phase(Enum):
    """The progress of a stop."""

    SERVING = auto()
    HANDOVER = auto()
    """Control hands over. The workers still serve, and are restarted if necessary."""
    DRAINING = auto()
    """New connections are refused. The workers wait for the answers to requests in flight."""


@dataclass(slots=True)
class Child:
    """One child of the member: its current process, and the time of its next restart.

    Args:
        process: None while no process runs.
        heartbeat_fd: the pipe with its heartbeats; -1 while no process runs.
        lifeline_fd: the pipe for pings, which ends with this process; -1 while no process runs.
        io_fd: the kernel's count of its reads; -1 if not available.
        last_beat_s: the last heartbeat or sign of work, the start, or the last extension of its time.
        checked_s, reads: the time of the last check, and the number of reads at that time.
        is_pinged: whether a heartbeat is outstanding.
        restart_at_s: when the next process may start.
        backoff_s: the wait after the next failure.
    """

    kind: Kind
    index: int
    process: subprocess.Popen[bytes] | None = None
    heartbeat_fd: int = -1
    lifeline_fd: int = -1
    io_fd: int = -1
    started_s: float = 0.0
    last_beat_s: float = 0.0
    checked_s: float = 0.0
    reads: int = 0
    is_pinged: bool = False
    has_beaten: bool = False
    is_killed: bool = False
    restart_at_s: float = 0.0
    backoff_s: float = field(default=BACKOFF_FIRST_S)

    @property
    def name(self) -> str:
        return "control" if self.kind == "control" else f"worker-{self.index}"

    def silence_ends_s(self, freeze_timeout_s: float) -> float:
        """When the child counts as frozen without a further sign of life."""
        return self.last_beat_s + (freeze_timeout_s if self.has_beaten else FIRST_BEAT_LIMIT_S)

    def record_beat(self, now_s: float) -> None:
        """Record a heartbeat or an equivalent sign of life."""
        self.last_beat_s = max(self.last_beat_s, now_s)
        self.is_pinged = False

    def check_reads(self, now_s: float) -> None:
        """Count new reads as a heartbeat at the time of the previous check: the child may have stopped since.

        Only for a process in which almost only the event loop reads. The exception are threads that look up
        the name of a broker, for the time of the look-up. Source: proc_pid_io(5), syscr
        """
        if self.io_fd < 0:
            return
        try:
            match = _READS.search(os.pread(self.io_fd, _READ_BYTES, 0))
        except OSError:  # the process has ended or is ending, or the kernel has no such count
            os.close(self.io_fd)
            self.io_fd = -1
            return
        reads = self.reads if match is None else int(match[1])
        if reads != self.reads:
            self.record_beat(self.checked_s)
        self.reads, self.checked_s = reads, now_s

    def close(self) -> None:
        """Close the supervisor's descriptors of this child."""
        for fd in (self.heartbeat_fd, self.lifeline_fd, self.io_fd):
            if fd >= 0:
                os.close(fd)
        self.heartbeat_fd = self.lifeline_fd = self.io_fd = -1

    def record_end(self, now_s: float) -> float:
        """Record the end of the process. Returns the seconds to wait before the next start."""
        if now_s - self.started_s >= STEADY_S:
            self.backoff_s = BACKOFF_FIRST_S
        wait_s = self.backoff_s
        self.restart_at_s = now_s + wait_s
        self.backoff_s = min(2 * self.backoff_s, BACKOFF_LIMIT_S)
        self.process = None
        return wait_s


def run(settings: Settings, proxy_id: ProxyId) -> int:
    """Run the supervisor of one member until a signal stops it.

    Returns: the exit code: 0 after an orderly stop, 128 + signal if a second signal interrupted the stop.
    Raises:
        UnknownMember: the settings have no such member.
        StartError: a socket cannot be bound, or the data directory cannot be used.
    """
    os.umask(0o077)  # the member's files contain the addresses of the brokers
    return Supervisor(settings, proxy_id).run()


def _python(spec: ChildSpec) -> Sequence[str]:
    return (*process.python_command(process.MODULES[spec.kind]), f"{spec.proxy_id}/{spec.name}")


class Supervisor:
    """Starts, monitors and stops the children of one member.

    Args:
        command: the program of the children; the fleet's own modules by default.
    """

    def __init__(self, settings: Settings, proxy_id: ProxyId, command: Command = _python) -> None:
        self._settings = settings
        self._timing = settings.timing
        self._member: MemberSettings = settings.member(proxy_id)
        self._command = command
        self._incarnation = 0
        self._phase = Phase.SERVING
        self._stopping_since_s = float("inf")
        self._stop_signals = 0
        self._is_ready_reported = False
        workers = 0 if self._member.witness else self._member.workers
        self.control = Child("control", 0)
        self._workers = [Child("worker", index) for index in range(workers)]
        self._children = [self.control, *self._workers]
        self._selector = selectors.DefaultSelector()
        self._wakeup_fd, self._wakeup_write_fd = os.pipe()
        self._lock: DataDirLock | None = None
        self._sockets: sockets.Sockets | None = None

    def run(self) -> int:
        """Serve until stopped. Returns the exit code, as the function ``run`` does."""
        before = self._take_signals()
        try:
            self._lock = data_dir.acquire(self._member)
            self._incarnation = next_incarnation(self._member.private_dir, time.time_ns() // 1_000_000)
            self._sockets = sockets.open_all(self._settings, self._member)
            log.info("listening: member=%s data_ports=%d", self._member.proxy_id, len(self._sockets.data))
            return self._loop()
        finally:
            self._release(before)

    # ---- signals

    def _take_signals(self) -> list[tuple[signal.Signals, signal._HANDLER, int]]:
        """Install a handler for each relevant signal: process 1 has no default actions."""
        for fd in (self._wakeup_fd, self._wakeup_write_fd):
            os.set_blocking(fd, False)
        self._selector.register(self._wakeup_fd, selectors.EVENT_READ)
        wakeup_before = signal.set_wakeup_fd(self._wakeup_write_fd, warn_on_full_buffer=False)
        handlers: dict[signal.Signals, signal._HANDLER] = {
            signal.SIGCHLD: _ignore_signal,
            signal.SIGHUP: signal.SIG_IGN,
        }
        handlers.update((stop, _ignore_signal) for stop in _STOP_SIGNALS)
        return [
            (number, signal.signal(number, handler), wakeup_before) for number, handler in handlers.items()
        ]

    def _release(self, before: list[tuple[signal.Signals, signal._HANDLER, int]]) -> None:
        for number, handler, wakeup_before in before:
            signal.signal(number, handler)
            signal.set_wakeup_fd(wakeup_before)
        self._kill_all()
        self._selector.close()
        if self._sockets is not None:
            self._sockets.close()
            with suppress(OSError):  # the next start replaces it, and the disk may be read-only
                self._member.control_socket.unlink()
        for child in self._children:
            child.close()
        for fd in (self._wakeup_fd, self._wakeup_write_fd):
            os.close(fd)
        if self._lock is not None:
            self._lock.close()

    # ---- the loop

    def _loop(self) -> int:
        while True:
            now_s = time.monotonic()
            self._start_due(now_s)
            self._advance(now_s)
            if self._phase is Phase.DRAINING and self._is_stopped(now_s):
                return 0
            wait_s = max(0.0, self._next_due_s(now_s) - now_s)
            ready = self._selector.select(wait_s)
            after_s = time.monotonic()
            if after_s - now_s > wait_s + self._timing.freeze_timeout_s * _PAUSE_SHARE:
                self._give_fresh_time(after_s, after_s - now_s)
            for key, _ in ready:
                if key.fd == self._wakeup_fd:
                    stopped_by = self._on_wakeup()
                    if stopped_by is not None:
                        log.warning("second signal received, killing all children")
                        return 128 + stopped_by
                else:
                    self._on_heartbeat(key.data, after_s)
            self._reap(after_s)
            self.ping_silent(after_s)
            self.kill_frozen(after_s)

    def _next_due_s(self, now_s: float) -> float:
        due = [now_s + _TICK_S]
        for child in self._children:
            if child.process is not None and not child.is_killed:
                due.append(child.silence_ends_s(self._timing.freeze_timeout_s))
                if child.has_beaten and not child.is_pinged:
                    due.append(child.last_beat_s + self._timing.ping_child_after_s)
            elif child.process is None and self._should_run(child):
                due.append(child.restart_at_s)
        return min(due)

    def _running(self) -> list[Child]:
        return [child for child in self._children if child.process is not None]

    def _on_wakeup(self) -> int | None:
        """Read the received signals. Returns the number of a second stop signal, else None."""
        for number in os.read(self._wakeup_fd, _READ_BYTES):
            if number not in _STOP_SIGNALS:
                continue
            self._stop_signals += 1
            if self._stop_signals > 1:
                return number
            log.info("stopping, handing over first: signal=%s", signal.Signals(number).name)
        return None

    def _on_heartbeat(self, child: Child, now_s: float) -> None:
        with suppress(BlockingIOError):
            if os.read(child.heartbeat_fd, _READ_BYTES):
                child.record_beat(now_s)
                child.has_beaten = True
                self._report_ready()
            else:
                self._selector.unregister(child.heartbeat_fd)  # the process ends, and SIGCHLD follows
                child.record_beat(now_s)
                child.has_beaten = False

    def _report_ready(self) -> None:
        if not self._is_ready_reported and all(child.has_beaten for child in self._children):
            self._is_ready_reported = True
            log.info("ready: children=%s", ", ".join(child.name for child in self._children))
            _notify("READY=1")

    def _give_fresh_time(self, now_s: float, gap_s: float) -> None:
        """Extend the time of all children after a pause of the supervisor, which explains their silence."""
        log.warning("supervisor was paused: pause_s=%.1f", gap_s)
        for child in self._running():
            child.last_beat_s = now_s

    def ping_silent(self, now_s: float) -> None:
        ping_after_s = self._timing.ping_child_after_s
        for child in self._running():
            if child.is_killed or not child.has_beaten:
                continue
            child.check_reads(now_s)
            if not child.is_pinged and now_s >= child.last_beat_s + ping_after_s:
                child.is_pinged = True
                child.last_beat_s = now_s - ping_after_s  # a late ping does not shorten the time to answer
                with suppress(BrokenPipeError, BlockingIOError):  # the child is dead or does not read
                    os.write(child.lifeline_fd, b"?")

    def kill_frozen(self, now_s: float) -> None:
        for child in self._running():
            if child.is_killed or now_s < child.silence_ends_s(self._timing.freeze_timeout_s):
                continue
            log.error("killing a frozen child: child=%s silent_s=%.1f", child.name, now_s - child.last_beat_s)
            self.send_signal(child, signal.SIGKILL)

    # ---- starting and ending children

    def _should_run(self, child: Child) -> bool:
        """Whether this child should have a process."""
        if child.kind == "control":
            return self._phase is Phase.SERVING
        return self._phase in (Phase.SERVING, Phase.HANDOVER)

    def _start_due(self, now_s: float) -> None:
        for child in self._children:
            if child.process is None and self._should_run(child) and now_s >= child.restart_at_s:
                self._start(child, now_s)

    def _start(self, child: Child, now_s: float) -> None:
        assert self._sockets is not None
        assert self._lock is not None
        child.heartbeat_fd, their_heartbeat_fd = os.pipe()
        their_lifeline_fd, child.lifeline_fd = os.pipe()
        spec_fd = os.memfd_create("child-spec")
        try:
            for fd in (child.heartbeat_fd, child.lifeline_fd):
                os.set_blocking(fd, False)
            spec = self._spec(child, their_heartbeat_fd, their_lifeline_fd)
            _write_all(spec_fd, spec.encode())
            fds = [*spec.fds.values(), *(each.fd for each in spec.listeners)]
            # An interrupt from the terminal reaches the whole process group. Only the supervisor handles it,
            # so that children inherit the signal as blocked, from their first instruction on.
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
            child.process = subprocess.Popen(
                [*self._command(spec), str(spec_fd)],
                stdin=subprocess.DEVNULL,
                env=process.child_environment(child.kind, self._settings, os.environ),
                pass_fds=[*fds, their_heartbeat_fd, their_lifeline_fd, spec_fd, *self._lock.fds],
            )
        except OSError as error:
            child.close()
            wait_s = child.record_end(now_s)
            log.error("cannot start a child: child=%s retry_s=%.1f: %s", child.name, wait_s, error)
            return
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
            for fd in (their_heartbeat_fd, their_lifeline_fd, spec_fd):
                os.close(fd)
        if child.kind == "worker":  # in control, threads read as well
            with suppress(OSError):
                child.io_fd = os.open(f"/proc/{child.process.pid}/io", os.O_RDONLY)
        child.started_s = child.last_beat_s = child.checked_s = now_s
        child.has_beaten = child.is_killed = child.is_pinged = False
        self._selector.register(child.heartbeat_fd, selectors.EVENT_READ, child)
        log.info("started a child: child=%s pid=%d", child.name, child.process.pid)

    def _spec(self, child: Child, heartbeat_fd: int, lifeline_fd: int) -> ChildSpec:
        assert self._sockets is not None
        fds = {}
        listeners: tuple[ListenerFd, ...] = ()
        if child.kind == "control":
            fds = {
                process.PEER_FD: self._sockets.peer.fileno(),
                process.ADMIN_FD: self._sockets.admin.fileno(),
                process.CONTROL_FD: self._sockets.control.fileno(),
            }
        else:
            listeners = tuple(
                ListenerFd(each.listener, each.broker_id, each.socket.fileno()) for each in self._sockets.data
            )
        return ChildSpec(
            settings=self._settings,
            proxy_id=self._member.proxy_id,
            kind=child.kind,
            index=child.index,
            incarnation=self._incarnation,
            parent_pid=os.getpid(),
            heartbeat_fd=heartbeat_fd,
            lifeline_fd=lifeline_fd,
            fds=fds,
            listeners=listeners,
            private_dir=self._member.private_dir,
        )

    def _reap(self, now_s: float) -> None:
        """Reap every process that has ended; as process 1, also processes of others."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for child in self._running():
                if child.process is not None and child.process.pid == pid:
                    self._on_exit(child, os.waitstatus_to_exitcode(status), now_s)

    def _on_exit(self, child: Child, code: int, now_s: float) -> None:
        assert child.process is not None
        child.process.returncode = code  # otherwise Popen would wait for the process
        with suppress(KeyError):
            self._selector.unregister(child.heartbeat_fd)
        child.close()
        wait_s = child.record_end(now_s)
        cause = f"signal={signal.Signals(-code).name}" if code < 0 else f"exit_code={code}"
        if self._should_run(child):
            log.warning("child ended, restarting it: child=%s %s backoff_s=%.1f", child.name, cause, wait_s)
        else:
            log.info("child ended: child=%s %s", child.name, cause)

    def send_signal(self, child: Child, number: signal.Signals) -> None:
        """Send a signal to a child. Process ids cannot be reused: ``_on_exit`` clears a reaped child."""
        if child.process is not None:
            child.is_killed = child.is_killed or number == signal.SIGKILL
            os.kill(child.process.pid, number)

    # ---- stopping

    def _advance(self, now_s: float) -> None:
        """Advance the stop to its next phase when that is due."""
        if self._phase is Phase.SERVING and self._stop_signals:
            self._phase = Phase.HANDOVER
            self._stopping_since_s = now_s
            _notify("STOPPING=1")
            self.send_signal(self.control, signal.SIGTERM)
        if self._phase is not Phase.HANDOVER:
            return
        limit_s = self._timing.drain_timeout_s * HANDOVER_SHARE
        if self.control.process is None:
            self._drain()
        elif now_s >= self._stopping_since_s + limit_s and not self.control.is_killed:
            log.warning("killing control, which did not hand over in time: limit_s=%.1f", limit_s)
            self.send_signal(self.control, signal.SIGKILL)

    def _drain(self) -> None:
        """Refuse new clients, and make the workers finish with their current clients."""
        assert self._sockets is not None
        self._phase = Phase.DRAINING
        self._sockets.close_data()
        for worker in self._workers:
            self.send_signal(worker, signal.SIGTERM)

    def _is_stopped(self, now_s: float) -> bool:
        """Whether no child is left, or the remaining children have used up their time."""
        left = self._running()
        if not left:
            log.info("stopped")
        elif now_s >= self._stopping_since_s + self._timing.drain_timeout_s:
            names = ", ".join(child.name for child in left)
            limit_s = self._timing.drain_timeout_s
            log.warning(
                "killing children that did not drain in time: children=%s limit_s=%.1f", names, limit_s
            )
        else:
            return False
        return True

    def _kill_all(self) -> None:
        """Kill all children, for any end of the supervisor."""
        for child in self._running():
            self.send_signal(child, signal.SIGKILL)
        for child in self._running():
            assert child.process is not None
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(KILL_WAIT_S)


def _ignore_signal(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the signal arrives on the wake-up pipe, for which a handler must exist."""


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _notify(state: str) -> None:
    """Send a state to systemd if systemd has requested it.

    Source: sd_notify(3)
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendto(state.encode(), "\0" + address[1:] if address[0] == "@" else address)
