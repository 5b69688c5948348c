"""pysyncobj's transport over the fleet's links, with the checks on received messages that the library lacks.

Messages of the library are collected until ``flush``, which first makes the journal durable. No message can
therefore reflect a term, vote or entry that a crash would undo.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, Protocol

import pysyncobj.syncobj as library
from pysyncobj.node import Node
from pysyncobj.transport import Transport as LibraryTransport

from fleet.core.log_limit import LogLimit
from fleet.core.model import ProxyId
from fleet.raft.identity import Standing
from fleet.raft.memory import VoterMemory
from fleet.raft.messages import (
    KINDS_FROM_OBSERVERS,
    KINDS_FROM_VOTERS,
    KINDS_WITH_STANDING,
    MalformedMessage,
    Message,
    decode_message,
    encode_message,
)
from fleet.raft.rejoin import Rejoin

log = logging.getLogger(__name__)

_LOG_INTERVAL_S: Final = 10.0
_EMPTY_LOG: Final = {"last_log_index": 0, "last_log_term": 0}
"""The end of a log that is behind every other log: a candidate with this log gets no vote."""

_REJOIN_SILENCE_S: Final = 1.0
"""A rejoining voter sends a question whenever it hears the leader. After this silence it has rejoined."""


class RaftView(Protocol):
    """The state of the receiving member that the checks depend on."""

    raftCommitIndex: int
    raftCurrentTerm: int
    last_log_index: int
    role: str


class MemberTransport(LibraryTransport):  # type: ignore[misc]  # pysyncobj has no types
    """Carries the library's messages to and from members by proxy id.

    Args:
        me, voters, observers: the members of the fleet; messages of others are dropped.
        send: passes one payload to the links; must not block.
    """

    def __init__(
        self,
        me: ProxyId,
        voters: tuple[ProxyId, ...],
        observers: tuple[ProxyId, ...],
        send: Callable[[ProxyId, bytes], None],
    ) -> None:
        super().__init__(None, None, ())
        self._send = send
        self._voters = {proxy_id: Node(proxy_id) for proxy_id in voters if proxy_id != me}
        # Only voters have connections to observers. Observers only follow and send one another nothing.
        is_voter = me in voters
        self._observers = {proxy_id: Node(proxy_id) for proxy_id in observers if proxy_id != me and is_voter}
        self._up: set[ProxyId] = set()
        self._outbox: list[tuple[ProxyId, bytes]] = []
        self._votes: set[ProxyId] = set()
        self._votes_term = -1
        self._raft: RaftView | None = None
        self._logged = LogLimit(_LOG_INTERVAL_S)
        self._rejoin_asked_s: dict[ProxyId, float] = {}
        self._standing: Callable[[], Standing | None] | None = None
        self.memory: VoterMemory | None = None
        self._sent_standings: dict[ProxyId, Standing] = {}
        self._reported_standings: dict[ProxyId, Standing] = {}
        self._distrusted: set[ProxyId] = set()
        self.distrusted_by: ProxyId | None = None
        """A voter that remembers more than this member's journal has."""
        self.rejoin: Rejoin | None = None
        self.dropped = 0
        self.leader_heard_mono_s: float | None = None

    def bind(self, raft: RaftView) -> None:
        """Set the member whose state the checks use. Until then all messages are dropped."""
        self._raft = raft

    def begin_rejoin(self, reset_id: str) -> None:
        """Begin a rejoin: this voter lost its journal and must not vote until it has caught up."""
        self.rejoin = Rejoin(reset_id, self._voters)

    def remember(self, standing: Callable[[], Standing | None], memory: VoterMemory | None) -> None:
        """State this member's journal to the other voters, and judge their journals.

        Args: memory: None to judge nothing: for observers, and in a fleet that cannot lose a voter.
        """
        self._standing = standing
        self.memory = memory

    @property
    def distrusted(self) -> frozenset[ProxyId]:
        """Voters that have forgotten promises. This member ignores their votes until they have caught up."""
        return frozenset(self._distrusted)

    @property
    def other_voters(self) -> tuple[Node, ...]:
        return tuple(self._voters.values())

    @property
    def linked_voters(self) -> int:
        """Number of other voters that are linked and, as far as known, vote."""
        since_s = time.monotonic() - _REJOIN_SILENCE_S
        rejoining = {peer for peer, asked_s in self._rejoin_asked_s.items() if asked_s > since_s}
        return len((self._up & self._voters.keys()) - rejoining - self._distrusted)

    # Links.

    def link_up(self, peer: ProxyId) -> None:
        """Report to the library that a member can be reached, once until its link is down again."""
        if peer in self._up:
            return
        if peer in self._voters:
            self._up.add(peer)
            self._onNodeConnected(self._voters[peer])
        elif peer in self._observers:
            self._up.add(peer)
            self._onReadonlyNodeConnected(self._observers[peer])

    def link_down(self, peer: ProxyId) -> None:
        if peer not in self._up:
            return
        self._up.discard(peer)
        self._rejoin_asked_s.pop(peer, None)
        self._sent_standings.pop(peer, None)
        self._reported_standings.pop(peer, None)
        if peer in self._voters:
            self._onNodeDisconnected(self._voters[peer])
        else:
            self._onReadonlyNodeDisconnected(self._observers[peer])

    # Sending.

    def send(self, node: Node, message: Message) -> bool:
        """Collect a message until the next flush. Called by the library."""
        if node.id not in self._up:
            return False
        if message["type"] == "next_node_idx" and self._raft is not None:
            message["term"] = self._raft.raftCurrentTerm
            if self.rejoin is not None and message["success"]:
                # Reports the position only, and must not count: this member may have promised more to another
                # leader.
                self.rejoin.record_log(node.id, message["term"], message["next_node_idx"] - 1)
                message.update(success=False, reset=True)
        self._outbox.append((node.id, encode_message(self._with_standing(node.id, message))))
        return True

    def _with_standing(self, peer: ProxyId, message: Message) -> Message:
        """Add the standing to a message that is sent after a flush, when the standing is on disk."""
        standing = None if self._standing is None else self._standing()
        if standing is None or peer not in self._voters or message["type"] not in KINDS_WITH_STANDING:
            return message
        self._sent_standings[peer] = standing
        return {**message, "standing": standing.pack()}

    def _state_standing(self, raft: RaftView) -> None:
        """Send the standing to voters that have not received it since it changed.

        An acknowledgement goes only to the leader. The others must remember it if the leader dies.
        """
        standing = None if self._standing is None else self._standing()
        if standing is None:
            return
        for peer, node in self._voters.items():
            if peer in self._up and self._sent_standings.get(peer) != standing:
                self._answer(node, "", raft)

    def flush(self, sync: Callable[[], None]) -> None:
        """Send the collected messages, after the journal is on disk.

        Raises: JournalError: the journal cannot be written; no message was sent
        """
        if self._raft is not None:
            self._state_standing(self._raft)
        sync()
        if self.memory is not None:
            self.memory.flush(library.monotonicTime())
        outbox, self._outbox = self._outbox, []
        for peer, payload in outbox:
            self._send(peer, payload)

    def destroy(self) -> None:
        self._outbox.clear()
        self._up.clear()

    # Receiving.

    def receive(self, peer: ProxyId, payload: bytes) -> None:
        """Pass one payload to the library if its sender may send such a message and acting on it is safe."""
        node = self._voters.get(peer) or self._observers.get(peer)
        if node is None or peer not in self._up or self._raft is None:
            self._drop(peer, "Raft has no link to this member")
            return
        try:
            message = decode_message(payload)
        except MalformedMessage as error:
            self._drop(peer, str(error))
            return
        kind = message["type"]
        if kind not in (KINDS_FROM_VOTERS if peer in self._voters else KINDS_FROM_OBSERVERS):
            self._drop(peer, f"{kind} from an observer")
            return
        standing = message.pop("standing", None)
        if peer in self._voters and kind in KINDS_WITH_STANDING:
            self._judge(node, standing)
        if kind == "rejoin":
            self._rejoin_asked_s[peer] = time.monotonic()
            self._answer(node, message["reset"], self._raft)
        elif kind == "rejoin_answer":
            message["rejoining"] |= peer in self._distrusted
            if self.rejoin is not None:
                self.rejoin.record_answer(peer, message)
        elif kind == "distrusted":
            self._receive_distrust(peer, message)
        elif self._is_behind(message, self._raft):
            self.send(node, {"type": "request_vote", "term": self._raft.raftCurrentTerm, **_EMPTY_LOG})
        elif self._narrow(peer, message, self._raft):
            self._onMessageReceived(node, message)
            if self.rejoin is not None and kind == "append_entries":
                for each in self._voters.values():
                    self.send(each, self.rejoin.question)

    def _is_behind(self, message: Message, raft: RaftView) -> bool:
        """Whether a leader must learn of a newer term before this member can follow it.

        Any other voter would eventually become a candidate. A rejoining voter does not, and may have been a
        candidate before its rejoin: it would wait forever for a leader of its own term. It therefore requests
        a vote that no voter can give.
        """
        is_older = message["type"] == "append_entries" and message["term"] < raft.raftCurrentTerm
        return self.rejoin is not None and is_older

    def _answer(self, node: Node, reset_id: str, raft: RaftView) -> None:
        self.send(
            node,
            {
                "type": "rejoin_answer",
                "reset": reset_id,
                "term": raft.raftCurrentTerm,
                "last_log_index": raft.last_log_index,
                "leads": raft.role == "leader",
                "rejoining": self.rejoin is not None,
            },
        )

    def _judge(self, node: Node, standing: Standing | None) -> None:
        """Decide whether the promises of a voter count, from the statement about its journal."""
        if self.memory is None:
            return
        objection = self.memory.judge(node.id, standing)
        if standing is None or not objection:
            if node.id in self._distrusted:
                log.info("voter has caught up, its votes count again: voter=%s", node.id)
            self._distrusted.discard(node.id)
            return
        self._distrusted.add(node.id)
        before = self._reported_standings.get(node.id)
        if before is not None and (before.identity, before.life) == (standing.identity, standing.life):
            return
        self._reported_standings[node.id] = standing
        log.warning("ignoring votes until the voter has caught up: voter=%s: %s", node.id, objection)
        identity = standing.identity
        notice = {"journal_id": identity.journal_id, "starts": identity.starts, "life": standing.life}
        self.send(node, {"type": "distrusted", **notice})

    def _receive_distrust(self, peer: ProxyId, message: Message) -> None:
        """Record that a voter remembers more than this journal has, unless it refers to an earlier life."""
        own = None if self._standing is None else self._standing()
        if own is None or self.memory is None or self.rejoin is not None:
            return
        identity = own.identity
        if (message["journal_id"], message["starts"], message["life"]) == (
            *(identity.journal_id, identity.starts),
            own.life,
        ):
            self.distrusted_by = peer

    def _narrow(self, peer: ProxyId, message: Message, raft: RaftView) -> bool:
        """Narrow a message to what Raft allows and the library does not check; False to drop the message."""
        if peer in self._distrusted:
            return _narrow_distrusted(message, raft)
        match message["type"]:
            case "append_entries":
                if message["term"] >= raft.raftCurrentTerm:
                    self.leader_heard_mono_s = time.monotonic()
                message["commit_index"] = min(message["commit_index"], _verified_index(message, raft))
            case "next_node_idx":
                return _narrow_acknowledgement(message, raft)
            case "request_vote":
                return self.rejoin is None
            case "response_vote":
                return self._first_vote(peer, message["term"])
        return True

    def _first_vote(self, peer: ProxyId, term: int) -> bool:
        """Whether this is the first vote of a peer in a term: the library counts votes, not voters."""
        if term != self._votes_term:
            self._votes, self._votes_term = set(), term
        first = peer not in self._votes
        self._votes.add(peer)
        return first

    def _drop(self, peer: ProxyId, reason: str) -> None:
        self.dropped += 1
        if self._logged.is_due(time.monotonic()):
            log.warning("dropped a Raft message: peer=%s total=%d: %s", peer, self.dropped, reason)


def _verified_index(message: Message, raft: RaftView) -> int:
    """The index up to which the message proves that this log equals the leader's.

    The library commits up to its own last entry instead. After pieces of a snapshot, which prove nothing, it
    would apply entries that were never committed, and report them as done.

    Source: the Raft paper, figure 2, AppendEntries, step 5
    """
    if "prevLogIdx" not in message:
        return raft.raftCommitIndex
    verified: int = message["prevLogIdx"] + len(message["entries"])
    return verified


def _narrow_distrusted(message: Message, raft: RaftView) -> bool:
    """Accept from a voter that has forgotten promises only its term and the position of its log."""
    if message["type"] == "request_vote":
        # The leader must learn of the voter's term, because the voter cannot follow a leader of a lower term.
        message.update(_EMPTY_LOG)
        return True
    if message["type"] != "next_node_idx":
        return bool(message["type"] == "apply_command")
    if message["success"]:
        message.update(success=False, reset=True)
    return _narrow_acknowledgement(message, raft)


def _narrow_acknowledgement(message: Message, raft: RaftView) -> bool:
    """Accept an acknowledgement only in its own term, and only within the log.

    The library's acknowledgements carry no term. A late one could count for an entry that has replaced the
    acknowledged one. Beyond the end of the log, the library would never find the position to continue from.
    """
    end = raft.last_log_index + 1
    if message["term"] != raft.raftCurrentTerm:
        return False
    if message["success"] and message["next_node_idx"] > end:
        return False
    message["next_node_idx"] = max(2, min(message["next_node_idx"], end))
    return True
