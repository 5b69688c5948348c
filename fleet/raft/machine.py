"""pysyncobj's SyncObj with the fleet's journal, snapshots and transport, and with commands as plain bytes.

Some private methods and one object of the library are replaced or wrapped. ``guards`` checks that they exist.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pysyncobj.syncobj as library
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.node import Node

from fleet.core.model import ProxyId
from fleet.raft import guards
from fleet.raft.journal import Journal
from fleet.raft.messages import REGULAR, Message
from fleet.raft.snapshot import SnapshotStore
from fleet.raft.transport import MemberTransport

_REGULAR_TYPE: Final = REGULAR[0]
_BATCH_BYTES: Final = 1 << 18
"""Above the size of any command, so that the library never sends an entry in (pickled) parts; far below the
frame limit of the links."""
_CANDIDACIES_BEFORE_BACKOFF: Final = 2
_MAX_TIMEOUT_FACTOR: Final = 8
"""The longest wait of a candidate without votes, as a multiple of the election timeout."""

_MAX_DEFERRALS: Final = 5
"""How many times a late member defers its candidacy without hearing a leader. A process without a free CPU
may run for too short a time to read one message."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The configuration of one member's SyncObj; times in seconds."""

    me: ProxyId
    is_voter: bool
    snapshot_path: Path
    append_entries_s: float
    election_min_s: float
    election_max_s: float
    leader_fallback_s: float
    compact_entries: int


class _TruncationFilter(logging.Filter):
    """Drops the library's warning that it is about to truncate entries: here it does not truncate them."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith("truncating already-applied log entries")


logging.getLogger("pysyncobj.syncobj").addFilter(_TruncationFilter())


class ReplicatedLog(SyncObj):  # type: ignore[misc]  # pysyncobj has no types
    """Raft's log with one kind of command: bytes, passed to ``on_command`` once they are committed.

    Args:
        on_command: must not raise, because the library would then stop applying commands for good.
    """

    _SyncObj__raftElectionDeadline: float
    """Attribute of the library: when this member becomes a candidate, unless it hears a leader."""
    _SyncObj__newAppendEntriesTime: float
    """Attribute of the library: when a leader sends its next heartbeat."""

    def __init__(
        self,
        settings: LogSettings,
        journal: Journal,
        snapshots: SnapshotStore,
        transport: MemberTransport,
        on_command: Callable[[bytes], None],
    ) -> None:
        self._on_command = on_command
        self._candidacies = 0
        self._deferrals_left = _MAX_DEFERRALS
        # `RaftNode` may rest for half a heartbeat of this time.
        self._late_s = 1.5 * settings.append_entries_s
        self._tick_began_s = math.inf
        me = Node(settings.me) if settings.is_voter else None
        with guards.construction(journal):
            super().__init__(
                me, transport.other_voters, _configuration(settings), nodeClass=Node, transport=transport
            )
        guards.check_instance(self)
        self._SyncObj__serializer = snapshots
        transport.bind(self)

    @property
    def role(self) -> str:
        """One of leader, follower, candidate and observer."""
        if self.selfNode is None:
            return "observer"
        return ("follower", "candidate", "leader")[self._SyncObj__raftState]

    @property
    def leader(self) -> ProxyId | None:
        """The leader that this member follows. The leader may already be dead."""
        node = self._getLeader()
        return None if node is None else node.id

    @property
    def last_log_index(self) -> int:
        index: int = self._SyncObj__raftLog[-1][1]
        return index

    @property
    def is_settled(self) -> bool:
        """Whether nothing is in progress: no election, no unapplied entry, no rejoin after a reset."""
        at_rest: bool = self.raftLastApplied == self.raftCommitIndex == self.last_log_index
        return at_rest and self.role != "candidate" and self._SyncObj__transport.rejoin is None

    @property
    def due_in_s(self) -> float:
        """The time until the next heartbeat or election is due without any input."""
        if self.role == "observer":
            return math.inf
        leads = self.role == "leader"
        due_s = self._SyncObj__newAppendEntriesTime if leads else self._SyncObj__raftElectionDeadline
        now_s: float = library.monotonicTime()
        return due_s - now_s

    def submit(self, command: bytes) -> None:
        """Send a command to the leader, which may be this member. The command may get lost."""
        self._applyCommand(command, None, _REGULAR_TYPE)

    def begin_tick(self, now_s: float) -> None:
        """Begin a tick, and defer the candidacy if this member was paused.

        A paused member has not read the messages of the leader yet. The number of deferrals is limited until
        the member hears a leader again, so that a machine that is always late still elects.
        """
        is_late = self._is_late(now_s)
        self._tick_began_s = now_s
        if is_late:
            self._deferrals_left -= 1
            # The library has its own clock. time.monotonic differs from it, because NTP adjusts the rate.
            deadline_s = library.monotonicTime() + self._SyncObj__generateRaftTimeout()
            self._SyncObj__raftElectionDeadline = max(self._SyncObj__raftElectionDeadline, deadline_s)

    def _is_late(self, now_s: float) -> bool:
        return self._deferrals_left > 0 and now_s - self._tick_began_s > self._late_s

    # Replacements of the library's methods.

    def _SyncObj__connectedToAnyone(self) -> bool:
        """Whether to become a candidate when no leader is heard.

        Never during a rejoin, nor after a pause in the middle of a tick.
        """
        is_candidate = (
            self._SyncObj__transport.rejoin is None
            and not self._is_late(time.monotonic())
            and bool(super()._SyncObj__connectedToAnyone())
        )
        self._candidacies += is_candidate
        return is_candidate

    def _SyncObj__generateRaftTimeout(self) -> float:
        """How long to wait for a leader: longer after each unsuccessful candidacy.

        Votes that arrive after the timeout belong to a past term. A member with slow links would become a
        candidate again and again, and end the term of the current leader each time.
        """
        wait = 2 ** max(0, self._candidacies - _CANDIDACIES_BEFORE_BACKOFF)
        timeout_s: float = super()._SyncObj__generateRaftTimeout() * min(wait, _MAX_TIMEOUT_FACTOR)
        return timeout_s

    def _SyncObj__doApplyCommand(self, command: bytes) -> None:
        """Apply one committed entry without unpickling it, as the library would."""
        if command[:1] == REGULAR:
            self._on_command(command[1:])

    def _SyncObj__deleteEntriesFrom(self, fromIDx: int) -> None:
        """Keep the entries after those of the leader: ``Journal.add`` replaces conflicting ones, as in Raft.

        The library drops all of them first. If an old message arrives again, these are entries that this
        member has acknowledged, and that may be committed because of its acknowledgement.
        """

    def _SyncObj__onMessageReceived(self, node: Node, message: Message) -> None:
        """Process a checked message, and prevent an acknowledgement from resetting the leader's progress.

        While several entries are in flight, the answer to the first would make the library send the others
        again. If they are really lost, the member reports its position at the next heartbeat.
        """
        next_index: dict[Node, int] = self._SyncObj__raftNextIndex
        before = next_index.get(node, 0)
        super()._SyncObj__onMessageReceived(node, message)
        if self._getLeader() is not None:
            self._candidacies = 0
            self._deferrals_left = _MAX_DEFERRALS
        acknowledges = message["type"] == "next_node_idx" and message["success"] and not message["reset"]
        if acknowledges and next_index.get(node, before) < before:
            next_index[node] = before


def _configuration(settings: LogSettings) -> SyncObjConf:
    return SyncObjConf(
        autoTick=False,
        raftMinTimeout=settings.election_min_s,
        raftMaxTimeout=settings.election_max_s,
        connectionTimeout=max(3.5, settings.election_max_s),
        appendEntriesPeriod=settings.append_entries_s,
        leaderFallbackTimeout=settings.leader_fallback_s,
        appendEntriesUseBatch=False,
        appendEntriesBatchSizeBytes=_BATCH_BYTES,
        commandsWaitLeader=False,
        dynamicMembershipChange=False,
        useFork=False,
        journalFile=str(settings.snapshot_path.with_name("journal")),
        fullDumpFile=str(settings.snapshot_path),
        logCompactionMinEntries=settings.compact_entries,
    )
