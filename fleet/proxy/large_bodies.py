"""The large bodies of a client's connection that the kernel passes on, at most one in each direction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleet.proxy.host import BODY_PASSES, State
from fleet.proxy.splice import PIPE_BYTES, SplicedBody
from fleet.runtime.socket_options import is_secured

if TYPE_CHECKING:
    from fleet.proxy.broker_connection import BrokerConnection
    from fleet.proxy.connection import ClientConnection


class LargeBodies:
    """The spliced bodies of one connection, created with its first large body.

    Args: client: the connection.
    """

    __slots__ = ("_client", "_requests", "_responses")

    def __init__(self, client: ClientConnection) -> None:
        self._client = client
        self._requests: SplicedBody | None = None
        self._responses: SplicedBody | None = None

    @property
    def has_requests(self) -> bool:
        """Whether the kernel, and not the transport, reads from the client."""
        return self._requests is not None

    @property
    def has_responses(self) -> bool:
        """Whether the kernel, and not the transport, reads from the broker."""
        return self._responses is not None

    def pass_on(self, broker: BrokerConnection, to_broker: bool, written_bytes: int) -> None:
        """Let the kernel pass on the rest of a large body.

        Does nothing if a quota or TLS must see the bytes, or if other bytes than those just written still
        wait in the target's transport.
        """
        client, session = self._client, self._client.session
        left_bytes = session.passing_to_broker if to_broker else session.passing_to_client
        body = self._requests if to_broker else self._responses
        if body is not None:
            body.left_bytes = left_bytes
            return
        pipe = client.host.pipe
        if pipe is None or client.to_client_quota is not None:
            return
        if to_broker and client.to_broker_quota is not None:
            return
        source, target = client.transport, broker.transport
        if not to_broker:
            source, target = target, source
        if client.state is not State.JOINED or not source.is_reading():
            return
        if is_secured(source) or is_secured(target):
            return
        if target.get_write_buffer_size() > written_bytes or not pipe.has_room():
            return
        try:
            body = SplicedBody(pipe, source, target, left_bytes, self, to_broker)
        except OSError:  # too many files are open: the body is copied like a small one
            return
        if to_broker:
            self._requests = body
            client.hold(BODY_PASSES)
        else:
            self._responses = body
            source.pause_reading()

    def stop(self) -> None:
        """Let the transports read from both sides again."""
        self.stop_requests()
        self.stop_responses()

    def stop_requests(self) -> None:
        """Let the client's transport read again."""
        if self._requests is not None:
            self._requests.stop()
            self._requests = None
            if not self._client.transport.is_closing():
                self._client.release(BODY_PASSES)

    def stop_responses(self) -> None:
        """Let the broker's transport read again."""
        if self._responses is not None:
            self._responses.stop()
            self._responses = None
            if self._client.broker is not None:
                self._client.broker.read_on()

    # ---- called by spliced bodies

    def body_passed(self, size_bytes: int, to_broker: bool) -> None:
        client = self._client
        if to_broker:
            client.has_client_sent = True
            client.traffic.to_broker_bytes += size_bytes
            client.session.passed_to_broker(size_bytes)
        else:
            client.has_broker_sent = True
            client.traffic.to_client_bytes += size_bytes
            client.session.passed_to_client(size_bytes)
        if client.is_alert:
            client.attend(0 if to_broker else PIPE_BYTES)

    def head_received(self, data: bytes, to_broker: bool) -> None:
        client = self._client
        try:
            if to_broker:
                client.data_received(data)
            elif client.broker is not None:
                client.broker.data_received(data)
        except Exception:  # the loop closes a transport whose protocol fails, but does not see a failure here
            client.transport.abort()
            raise

    def splice_ended(self, to_broker: bool) -> None:
        if to_broker:
            self.stop_requests()
        else:
            self.stop_responses()

    def side_failed(self, error: OSError, broker: bool) -> None:
        client = self._client
        self.stop()
        if not broker:
            client.note_vanished(error)
            client.transport.abort()
        elif client.broker is not None:
            client.broker.abort()
