"""A client connection on a port of all brokers: it connects to the broker that its requests are for.

The session's router judges each frame. A frame that has to wait stays in ``unconsumed``, and nothing more is
read until the cluster has said which broker the frame is for, or until all responses of the present broker
have passed. Brokers stay connected, so that clients that mix requests for several brokers dial each of them
once; but only one broker at a time has requests in flight.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol

from fleet.core.errors import OversizeFrame, WireError
from fleet.proxy.broker_connection import UNNOTICED_BY_BROKER_BYTES, BrokerConnection
from fleet.proxy.connection import CLIENT_IS_FULL, ClientConnection
from fleet.proxy.host import Host, State
from fleet.proxy.router import ANY, GATHER, LOOK_UP, NOTHING, REPLACE, SWITCH, Router
from fleet.proxy.wire.primitives import read_int32

if TYPE_CHECKING:
    from collections.abc import Callable

    from fleet.core.model import BrokerId
    from fleet.proxy.session import Session
    from fleet.proxy.traffic import Traffic

log = logging.getLogger(__name__)

_ROUTE_IS_AWAITED: Final = 256
"""A reason to pause reading from a client: a bit next to those of ``connection``."""
MAX_IDLE_BROKERS: Final = 3
"""Connected brokers of one client that get no requests."""
MAX_GREETING_BYTES: Final = 64 * 1024
"""The longest answer of a broker to the client's ApiVersions request."""


class RoutingHost(Host, Protocol):
    """The part of a worker that routed connections need."""

    def look_up(self, connection: RoutedConnection) -> None:
        """Ask the cluster for the key of the connection's router, and call `RoutedConnection.looked_up`."""

    def gather(self, connection: RoutedConnection) -> None:
        """Ask all brokers, and call `RoutedConnection.gathered`."""

    def identify(self, connection: RoutedConnection, broker_id: BrokerId) -> None:
        """Count the connection as one of a broker; sets its ``broker_id`` and ``traffic``."""

    def redial(self, connection: RoutedConnection) -> None:
        """Connect another broker; see `Host.dial`."""


class RoutedConnection(ClientConnection):
    """The client's side.

    Args:
        host, traffic, listener: see `ClientConnection`.
        make_session: called with the client's host and the router once the client is connected.
        router: of the session.
    """

    __slots__ = (
        "_candidate",
        "_idle_brokers",
        "_is_scheduled",
        "_is_waiting",
        "_routing_host",
        "router",
        "waits",
    )

    def __init__(
        self,
        host: RoutingHost,
        traffic: Traffic,
        listener: str,
        make_session: Callable[[str, Router], Session],
        router: Router,
    ) -> None:
        super().__init__(host, None, traffic, listener, lambda source: make_session(source, router))
        self._routing_host = host
        self.router = router
        self._is_waiting = False
        """Whether the frame in front of ``unconsumed`` waits for its route."""
        self._is_scheduled = False
        """Whether the waiting frame is presented in the next turn of the loop."""
        self.waits = 0
        """Number of frames that have waited: distinguishes the answers to each of them."""
        self._candidate: BrokerId | None = None
        """The broker that is dialed now."""
        self._idle_brokers: dict[int, RoutedBrokerConnection] = {}
        """Connected brokers that get no requests now."""

    @property
    def destination(self) -> BrokerId | None:
        upstream = self.router.upstream
        return None if upstream < 0 else upstream

    def note_candidate(self, broker_id: BrokerId | None) -> None:
        self._candidate = broker_id

    # ---- called by the event loop

    def data_received(self, data: bytes) -> None:
        # A drain may stop before the router, which would leave these as they are.
        self.router.wait = NOTHING
        self.router.whole_bytes = 0
        super().data_received(data)
        if self.router.wait == NOTHING or self._is_waiting:
            return
        if self._is_open:
            self._await_route()
        else:  # the goodbye is sent, and no other broker is dialed: the rest is discarded
            self.unconsumed = b""
            self._detach_broker()

    def eof_received(self) -> bool:
        if self._is_waiting and self._is_open:  # the frame that waits may be Produce with acks=0
            self.has_ended = True
            return True
        return super().eof_received()

    # ---- called by the broker's side, the dialer and the worker

    def broker_side(self) -> BrokerConnection:
        return RoutedBrokerConnection(self.host, self)

    def attach_broker(self, broker: BrokerConnection) -> bool:
        self.router.connected(self._candidate)
        if isinstance(broker, RoutedBrokerConnection) and self.router.greeting:
            broker.greet(self.router.greeting)
        if not super().attach_broker(broker):
            return False
        if self.has_ended and self.is_draining and self._is_open:
            self._start_drain_timer()
        self._advance_route()
        return True

    def looked_up(self, waits: int) -> None:
        """Present the waiting frame again: the cluster was asked for its key.

        Args: waits: the value of ``waits`` when the cluster was asked.
        """
        if self._is_waiting and self.waits == waits and self.router.wait == LOOK_UP:
            self.router.answered()
            self._go_on()

    def gathered(self, waits: int, answer: bytes) -> None:
        """Give the client the answer of all brokers; empty if they gave none."""
        if self._is_waiting and self.waits == waits and self.router.wait == GATHER:
            if not answer:
                self.broker_unreachable()
                return
            self.router.gathered(answer)
            self._go_on()

    def attend(self, written_bytes: int = 0) -> None:
        self._advance_route()  # before a drain leaves: the waiting frame may be Produce with acks=0
        super().attend(written_bytes)

    def lost_idle_broker(self, broker: BrokerConnection) -> None:
        """Forget a broker that closed its connection while it had no requests in flight."""
        for broker_id, each in list(self._idle_brokers.items()):
            if each is broker:
                del self._idle_brokers[broker_id]

    # ---- inside

    @property
    def _is_open(self) -> bool:
        return self.state not in (State.LEAVING, State.CLOSED)

    def _await_route(self) -> None:
        self._is_waiting = self.is_alert = True
        self.waits += 1
        self.hold(_ROUTE_IS_AWAITED)
        if self.router.wait == LOOK_UP:
            self._routing_host.look_up(self)
        elif self.router.wait == GATHER:
            self._routing_host.gather(self)
        elif self.router.wait == REPLACE:
            (size,) = read_int32(self.unconsumed)
            self.unconsumed = self.router.replacement + self.unconsumed[4 + size :]
            self._go_on_later()
        else:
            self._advance_route()

    def _advance_route(self) -> None:
        """Switch to another broker, or present the waiting frame, if nothing is in flight."""
        if not self._is_waiting or self.router.wait in (LOOK_UP, GATHER) or not self._is_open:
            return
        if self.state is State.DIALING or self.session.in_flight:
            return
        if self.router.wait == SWITCH and self.router.upstream != self.router.next_upstream:
            self._switch()
        else:
            self._go_on_later()

    def _go_on_later(self) -> None:
        """Present the waiting frame in a later turn: each of many frames in one read may wait."""
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _switch(self) -> None:
        """Let another broker get the requests."""
        self._stop_bodies()  # while the broker is attached: its transport reads again
        router, broker = self.router, self._release_broker()
        known = self._idle_brokers.pop(router.next_upstream, None)
        if broker is not None:
            self._keep_idle(broker)
        router.switched()
        self._identify()
        if known is not None:
            self.broker = known
            if self.pause_reasons & CLIENT_IS_FULL:
                known.pause_reading()
            known.transport.set_write_buffer_limits(UNNOTICED_BY_BROKER_BYTES)  # reports a full buffer again
            if known.is_behind:
                self.broker_is_behind()
            self._advance_route()
            return
        self.state = State.DIALING
        self._routing_host.redial(self)

    def _keep_idle(self, broker: BrokerConnection) -> None:
        """Keep a broker connected that gets no requests now, and let the oldest of too many leave."""
        assert isinstance(broker, RoutedBrokerConnection)
        broker.resume_reading()  # to notice its end
        self._idle_brokers[self.router.upstream] = broker
        if len(self._idle_brokers) > MAX_IDLE_BROKERS:
            self._idle_brokers.pop(next(iter(self._idle_brokers))).leave()

    def _identify(self) -> None:
        """Count the connection as one of its broker."""
        identity = self.router.identity
        if identity != ANY and identity != self.broker_id:
            self._routing_host.identify(self, identity)

    def _go_on(self) -> None:
        """Present the waiting frame again."""
        self._is_scheduled = False
        if not self._is_waiting or not self._is_open:
            return
        self._is_waiting = False
        self._set_alert()
        self.release(_ROUTE_IS_AWAITED)
        try:
            self.data_received(b"")
        except Exception:  # as in an event of the transport, which the loop would log, and close
            log.exception("a frame that has waited cannot be processed")
            self.transport.abort()
            return
        if self.broker is not None and self.router.upstream == self.router.identity:
            self._identify()  # any broker was dialed, and turned out to be the right one
        if self.is_moving:
            self.advance()
        if self.has_ended and not self._is_waiting and self.state is not State.DIALING:
            self.eof_received()

    def _dial_for(self, data: bytes | memoryview) -> None:
        if self.state is State.IDLE:
            self._identify()
        super()._dial_for(data)

    def _keep(self, unconsumed: bytes) -> None:
        if not self._is_open or (self.router.wait == NOTHING and not self.router.whole_bytes):
            super()._keep(unconsumed)
        else:  # a read and a long Fetch, at most: nothing more is read until the frame passes
            self.unconsumed = unconsumed

    def on_drain_deadline(self) -> None:
        super().on_drain_deadline()
        if self.has_ended and self.state is State.LEAVING:  # the client's end does not come again
            self.close()

    def _set_alert(self) -> None:
        super()._set_alert()
        self.is_alert = self.is_alert or self._is_waiting

    def _detach_broker(self) -> None:
        super()._detach_broker()
        idle, self._idle_brokers = self._idle_brokers, {}
        for each in idle.values():
            each.leave()


class RoutedBrokerConnection(BrokerConnection):
    """The broker's side: it sends the client's ApiVersions request first if the worker has answered it.

    The broker learns the client's library from that request. The broker's answer is not passed on.
    """

    __slots__ = ("_greeting_answer", "_is_greeting", "is_behind")

    def __init__(self, host: Host, client: RoutedConnection) -> None:
        super().__init__(host, client)
        self._is_greeting = False
        self._greeting_answer = b""
        self.is_behind = False
        """Whether the transport has reported a full buffer last."""

    def greet(self, greeting: bytes) -> None:
        """Send the client's ApiVersions request."""
        self._is_greeting = True
        self.write(greeting)

    def data_received(self, data: bytes) -> None:
        if self._is_greeting:
            data = self._pass_greeting(data)
            if not data:
                return
        if not self._is_active:
            self.transport.abort()  # a response without a request
            return
        super().data_received(data)

    def pause_writing(self) -> None:
        self.is_behind = True
        if self._is_active:
            super().pause_writing()

    def resume_writing(self) -> None:
        self.is_behind = False
        if self._is_active:
            super().resume_writing()

    @property
    def _is_active(self) -> bool:
        """Whether this broker gets the client's requests."""
        return self._client is None or self._client.broker is self

    def _pass_greeting(self, data: bytes) -> bytes:
        """Take the answer to the greeting. Returns: the bytes after it."""
        data = self._greeting_answer + data
        self._greeting_answer = b""
        if len(data) >= 4:
            (size,) = read_int32(data)
            if not 0 <= size <= MAX_GREETING_BYTES:
                self._refuse(OversizeFrame("broker", f"ApiVersions response of {size} bytes"))
                return b""
            if len(data) >= 4 + size:
                self._is_greeting = False
                return data[4 + size :]
        self._greeting_answer = data
        return b""

    def _refuse(self, error: WireError) -> None:
        if self._client is not None:
            self._client.refuse(error)

    def _lose_client(self) -> None:
        client = self._client
        if isinstance(client, RoutedConnection) and client.broker is not self:
            self._client = None
            client.lost_idle_broker(self)
            return
        super()._lose_client()
