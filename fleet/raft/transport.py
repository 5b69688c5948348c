"""pysyncobj's transport over the fleet's own links, and the guards that the library needs on what it
receives.

Messages that the library sends gather here until ``flush``, which makes the journal durable first: so no
message can reflect a term, vote or entry that a crash would take back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, Protocol

from pysyncobj.node import Node
from pysyncobj.transport import Transport as LibraryTransport

from fleet.model import ProxyId
from fleet.raft.messages import (
    FROM_OBSERVERS,
    FROM_VOTERS,
    MalformedMessage,
    Message,
    decode_message,
    encode_message,
)
from fleet.raft.rejoin import Rejoin

log = logging.getLogger(__name__)

_LOG_INTERVAL_S: Final = 10.0
_REJOINS_FOR_S: Final = 1.0
"""A rejoining voter asks whenever it hears of the leader; one that has not asked for so long is back."""


class RaftView(Protocol):
    """What the guards must know of the member that receives."""

    raftCommitIndex: int
    raftCurrentTerm: int
    last_log_index: int
    role: str


class MemberTransport(LibraryTransport):  # type: ignore[misc]  # pysyncobj has no types
    """Carries the library's messages to and from members by proxy id.

    Args:
        me, voters, observers: who is in the fleet; nobody else is listened to.
        send: hands one payload to the links; must not block.
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
        # Only voters talk to observers: those follow, and have nothing to tell one another.
        i_vote = me in voters
        self._observers = {proxy_id: Node(proxy_id) for proxy_id in observers if proxy_id != me and i_vote}
        self._up: set[ProxyId] = set()
        self._outbox: list[tuple[ProxyId, bytes]] = []
        self._votes: set[ProxyId] = set()
        self._votes_term = -1
        self._raft: RaftView | None = None
        self._logged_mono_s = -_LOG_INTERVAL_S
        self._asked_s: dict[ProxyId, float] = {}
        self.rejoin: Rejoin | None = None
        self.dropped = 0
        self.leader_heard_mono_s: float | None = None

    def bind(self, raft: RaftView) -> None:
        """Tell the guards whose state they look at; until then nothing is received."""
        self._raft = raft

    def forgot(self, reset_id: str) -> None:
        """This voter lost its journal in a reset: it must not vote until it has come back from that."""
        self.rejoin = Rejoin(reset_id, self._voters)

    @property
    def other_voters(self) -> tuple[Node, ...]:
        return tuple(self._voters.values())

    @property
    def linked_voters(self) -> int:
        """Number of the other voters that there is a link to, and that vote as far as is known."""
        since_s = time.monotonic() - _REJOINS_FOR_S
        rejoining = {peer for peer, asked_s in self._asked_s.items() if asked_s > since_s}
        return len((self._up & self._voters.keys()) - rejoining)

    # Links.

    def link_up(self, peer: ProxyId) -> None:
        """Tell the library that a member can be reached; at most once until it is down again."""
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
        self._asked_s.pop(peer, None)
        if peer in self._voters:
            self._onNodeDisconnected(self._voters[peer])
        else:
            self._onReadonlyNodeDisconnected(self._observers[peer])

    # Sending.

    def send(self, node: Node, message: Message) -> bool:
        """Keep a message until the next flush (called by the library)."""
        if node.id not in self._up:
            return False
        if message["type"] == "next_node_idx" and self._raft is not None:
            message["term"] = self._raft.raftCurrentTerm
            if self.rejoin is not None and message["success"]:
                # It says where to go on, and is not counted: this member may have promised another leader
                # more.
                self.rejoin.stored(node.id, message["term"], message["next_node_idx"] - 1)
                message.update(success=False, reset=True)
        self._outbox.append((node.id, encode_message(message)))
        return True

    def flush(self, sync: Callable[[], None]) -> None:
        """Send what has gathered, after the journal is on disk.

        Raises: JournalError: it is not, and nothing was sent
        """
        sync()
        outbox, self._outbox = self._outbox, []
        for peer, payload in outbox:
            self._send(peer, payload)

    def destroy(self) -> None:
        self._outbox.clear()
        self._up.clear()

    # Receiving.

    def receive(self, peer: ProxyId, payload: bytes) -> None:
        """Pass one payload to the library, if it is a message that this member may send, and is safe to act
        on.
        """
        node = self._voters.get(peer) or self._observers.get(peer)
        if node is None or peer not in self._up or self._raft is None:
            self._drop(peer, "no member that Raft has a link to")
            return
        try:
            message = decode_message(payload)
        except MalformedMessage as error:
            self._drop(peer, str(error))
            return
        kind = message["type"]
        if kind not in (FROM_VOTERS if peer in self._voters else FROM_OBSERVERS):
            self._drop(peer, f"{kind} from an observer")
            return
        if kind == "rejoin":
            self._asked_s[peer] = time.monotonic()
            self._answer(node, message["reset"], self._raft)
        elif kind == "rejoin_answer":
            if self.rejoin is not None:
                self.rejoin.answered(peer, message)
        elif self._safe(peer, message, self._raft):
            self._onMessageReceived(node, message)
            if self.rejoin is not None and kind == "append_entries":
                for each in self._voters.values():
                    self.send(each, self.rejoin.question)

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

    def _safe(self, peer: ProxyId, message: Message, raft: RaftView) -> bool:
        """Narrow a message to what Raft allows where the library does not look; False where nothing is
        left.
        """
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
        """The library counts votes, not voters."""
        if term != self._votes_term:
            self._votes, self._votes_term = set(), term
        first = peer not in self._votes
        self._votes.add(peer)
        return first

    def _drop(self, peer: ProxyId, reason: str) -> None:
        self.dropped += 1
        now_s = time.monotonic()
        if now_s - self._logged_mono_s >= _LOG_INTERVAL_S:
            self._logged_mono_s = now_s
            log.warning("dropped a Raft message from %s: %s (%d dropped so far)", peer, reason, self.dropped)


def _verified_index(message: Message, raft: RaftView) -> int:
    """Up to which index the message shows that this log equals the leader's (Raft, figure 2: AppendEntries,
    5).

    The library commits up to its own last entry instead, whatever that is: after pieces of a snapshot, which
    verify nothing, it would apply entries that were never committed, and report them as done.
    """
    if "prevLogIdx" not in message:
        return raft.raftCommitIndex
    verified: int = message["prevLogIdx"] + len(message["entries"])
    return verified


def _narrow_acknowledgement(message: Message, raft: RaftView) -> bool:
    """Use an acknowledgement only for the term it was given in, and only within the log.

    In the library it carries no term, so one that is late could count for an entry that has taken the place
    of the one it was meant for. Beyond the end of the log the library would never find where to go on.
    """
    end = raft.last_log_index + 1
    if message["term"] != raft.raftCurrentTerm:
        return False
    if message["success"] and message["next_node_idx"] > end:
        return False
    message["next_node_idx"] = max(2, min(message["next_node_idx"], end))
    return True
