"""One member's supervisor: it holds the sockets, starts control and workers, and watches that they live.

A plain loop over a selector: no event loop that could wedge, no Raft, nothing that serves a client. Signals
arrive as bytes on the wake-up pipe, heartbeats as bytes on one pipe for each child. All else is a deadline.

A child that is at work is not asked whether it lives: to answer wakes it up. A worker that has read something
since it was looked at has an event loop that turns; who shows nothing is asked, and owes a heartbeat.
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
"""A child that lived as long as this is restarted as if it had never failed."""
HANDOVER_SHARE: Final = 0.5
"""The part of ``drain_timeout_s`` that control may take to hand its identities over."""
KILL_WAIT_S: Final = 2.0
_TICK_S: Final = 0.25
_PAUSE_SHARE: Final = 0.25
"""The part of ``freeze_timeout_s`` by which this loop may be late: less than children have to answer."""
_READ_BYTES: Final = 4096
_READS: Final = re.compile(rb"^syscr: (\d+)$", re.MULTILINE)
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

Command: TypeAlias = Callable[[ChildSpec], Sequence[str]]
"""The program that a child runs, without its last argument."""


class Phase(Enum):
    """How far a stop has come."""

    SERVING = auto()
    HANDOVER = auto()
    """Control hands over; the workers still serve, and are restarted if need be."""
    DRAINING = auto()
    """Nothing is accepted any more; the workers let what is in flight answer."""


@dataclass(slots=True)
class Child:
    """One place in the member: the process that fills it now, and when it may be filled again.

    Args:
        process: None while nothing runs.
        heartbeat_fd: where its heartbeats are read; -1 while nothing runs.
        lifeline_fd: where it is asked for one, and which ends with this process; -1 while nothing runs.
        io_fd: where the kernel tells what it has read; -1 where that is not to be had.
        last_beat_s: when it was heard last, seen to be at work, or got fresh time; its start at first.
        looked_s, reads: when it was looked at last, and how often it had read something by then.
        asked: whether it owes a heartbeat.
        restart_at_s: when the next one may start.
        backoff_s: what the next failure costs.
    """

    kind: Kind
    index: int
    process: subprocess.Popen[bytes] | None = None
    heartbeat_fd: int = -1
    lifeline_fd: int = -1
    io_fd: int = -1
    started_s: float = 0.0
    last_beat_s: float = 0.0
    looked_s: float = 0.0
    reads: int = 0
    asked: bool = False
    has_beaten: bool = False
    killed: bool = False
    restart_at_s: float = 0.0
    backoff_s: float = field(default=BACKOFF_FIRST_S)

    @property
    def name(self) -> str:
        return "control" if self.kind == "control" else f"worker-{self.index}"

    def silence_ends_s(self, freeze_timeout_s: float) -> float:
        """When it counts as frozen unless it is heard before."""
        return self.last_beat_s + (freeze_timeout_s if self.has_beaten else FIRST_BEAT_LIMIT_S)

    def heard(self, now_s: float) -> None:
        """A heartbeat, or what counts as one."""
        self.last_beat_s = max(self.last_beat_s, now_s)
        self.asked = False

    def look(self, now_s: float) -> None:
        """Count what it has read as a heartbeat, at the time of the look before: it may have stopped since.

        Source: proc_pid_io(5), syscr. Only of a process in which hardly anything but its event loop reads:
        threads that look a broker's name up do, for as long as that takes.
        """
        if self.io_fd < 0:
            return
        try:
            told = _READS.search(os.pread(self.io_fd, _READ_BYTES, 0))
        except OSError:  # it is gone, or on its way; or the kernel does not tell, and will not
            os.close(self.io_fd)
            self.io_fd = -1
            return
        reads = self.reads if told is None else int(told[1])
        if reads != self.reads:
            self.heard(self.looked_s)
        self.reads, self.looked_s = reads, now_s

    def close(self) -> None:
        """Close what this process has of it."""
        for fd in (self.heartbeat_fd, self.lifeline_fd, self.io_fd):
            if fd >= 0:
                os.close(fd)
        self.heartbeat_fd = self.lifeline_fd = self.io_fd = -1

    def ended(self, now_s: float) -> float:
        """Its process is gone; the seconds to wait before the next one."""
        if now_s - self.started_s >= STEADY_S:
            self.backoff_s = BACKOFF_FIRST_S
        wait_s = self.backoff_s
        self.restart_at_s = now_s + wait_s
        self.backoff_s = min(2 * self.backoff_s, BACKOFF_LIMIT_S)
        self.process = None
        return wait_s


def run(settings: Settings, proxy_id: ProxyId) -> int:
    """Be the supervisor of one member until a signal stops it.

    Returns: the exit code: 0 after an orderly stop, 128 + signal where a second signal cut it short.
    Raises:
        UnknownMember: the settings have no such member.
        StartError: a socket or the data directory cannot be had.
    """
    os.umask(0o077)  # what is written tells where the brokers are
    return Supervisor(settings, proxy_id).run()


def _python(spec: ChildSpec) -> Sequence[str]:
    return (*process.python_command(process.MODULES[spec.kind]), f"{spec.proxy_id}/{spec.name}")


class Supervisor:
    """See the module.

    Args:
        command: what children run; the product's own by default.
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
        self._told_ready = False
        workers = 0 if self._member.witness else self._member.workers
        self._control = Child("control", 0)
        self._workers = [Child("worker", index) for index in range(workers)]
        self._children = [self._control, *self._workers]
        self._selector = selectors.DefaultSelector()
        self._wakeup_fd, self._wakeup_write_fd = os.pipe()
        self._lock: DataDirLock | None = None
        self._sockets: sockets.Sockets | None = None

    def run(self) -> int:
        """Serve until stopped; see the module's ``run``."""
        before = self._take_signals()
        try:
            self._lock = data_dir.acquire(self._member)
            self._incarnation = next_incarnation(self._member.private_dir, time.time_ns() // 1_000_000)
            self._sockets = sockets.open_all(self._settings, self._member)
            log.info("serving %d data ports as %s", len(self._sockets.data), self._member.proxy_id)
            return self._loop()
        finally:
            self._release(before)

    # ---- signals

    def _take_signals(self) -> list[tuple[signal.Signals, signal._HANDLER, int]]:
        """Handle explicitly all that matters: as process 1 nothing has a default action."""
        for fd in (self._wakeup_fd, self._wakeup_write_fd):
            os.set_blocking(fd, False)
        self._selector.register(self._wakeup_fd, selectors.EVENT_READ)
        wakeup_before = signal.set_wakeup_fd(self._wakeup_write_fd, warn_on_full_buffer=False)
        wanted: dict[signal.Signals, signal._HANDLER] = {
            signal.SIGCHLD: _arrives_on_the_pipe,
            signal.SIGHUP: signal.SIG_IGN,
        }
        wanted.update((stop, _arrives_on_the_pipe) for stop in _STOP_SIGNALS)
        return [(number, signal.signal(number, handler), wakeup_before) for number, handler in wanted.items()]

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
            if self._phase is Phase.DRAINING and self._stopped(now_s):
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
                        log.warning("second signal: killing what is left")
                        return 128 + stopped_by
                else:
                    self._on_heartbeat(key.data, after_s)
            self._reap(after_s)
            self._ask_silent(after_s)
            self._kill_frozen(after_s)

    def _next_due_s(self, now_s: float) -> float:
        due = [now_s + _TICK_S]
        for child in self._children:
            if child.process is not None and not child.killed:
                due.append(child.silence_ends_s(self._timing.freeze_timeout_s))
                if child.has_beaten and not child.asked:
                    due.append(child.last_beat_s + self._timing.ping_child_after_s)
            elif child.process is None and self._wanted(child):
                due.append(child.restart_at_s)
        return min(due)

    def _running(self) -> list[Child]:
        return [child for child in self._children if child.process is not None]

    def _on_wakeup(self) -> int | None:
        """Read the signals that came; the number of the one that ends everything at once."""
        for number in os.read(self._wakeup_fd, _READ_BYTES):
            if number not in _STOP_SIGNALS:
                continue
            self._stop_signals += 1
            if self._stop_signals > 1:
                return number
            log.info("%s: handing over, then draining", signal.Signals(number).name)
        return None

    def _on_heartbeat(self, child: Child, now_s: float) -> None:
        with suppress(BlockingIOError):
            if os.read(child.heartbeat_fd, _READ_BYTES):
                child.heard(now_s)
                child.has_beaten = True
                self._tell_ready()
            else:
                self._selector.unregister(child.heartbeat_fd)  # it is gone, or on its way: SIGCHLD follows
                child.heard(now_s)
                child.has_beaten = False

    def _tell_ready(self) -> None:
        if not self._told_ready and all(child.has_beaten for child in self._children):
            self._told_ready = True
            log.info("ready: %s", ", ".join(child.name for child in self._children))
            _notify("READY=1")

    def _give_fresh_time(self, now_s: float, gap_s: float) -> None:
        """This process itself was stopped or starved: its children's silence then says nothing."""
        log.warning("was paused for %.1f s", gap_s)
        for child in self._running():
            child.last_beat_s = now_s

    def _ask_silent(self, now_s: float) -> None:
        ask_after_s = self._timing.ping_child_after_s
        for child in self._running():
            if child.killed or not child.has_beaten:
                continue
            child.look(now_s)
            if not child.asked and now_s >= child.last_beat_s + ask_after_s:
                child.asked = True
                child.last_beat_s = now_s - ask_after_s  # however late it is asked, it has its time to answer
                with suppress(BrokenPipeError, BlockingIOError):  # it is gone, or has not read the last ones
                    os.write(child.lifeline_fd, b"?")

    def _kill_frozen(self, now_s: float) -> None:
        for child in self._running():
            if child.killed or now_s < child.silence_ends_s(self._timing.freeze_timeout_s):
                continue
            log.error(
                "%s is frozen: no sign of life for %.1f s; killing it", child.name, now_s - child.last_beat_s
            )
            self._signal(child, signal.SIGKILL)

    # ---- starting and ending children

    def _wanted(self, child: Child) -> bool:
        """Whether a process should run in this place."""
        if child.kind == "control":
            return self._phase is Phase.SERVING
        return self._phase in (Phase.SERVING, Phase.HANDOVER)

    def _start_due(self, now_s: float) -> None:
        for child in self._children:
            if child.process is None and self._wanted(child) and now_s >= child.restart_at_s:
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
            # An interrupt from the terminal goes to the whole process group. What it means is decided here,
            # so children inherit it as blocked, from their first instruction on.
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
            child.process = subprocess.Popen(
                [*self._command(spec), str(spec_fd)],
                stdin=subprocess.DEVNULL,
                env=process.child_environment(child.kind, self._settings, os.environ),
                pass_fds=[*fds, their_heartbeat_fd, their_lifeline_fd, spec_fd, *self._lock.fds],
            )
        except OSError as error:
            child.close()
            log.error("cannot start %s (%s); next try in %.1f s", child.name, error, child.ended(now_s))
            return
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
            for fd in (their_heartbeat_fd, their_lifeline_fd, spec_fd):
                os.close(fd)
        if child.kind == "worker":  # threads of control read, too
            with suppress(OSError):
                child.io_fd = os.open(f"/proc/{child.process.pid}/io", os.O_RDONLY)
        child.started_s = child.last_beat_s = child.looked_s = now_s
        child.has_beaten = child.killed = child.asked = False
        self._selector.register(child.heartbeat_fd, selectors.EVENT_READ, child)
        log.info("started %s (process %d)", child.name, child.process.pid)

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
        """Take note of every process that ended; as process 1, also of strangers'."""
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
        child.process.returncode = code  # Popen would wait for it otherwise
        with suppress(KeyError):
            self._selector.unregister(child.heartbeat_fd)
        child.close()
        wait_s = child.ended(now_s)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        if self._wanted(child):
            log.warning("%s %s; starting it again in %.1f s", child.name, how, wait_s)
        else:
            log.info("%s %s", child.name, how)

    def _signal(self, child: Child, number: signal.Signals) -> None:
        """Safe from reused process ids: a child is not reaped before ``_on_exit`` forgets it."""
        if child.process is not None:
            child.killed = child.killed or number == signal.SIGKILL
            os.kill(child.process.pid, number)

    # ---- stopping

    def _advance(self, now_s: float) -> None:
        """Take the stop a step further where it is time."""
        if self._phase is Phase.SERVING and self._stop_signals:
            self._phase = Phase.HANDOVER
            self._stopping_since_s = now_s
            _notify("STOPPING=1")
            self._signal(self._control, signal.SIGTERM)
        if self._phase is not Phase.HANDOVER:
            return
        limit_s = self._timing.drain_timeout_s * HANDOVER_SHARE
        if self._control.process is None:
            self._drain()
        elif now_s >= self._stopping_since_s + limit_s and not self._control.killed:
            log.warning("control did not hand over within %.1f s; killing it", limit_s)
            self._signal(self._control, signal.SIGKILL)

    def _drain(self) -> None:
        """Refuse new clients, and have the workers end with those they have."""
        assert self._sockets is not None
        self._phase = Phase.DRAINING
        self._sockets.close_data()
        for worker in self._workers:
            self._signal(worker, signal.SIGTERM)

    def _stopped(self, now_s: float) -> bool:
        """Whether nothing is left, or what is left has had its time."""
        left = self._running()
        if not left:
            log.info("stopped")
        elif now_s >= self._stopping_since_s + self._timing.drain_timeout_s:
            names = ", ".join(child.name for child in left)
            log.warning("not drained within %.1f s: killing %s", self._timing.drain_timeout_s, names)
        else:
            return False
        return True

    def _kill_all(self) -> None:
        """Leave no child behind, whatever ends the supervisor."""
        for child in self._running():
            self._signal(child, signal.SIGKILL)
        for child in self._running():
            assert child.process is not None
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(KILL_WAIT_S)


def _arrives_on_the_pipe(_number: int, _frame: FrameType | None) -> None:
    """The wake-up descriptor carries the signal; a handler must exist for that."""


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _notify(state: str) -> None:
    """Tell systemd, where it asked for it.

    Source: sd_notify(3)
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendto(state.encode(), "\0" + address[1:] if address[0] == "@" else address)
