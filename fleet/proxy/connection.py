"""One client connection and the broker connection behind it, as two asyncio protocols.

Bytes are parsed by the session alone. Nothing is awaited between receiving bytes and writing them.

    IDLE ──first byte for a broker──► DIALLING ──connected──► JOINED
      └──────────┴───────────────────────┴──quiet, drained──► LEAVING ──client's end, or time──► CLOSED

A client that ends its sending half is closed, as a Kafka broker does. A broker that is gone closes the
client's connection at once, after what it had sent before. A connection that is to go somewhere else ends in
order: at a moment when nothing is in flight, or else with no further request forwarded and those in flight
answered. While its broker is dialled there is no such moment, nor an end: what was received goes to the
broker first, or the dial fails. Then the client gets an end of file, and its bytes are read on, because
closing with unread bytes would reset the connection, and with it the responses that are still on their way.
Of those bytes, Produce with acks=0 still goes to the broker: its sender counts it as delivered. All else
never ran, and is discarded. With TLS it is the same: an end of file is close_notify there. A client that
resets its connection is gone at once, whatever waits for a broker.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from contextlib import suppress
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, Protocol

from fleet.core.errors import LimitReached, TimeLimit, TruncatedFrame, WireError
from fleet.core.foreign_protocols import at_listener, name_protocol
from fleet.proxy.rewriter import PIECE_BYTES
from fleet.proxy.session import HEADER_LIMIT_BYTES, MANY_IN_FLIGHT, Session
from fleet.proxy.splice import LARGE_BYTES, PIPE_BYTES, Passage
from fleet.proxy.streaming_patch import Write
from fleet.proxy.timeouts import Watch
from fleet.runtime.socket_options import BROKER_VANISHED_S, is_gone, keep_alive

if TYPE_CHECKING:
    from collections.abc import Callable

    from fleet.core.model import BrokerId
    from fleet.core.traffic import ConnectionEnd
    from fleet.proxy.budget import Backlogs, MemoryBudget
    from fleet.proxy.deadlines import Deadlines
    from fleet.proxy.departures import Party
    from fleet.proxy.quota import Quota
    from fleet.proxy.splice import Pipe
    from fleet.proxy.traffic import Sampling, Traffic
    from fleet.proxy.turns import TurnQueue

KEPT_BYTES: Final = HEADER_LIMIT_BYTES
"""The most that a session leaves unconsumed, but in a drain."""

# Why a client is not read from. Bits.
_BROKER_IS_FULL: Final = 1
_BROKER_IS_DIALLED: Final = 2
_TOO_MUCH_IN_A_DRAIN: Final = 4
_OVERDRAWN_TO_BROKER: Final = 8
_OVERDRAWN_TO_CLIENT: Final = 16
_BODY_PASSES: Final = 32
_CLIENT_IS_FULL: Final = 64
_TOO_MANY_IN_FLIGHT: Final = 128

REPLY_BUFFER_BYTES: Final = 4 * 1024
"""Replies that a client may leave unread while no broker is asked for anything. Then it is not read from."""
UNNOTICED_BY_BROKER_BYTES: Final = 1024
"""What may wait for a broker before each read is followed by a look at how much does."""
NOWHERE: Final = ("?", 0)
"""The address of a client that the system does not know."""
WRITE_BYTES: Final = 1024
"""What a write takes that waits, besides its bytes: with uvloop 800 bytes.

Found: 100 KB of a body took 76 MB, because it came byte by byte while the broker did not read.
"""
IN_FLIGHT_BYTES: Final = 40
"""What a session takes for a request in flight, behind the first."""
MOST_IN_FLIGHT: Final = 4096
"""Requests in flight with which a client is not read from before half of them are answered; fewer, where many
clients have many. Then each may have its part of half of what the worker has for them, and what one read
brings is above that: with requests of 14 bytes 18,000 of them.
"""
LARGE_FIRST_BYTES: Final = 16 * 1024
"""Of a first piece that waits for a broker: after a larger one nothing more is read meanwhile."""


class Host(Protocol):
    """What a connection needs of its worker."""

    write_buffer_bytes: int
    backlogs: Backlogs[ClientConnection]
    responses: MemoryBudget[ClientConnection]
    """That are held because they have to be seen whole."""
    requests: MemoryBudget[ClientConnection]
    """In flight, of clients that have many."""
    turns: TurnQueue
    linger_s: float
    """How long a goodbye may take before the connection is cut."""
    leaving: Deadlines[BrokerConnection]
    """Those whose client is gone, for as long as their goodbye takes."""
    sampling: Sampling
    pipe: Pipe | None
    """For large bodies; None where they are copied."""

    def opened(self, connection: ClientConnection) -> None: ...

    def closed(self, connection: ClientConnection) -> None: ...

    def dial(self, connection: ClientConnection) -> None:
        """Connect ``connection.join`` to a broker, or call ``broker_unreachable`` or ``refuse`` of it."""

    def broker_gone(self, connection: ClientConnection) -> None:
        """The broker was the first to end it."""

    def refused(self, connection: ClientConnection, error: WireError | LimitReached) -> None: ...

    def overdrawn(self, connection: ClientConnection, quota: Quota) -> None:
        """A quota of it may be used up: call ``overdraw`` and, when it is not any more, ``repaid`` of it."""

    def cut(self, connection: ClientConnection) -> None:
        """It leaves, and its client will not get every answer."""

    def came_back(self, connection: ClientConnection) -> None:
        """It ``is_back``, and has sent its first request: have it `wait` where it was sent away."""

    def sampled(self, connection: ClientConnection) -> None:
        """A read of it was looked at: has ``sampling`` look again."""


class State(Enum):
    IDLE = auto()
    DIALLING = auto()
    JOINED = auto()
    LEAVING = auto()
    CLOSED = auto()


_LEAVING: Final = State.LEAVING
"""Looking it up in the enumeration costs Python 3.11 as much as ten frames do their counting."""


class ClientConnection(asyncio.Protocol):
    """The client's side, and the owner of the broker's.

    Args:
        host: the worker.
        broker_id: the identity whose port it came to; None for a bootstrap port.
        traffic: where its bytes count.
        listener: the name of that port's.
        make_session: called with the peer's host once it is connected.
    """

    __slots__ = (
        "_address",
        "_answer_s",
        "_broker",
        "_client_spoke",
        "_ended",
        "_held",
        "_host",
        "_kept",
        "_looks_at_backlog",
        "_looks_at_broker",
        "_make_session",
        "_queue",
        "_request_bodies",
        "_response_bodies",
        "_sampling",
        "_spoken",
        "_timer",
        "_transport",
        "alert",
        "answered",
        "broker_id",
        "broker_spoke",
        "draining",
        "end",
        "is_back",
        "listener",
        "moving",
        "number",
        "party",
        "session",
        "since_s",
        "source",
        "state",
        "to_broker_quota",
        "to_client_quota",
        "traffic",
        "watch",
        "write",
    )

    session: Session
    write: Write
    """To the client."""
    _transport: asyncio.Transport
    _address: tuple[Any, ...]
    """Host and port; of IPv6 there is more."""

    def __init__(
        self,
        host: Host,
        broker_id: BrokerId | None,
        traffic: Traffic,
        listener: str,
        make_session: Callable[[str], Session],
    ) -> None:
        # What each read looks at first, so that it is side by side: nothing of it is in a cache any more.
        self._broker: BrokerConnection | None = None
        self._sampling = host.sampling
        self._client_spoke = False
        self.broker_spoke = False
        """Since ``awaits`` was called."""
        self.alert = False
        """Whether each read has to be followed by `attend`."""
        self.moving = False
        self.draining = False
        self.is_back = False
        """Whether its identity has lately moved away from here."""
        self.party: Party | None = None
        """The connections that are to leave together with this one."""
        self._kept = b""
        self.traffic = traffic
        self.to_broker_quota: Quota | None = None
        self.to_client_quota: Quota | None = None
        self.state = State.IDLE

        self._host = host
        self.broker_id = broker_id
        self.listener = listener
        self.number = 0
        """Of those that have been dialled for; 0 where it has not."""
        self.since_s = 0.0
        self.end: ConnectionEnd = "client"
        self._make_session = make_session
        self.source = "?"
        """The address that limits are counted by."""
        self.answered = 0
        """Requests that no broker was asked for."""
        self._ended = False
        """It has sent its last, and what it sent waits for a broker."""
        self._spoken = 0
        self.watch = Watch()
        self._looks_at_broker = 0
        """Since the broker is behind: one with each read, so there are no more writes. 0 where it is not."""
        self._looks_at_backlog = 0
        """Since the client is behind."""
        self._answer_s = 0.0
        """How long what is in flight may take to be answered, once nothing new is forwarded."""
        self._held = 0
        self._queue: list[bytes | memoryview] = []
        self._request_bodies: Passage | None = None
        self._response_bodies: Passage | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def has_response_bodies(self) -> bool:
        """Whether something else than its transport reads from the broker."""
        return self._response_bodies is not None

    @property
    def waiting_bytes(self) -> int:
        """What was written, and has not reached the kernel."""
        return self._transport.get_write_buffer_size()

    @property
    def peer(self) -> str:
        """The client's address; ? where the system did not know it."""
        return f"{self._address[0]}:{self._address[1]}"

    @property
    def ends(self) -> str:
        """Between whom it is, as far as that is known."""
        broker = None if self._broker is None else self._broker.transport.get_extra_info("peername")
        return self.peer if broker is None else f"{self.peer} to {broker[0]}:{broker[1]}"

    # ---- called by the event loop

    def connection_made(self, transport: Any) -> None:  # a Transport; uvloop's is no instance of it
        self._transport = transport
        self.write = transport.write
        transport.set_write_buffer_limits(REPLY_BUFFER_BYTES)
        self._address = transport.get_extra_info("peername") or NOWHERE
        self.source = self._address[0]
        self.session = self._make_session(self.source)
        self._host.opened(self)

    def data_received(self, data: bytes) -> None:
        broker, session, sampling = self._broker, self.session, self._sampling
        if broker is None and self.state is _LEAVING:
            return
        self._client_spoke = True
        if self._kept:
            data = self._kept + data
            self._kept = b""
        sampling.reads -= 1
        try:
            if sampling.reads:
                passes = session.receive_from_client(data)
            else:
                passes = session.receive_sampled(data)
                self._host.sampled(self)
        except WireError as error:
            self.refuse(self._explained(error, data))
            return
        piece: bytes | memoryview = data
        if passes < len(data) or session.local_replies:
            piece = self._cut(data, passes)
            passes = len(piece)
        if passes:
            self.traffic.to_broker_bytes += passes
            if self.to_broker_quota is not None and self.to_broker_quota.spend(passes):
                self._host.overdrawn(self, self.to_broker_quota)
            if broker is None:
                self._dial_for(piece)
            else:
                broker.write(piece)
                if session.passing_to_broker >= LARGE_BYTES:
                    self.pass_body(broker, True, passes)
        if session.crowded:
            self.alert = True
        if self.alert:
            self.attend()

    def eof_received(self) -> bool:
        if self.state is State.DIALLING:  # what waits may be Produce with acks=0
            self._ended = True
            return True
        # In a drain whole requests are kept, too.
        cut_off = self._kept or not self.session.at_boundary
        if cut_off and not self.draining and self.state is not State.LEAVING:
            error = TruncatedFrame("client", "it ends the connection inside a request")
            self._host.refused(self, self._explained(error, self._kept))
        self.close()
        return False

    def pause_writing(self) -> None:
        """The client reads more slowly than it is written to."""
        if self._broker is None:
            self._hold(_CLIENT_IS_FULL)
            return
        self._host.backlogs.begin(self)
        self.alert = True
        self._looks_at_backlog = 0
        self._look_at_backlog()

    def resume_writing(self) -> None:
        self._host.backlogs.end(self)
        self._set_alert()
        self._release(_CLIENT_IS_FULL)
        if self._broker is not None:
            self._broker.resume_reading()

    def _look_at_backlog(self) -> None:
        """Pause where too much waits for the client. Kafka does not read from such a client either."""
        host = self._host
        self._looks_at_backlog += 1
        held_bytes = self.waiting_bytes + WRITE_BYTES * self._looks_at_backlog
        if held_bytes >= min(host.write_buffer_bytes, host.backlogs.share_bytes):
            self._hold(_CLIENT_IS_FULL)
            if self._broker is not None:
                self._broker.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._note_vanished(exc)
        self._stop_bodies()
        self.drop_response()
        self._host.backlogs.end(self)
        if self.session.crowded:
            self._host.requests.note(self, 0)
        self.state = State.CLOSED
        self._cancel_timer()
        self._queue.clear()
        self._part_with_broker()
        self._host.closed(self)
        if self.party is not None:
            self.party.drop(self)

    # ---- called by the broker's side and by whoever dials

    def broker_side(self) -> BrokerConnection:
        """A new one, for the connection that is dialled for it."""
        return BrokerConnection(self._host, self)

    def wait_for_broker(self) -> int:
        """Nobody knows yet where its broker is: read no more. Returns: how many bytes wait for it."""
        self._hold(_BROKER_IS_DIALLED)
        return sum(len(piece) for piece in self._queue) + len(self._kept)

    def join(self, broker: BrokerConnection) -> bool:
        """The broker is connected; False where the client is gone by now."""
        if self.state is not State.DIALLING:
            return False
        self.state = State.JOINED
        self._broker = broker
        # Whatever waits now keeps all of a read. Found: 400 clients that left 2.9 KB of 40 KB took 13.7 MB.
        self._transport.set_write_buffer_limits(0)
        if self._held & _CLIENT_IS_FULL:
            # Its transport was told so before there was a broker, and says it once. A transport that has just
            # been made begins to read after this turn, whatever it is told now.
            broker.pause_reading()
            asyncio.get_running_loop().call_soon(self._pause_full, broker)
        # First, because a write may find the broker's buffer full, and pause again.
        self._release(_BROKER_IS_DIALLED)
        for piece in self._queue:
            broker.write(piece)
        self._queue.clear()
        if self._ended:
            self.eof_received()
            return True
        if self.alert:
            if self.draining:
                self._run_out_later()
            self.attend()
        return True

    def _pause_full(self, broker: BrokerConnection) -> None:
        if self._broker is broker and self._held & _CLIENT_IS_FULL:
            broker.pause_reading()

    def pass_body(self, broker: BrokerConnection, to_broker: bool, written_bytes: int) -> None:
        """Have the kernel pass on what is left of a large body, where nothing on its way needs to see it, and
        nothing but what has just been written waits before it.
        """
        session = self.session
        left_bytes = session.passing_to_broker if to_broker else session.passing_to_client
        passage = self._request_bodies if to_broker else self._response_bodies
        if passage is not None:
            passage.left_bytes = left_bytes
            return
        pipe = self._host.pipe
        if pipe is None or self.to_client_quota is not None:
            return
        if to_broker and self.to_broker_quota is not None:
            return
        source, target = self._transport, broker.transport
        if not to_broker:
            source, target = target, source
        if self.state is not State.JOINED or not source.is_reading():
            return
        if _secured(source) or _secured(target):
            return
        if target.get_write_buffer_size() > written_bytes or not pipe.has_room():
            return
        try:
            passage = Passage(pipe, source, target, left_bytes, self, to_broker)
        except OSError:  # too many files are open: it passes as a small one does
            return
        if to_broker:
            self._request_bodies = passage
            self._hold(_BODY_PASSES)
        else:
            self._response_bodies = passage
            source.pause_reading()

    def broker_gone(self, kept: bytes) -> None:
        """The broker has closed, or reset, the connection.

        Args: kept: the beginning of a response, if there was too little of it to be looked at.
        """
        self._stop_bodies()
        if self.state is State.LEAVING:
            self._broker = None
            return
        self.end = "broker"
        self._host.broker_gone(self)
        if kept or self.session.in_response:
            self._host.refused(self, TruncatedFrame("broker", "it ends the connection inside a response"))
        self._broker = None
        self.close()

    def broker_unreachable(self) -> None:
        self.end = "unreachable"
        self.close()

    def broker_is_behind(self) -> None:
        """The broker reads more slowly than it is written to."""
        self.alert = True
        self._look_at_broker()

    def broker_has_caught_up(self) -> None:
        self._looks_at_broker = 0
        self._set_alert()
        if self._held & _BROKER_IS_FULL:
            self._release(_BROKER_IS_FULL)
            if self._broker is not None:
                self._broker.transport.set_write_buffer_limits(UNNOTICED_BY_BROKER_BYTES)

    def _look_at_broker(self) -> None:
        """Pause where too much waits for the broker."""
        if self._broker is not None:
            self._looks_at_broker += 1
            limit_bytes, waiting_bytes = self._host.write_buffer_bytes, self._broker.waiting_bytes
            if waiting_bytes + WRITE_BYTES * self._looks_at_broker >= limit_bytes:
                self._hold(_BROKER_IS_FULL)
                if waiting_bytes >= limit_bytes // 2:
                    # Large writes: read on at a quarter of the limit, so that the broker need not wait.
                    self._broker.transport.set_write_buffer_limits(limit_bytes)

    # ---- called by what passes in the kernel

    def body_passed(self, size_bytes: int, to_broker: bool) -> None:
        if to_broker:
            self._client_spoke = True
            self.traffic.to_broker_bytes += size_bytes
            self.session.passed_to_broker(size_bytes)
        else:
            self.broker_spoke = True
            self.traffic.to_client_bytes += size_bytes
            self.session.passed_to_client(size_bytes)
        if self.alert:
            self.attend(0 if to_broker else PIPE_BYTES)

    def head_received(self, data: bytes, to_broker: bool) -> None:
        try:
            if to_broker:
                self.data_received(data)
            elif self._broker is not None:
                self._broker.data_received(data)
        except Exception:  # the loop closes what fails so in a transport, and not what fails here
            self._transport.abort()
            raise

    def passage_ends(self, to_broker: bool) -> None:
        if to_broker:
            self._stop_request_bodies()
        else:
            self._stop_response_bodies()

    def side_failed(self, error: OSError, broker: bool) -> None:
        self._stop_bodies()
        if not broker:
            self._note_vanished(error)
            self._transport.abort()
        elif self._broker is not None:
            self._broker.abort()

    # ---- called by the worker

    def refuse(self, error: WireError | LimitReached) -> None:
        """Close both sides for an error, once."""
        if not self._transport.is_closing():
            self.end = "refused"
            self._host.refused(self, self._explained(error, self._kept) if self._kept else error)
            self.close()

    def evict(self, error: LimitReached) -> None:
        """Close it at once, for what it has the worker hold: nothing more goes out."""
        self.refuse(error)
        self.session.drop_requests()
        self._transport.abort()

    def awaits(self) -> tuple[TimeLimit | None, int]:
        """The time limit that runs now, and a number that changes when the client does something about it.

        None runs while it is not read from, nor while it waits for an answer.
        """
        waits = self._held & ~(_BODY_PASSES | _CLIENT_IS_FULL)
        if waits or self.state in (State.DIALLING, State.LEAVING, State.CLOSED):
            return None, 0
        if self.state is State.IDLE:  # also of a client that does not read its replies
            return "first_request_timeout_s", self.answered
        if self._held & _CLIENT_IS_FULL:  # it has to read, as one that has nothing in flight has to ask
            return "idle_timeout_s", self.waiting_bytes
        self._spoken += self._client_spoke
        self._client_spoke = False
        if self._kept or not self.session.at_boundary:
            return "request_timeout_s", self._spoken
        self._spoken += self.broker_spoke
        self.broker_spoke = False
        if self.session.in_flight:
            return None, 0
        return "idle_timeout_s", self._spoken

    def watch_broker(self, before_s: float) -> None:
        """Have the kernel ask whether the broker is still there, if it was dialled before then (monotonic).

        Not as soon as it is connected: after a takeover thousands are, and all of these ask for Metadata.
        """
        if self._broker is not None and self.since_s <= before_s:
            self._broker.be_watched()

    def overdraw(self, quota: Quota) -> None:
        """Read no more from the client before ``repaid``; what it has asked for is answered."""
        self._hold(self._overdrawn(quota))

    def repaid(self, quota: Quota) -> None:
        self._release(self._overdrawn(quota))

    def move(self, patience_s: float, answer_s: float) -> None:
        """Leave in order, for the client to go elsewhere; called again, only the times are new.

        Once it is to `drain`, another call can only shorten the time that is left.

        Args:
            patience_s: how long a moment is waited for when nothing is in flight.
            answer_s: for how long after that what is in flight may be answered, and nothing new is forwarded.
        """
        if self.state in (State.LEAVING, State.CLOSED):
            return
        if self.draining:
            self._answer_s = min(self._answer_s, patience_s + answer_s)
            self._run_out_later()
            return
        self.moving = self.alert = True
        if self.session.coordinates:
            self.session.redirect()
        self._cancel_timer()
        self._timer = asyncio.get_running_loop().call_later(patience_s, self.drain, answer_s)
        self.advance()

    def drain(self, answer_s: float) -> None:
        """Forward no new request, let those in flight answer for as long as the limit, and leave in order."""
        if self.draining or self.state in (State.LEAVING, State.CLOSED):
            return
        self.moving = self.draining = self.alert = True
        self.session.drain()
        self._answer_s = answer_s
        self._run_out_later()
        self.advance()

    def expect(self) -> None:
        """Its identity has lately moved away from here: have the worker look at it once it has a name."""
        self.is_back = self.alert = True

    def wait(self) -> None:
        """Write no record of it before it is to `drain`."""
        self.session.wait()

    def close(self) -> None:
        """Close both sides; what was written to either still goes out, if it can within ``linger_s``."""
        if self._transport.is_closing():
            return
        self._stop_bodies()
        self.drop_response()
        self.state = State.LEAVING
        self._transport.close()
        self._part_with_broker()
        self._cancel_timer()
        if self.waiting_bytes:
            self._abort_later()

    # ---- inside

    def _explained(self, error: WireError | LimitReached, received: bytes) -> WireError | LimitReached:
        """The error of a client; it names the protocol where the client's first bytes are not Kafka."""
        if self.state is not State.IDLE or self.answered:
            return error
        protocol = name_protocol(received)
        if protocol is None:
            return error
        detail = at_listener(protocol, self.listener, secured=_secured(self._transport))
        if detail is None:
            return error
        if isinstance(error, LimitReached):
            return LimitReached(error.reason, f"{error}: {detail}")
        return type(error)(error.peer, detail)

    def _note_vanished(self, exc: Exception | None) -> None:
        if is_gone(exc):
            detail = "its host has not answered for as long, and has not said that it ends"
            self._host.refused(self, LimitReached("vanished_timeout_s", detail))

    def _stop_bodies(self) -> None:
        if self._request_bodies is not None:
            self._stop_request_bodies()
        if self._response_bodies is not None:
            self._stop_response_bodies()

    def _stop_request_bodies(self) -> None:
        assert self._request_bodies is not None
        self._request_bodies.stop()
        self._request_bodies = None
        if not self._transport.is_closing():
            self._release(_BODY_PASSES)

    def _stop_response_bodies(self) -> None:
        assert self._response_bodies is not None
        self._response_bodies.stop()
        self._response_bodies = None
        if self._broker is not None:
            self._broker.read_on()

    def _overdrawn(self, quota: Quota) -> int:
        return _OVERDRAWN_TO_BROKER if quota is self.to_broker_quota else _OVERDRAWN_TO_CLIENT

    def _hold(self, why: int) -> None:
        if self.state is State.LEAVING and (why != _BROKER_IS_FULL or self._broker is None):
            return  # what comes after a goodbye is read, and discarded
        self._held |= why
        self._transport.pause_reading()
        if why != _BODY_PASSES and self._request_bodies is not None:
            self._stop_request_bodies()  # the kernel would go on reading

    def _release(self, why: int) -> None:
        if self._held & why:
            self._held &= ~why
            if not self._held:
                self._transport.resume_reading()

    def _cut(self, data: bytes, consumed: int) -> bytes | memoryview:
        """Keep what was not consumed, and answer what needs no broker; returns what goes to the broker."""
        if consumed < len(data):
            self._keep(data[consumed:])
        start = self._reply() if self.session.local_replies else 0
        if consumed - start < len(data) // 2:
            return data[start:consumed]  # it may wait for long, and a view of it would keep all
        return memoryview(data)[start:consumed]

    def _dial_for(self, data: bytes | memoryview) -> None:
        """What two reads brought waits here at most; what comes later waits in the kernel."""
        self._queue.append(data)
        is_first = self.state is State.IDLE
        if not is_first or len(data) > LARGE_FIRST_BYTES:
            self._hold(_BROKER_IS_DIALLED)
        if is_first:
            self.state = State.DIALLING
            self._host.dial(self)

    def _keep(self, unconsumed: bytes) -> None:
        """Present it again with what comes next. Only a drain leaves more than fits, unanswered."""
        if len(unconsumed) <= KEPT_BYTES:
            self._kept = unconsumed
        else:
            self._hold(_TOO_MUCH_IN_A_DRAIN)

    def _reply(self) -> int:
        """Answer what needs no broker; returns how many of the bytes consumed were for that."""
        replies = self.session.local_replies
        self.answered += len(replies)
        self._transport.write(b"".join(replies))
        replies.clear()
        return self.session.discard_bytes

    def attend(self, written_bytes: int = 0) -> None:
        """Read on where few enough are in flight, pause where too much waits, and take a move further.

        Args: written_bytes: how long the piece was of which something has just been written to the client.
        """
        if self.session.crowded:
            self._look_at_requests()
        if self in self._host.backlogs:
            self._host.backlogs.note(self, written_bytes)
            if not self._held & _CLIENT_IS_FULL:
                self._look_at_backlog()
        if self._looks_at_broker and not self._held & _BROKER_IS_FULL:
            self._look_at_broker()
        if self.is_back and self.state is not State.IDLE:
            self.is_back = False
            self._set_alert()
            self._host.came_back(self)
        if self.moving:
            self.advance()

    def _look_at_requests(self) -> None:
        """Pause where too many are in flight, and read on where half of that are: a broker answers them all,
        or is gone.
        """
        session, requests = self.session, self._host.requests
        in_flight = session.in_flight
        session.crowded = in_flight > MANY_IN_FLIGHT // 2
        requests.note(self, IN_FLIGHT_BYTES * in_flight if session.crowded else 0)
        part = requests.limit_bytes // (2 * IN_FLIGHT_BYTES * max(1, len(requests)))
        most = max(MANY_IN_FLIGHT, min(MOST_IN_FLIGHT, part))
        if in_flight >= most:
            self._hold(_TOO_MANY_IN_FLIGHT)
        elif in_flight <= most // 2:
            self._release(_TOO_MANY_IN_FLIGHT)
        self._set_alert()

    def _set_alert(self) -> None:
        behind = self._looks_at_broker > 0 or self in self._host.backlogs
        self.alert = self.moving or self.session.crowded or behind or self.is_back

    def note_response(self) -> int:
        """Tell the worker how much is held for a response, and behind it; returns how much is no more."""
        before_bytes = self._host.responses.held_bytes(self)
        held_bytes = self.session.held_bytes
        if not held_bytes and not self.session.working:
            self.session.holding = False
        elif self._broker is not None:
            held_bytes += self._broker.kept_bytes
        self._host.responses.note(self, held_bytes)
        self._host.backlogs.look()
        return max(0, before_bytes - held_bytes)

    def drop_response(self) -> None:
        """Hold no response any more: nothing more of it goes to the client."""
        if self.session.holding:
            self.session.drop_response()
            self.note_response()

    def advance(self) -> None:
        """Take a move further where this is the moment."""
        if self.state is State.LEAVING:
            if self.session.refuses:
                self._part_with_broker()
        elif self.state is State.DIALLING:
            return  # what waits for the broker may be Produce with acks=0, and that is never in flight
        elif self.party is not None:
            self.party.advance(self)
        elif self.may_leave:
            self.leave()

    @property
    def may_leave(self) -> bool:
        """Whether nothing is cut off where it leaves now; also where it has left."""
        if self.state in (State.LEAVING, State.CLOSED):
            return True
        session = self.session
        return self.state is not State.DIALLING and (
            session.drained or session.redirected or self._is_moment()
        )

    def _is_moment(self) -> bool:
        """Whether nothing is in flight. With a group's member it is its next heartbeat that is waited for:
        some clients look for a coordinator again only where they are told that it is not here.
        """
        session = self.session
        return session.quiet and not session.coordinates and not self._kept and not self._unread_bytes()

    def _unread_bytes(self) -> int:
        """What the client has sent, and nobody has read."""
        sock = self._transport.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return 0
        (waiting,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4)))
        return int(waiting)

    def _run_out_later(self) -> None:
        self._cancel_timer()
        self._timer = asyncio.get_running_loop().call_later(self._answer_s, self._run_out)

    def _run_out(self) -> None:
        """What is in flight has had its time."""
        if self.state is State.DIALLING:  # that has a limit of its own; what waits for it has its time then
            return
        if self.session.in_flight:
            self._host.cut(self)
        self.leave()

    def leave(self) -> None:
        """Nothing more is to come from here: say so to the client, and wait until it has read it."""
        if self.state in (State.LEAVING, State.CLOSED) or self._transport.is_closing():
            return
        self._stop_bodies()
        self.state = State.LEAVING
        self.moving = self.alert = True
        self.end = "unanswered" if self.session.in_flight else "moved"
        self.drop_response()
        self.session.drain()
        if self.session.refuses:
            self._part_with_broker()
        self._cancel_timer()
        self._transport.write_eof()
        self._release(self._held)
        self._abort_later()

    def _part_with_broker(self) -> None:
        broker, self._broker = self._broker, None
        self._looks_at_broker = 0
        if broker is not None:
            broker.leave()
            if not self._transport.is_closing():
                self._release(_BROKER_IS_FULL)

    def _abort_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._host.linger_s, self._transport.abort)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class BrokerConnection(asyncio.Protocol):
    """The broker's side of a client's connection."""

    __slots__ = ("_client", "_client_is_full", "_host", "_kept", "_watched", "transport", "write")

    transport: asyncio.Transport
    write: Write
    """To the broker. What is written after it has gone is lost: that is told in the same turn of the loop."""

    def __init__(self, host: Host, client: ClientConnection) -> None:
        self._host = host
        self._client: ClientConnection | None = client
        self._kept = b""
        self._client_is_full = False
        self._watched = False

    def connection_made(self, transport: Any) -> None:  # a Transport; uvloop's is no instance of it
        self.transport = transport
        self.write = transport.write
        transport.set_write_buffer_limits(UNNOTICED_BY_BROKER_BYTES)
        if self._client is None or not self._client.join(self):
            self._client = None
            transport.abort()

    def data_received(self, data: bytes) -> None:
        client = self._client
        if client is None or client.state is _LEAVING:
            return
        client.broker_spoke = True
        client.traffic.to_client_bytes += len(data)
        if client.to_client_quota is not None and client.to_client_quota.spend(len(data)):
            self._host.overdrawn(client, client.to_client_quota)
        if self._kept:
            data = self._kept + data
            self._kept = b""
        session = client.session
        try:
            consumed = session.receive_from_broker(data, client.write)
        except WireError as error:
            client.refuse(error)
            return
        if consumed < len(data):
            self._kept = data[consumed:]
        elif session.passing_to_client >= LARGE_BYTES:
            client.pass_body(self, False, len(data))
        if session.holding:
            written_bytes = self._hold_response(client)
            if client.alert:
                client.attend(len(data) + written_bytes)
        elif client.alert:
            client.attend(len(data))

    def eof_received(self) -> None:
        self._lose_client()

    def pause_writing(self) -> None:
        if self._client is not None:
            self._client.broker_is_behind()

    def resume_writing(self) -> None:
        if self._client is not None:
            self._client.broker_has_caught_up()

    def connection_lost(self, exc: Exception | None) -> None:
        self._host.leaving.done(self)
        self._lose_client()

    @property
    def waiting_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    @property
    def kept_bytes(self) -> int:
        """What was read, and waits until the response before it has been worked on."""
        return len(self._kept)

    def pause_reading(self) -> None:
        self._client_is_full = True
        self.transport.pause_reading()

    def resume_reading(self) -> None:
        self._client_is_full = False
        if self._client is not None and self._client.session.working:
            self._work_later()
        self.read_on()

    def read_on(self) -> None:
        """Read, unless something else still forbids it."""
        client = self._client
        if self._client_is_full or self.transport.is_closing():
            return
        if client is None or not (client.has_response_bodies or client.session.working):
            self.transport.resume_reading()

    def _hold_response(self, client: ClientConnection) -> int:
        """A response was held, or is, or pauses; where there is work on it, read nothing behind it.

        Returns: how much of it may have gone to the client's transport, and not in copies.
        """
        written_bytes = client.note_response()
        if client.session.working:
            self.transport.pause_reading()
            self._work_later()
        return written_bytes

    def _work_later(self) -> None:
        if self._client is not None and not self._client_is_full:
            self._host.turns.add(self._client.source, self._work)

    def _work(self) -> None:
        """Take a step with the response that is held, and read on after the last one."""
        client = self._client
        if client is None or not client.session.working or self._client_is_full:
            return
        try:
            client.session.work(client.write)
        except WireError as error:
            client.refuse(error)
            return
        if client.alert:
            client.attend(PIECE_BYTES)
        if client.session.working:
            self._work_later()
            return
        client.note_response()
        self.read_on()
        if self._kept:
            self.data_received(b"")

    def leave(self) -> None:
        """The client is gone: end in order, so that the broker reads all that was sent, and do not listen."""
        self._client = None
        if self.transport.is_closing():
            return
        self.transport.write_eof()
        self.transport.resume_reading()
        self._host.leaving.begin(self)

    def be_watched(self) -> None:
        """By the kernel, which ends it where nobody is there any more."""
        if self._watched or self.transport.is_closing():
            return
        self._watched = True
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            with suppress(OSError):  # one that has just gone says so itself, and must not end a sweep
                keep_alive(sock.fileno(), BROKER_VANISHED_S)

    def abort(self) -> None:
        """Cut it: its goodbye has taken too long."""
        self.transport.abort()

    def _lose_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.broker_gone(self._kept)


def _secured(transport: asyncio.Transport) -> bool:
    """Whether what passes through the kernel is not what passes through the transport."""
    return transport.get_extra_info("ssl_object") is not None
