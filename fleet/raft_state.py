"""One member's part in the replicated state: a thread that runs Raft, with a thread-safe face.

The thread has its own queue, so that a flush of the disk delays no heartbeat of the control loop. Everything
that comes in wakes it at once; otherwise it ticks. A failed write, or any other fault inside, is treated as a
crash of Raft alone: everything is closed and opened again from disk, until that works.
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
"""How much of the queue is worked off between two ticks."""


@dataclass(frozen=True, slots=True)
class RaftSettings:
    """Who takes part, where the files are, and how fast it goes (seconds).

    Args:
        folder: of the member's files; Raft's are in ``raft`` below it.
        compact_entries: length of the log at which a snapshot takes its place.
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
    """How long to wait for what is due, and for no longer than a rest.

    What should have been done already cannot be done yet, for reasons that each tick looks at again.
    """
    return min(due_in_s, rest_s) if due_in_s > 0 else tick_s


class RaftNode:
    """One voter or observer.

    Args:
        send: hands a payload for a member to the links; called on the Raft thread, must not block.
        on_change: called on the Raft thread, once a tick at most, with the state, the status, and what was
            applied since the last call, when any of these is new; once with the state from disk at first.
        on_end: called on the Raft thread where that ends by an error, and so never does anything again.
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
        self._settings = settings
        self._is_voter = settings.me in settings.voters
        self._send = send
        self._on_change = on_change
        self._on_end = on_end
        self._inputs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="raft", daemon=True)
        self._stale_s = max(_LEADER_STALE_S, 2 * settings.election_max_s)
        self._started = self._ended = False
        self._replica: Replica | None = None
        self._reopen_at_s = 0.0
        self._linked: set[ProxyId] = set()
        self._proposals = Proposals()
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
        """The state as of the last commit that this member knows of, quorum or not."""
        return self._state

    def start(self) -> None:
        """Read what is on disk (``state`` is that from here on), and start the thread.

        Raises:
            JournalError: the journal or the snapshot is corrupt, or another process's or member's.
            RaftError: the installed pysyncobj is not the one that this works with.
        """
        guards.check_library()
        try:
            self._open()
        except BaseException:
            self._close()
            raise
        self._applied.clear()  # it was applied in an earlier life
        self._observe(time.monotonic())
        self._started = True
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close the files; commands that are waited for fail."""
        if not self._started:
            return
        self._inputs.put(None)
        self._thread.join(_STOP_TIMEOUT_S)
        if self._thread.is_alive():
            log.error("the Raft thread did not end within %g s: the disk hangs", _STOP_TIMEOUT_S)

    def link_up(self, peer: ProxyId) -> None:
        self._inputs.put(partial(self._link_up, peer))

    def link_down(self, peer: ProxyId) -> None:
        self._inputs.put(partial(self._link_down, peer))

    def receive(self, peer: ProxyId, payload: bytes) -> None:
        """Take a payload that ``send`` of another member has sent; anything malformed is dropped and
        counted.
        """
        self._inputs.put(partial(self._receive, peer, payload))

    def propose(self, command: Command, timeout_s: float) -> Future[Outcome]:
        """Have a stamped command committed. It is tried again until the time is up, which its id makes safe.

        Returns: a future of what it came to when it was applied here. It fails with
            NoQuorum: there was no leader to take it in time, so it never will be committed;
            CommandTimeout: it was handed to a leader, and may yet be committed;
            ValueError: the command has no id, or is too large.
        """
        try:
            if not command.command_id:
                raise ValueError(f"{command.kind}: not stamped with an id")
            proposal = Proposal(command.command_id, encode(command), time.monotonic() + timeout_s)
        except ValueError as error:
            failed: Future[Outcome] = Future()
            failed.set_exception(error)
            return failed
        self._inputs.put(partial(self._proposals.add, proposal))
        if self._ended:
            fail(proposal, "this member has stopped")
        return proposal.future

    # The thread.

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            log.critical("the Raft thread ends by an error", exc_info=error)
            with contextlib.suppress(Exception):
                self._close()
            self._fail_commands("Raft has ended by an error, which the log has")
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
            self._proposals.tell()
        self._close()
        self._fail_commands("this member has stopped")

    def _fail_commands(self, why: str) -> None:
        """Fail the commands that wait, and those that are still on their way to this thread."""
        self._ended = True
        with contextlib.suppress(queue.Empty):
            while True:
                action = self._inputs.get_nowait()
                if action is not None:
                    action()
        self._proposals.fail_all(why)

    def _take_inputs(self) -> bool:
        """Wait for something to do, and do what there is; False once the node is to stop."""
        longest_s = self._wait_s()
        with contextlib.suppress(queue.Empty):
            for number in range(_MAX_INPUTS):
                action = self._inputs.get(block=number == 0, timeout=longest_s if number == 0 else None)
                if action is None:
                    return False
                action()
        return True

    def _wait_s(self) -> float:
        """How long nothing has to be done if nothing comes in."""
        settings, replica = self._settings, self._replica
        if replica is None or self._proposals or not replica.log.is_settled:
            return settings.tick_s
        # Far below what counts as having stood still.
        rest_s = max(settings.tick_s, settings.append_entries_s / 2)
        return wait_s(replica.log.due_in_s, settings.tick_s, rest_s)

    def _tick(self) -> None:
        now_s = time.monotonic()
        replica = self._replica
        if replica is None:
            if now_s >= self._reopen_at_s:
                self._open()
            return
        raft, me = replica.log, self._settings.me
        raft.begin_tick(now_s)
        reachable = raft.leader == me or (self._hears(replica, now_s) and raft.leader in self._linked)
        leader = raft.leader if reachable else None
        self._proposals.submit(leader, raft.raftCurrentTerm, me, now_s, raft.submit)
        replica.tick()
        if not replica.transport.other_voters and raft.last_log_index > raft.raftCommitIndex:
            replica.tick()  # alone: the tick after the flush commits, and there is no answer to wait for

    def _hears(self, replica: Replica, now_s: float) -> bool:
        """Whether a leader has been heard of lately. The library keeps the name of one that is gone."""
        heard_s = replica.transport.leader_heard_mono_s
        return heard_s is not None and now_s - heard_s < self._stale_s

    def _link_up(self, peer: ProxyId) -> None:
        self._linked.add(peer)
        if self._replica is not None:
            self._replica.transport.link_up(peer)

    def _link_down(self, peer: ProxyId) -> None:
        self._linked.discard(peer)
        if self._replica is not None:
            self._replica.transport.link_down(peer)

    def _receive(self, peer: ProxyId, payload: bytes) -> None:
        if self._replica is not None:
            self._replica.transport.receive(peer, payload)

    def _open(self) -> None:
        """Bring everything up from disk, apply what is known to be committed, and take up the links there
        are.
        """
        settings = self._settings
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
        self._replica = Replica(log_settings, transport, self._capture, self._restore, self._apply)
        self._replica.tick()
        for peer in self._linked:
            transport.link_up(peer)
        if self._error is not None:
            log.warning("Raft takes part again: %s", self._error)
            self._error = None

    def _close(self) -> None:
        replica, self._replica = self._replica, None
        if replica is not None:
            self._dropped_before += replica.transport.dropped
            replica.close()

    def _fail(self, error: Exception) -> None:
        """Stop taking part, and try to open everything again in a while."""
        text = str(error) if isinstance(error, JournalError) else f"{type(error).__name__}: {error}"
        if text != self._error:
            log.error(
                "Raft takes no part until this is gone: %s",
                text,
                exc_info=not isinstance(error, JournalError),
            )
        self._error = text
        self._applied.clear()  # what has not been published is applied again after the reopening
        self._close()
        self._reopen_at_s = time.monotonic() + _REOPEN_S

    # The state that commands are applied to.

    def _capture(self) -> FleetState:
        return self._working

    def _restore(self, state: FleetState) -> None:
        self._working = state

    def _apply(self, encoded: bytes) -> None:
        """Apply one committed command; total, as ``decode`` and ``apply`` are."""
        command = decode(encoded)
        self._working, outcome = apply(self._working, command)
        if self._replica is not None and self._replica.log.raftLastApplied >= self._applied_index:
            self._applied.append(Applied(command, outcome))
        if not isinstance(command, Unknown):
            self._proposals.applied(command.command_id, outcome)

    # What others see.

    def _observe(self, now_s: float) -> None:
        """Bring status and state up to date, and fail the commands whose time is up."""
        before, replica = self._status, self._replica
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
            heard = role == "leader" or self._hears(replica, now_s)
            votes = self._is_voter and replica.transport.rejoin is None
            linked = replica.transport.linked_voters + votes > len(self._settings.voters) / 2
            lost_s = None
            if not (heard and linked):
                since_s = now_s if heard or heard_s is None else heard_s
                lost_s = before.quorum_lost_mono_s or since_s
            self._status = RaftStatus(
                role=role,
                leader=(self._settings.me if role == "leader" else raft.leader) if heard else None,
                term=raft.raftCurrentTerm,
                commit_index=max(raft.raftCommitIndex, raft.raftLastApplied),
                has_quorum=heard and linked,
                quorum_lost_mono_s=lost_s,
                dropped_messages=dropped + replica.transport.dropped,
                rejoining=replica.transport.rejoin is not None,
                distrusted=tuple(sorted(replica.transport.distrusted)),
            )
            # After a reopening the log is applied up to an older entry at first: nobody is shown that.
            if raft.raftLastApplied >= self._applied_index:
                self._state, self._applied_index = self._working, raft.raftLastApplied
        why_not = (
            "not applied in time" if self._status.has_quorum else "no leader with a majority of the voters"
        )
        self._proposals.expire(now_s, self._error or why_not)

    def _publish(self) -> None:
        """Tell the owner, if there is anything new."""
        new = (self._state, self._status)
        before = self._published
        if before is not None and before[0] is new[0] and before[1] == new[1] and not self._applied:
            return
        self._published = new
        applied, self._applied = tuple(self._applied), []
        try:
            self._on_change(*new, applied)
        except Exception:
            log.exception("the callback for a change of Raft's state failed")
