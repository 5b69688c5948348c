"""The large bodies of a client's connection that the kernel passes on, one in each direction at most."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleet.proxy.host import BODY_PASSES, State
from fleet.proxy.splice import PIPE_BYTES, SplicedBody
from fleet.runtime.socket_options import is_secured

if TYPE_CHECKING:
    from fleet.proxy.broker_connection import BrokerConnection
    from fleet.proxy.connection import ClientConnection


class LargeBodies:
    """Made with the first large body of a connection.

    Args: client: whose bodies they are.
    """

    __slots__ = ("_client", "_requests", "_responses")

    def __init__(self, client: ClientConnection) -> None:
        self._client = client
        self._requests: SplicedBody | None = None
        self._responses: SplicedBody | None = None

    @property
    def has_requests(self) -> bool:
        """Whether something else than its transport reads from the client."""
        return self._requests is not None

    @property
    def has_responses(self) -> bool:
        """Whether something else than its transport reads from the broker."""
        return self._responses is not None

    def pass_on(self, broker: BrokerConnection, to_broker: bool, written_bytes: int) -> None:
        """Have the kernel pass on what is left of a large body, where nothing on its way needs to see it, and
        nothing but what has just been written waits before it.
        """
        client, session = self._client, self._client.session
        left_bytes = session.passing_to_broker if to_broker else session.passing_to_client
        passage = self._requests if to_broker else self._responses
        if passage is not None:
            passage.left_bytes = left_bytes
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
            passage = SplicedBody(pipe, source, target, left_bytes, self, to_broker)
        except OSError:  # too many files are open: it passes as a small one does
            return
        if to_broker:
            self._requests = passage
            client.hold(BODY_PASSES)
        else:
            self._responses = passage
            source.pause_reading()

    def stop(self) -> None:
        """Have the transports read all that comes again."""
        self.stop_requests()
        self.stop_responses()

    def stop_requests(self) -> None:
        """Have the client's transport read all that comes again."""
        if self._requests is not None:
            self._requests.stop()
            self._requests = None
            if not self._client.transport.is_closing():
                self._client.release(BODY_PASSES)

    def stop_responses(self) -> None:
        """Have the broker's transport read all that comes again."""
        if self._responses is not None:
            self._responses.stop()
            self._responses = None
            if self._client.broker is not None:
                self._client.broker.read_on()

    # ---- called by what passes in the kernel

    def body_passed(self, size_bytes: int, to_broker: bool) -> None:
        client = self._client
        if to_broker:
            client.client_spoke = True
            client.traffic.to_broker_bytes += size_bytes
            client.session.passed_to_broker(size_bytes)
        else:
            client.broker_spoke = True
            client.traffic.to_client_bytes += size_bytes
            client.session.passed_to_client(size_bytes)
        if client.alert:
            client.attend(0 if to_broker else PIPE_BYTES)

    def head_received(self, data: bytes, to_broker: bool) -> None:
        client = self._client
        try:
            if to_broker:
                client.data_received(data)
            elif client.broker is not None:
                client.broker.data_received(data)
        except Exception:  # the loop closes what fails so in a transport, and not what fails here
            client.transport.abort()
            raise

    def passage_ends(self, to_broker: bool) -> None:
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
