"""One client connection and the broker connection behind it, as two asyncio protocols.

Only the session parses bytes. Nothing is awaited between receiving bytes and writing them.

    IDLE ──first byte for a broker──► DIALING ──connected──► JOINED
      └──────────┴──────────────────────┴──idle, drained──► LEAVING ──client's end, or time──► CLOSED

A client that ends its sending half is closed, as Kafka brokers do. When a broker closes, its client is closed
after the bytes that the broker sent before. A connection that has to leave cuts off no request: it ends when
nothing is in flight, or else after the requests in flight are answered, with no further request forwarded.
While a broker is dialed there is neither such a moment nor an end: the received bytes go to the broker first,
or the dial fails. Then the client gets an end of file, and its bytes are still read. Closing with unread
bytes would reset the connection and lose responses in transit. Of these bytes Produce with acks=0
still goes to the broker, because its sender counts it as delivered. Other requests never ran, and are
discarded. TLS works the same way: its end of file is close_notify. A client that resets is closed at once.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from fleet.core.errors import LimitExceeded, TimeLimit, TruncatedFrame, WireError
from fleet.core.foreign_protocols import explain_refusal
from fleet.proxy.broker_connection import UNNOTICED_BY_BROKER_BYTES, BrokerConnection
from fleet.proxy.budget import IN_FLIGHT_BYTES, in_flight_limit
from fleet.proxy.frame_limits import HEADER_LIMIT_BYTES
from fleet.proxy.host import BODY_PASSES, LEAVING, Host, State
from fleet.proxy.large_bodies import LargeBodies
from fleet.proxy.session import MANY_IN_FLIGHT, Session
from fleet.proxy.splice import LARGE_BODY_BYTES
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

MAX_UNCONSUMED_BYTES: Final = HEADER_LIMIT_BYTES
"""The most bytes that a session leaves unconsumed, except in a drain."""

# Reasons to pause reading from a client. Bits; 1 is BODY_PASSES.
_BROKER_IS_FULL: Final = 32
_BROKER_IS_DIALED: Final = 2
_TOO_MUCH_IN_A_DRAIN: Final = 4
_OVERDRAWN_TO_BROKER: Final = 8
_OVERDRAWN_TO_CLIENT: Final = 16
CLIENT_IS_FULL: Final = 64
_TOO_MANY_IN_FLIGHT: Final = 128

REPLY_BUFFER_BYTES: Final = 4 * 1024
"""Unread local replies, in bytes, above which the worker stops reading from a client without a broker."""
WRITE_OVERHEAD_BYTES: Final = 1024
"""Memory of a waiting write in addition to its bytes: 800 bytes with uvloop.

Found: a body of 100 KB took 76 MB, because it arrived byte by byte while the broker did not read.
"""
LARGE_FIRST_PIECE_BYTES: Final = 16 * 1024
"""Size of a first piece above which nothing more is read until the broker is connected."""


class ClientConnection(asyncio.Protocol):
    """The client's side, and the owner of the broker's side.

    Args:
        host: the worker.
        broker_id: the identity of the port that the client connected to; None for a bootstrap port.
        traffic: the counters for the connection's bytes.
        listener: the name of the port's listener.
        make_session: called with the client's host once the client is connected.
    """

    __slots__ = (
        "_address",
        "_answer_s",
        "_backlog_checks",
        "_broker_buffer_checks",
        "_make_session",
        "_progress_count",
        "_sampling",
        "_timer",
        "answered",
        "bodies",
        "broker",
        "broker_id",
        "end",
        "has_broker_sent",
        "has_client_sent",
        "has_ended",
        "has_returned",
        "host",
        "is_alert",
        "is_draining",
        "is_moving",
        "listener",
        "number",
        "party",
        "pause_reasons",
        "queue",
        "session",
        "since_s",
        "source",
        "state",
        "timeout",
        "to_broker_quota",
        "to_client_quota",
        "traffic",
        "transport",
        "unconsumed",
        "write",
    )

    session: Session
    write: Write
    """Writes to the client."""
    transport: asyncio.Transport
    _address: tuple[Any, ...]
    """Host and port; an IPv6 address has two more elements."""

    def __init__(
        self,
        host: Host,
        broker_id: BrokerId | None,
        traffic: Traffic,
        listener: str,
        make_session: Callable[[str], Session],
    ) -> None:
        # First the attributes that each read uses, so that they share cache lines: all caches are cold then.
        self.broker: BrokerConnection | None = None
        self._sampling = host.sampling
        self.has_client_sent = False
        self.has_broker_sent = False
        """Whether the broker has sent bytes since the last call of ``active_timeout``."""
        self.is_alert = False
        """Whether `attend` must follow each read."""
        self.is_moving = False
        self.is_draining = False
        self.has_returned = False
        """Whether the client came although its identity has just moved to another member."""
        self.party: Party | None = None
        """The connections that must leave together with this one."""
        self.unconsumed = b""
        self.traffic = traffic
        self.to_broker_quota: Quota | None = None
        self.to_client_quota: Quota | None = None
        self.state = State.IDLE

        self.host = host
        self.broker_id = broker_id
        self.listener = listener
        self.number = 0
        """Number of the connection among those that needed a broker; 0 until then."""
        self.since_s = 0.0
        self.end: ConnectionEnd = "client"
        self._make_session = make_session
        self.source = "?"
        """The client's address, by which limits count."""
        self.answered = 0
        """Number of requests that were answered without a broker."""
        self.has_ended = False
        """Whether the client has ended its sending half while its bytes wait for a broker."""
        self._progress_count = 0
        self.timeout = ClientTimeout()
        self._broker_buffer_checks = 0
        """Checks since the broker fell behind, one for each read: an upper bound of waiting writes; or 0."""
        self._backlog_checks = 0
        """Checks since the client fell behind; 0 if the client keeps up."""
        self._answer_s = 0.0
        """How long the answers to requests in flight may take in a drain."""
        self.pause_reasons = 0
        self.queue: list[bytes | memoryview] = []
        self.bodies: LargeBodies | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def has_response_bodies(self) -> bool:
        """Whether the kernel, and not the transport, reads from the broker."""
        return self.bodies is not None and self.bodies.has_responses

    @property
    def destination(self) -> BrokerId | None:
        """The broker to dial; None for any."""
        return self.broker_id

    @property
    def waiting_bytes(self) -> int:
        """Bytes that were written, and have not reached the kernel."""
        return self.transport.get_write_buffer_size()

    @property
    def peer(self) -> str:
        """The client's address; ``?`` if the system did not report one."""
        return f"{self._address[0]}:{self._address[1]}"

    # ---- called by the event loop

    def connection_made(self, transport: Any) -> None:  # a Transport, although uvloop's is no instance of it
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
        self.has_client_sent = True
        if self.unconsumed:
            data = self.unconsumed + data
            self.unconsumed = b""
        sampling.reads -= 1
        try:
            if sampling.reads:
                passes = session.receive_from_client(data)
            else:
                passes = session.receive_sampled(data)
                self.host.sampled(self)
        except WireError as error:
            self.refuse(self._explain(error, data))
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
                if session.passing_to_broker >= LARGE_BODY_BYTES:
                    self.splice_body(broker, True, passes)
        if session.is_crowded:
            self.is_alert = True
        if self.is_alert:
            self.attend()

    def eof_received(self) -> bool:
        if self.state is State.DIALING:  # the bytes that wait may be Produce with acks=0
            self.has_ended = True
            return True
        # A drain keeps whole requests, too.
        cut_off = self.unconsumed or not self.session.at_boundary
        if cut_off and not self.is_draining and self.state is not State.LEAVING:
            error = TruncatedFrame("client", "connection closed inside a request")
            self.host.refused(self, self._explain(error, self.unconsumed))
        self.close()
        return False

    def pause_writing(self) -> None:
        """Note that the client reads more slowly than the worker writes to it."""
        if self.broker is None:
            self.hold(CLIENT_IS_FULL)
            return
        self.host.backlogs.begin(self)
        self.is_alert = True
        self._backlog_checks = 0
        self._check_backlog()

    def resume_writing(self) -> None:
        """Note that the client has read most of the bytes that waited for it, and resume reading."""
        self.host.backlogs.end(self)
        self._set_alert()
        self.release(CLIENT_IS_FULL)
        if self.broker is not None:
            self.broker.resume_reading()

    def _check_backlog(self) -> None:
        """Pause both sides if too much waits for the client. Kafka, too, stops reading from such a client."""
        host = self.host
        self._backlog_checks += 1
        held_bytes = self.waiting_bytes + WRITE_OVERHEAD_BYTES * self._backlog_checks
        if held_bytes >= min(host.write_buffer_bytes, host.backlogs.share_bytes):
            self.hold(CLIENT_IS_FULL)
            if self.broker is not None:
                self.broker.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.note_vanished(exc)
        self._stop_bodies()
        self.drop_response()
        self.host.backlogs.end(self)
        if self.session.is_crowded:
            self.host.requests.note(self, 0)
        self.state = State.CLOSED
        self._cancel_timer()
        self.queue.clear()
        self._detach_broker()
        self.host.closed(self)
        if self.party is not None:
            self.party.drop(self)

    # ---- called by the broker's side and by the dialer

    def broker_side(self) -> BrokerConnection:
        """Return a new protocol for the connection to the broker."""
        return BrokerConnection(self.host, self)

    def note_candidate(self, broker_id: BrokerId | None) -> None:
        """Note which broker is dialed now; None if its id is not known."""

    def wait_for_broker(self) -> int:
        """Pause reading until the broker's address is known. Returns: how many bytes wait for the broker."""
        self.hold(_BROKER_IS_DIALED)
        return sum(len(piece) for piece in self.queue) + len(self.unconsumed)

    def attach_broker(self, broker: BrokerConnection) -> bool:
        """Attach the connected broker. Returns: False if the client has left by now."""
        if self.state is not State.DIALING:
            return False
        self.state = State.JOINED
        self.broker = broker
        # From now on bytes that wait keep a whole read in memory. Found: 400 clients that left 2.9 KB of
        # 40 KB unread took 13.7 MB.
        self.transport.set_write_buffer_limits(0)
        if self.pause_reasons & CLIENT_IS_FULL:
            # The client's transport reported the full buffer before there was a broker, and reports it only
            # once. A new transport begins to read after this turn, even if it is paused now.
            broker.pause_reading()
            asyncio.get_running_loop().call_soon(self._pause_full, broker)
        # Release first, because a write may find the broker's buffer full, and pause again.
        self.release(_BROKER_IS_DIALED)
        for piece in self.queue:
            broker.write(piece)
        self.queue.clear()
        if self.has_ended:
            self.eof_received()
            return True
        if self.is_alert:
            if self.is_draining:
                self._start_drain_timer()
            self.attend()
        return True

    def _pause_full(self, broker: BrokerConnection) -> None:
        if self.broker is broker and self.pause_reasons & CLIENT_IS_FULL:
            broker.pause_reading()

    def splice_body(self, broker: BrokerConnection, to_broker: bool, written_bytes: int) -> None:
        """Let the kernel pass on the rest of a large body, if it can; see ``large_bodies``."""
        if self.bodies is None:
            self.bodies = LargeBodies(self)
        self.bodies.pass_on(broker, to_broker, written_bytes)

    def broker_closed(self, unconsumed: bytes) -> None:
        """Close the client after the broker has closed, or reset, its connection.

        Args: unconsumed: the beginning of a response that was too short to be parsed.
        """
        self._stop_bodies()
        if self.state is State.LEAVING:
            self.broker = None
            return
        self.end = "broker"
        self.host.broker_closed(self)
        if unconsumed or self.session.in_response:
            self.host.refused(self, TruncatedFrame("broker", "connection closed inside a response"))
        self.broker = None
        self.close()

    def broker_unreachable(self) -> None:
        self.end = "unreachable"
        self.close()

    def broker_is_behind(self) -> None:
        """Note that the broker reads more slowly than the worker writes to it."""
        self.is_alert = True
        self._check_broker_buffer()

    def broker_has_caught_up(self) -> None:
        self._broker_buffer_checks = 0
        self._set_alert()
        if self.pause_reasons & _BROKER_IS_FULL:
            self.release(_BROKER_IS_FULL)
            if self.broker is not None:
                self.broker.transport.set_write_buffer_limits(UNNOTICED_BY_BROKER_BYTES)

    def _check_broker_buffer(self) -> None:
        """Pause the client if too much waits for the broker."""
        if self.broker is not None:
            self._broker_buffer_checks += 1
            limit_bytes, waiting_bytes = self.host.write_buffer_bytes, self.broker.waiting_bytes
            if waiting_bytes + WRITE_OVERHEAD_BYTES * self._broker_buffer_checks >= limit_bytes:
                self.hold(_BROKER_IS_FULL)
                if waiting_bytes >= limit_bytes // 2:
                    # Large writes: resume reading at a quarter of the limit, so that the broker never waits.
                    self.broker.transport.set_write_buffer_limits(limit_bytes)

    # ---- called by the worker

    def refuse(self, error: WireError | LimitExceeded) -> None:
        """Close both sides for an error, once."""
        if not self.transport.is_closing():
            self.end = "refused"
            self.host.refused(self, self._explain(error, self.unconsumed) if self.unconsumed else error)
            self.close()

    def evict(self, error: LimitExceeded) -> None:
        """Close both sides at once, to free the memory that is held for the client: nothing more is sent."""
        self.refuse(error)
        self.session.drop_requests()
        self.transport.abort()

    def active_timeout(self) -> tuple[TimeLimit | None, int]:
        """Return the time limit that runs now, and a number that changes with the client's progress.

        No limit runs while reading from the client is paused, nor while the client waits for an answer.
        """
        waits = self.pause_reasons & ~(BODY_PASSES | CLIENT_IS_FULL)
        if waits or self.state in (State.DIALING, State.LEAVING, State.CLOSED):
            return None, 0
        if self.state is State.IDLE:  # also for a client that does not read its replies
            return "first_request_timeout_s", self.answered
        if self.pause_reasons & CLIENT_IS_FULL:  # the client has to read, as an idle client has to send
            return "idle_timeout_s", self.waiting_bytes
        self._progress_count += self.has_client_sent
        self.has_client_sent = False
        if self.unconsumed or not self.session.at_boundary:
            return "request_timeout_s", self._progress_count
        self._progress_count += self.has_broker_sent
        self.has_broker_sent = False
        if self.session.in_flight:
            return None, 0
        return "idle_timeout_s", self._progress_count

    def hold_for_quota(self, quota: Quota) -> None:
        """Pause reading from the client until ``release_for_quota``; requests in flight are answered."""
        self.hold(self._quota_hold_bit(quota))

    def release_for_quota(self, quota: Quota) -> None:
        self.release(self._quota_hold_bit(quota))

    def move(self, idle_wait_s: float, answer_s: float) -> None:
        """Leave without cutting off a request, so that the client connects to another member.

        A second call only sets new times; once the connection drains, it can only shorten the remaining time.

        Args:
            idle_wait_s: how long to wait for a moment when nothing is in flight.
            answer_s: how long after this wait requests in flight may be answered, with no new one forwarded.
        """
        if self.state in (State.LEAVING, State.CLOSED):
            return
        if self.is_draining:
            self._answer_s = min(self._answer_s, idle_wait_s + answer_s)
            self._start_drain_timer()
            return
        self.is_moving = self.is_alert = True
        if self.session.is_group_member:
            self.session.redirect()
        self._cancel_timer()
        self._timer = asyncio.get_running_loop().call_later(idle_wait_s, self.drain, answer_s)
        self.advance()

    def drain(self, answer_s: float) -> None:
        """Forward no new request, wait up to a limit for the answers in flight, and then leave."""
        if self.is_draining or self.state in (State.LEAVING, State.CLOSED):
            return
        self.is_moving = self.is_draining = self.is_alert = True
        self.session.drain()
        self._answer_s = answer_s
        self._start_drain_timer()
        self.advance()

    def mark_returned(self) -> None:
        """Note that the client came after its identity moved; its first request calls `client_returned`."""
        self.has_returned = self.is_alert = True

    def withhold_produce(self) -> None:
        """Forward no records of the client until `drain`."""
        self.session.withhold_produce()

    def close(self) -> None:
        """Close both sides; bytes already written still go out, within ``linger_s``."""
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

    def _explain(self, error: WireError | LimitExceeded, received: bytes) -> WireError | LimitExceeded:
        """Return the error of a client; it names the protocol if the client's first bytes are not Kafka."""
        if self.state is not State.IDLE or self.answered:
            return error
        return explain_refusal(error, received, self.listener, secured=is_secured(self.transport))

    def _stop_bodies(self) -> None:
        if self.bodies is not None:
            self.bodies.stop()
            self.bodies = None  # breaks the reference cycle: memory is freed by reference counts alone

    def note_vanished(self, exc: Exception | None) -> None:
        if has_vanished(exc):
            detail = "the host stopped answering without closing the connection"
            self.host.refused(self, LimitExceeded("vanished_timeout_s", detail))

    def _quota_hold_bit(self, quota: Quota) -> int:
        return _OVERDRAWN_TO_BROKER if quota is self.to_broker_quota else _OVERDRAWN_TO_CLIENT

    def hold(self, why: int) -> None:
        if self.state is State.LEAVING and (why != _BROKER_IS_FULL or self.broker is None):
            return  # bytes after the end of file are read, and discarded
        self.pause_reasons |= why
        self.transport.pause_reading()
        if why != BODY_PASSES and self.bodies is not None:
            self.bodies.stop_requests()  # the kernel would continue to read

    def release(self, why: int) -> None:
        if self.pause_reasons & why:
            self.pause_reasons &= ~why
            if not self.pause_reasons:
                self.transport.resume_reading()

    def _cut(self, data: bytes, consumed: int) -> bytes | memoryview:
        """Keep the unconsumed bytes, send local replies, and return the bytes that go to the broker."""
        if consumed < len(data):
            self._keep(data[consumed:])
        start = self._reply() if self.session.local_replies else 0
        if consumed - start < len(data) // 2:
            return data[start:consumed]  # the piece may wait for long, and a view would keep the whole read
        return memoryview(data)[start:consumed]

    def _dial_for(self, data: bytes | memoryview) -> None:
        """Queue bytes and dial a broker. At most two reads wait here; later bytes wait in the kernel."""
        self.queue.append(data)
        is_first = self.state is State.IDLE
        if not is_first or len(data) > LARGE_FIRST_PIECE_BYTES:
            self.hold(_BROKER_IS_DIALED)
        if is_first:
            self.state = State.DIALING
            self.host.dial(self)

    def _keep(self, unconsumed: bytes) -> None:
        """Keep bytes for the next read. Only a drain leaves more bytes than fit; they get no answer."""
        if len(unconsumed) <= MAX_UNCONSUMED_BYTES:
            self.unconsumed = unconsumed
        else:
            self.hold(_TOO_MUCH_IN_A_DRAIN)

    def _reply(self) -> int:
        """Send local replies. Returns: the length of the answered requests, which no broker gets."""
        replies = self.session.local_replies
        self.answered += len(replies)
        self.transport.write(b"".join(replies))
        replies.clear()
        return self.session.discard_bytes

    def attend(self, written_bytes: int = 0) -> None:
        """Pause or resume reading, depending on full buffers and requests in flight, and advance a move.

        Args: written_bytes: length of the read that was just written to the client, in whole or in part.
        """
        if self.session.is_crowded:
            self._check_in_flight()
        if self in self.host.backlogs:
            self.host.backlogs.note(self, written_bytes)
            if not self.pause_reasons & CLIENT_IS_FULL:
                self._check_backlog()
        if self._broker_buffer_checks and not self.pause_reasons & _BROKER_IS_FULL:
            self._check_broker_buffer()
        if self.has_returned and self.state is not State.IDLE:
            self.has_returned = False
            self._set_alert()
            self.host.client_returned(self)
        if self.is_moving:
            self.advance()

    def _check_in_flight(self) -> None:
        """Pause reading at too many requests in flight. Resume at half of them, as a broker answers all."""
        session, requests = self.session, self.host.requests
        in_flight = session.in_flight
        session.is_crowded = in_flight > MANY_IN_FLIGHT // 2
        requests.note(self, IN_FLIGHT_BYTES * in_flight if session.is_crowded else 0)
        limit = max(MANY_IN_FLIGHT, in_flight_limit(requests.limit_bytes, len(requests)))
        if in_flight >= limit:
            self.hold(_TOO_MANY_IN_FLIGHT)
        elif in_flight <= limit // 2:
            self.release(_TOO_MANY_IN_FLIGHT)
        self._set_alert()

    def _set_alert(self) -> None:
        """Set ``is_alert``: whether `attend` must follow each read."""
        behind = self._broker_buffer_checks > 0 or self in self.host.backlogs
        self.is_alert = self.is_moving or self.session.is_crowded or behind or self.has_returned

    def note_response(self) -> int:
        """Account for the bytes held for a response and after it. Returns: how many bytes were released."""
        before_bytes = self.host.responses.held_bytes(self)
        held_bytes = self.session.held_bytes
        if not held_bytes and not self.session.is_working:
            self.session.is_holding = False
        elif self.broker is not None:
            held_bytes += self.broker.unconsumed_bytes
        self.host.responses.note(self, held_bytes)
        self.host.backlogs.check()
        return max(0, before_bytes - held_bytes)

    def drop_response(self) -> None:
        """Drop the response that is held: no more of it goes to the client."""
        if self.session.is_holding:
            self.session.drop_response()
            self.note_response()

    def advance(self) -> None:
        """Advance a move if this is the moment to leave."""
        if self.state is State.LEAVING:
            if self.session.is_refusing:
                self._detach_broker()
        elif self.state is State.DIALING:
            return  # the bytes that wait may be Produce with acks=0, which is never in flight
        elif self.party is not None:
            self.party.advance(self)
        elif self.can_leave:
            self.leave()

    @property
    def can_leave(self) -> bool:
        """Whether the connection can leave now without cutting off a request; True after it has left."""
        if self.state in (State.LEAVING, State.CLOSED):
            return True
        session = self.session
        return self.state is not State.DIALING and (
            session.is_drained or session.is_redirected or self._can_leave_idle()
        )

    def _can_leave_idle(self) -> bool:
        """Whether nothing is in flight. A group's member waits for its next heartbeat instead: some clients
        look for the coordinator again only after the answer that this broker is not the coordinator.
        """
        session = self.session
        is_quiet = session.is_idle and not session.is_group_member
        return is_quiet and not self.unconsumed and not unread_bytes(self.transport)

    def _start_drain_timer(self) -> None:
        self._cancel_timer()
        self._timer = asyncio.get_running_loop().call_later(self._answer_s, self.on_drain_deadline)

    def on_drain_deadline(self) -> None:
        """Leave at the deadline for requests in flight."""
        if self.state is State.DIALING:  # the dial has its own limit, and starts the deadline again
            return
        if self.session.in_flight:
            self.host.cut(self)
        self.leave()

    def leave(self) -> None:
        """Send the client an end of file, and wait until the client closes."""
        if self.state in (State.LEAVING, State.CLOSED) or self.transport.is_closing():
            return
        self._stop_bodies()
        self.state = State.LEAVING
        self.is_moving = self.is_alert = True
        self.end = "unanswered" if self.session.in_flight else "moved"
        self.drop_response()
        self.session.drain()
        if self.session.is_refusing:
            self._detach_broker()
        self._cancel_timer()
        self.transport.write_eof()
        self.release(self.pause_reasons)
        self._abort_later()

    def _detach_broker(self) -> None:
        broker = self._release_broker()
        if broker is not None:
            broker.leave()

    def _release_broker(self) -> BrokerConnection | None:
        """Separate the broker, which gets no more bytes. Returns: the broker."""
        broker, self.broker = self.broker, None
        self._broker_buffer_checks = 0
        if broker is not None and not self.transport.is_closing():
            self.release(_BROKER_IS_FULL)
        return broker

    def _abort_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self.host.linger_s, self.transport.abort)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
