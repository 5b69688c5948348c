"""pysyncobj's SyncObj with the fleet's parts inside: our journal, snapshots and transport, and commands as
plain bytes.

Some of the library's private methods and one of its objects are replaced or wrapped; ``guards`` checks that
they are there.
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
"""Above any command, so that an entry never travels in (pickled) parts; far below the links' frame limit."""
_QUICK_CANDIDACIES: Final = 2
_LONGEST_WAIT: Final = 8
"""How many times the election timeout a candidate waits at most whose votes do not come."""

_EXCUSES: Final = 5
"""Between two messages of a leader: whoever waits for a CPU may get it for less than it takes to read one."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What one member's SyncObj is configured with (seconds)."""

    me: ProxyId
    is_voter: bool
    snapshot_path: Path
    append_entries_s: float
    election_min_s: float
    election_max_s: float
    leader_fallback_s: float
    compact_entries: int


class _NotTrue(logging.Filter):
    """Drops the library's alarm at entries that it is about to truncate: here it does not truncate them."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith("truncating already-applied log entries")


logging.getLogger("pysyncobj.syncobj").addFilter(_NotTrue())


class ReplicatedLog(SyncObj):  # type: ignore[misc]  # pysyncobj has no types
    """Raft's log with one kind of command: bytes, handed to ``on_command`` once they are committed.

    Args:
        on_command: must not raise: the library would stop applying for good.
    """

    _SyncObj__raftElectionDeadline: float
    """The library's own: when this member stands, on the library's clock, unless it hears of a leader."""
    _SyncObj__newAppendEntriesTime: float
    """The library's own: when a leader sends its next heartbeat."""

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
        self._excuses = _EXCUSES
        # Half a heartbeat of it may be a rest (see `RaftNode`).
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
        """The leader that this member follows; it may be dead already."""
        node = self._getLeader()
        return None if node is None else node.id

    @property
    def last_log_index(self) -> int:
        index: int = self._SyncObj__raftLog[-1][1]
        return index

    @property
    def is_settled(self) -> bool:
        """Whether nothing is under way: no election, no entry that is not committed and applied, no reset."""
        at_rest: bool = self.raftLastApplied == self.raftCommitIndex == self.last_log_index
        return at_rest and self.role != "candidate" and self._SyncObj__transport.rejoin is None

    @property
    def due_in_s(self) -> float:
        """How long until something is to be done though nothing comes in: a heartbeat, or an election."""
        if self.role == "observer":
            return math.inf
        leads = self.role == "leader"
        due_s = self._SyncObj__newAppendEntriesTime if leads else self._SyncObj__raftElectionDeadline
        now_s: float = library.monotonicTime()
        return due_s - now_s

    def submit(self, command: bytes) -> None:
        """Hand a command to the leader, here or elsewhere; it may get lost on the way."""
        self._applyCommand(command, None, _REGULAR_TYPE)

    def begin_tick(self, now_s: float) -> None:
        """Wait for a leader anew if this member stood still: what it was sent meanwhile is not read yet.

        A few times, until a leader is heard of again: a machine that is always late still elects.
        """
        late = self._is_late(now_s)
        self._tick_began_s = now_s
        if late:
            self._excuses -= 1
            # The library has a clock of its own, from which time.monotonic departs as NTP bends it.
            anew_s = library.monotonicTime() + self._SyncObj__generateRaftTimeout()
            self._SyncObj__raftElectionDeadline = max(self._SyncObj__raftElectionDeadline, anew_s)

    def _is_late(self, now_s: float) -> bool:
        return self._excuses > 0 and now_s - self._tick_began_s > self._late_s

    # In place of the library's own.

    def _SyncObj__connectedToAnyone(self) -> bool:
        """Whether to stand for election when no leader is heard of; never while it is not known what was
        forgotten, nor where this member has stood still in the middle of a tick.
        """
        stands = (
            self._SyncObj__transport.rejoin is None
            and not self._is_late(time.monotonic())
            and bool(super()._SyncObj__connectedToAnyone())
        )
        self._candidacies += stands
        return stands

    def _SyncObj__generateRaftTimeout(self) -> float:
        """How long to wait for a leader: longer with each time that this member has stood in vain.

        Votes that take longer than the timeout are for a term that is past when they come. A member with slow
        links would stand again and again, and end the term of whoever leads each time.
        """
        wait = 2 ** max(0, self._candidacies - _QUICK_CANDIDACIES)
        timeout_s: float = super()._SyncObj__generateRaftTimeout() * min(wait, _LONGEST_WAIT)
        return timeout_s

    def _SyncObj__doApplyCommand(self, command: bytes) -> None:
        """Apply one committed entry. The library would unpickle it."""
        if command[:1] == REGULAR:
            self._on_command(command[1:])

    def _SyncObj__deleteEntriesFrom(self, fromIDx: int) -> None:
        """Leave the entries after the leader's: ``Journal.add`` replaces those that conflict, as Raft has it.

        The library drops all of them first. Where the message is an old one that comes again, those are
        entries that this member has acknowledged, and that may be committed because of it.
        """

    def _SyncObj__onMessageReceived(self, node: Node, message: Message) -> None:
        """Take a checked message, and keep an acknowledgement from setting the leader back.

        While several entries are under way, the answer to the first would have the library send the others
        again. Where they are lost in fact, the member says so at the next heartbeat.
        """
        following: dict[Node, int] = self._SyncObj__raftNextIndex
        before = following.get(node, 0)
        super()._SyncObj__onMessageReceived(node, message)
        if self._getLeader() is not None:
            self._candidacies = 0
            self._excuses = _EXCUSES
        acknowledges = message["type"] == "next_node_idx" and message["success"] and not message["reset"]
        if acknowledges and following.get(node, before) < before:
            following[node] = before


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
