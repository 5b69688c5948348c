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
from typing import TYPE_CHECKING, Any, Final

from fleet.core.errors import LimitExceeded, TimeLimit, TruncatedFrame, WireError
from fleet.core.foreign_protocols import explain_refusal
from fleet.proxy.broker_connection import UNNOTICED_BY_BROKER_BYTES, BrokerConnection
from fleet.proxy.budget import IN_FLIGHT_BYTES, most_in_flight
from fleet.proxy.host import BODY_PASSES, LEAVING, Host, State
from fleet.proxy.large_bodies import LargeBodies
from fleet.proxy.session import HEADER_LIMIT_BYTES, MANY_IN_FLIGHT, Session
from fleet.proxy.splice import LARGE_BYTES
from fleet.proxy.streaming_patch import Write
from fleet.proxy.timeouts import ClientTimeout
from fleet.runtime.socket_options import has_vanished, is_secured, unread_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from fleet.core.model import BrokerId
    from fleet.core.traffic import ConnectionEnd
    from fleet.proxy.departures import Party
    from fleet.proxy.quota import Quota
    from fleet.proxy.traffic import Traffic

KEPT_BYTES: Final = HEADER_LIMIT_BYTES
"""The most that a session leaves unconsumed, but in a drain."""

# Why a client is not read from. Bits; 1 is BODY_PASSES.
_BROKER_IS_FULL: Final = 32
_BROKER_IS_DIALLED: Final = 2
_TOO_MUCH_IN_A_DRAIN: Final = 4
_OVERDRAWN_TO_BROKER: Final = 8
_OVERDRAWN_TO_CLIENT: Final = 16
_CLIENT_IS_FULL: Final = 64
_TOO_MANY_IN_FLIGHT: Final = 128

REPLY_BUFFER_BYTES: Final = 4 * 1024
"""Replies that a client may leave unread while no broker is asked for anything. Then it is not read from."""
WRITE_BYTES: Final = 1024
"""What a write takes that waits, besides its bytes: with uvloop 800 bytes.

Found: 100 KB of a body took 76 MB, because it came byte by byte while the broker did not read.
"""
LARGE_FIRST_BYTES: Final = 16 * 1024
"""Of a first piece that waits for a broker: after a larger one nothing more is read meanwhile."""


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
        "_ended",
        "_held",
        "_kept",
        "_looks_at_backlog",
        "_looks_at_broker",
        "_make_session",
        "_queue",
        "_sampling",
        "_spoken",
        "_timer",
        "alert",
        "answered",
        "bodies",
        "broker",
        "broker_id",
        "broker_spoke",
        "client_spoke",
        "draining",
        "end",
        "host",
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
        "transport",
        "watch",
        "write",
    )

    session: Session
    write: Write
    """To the client."""
    transport: asyncio.Transport
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
        self.broker: BrokerConnection | None = None
        self._sampling = host.sampling
        self.client_spoke = False
        self.broker_spoke = False
        """Since ``active_timeout`` was called."""
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

        self.host = host
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
        self.watch = ClientTimeout()
        self._looks_at_broker = 0
        """Since the broker is behind: one with each read, so there are no more writes. 0 where it is not."""
        self._looks_at_backlog = 0
        """Since the client is behind."""
        self._answer_s = 0.0
        """How long what is in flight may take to be answered, once nothing new is forwarded."""
        self._held = 0
        self._queue: list[bytes | memoryview] = []
        self.bodies: LargeBodies | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def has_response_bodies(self) -> bool:
        """Whether something else than its transport reads from the broker."""
        return self.bodies is not None and self.bodies.has_responses

    @property
    def waiting_bytes(self) -> int:
        """What was written, and has not reached the kernel."""
        return self.transport.get_write_buffer_size()

    @property
    def peer(self) -> str:
        """The client's address; ? where the system did not know it."""
        return f"{self._address[0]}:{self._address[1]}"

    @property
    def describe_peers(self) -> str:
        """Between whom it is, as far as that is known."""
        broker = None if self.broker is None else self.broker.transport.get_extra_info("peername")
        return self.peer if broker is None else f"{self.peer} to {broker[0]}:{broker[1]}"

    # ---- called by the event loop

    def connection_made(self, transport: Any) -> None:  # a Transport; uvloop's is no instance of it
        self.transport = transport
        self.write = transport.write
        transport.set_write_buffer_limits(REPLY_BUFFER_BYTES)
        self._address = transport.get_extra_info("peername") or ("?", 0)
        self.source = self._address[0]
        self.session = self._make_session(self.source)
        self.host.opened(self)

    def data_received(self, data: bytes) -> None:
        broker, session, sampling = self.broker, self.session, self._sampling
        if broker is None and self.state is LEAVING:
            return
        self.client_spoke = True
        if self._kept:
            data = self._kept + data
            self._kept = b""
        sampling.reads -= 1
        try:
            if sampling.reads:
                passes = session.receive_from_client(data)
            else:
                passes = session.receive_sampled(data)
                self.host.sampled(self)
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
                self.host.overdrawn(self, self.to_broker_quota)
            if broker is None:
                self._dial_for(piece)
            else:
                broker.write(piece)
                if session.passing_to_broker >= LARGE_BYTES:
                    self.splice_body(broker, True, passes)
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
            self.host.refused(self, self._explained(error, self._kept))
        self.close()
        return False

    def pause_writing(self) -> None:
        """The client reads more slowly than it is written to."""
        if self.broker is None:
            self.hold(_CLIENT_IS_FULL)
            return
        self.host.backlogs.begin(self)
        self.alert = True
        self._looks_at_backlog = 0
        self._look_at_backlog()

    def resume_writing(self) -> None:
        self.host.backlogs.end(self)
        self._set_alert()
        self.release(_CLIENT_IS_FULL)
        if self.broker is not None:
            self.broker.resume_reading()

    def _look_at_backlog(self) -> None:
        """Pause where too much waits for the client. Kafka does not read from such a client either."""
        host = self.host
        self._looks_at_backlog += 1
        held_bytes = self.waiting_bytes + WRITE_BYTES * self._looks_at_backlog
        if held_bytes >= min(host.write_buffer_bytes, host.backlogs.share_bytes):
            self.hold(_CLIENT_IS_FULL)
            if self.broker is not None:
                self.broker.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.note_vanished(exc)
        self._stop_bodies()
        self.drop_response()
        self.host.backlogs.end(self)
        if self.session.crowded:
            self.host.requests.note(self, 0)
        self.state = State.CLOSED
        self._cancel_timer()
        self._queue.clear()
        self._detach_broker()
        self.host.closed(self)
        if self.party is not None:
            self.party.drop(self)

    # ---- called by the broker's side and by whoever dials

    def broker_side(self) -> BrokerConnection:
        """A new one, for the connection that is dialled for it."""
        return BrokerConnection(self.host, self)

    def wait_for_broker(self) -> int:
        """Nobody knows yet where its broker is: read no more. Returns: how many bytes wait for it."""
        self.hold(_BROKER_IS_DIALLED)
        return sum(len(piece) for piece in self._queue) + len(self._kept)

    def attach_broker(self, broker: BrokerConnection) -> bool:
        """The broker is connected; False where the client is gone by now."""
        if self.state is not State.DIALLING:
            return False
        self.state = State.JOINED
        self.broker = broker
        # Whatever waits now keeps all of a read. Found: 400 clients that left 2.9 KB of 40 KB took 13.7 MB.
        self.transport.set_write_buffer_limits(0)
        if self._held & _CLIENT_IS_FULL:
            # Its transport was told so before there was a broker, and says it once. A transport that has just
            # been made begins to read after this turn, whatever it is told now.
            broker.pause_reading()
            asyncio.get_running_loop().call_soon(self._pause_full, broker)
        # First, because a write may find the broker's buffer full, and pause again.
        self.release(_BROKER_IS_DIALLED)
        for piece in self._queue:
            broker.write(piece)
        self._queue.clear()
        if self._ended:
            self.eof_received()
            return True
        if self.alert:
            if self.draining:
                self._start_drain_timer()
            self.attend()
        return True

    def _pause_full(self, broker: BrokerConnection) -> None:
        if self.broker is broker and self._held & _CLIENT_IS_FULL:
            broker.pause_reading()

    def splice_body(self, broker: BrokerConnection, to_broker: bool, written_bytes: int) -> None:
        """Have the kernel pass on what is left of a large body, where it can; see ``large_bodies``."""
        if self.bodies is None:
            self.bodies = LargeBodies(self)
        self.bodies.pass_on(broker, to_broker, written_bytes)

    def broker_gone(self, kept: bytes) -> None:
        """The broker has closed, or reset, the connection.

        Args: kept: the beginning of a response, if there was too little of it to be looked at.
        """
        self._stop_bodies()
        if self.state is State.LEAVING:
            self.broker = None
            return
        self.end = "broker"
        self.host.broker_gone(self)
        if kept or self.session.in_response:
            self.host.refused(self, TruncatedFrame("broker", "it ends the connection inside a response"))
        self.broker = None
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
            self.release(_BROKER_IS_FULL)
            if self.broker is not None:
                self.broker.transport.set_write_buffer_limits(UNNOTICED_BY_BROKER_BYTES)

    def _look_at_broker(self) -> None:
        """Pause where too much waits for the broker."""
        if self.broker is not None:
            self._looks_at_broker += 1
            limit_bytes, waiting_bytes = self.host.write_buffer_bytes, self.broker.waiting_bytes
            if waiting_bytes + WRITE_BYTES * self._looks_at_broker >= limit_bytes:
                self.hold(_BROKER_IS_FULL)
                if waiting_bytes >= limit_bytes // 2:
                    # Large writes: read on at a quarter of the limit, so that the broker need not wait.
                    self.broker.transport.set_write_buffer_limits(limit_bytes)

    # ---- called by the worker

    def refuse(self, error: WireError | LimitExceeded) -> None:
        """Close both sides for an error, once."""
        if not self.transport.is_closing():
            self.end = "refused"
            self.host.refused(self, self._explained(error, self._kept) if self._kept else error)
            self.close()

    def evict(self, error: LimitExceeded) -> None:
        """Close it at once, for what it has the worker hold: nothing more goes out."""
        self.refuse(error)
        self.session.drop_requests()
        self.transport.abort()

    def active_timeout(self) -> tuple[TimeLimit | None, int]:
        """The time limit that runs now, and a number that changes when the client does something about it.

        None runs while it is not read from, nor while it waits for an answer.
        """
        waits = self._held & ~(BODY_PASSES | _CLIENT_IS_FULL)
        if waits or self.state in (State.DIALLING, State.LEAVING, State.CLOSED):
            return None, 0
        if self.state is State.IDLE:  # also of a client that does not read its replies
            return "first_request_timeout_s", self.answered
        if self._held & _CLIENT_IS_FULL:  # it has to read, as one that has nothing in flight has to ask
            return "idle_timeout_s", self.waiting_bytes
        self._spoken += self.client_spoke
        self.client_spoke = False
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
        if self.broker is not None and self.since_s <= before_s:
            self.broker.be_watched()

    def overdraw(self, quota: Quota) -> None:
        """Read no more from the client before ``repaid``; what it has asked for is answered."""
        self.hold(self._overdrawn(quota))

    def repaid(self, quota: Quota) -> None:
        self.release(self._overdrawn(quota))

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
            self._start_drain_timer()
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
        self._start_drain_timer()
        self.advance()

    def expect(self) -> None:
        """Its identity has lately moved away from here: have the worker look at it once it has a name."""
        self.is_back = self.alert = True

    def wait(self) -> None:
        """Write no record of it before it is to `drain`."""
        self.session.wait()

    def close(self) -> None:
        """Close both sides; what was written to either still goes out, if it can within ``linger_s``."""
        if self.transport.is_closing():
            return
        self._stop_bodies()
        self.drop_response()
        self.state = State.LEAVING
        self.transport.close()
        self._detach_broker()
        self._cancel_timer()
        if self.waiting_bytes:
            self._abort_later()

    # ---- inside

    def _explained(self, error: WireError | LimitExceeded, received: bytes) -> WireError | LimitExceeded:
        """The error of a client; it names the protocol where the client's first bytes are not Kafka."""
        if self.state is not State.IDLE or self.answered:
            return error
        return explain_refusal(error, received, self.listener, secured=is_secured(self.transport))

    def _stop_bodies(self) -> None:
        if self.bodies is not None:
            self.bodies.stop()
            self.bodies = None  # the two refer to each other, and references alone free memory

    def note_vanished(self, exc: Exception | None) -> None:
        if has_vanished(exc):
            detail = "its host has not answered for as long, and has not said that it ends"
            self.host.refused(self, LimitExceeded("vanished_timeout_s", detail))

    def _overdrawn(self, quota: Quota) -> int:
        return _OVERDRAWN_TO_BROKER if quota is self.to_broker_quota else _OVERDRAWN_TO_CLIENT

    def hold(self, why: int) -> None:
        if self.state is State.LEAVING and (why != _BROKER_IS_FULL or self.broker is None):
            return  # what comes after a goodbye is read, and discarded
        self._held |= why
        self.transport.pause_reading()
        if why != BODY_PASSES and self.bodies is not None:
            self.bodies.stop_requests()  # the kernel would go on reading

    def release(self, why: int) -> None:
        if self._held & why:
            self._held &= ~why
            if not self._held:
                self.transport.resume_reading()

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
            self.hold(_BROKER_IS_DIALLED)
        if is_first:
            self.state = State.DIALLING
            self.host.dial(self)

    def _keep(self, unconsumed: bytes) -> None:
        """Present it again with what comes next. Only a drain leaves more than fits, unanswered."""
        if len(unconsumed) <= KEPT_BYTES:
            self._kept = unconsumed
        else:
            self.hold(_TOO_MUCH_IN_A_DRAIN)

    def _reply(self) -> int:
        """Answer what needs no broker; returns how many of the bytes consumed were for that."""
        replies = self.session.local_replies
        self.answered += len(replies)
        self.transport.write(b"".join(replies))
        replies.clear()
        return self.session.discard_bytes

    def attend(self, written_bytes: int = 0) -> None:
        """Read on where few enough are in flight, pause where too much waits, and take a move further.

        Args: written_bytes: how long the piece was of which something has just been written to the client.
        """
        if self.session.crowded:
            self._look_at_requests()
        if self in self.host.backlogs:
            self.host.backlogs.note(self, written_bytes)
            if not self._held & _CLIENT_IS_FULL:
                self._look_at_backlog()
        if self._looks_at_broker and not self._held & _BROKER_IS_FULL:
            self._look_at_broker()
        if self.is_back and self.state is not State.IDLE:
            self.is_back = False
            self._set_alert()
            self.host.came_back(self)
        if self.moving:
            self.advance()

    def _look_at_requests(self) -> None:
        """Pause where too many are in flight, and read on where half of that are: a broker answers them all,
        or is gone.
        """
        session, requests = self.session, self.host.requests
        in_flight = session.in_flight
        session.crowded = in_flight > MANY_IN_FLIGHT // 2
        requests.note(self, IN_FLIGHT_BYTES * in_flight if session.crowded else 0)
        most = max(MANY_IN_FLIGHT, most_in_flight(requests.limit_bytes, len(requests)))
        if in_flight >= most:
            self.hold(_TOO_MANY_IN_FLIGHT)
        elif in_flight <= most // 2:
            self.release(_TOO_MANY_IN_FLIGHT)
        self._set_alert()

    def _set_alert(self) -> None:
        behind = self._looks_at_broker > 0 or self in self.host.backlogs
        self.alert = self.moving or self.session.crowded or behind or self.is_back

    def note_response(self) -> int:
        """Tell the worker how much is held for a response, and behind it; returns how much is no more."""
        before_bytes = self.host.responses.held_bytes(self)
        held_bytes = self.session.held_bytes
        if not held_bytes and not self.session.working:
            self.session.holding = False
        elif self.broker is not None:
            held_bytes += self.broker.kept_bytes
        self.host.responses.note(self, held_bytes)
        self.host.backlogs.look()
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
                self._detach_broker()
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
        is_quiet = session.quiet and not session.coordinates
        return is_quiet and not self._kept and not unread_bytes(self.transport)

    def _start_drain_timer(self) -> None:
        self._cancel_timer()
        self._timer = asyncio.get_running_loop().call_later(self._answer_s, self._on_drain_deadline)

    def _on_drain_deadline(self) -> None:
        """What is in flight has had its time."""
        if self.state is State.DIALLING:  # that has a limit of its own; what waits for it has its time then
            return
        if self.session.in_flight:
            self.host.cut(self)
        self.leave()

    def leave(self) -> None:
        """Nothing more is to come from here: say so to the client, and wait until it has read it."""
        if self.state in (State.LEAVING, State.CLOSED) or self.transport.is_closing():
            return
        self._stop_bodies()
        self.state = State.LEAVING
        self.moving = self.alert = True
        self.end = "unanswered" if self.session.in_flight else "moved"
        self.drop_response()
        self.session.drain()
        if self.session.refuses:
            self._detach_broker()
        self._cancel_timer()
        self.transport.write_eof()
        self.release(self._held)
        self._abort_later()

    def _detach_broker(self) -> None:
        broker, self.broker = self.broker, None
        self._looks_at_broker = 0
        if broker is not None:
            broker.leave()
            if not self.transport.is_closing():
                self.release(_BROKER_IS_FULL)

    def _abort_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self.host.linger_s, self.transport.abort)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
