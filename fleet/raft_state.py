"""The replicated state of one member: a thread that runs Raft, with a thread-safe interface.

The thread has its own queue, so that a disk flush does not delay heartbeats of the control loop. Every input
wakes the thread immediately; otherwise it ticks. A failed write, or any other internal error, is treated as a
crash of Raft alone: everything is closed and opened again from disk, until opening succeeds.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, cast

from fleet.core.errors import JournalError, RaftError
from fleet.core.model import FleetState, ProxyId
from fleet.core.replication import Applied, RaftStatus, Role
from fleet.core.state import Command, Outcome, Unknown, apply, decode, encode
from fleet.raft import guards
from fleet.raft.machine import LogSettings
from fleet.raft.proposals import Proposal, Proposals, fail
from fleet.raft.storage import Replica
from fleet.raft.transport import MemberTransport

log = logging.getLogger(__name__)


_REOPEN_S: Final = 1.0
_LEADER_STALE_S: Final = 0.8
_STOP_TIMEOUT_S: Final = 5.0
_MAX_INPUTS: Final = 256
"""How many inputs are processed between two ticks."""


@dataclass(frozen=True, slots=True)
class RaftSettings:
    """Members, folder and times (in seconds) of Raft.

    Args:
        folder: the folder of the member's files; Raft's files are in ``raft`` below it.
        compact_entries: length of the log at which a snapshot replaces it.
    """

    me: ProxyId
    voters: tuple[ProxyId, ...]
    observers: tuple[ProxyId, ...]
    folder: Path
    append_entries_s: float = 0.05
    election_min_s: float = 0.2
    election_max_s: float = 0.4
    leader_fallback_s: float = 0.5
    tick_s: float = 0.01
    compact_entries: int = 500


def wait_s(due_in_s: float, tick_s: float, rest_s: float) -> float:
    """How long to wait until the next action is due, at most ``rest_s``.

    An overdue action cannot be done yet, for reasons that each tick checks again.
    """
    return min(due_in_s, rest_s) if due_in_s > 0 else tick_s


class RaftNode:
    """One voter or observer.

    Args:
        send: passes a payload for a member to the links; called on the Raft thread, must not block.
        on_change: called on the Raft thread with the state, the status and the commands applied since the
            last call; at most once a tick, if any of them is new. The first call has the state from disk.
        on_end: called on the Raft thread if an error ends that thread for good.
    """

    def __init__(
        self,
        settings: RaftSettings,
        send: Callable[[ProxyId, bytes], None],
        on_change: Callable[[FleetState, RaftStatus, tuple[Applied, ...]], None],
        on_end: Callable[[BaseException], object] = lambda error: None,
    ) -> None:
        if settings.me not in settings.voters + settings.observers:
            raise RaftError(f"{settings.me} is neither a voter nor an observer")
        self.settings = settings
        self._is_voter = settings.me in settings.voters
        self._send = send
        self.on_change = on_change
        self._on_end = on_end
        self._inputs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="raft", daemon=True)
        self._stale_s = max(_LEADER_STALE_S, 2 * settings.election_max_s)
        self._started = self._ended = False
        self.replica: Replica | None = None
        self._reopen_at_s = 0.0
        self._linked: set[ProxyId] = set()
        self.proposals = Proposals()
        self._working = FleetState()
        self._applied: list[Applied] = []
        self._applied_index = 0
        self._dropped_before = 0
        self._error: str | None = None
        self._published: tuple[FleetState, RaftStatus] | None = None
        self._state = FleetState()
        role: Role = "follower" if self._is_voter else "observer"
        self._status = RaftStatus(role, None, 0, 0, False, time.monotonic())

    @property
    def status(self) -> RaftStatus:
        return self._status

    @property
    def state(self) -> FleetState:
        """The state after the last commit that this member knows, with or without a quorum."""
        return self._state

    def start(self) -> None:
        """Read the files into ``state``, and start the thread.

        Raises:
            JournalError: the journal or the snapshot is corrupt, or belongs to another process or member.
            RaftError: the installed pysyncobj is not supported.
        """
        guards.check_library()
        try:
            self._open()
        except BaseException:
            self._close()
            raise
        self._applied.clear()  # these commands were applied in an earlier life
        self._observe(time.monotonic())
        self._started = True
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close the files. Pending commands fail."""
        if not self._started:
            return
        self._inputs.put(None)
        self._thread.join(_STOP_TIMEOUT_S)
        if self._thread.is_alive():
            log.error("Raft thread did not end, the disk may hang: timeout_s=%g", _STOP_TIMEOUT_S)

    def link_up(self, peer: ProxyId) -> None:
        self._inputs.put(partial(self._link_up, peer))

    def link_down(self, peer: ProxyId) -> None:
        self._inputs.put(partial(self._link_down, peer))

    def receive(self, peer: ProxyId, payload: bytes) -> None:
        """Queue a payload from another member. Malformed payloads are dropped and counted later."""
        self._inputs.put(partial(self._receive, peer, payload))

    def propose(self, command: Command, timeout_s: float) -> Future[Outcome]:
        """Commit a stamped command. It is retried until the timeout; its id makes retries safe.

        Returns: a future of the outcome of the command when this member applied it. The future fails with
            NoQuorum: no leader got the command in time, so it will never be committed;
            CommandTimeout: a leader got the command, so it may still be committed;
            ValueError: the command has no id, or is too large.
        """
        try:
            if not command.command_id:
                raise ValueError(f"{command.kind}: has no id")
            proposal = Proposal(command.command_id, encode(command), time.monotonic() + timeout_s)
        except ValueError as error:
            failed: Future[Outcome] = Future()
            failed.set_exception(error)
            return failed
        self._inputs.put(partial(self.proposals.add, proposal))
        if self._ended:
            fail(proposal, "this member has stopped")
        return proposal.future

    # The thread.

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            log.critical("Raft thread ended by an error", exc_info=error)
            with contextlib.suppress(Exception):
                self._close()
            self._fail_commands("Raft has ended by an error; see the log of this member")
            self._on_end(error)

    def _serve(self) -> None:
        self._publish()
        running = True
        while running:
            try:
                running = self._take_inputs()
                self._tick()
            except Exception as error:
                self._fail(error)
            self._observe(time.monotonic())
            self._publish()
            self.proposals.report()
        self._close()
        self._fail_commands("this member has stopped")

    def _fail_commands(self, reason: str) -> None:
        """Fail the pending commands, and the commands that are still in the queue of this thread."""
        self._ended = True
        with contextlib.suppress(queue.Empty):
            while True:
                action = self._inputs.get_nowait()
                if action is not None:
                    action()
        self.proposals.fail_all(reason)

    def _take_inputs(self) -> bool:
        """Wait for input and process it; False once the node must stop."""
        longest_s = self.next_wait_s()
        with contextlib.suppress(queue.Empty):
            for number in range(_MAX_INPUTS):
                action = self._inputs.get(block=number == 0, timeout=longest_s if number == 0 else None)
                if action is None:
                    return False
                action()
        return True

    def next_wait_s(self) -> float:
        """How long the thread may wait for input."""
        settings, replica = self.settings, self.replica
        if replica is None or self.proposals or not replica.log.is_settled:
            return settings.tick_s
        # Far below the delay that counts as a pause.
        rest_s = max(settings.tick_s, settings.append_entries_s / 2)
        return wait_s(replica.log.due_in_s, settings.tick_s, rest_s)

    def _tick(self) -> None:
        now_s = time.monotonic()
        replica = self.replica
        if replica is None:
            if now_s >= self._reopen_at_s:
                self._open()
            return
        raft, me = replica.log, self.settings.me
        raft.begin_tick(now_s)
        reachable = raft.leader == me or (self._hears_leader(replica, now_s) and raft.leader in self._linked)
        leader = raft.leader if reachable else None
        self.proposals.submit(leader, raft.raftCurrentTerm, me, now_s, raft.submit)
        replica.tick()
        if not replica.transport.other_voters and raft.last_log_index > raft.raftCommitIndex:
            replica.tick()  # a single voter waits for no answer: the tick after the flush commits

    def _hears_leader(self, replica: Replica, now_s: float) -> bool:
        """Whether a leader was heard recently. The library keeps the name of a dead leader."""
        heard_s = replica.transport.leader_heard_mono_s
        return heard_s is not None and now_s - heard_s < self._stale_s

    def _link_up(self, peer: ProxyId) -> None:
        self._linked.add(peer)
        if self.replica is not None:
            self.replica.transport.link_up(peer)

    def _link_down(self, peer: ProxyId) -> None:
        self._linked.discard(peer)
        if self.replica is not None:
            self.replica.transport.link_down(peer)

    def _receive(self, peer: ProxyId, payload: bytes) -> None:
        if self.replica is not None:
            self.replica.transport.receive(peer, payload)

    def _open(self) -> None:
        """Open everything from disk, apply the committed entries, and report the existing links."""
        settings = self.settings
        log_settings = LogSettings(
            me=settings.me,
            is_voter=self._is_voter,
            snapshot_path=settings.folder / "raft" / "snapshot",
            append_entries_s=settings.append_entries_s,
            election_min_s=settings.election_min_s,
            election_max_s=settings.election_max_s,
            leader_fallback_s=settings.leader_fallback_s,
            compact_entries=settings.compact_entries,
        )
        transport = MemberTransport(settings.me, settings.voters, settings.observers, self._send)
        self._working = FleetState()
        self.replica = Replica(log_settings, transport, self._capture, self._restore, self._apply)
        self.replica.tick()
        for peer in self._linked:
            transport.link_up(peer)
        if self._error is not None:
            log.warning("Raft runs again after an error: %s", self._error)
            self._error = None

    def _close(self) -> None:
        replica, self.replica = self.replica, None
        if replica is not None:
            self._dropped_before += replica.transport.dropped
            replica.close()

    def _fail(self, error: Exception) -> None:
        """Close everything after an error, and schedule opening it again."""
        text = str(error) if isinstance(error, JournalError) else f"{type(error).__name__}: {error}"
        if text != self._error:
            log.error(
                "Raft is stopped until this error is resolved: %s",
                text,
                exc_info=not isinstance(error, JournalError),
            )
        self._error = text
        self._applied.clear()  # unpublished commands are applied again after reopening
        self._close()
        self._reopen_at_s = time.monotonic() + _REOPEN_S

    # The state that commands are applied to.

    def _capture(self) -> FleetState:
        return self._working

    def _restore(self, state: FleetState) -> None:
        self._working = state

    def _apply(self, encoded: bytes) -> None:
        """Apply one committed command. Never raises, as ``decode`` and ``apply`` never do."""
        command = decode(encoded)
        self._working, outcome = apply(self._working, command)
        if self.replica is not None and self.replica.log.raftLastApplied >= self._applied_index:
            self._applied.append(Applied(command, outcome))
        if not isinstance(command, Unknown):
            self.proposals.mark_applied(command.command_id, outcome)

    # Status and state that callers see.

    def _observe(self, now_s: float) -> None:
        """Update status and state, and fail the commands that have timed out."""
        before, replica = self._status, self.replica
        dropped = self._dropped_before
        if replica is None:
            role: Role = "follower" if self._is_voter else "observer"
            self._status = RaftStatus(
                role,
                None,
                before.term,
                before.commit_index,
                False,
                before.quorum_lost_mono_s or now_s,
                self._error,
                dropped,
            )
        else:
            raft = replica.log
            role = cast(Role, raft.role)
            heard_s = now_s if role == "leader" else replica.transport.leader_heard_mono_s
            heard = role == "leader" or self._hears_leader(replica, now_s)
            votes = self._is_voter and replica.transport.rejoin is None
            linked = replica.transport.linked_voters + votes > len(self.settings.voters) / 2
            lost_s = None
            if not (heard and linked):
                since_s = now_s if heard or heard_s is None else heard_s
                lost_s = before.quorum_lost_mono_s or since_s
            self._status = RaftStatus(
                role=role,
                leader=(self.settings.me if role == "leader" else raft.leader) if heard else None,
                term=raft.raftCurrentTerm,
                commit_index=max(raft.raftCommitIndex, raft.raftLastApplied),
                has_quorum=heard and linked,
                quorum_lost_mono_s=lost_s,
                dropped_messages=dropped + replica.transport.dropped,
                rejoining=replica.transport.rejoin is not None,
                distrusted=tuple(sorted(replica.transport.distrusted)),
            )
            # After reopening, the log is first applied up to an older entry, which is not published.
            if raft.raftLastApplied >= self._applied_index:
                self._state, self._applied_index = self._working, raft.raftLastApplied
        why_not = (
            "not applied in time" if self._status.has_quorum else "no leader with a majority of the voters"
        )
        self.proposals.expire(now_s, self._error or why_not)

    def _publish(self) -> None:
        """Call ``on_change`` if anything is new."""
        new = (self._state, self._status)
        before = self._published
        if before is not None and before[0] is new[0] and before[1] == new[1] and not self._applied:
            return
        self._published = new
        applied, self._applied = tuple(self._applied), []
        try:
            self.on_change(*new, applied)
        except Exception:
            log.exception("callback for a change of Raft's state failed")
