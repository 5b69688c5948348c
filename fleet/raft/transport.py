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

import pysyncobj.syncobj as library
from pysyncobj.node import Node
from pysyncobj.transport import Transport as LibraryTransport

from fleet.core.log_limit import LogLimit
from fleet.core.model import ProxyId
from fleet.raft.identity import Standing
from fleet.raft.memory import VoterMemory
from fleet.raft.messages import (
    FROM_OBSERVERS,
    FROM_VOTERS,
    WITH_STANDING,
    MalformedMessage,
    Message,
    decode_message,
    encode_message,
)
from fleet.raft.rejoin import Rejoin

log = logging.getLogger(__name__)

_LOG_INTERVAL_S: Final = 10.0
_NO_LOG: Final = {"last_log_index": 0, "last_log_term": 0}
"""The end of a log that is behind any other one: a candidate with it gets no vote."""

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
        self._logged = LogLimit(_LOG_INTERVAL_S)
        self._asked_s: dict[ProxyId, float] = {}
        self._standing: Callable[[], Standing | None] | None = None
        self._memory: VoterMemory | None = None
        self._stated: dict[ProxyId, Standing] = {}
        self._noticed: dict[ProxyId, Standing] = {}
        self._distrusted: set[ProxyId] = set()
        self.distrusted_by: ProxyId | None = None
        """A voter that remembers more of this member's journal than is in it."""
        self.rejoin: Rejoin | None = None
        self.dropped = 0
        self.leader_heard_mono_s: float | None = None

    def bind(self, raft: RaftView) -> None:
        """Tell the guards whose state they look at; until then nothing is received."""
        self._raft = raft

    def forgot(self, reset_id: str) -> None:
        """This voter lost its journal in a reset: it must not vote until it has come back from that."""
        self.rejoin = Rejoin(reset_id, self._voters)

    def remember(self, standing: Callable[[], Standing | None], memory: VoterMemory | None) -> None:
        """Say to the other voters which journal this one has, and judge theirs.

        Args: memory: None where nothing is judged: an observer's, or in a fleet that cannot lose a voter.
        """
        self._standing = standing
        self._memory = memory

    @property
    def distrusted(self) -> frozenset[ProxyId]:
        """Voters that have forgotten promises: their votes do not count here until they have caught up."""
        return frozenset(self._distrusted)

    @property
    def other_voters(self) -> tuple[Node, ...]:
        return tuple(self._voters.values())

    @property
    def linked_voters(self) -> int:
        """Number of the other voters that there is a link to, and that vote as far as is known."""
        since_s = time.monotonic() - _REJOINS_FOR_S
        rejoining = {peer for peer, asked_s in self._asked_s.items() if asked_s > since_s}
        return len((self._up & self._voters.keys()) - rejoining - self._distrusted)

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
        self._stated.pop(peer, None)
        self._noticed.pop(peer, None)
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
        self._outbox.append((node.id, encode_message(self._with_standing(node.id, message))))
        return True

    def _with_standing(self, peer: ProxyId, message: Message) -> Message:
        """What is sent after a flush: by then the standing is on disk."""
        standing = None if self._standing is None else self._standing()
        if standing is None or peer not in self._voters or message["type"] not in WITH_STANDING:
            return message
        self._stated[peer] = standing
        return {**message, "standing": standing.pack()}

    def _state_standing(self, raft: RaftView) -> None:
        """Say how far this journal has come to the voters that have not been sent anything since.

        An acknowledgement goes to the leader alone, and the others must remember it once the leader is gone.
        """
        standing = None if self._standing is None else self._standing()
        if standing is None:
            return
        for peer, node in self._voters.items():
            if peer in self._up and self._stated.get(peer) != standing:
                self._answer(node, "", raft)

    def flush(self, sync: Callable[[], None]) -> None:
        """Send what has gathered, after the journal is on disk.

        Raises: JournalError: it is not, and nothing was sent
        """
        if self._raft is not None:
            self._state_standing(self._raft)
        sync()
        if self._memory is not None:
            self._memory.flush(library.monotonicTime())
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
        standing = message.pop("standing", None)
        if peer in self._voters and kind in WITH_STANDING:
            self._judge(node, standing)
        if kind == "rejoin":
            self._asked_s[peer] = time.monotonic()
            self._answer(node, message["reset"], self._raft)
        elif kind == "rejoin_answer":
            message["rejoining"] |= peer in self._distrusted
            if self.rejoin is not None:
                self.rejoin.answered(peer, message)
        elif kind == "distrusted":
            self._take_distrust(peer, message)
        elif self._is_behind(message, self._raft):
            self.send(node, {"type": "request_vote", "term": self._raft.raftCurrentTerm, **_NO_LOG})
        elif self._safe(peer, message, self._raft):
            self._onMessageReceived(node, message)
            if self.rejoin is not None and kind == "append_entries":
                for each in self._voters.values():
                    self.send(each, self.rejoin.question)

    def _is_behind(self, message: Message, raft: RaftView) -> bool:
        """Whether a leader must learn of a newer term before this member can follow it.

        Any other voter would stand in the end. One that has forgotten does not, and may have stood before it
        knew: it would wait for ever for a leader of its own term. It asks for a vote that nobody can give.
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
        """Decide whether a voter's promises count, by the journal that it says it has."""
        if self._memory is None:
            return
        objection = self._memory.judge(node.id, standing)
        if standing is None or not objection:
            if node.id in self._distrusted:
                log.info("%s has caught up: its votes count again", node.id)
            self._distrusted.discard(node.id)
            return
        self._distrusted.add(node.id)
        before = self._noticed.get(node.id)
        if before is not None and (before.identity, before.life) == (standing.identity, standing.life):
            return
        self._noticed[node.id] = standing
        log.warning("no vote of %s counts until it has caught up: %s", node.id, objection)
        named = standing.identity
        notice = {"journal_id": named.journal_id, "starts": named.starts, "life": standing.life}
        self.send(node, {"type": "distrusted", **notice})

    def _take_distrust(self, peer: ProxyId, message: Message) -> None:
        """Note that a voter remembers more of this journal than is in it. Of an earlier life it is late."""
        own = None if self._standing is None else self._standing()
        if own is None or self._memory is None or self.rejoin is not None:
            return
        named = own.identity
        if (message["journal_id"], message["starts"], message["life"]) == (
            *(named.journal_id, named.starts),
            own.life,
        ):
            self.distrusted_by = peer

    def _safe(self, peer: ProxyId, message: Message, raft: RaftView) -> bool:
        """Narrow a message to what Raft allows where the library does not look; False where nothing is
        left.
        """
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
        """The library counts votes, not voters."""
        if term != self._votes_term:
            self._votes, self._votes_term = set(), term
        first = peer not in self._votes
        self._votes.add(peer)
        return first

    def _drop(self, peer: ProxyId, reason: str) -> None:
        self.dropped += 1
        if self._logged.is_due(time.monotonic()):
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


def _narrow_distrusted(message: Message, raft: RaftView) -> bool:
    """Use of a voter that has forgotten promises nothing but its term, and where its log goes on."""
    if message["type"] == "request_vote":
        # The leader has to learn of its term: it could not follow one of a lesser term.
        message.update(_NO_LOG)
        return True
    if message["type"] != "next_node_idx":
        return bool(message["type"] == "apply_command")
    if message["success"]:
        message.update(success=False, reset=True)
    return _narrow_acknowledgement(message, raft)


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
