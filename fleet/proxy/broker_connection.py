"""The broker's side of a client's connection, as an asyncio protocol (see ``connection``)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from fleet.core.errors import WireError
from fleet.proxy.host import LEAVING, Host
from fleet.proxy.rewriter import PIECE_BYTES
from fleet.proxy.splice import LARGE_BODY_BYTES
from fleet.proxy.streaming_patch import Write
from fleet.runtime.socket_options import BROKER_VANISHED_S, keep_alive

if TYPE_CHECKING:
    from fleet.proxy.connection import ClientConnection

UNNOTICED_BY_BROKER_BYTES: Final = 1024
"""Bytes waiting for a broker above which the worker checks the buffer after each read from the client."""


class BrokerConnection(asyncio.Protocol):
    """The broker's side of a client's connection."""

    __slots__ = (
        "_client",
        "_client_is_full",
        "_has_keep_alive",
        "_host",
        "_unconsumed",
        "transport",
        "write",
    )

    transport: asyncio.Transport
    write: Write
    """Writes to the broker. Bytes written after the broker closed are lost; ``connection_lost`` follows in
    the same turn of the event loop."""

    def __init__(self, host: Host, client: ClientConnection) -> None:
        self._host = host
        self._client: ClientConnection | None = client
        self._unconsumed = b""
        self._client_is_full = False
        self._has_keep_alive = False

    def connection_made(self, transport: Any) -> None:  # a Transport; uvloop's is no instance of it
        self.transport = transport
        self.write = transport.write
        transport.set_write_buffer_limits(UNNOTICED_BY_BROKER_BYTES)
        if self._client is None or not self._client.attach_broker(self):
            self._client = None
            transport.abort()

    def data_received(self, data: bytes) -> None:
        client = self._client
        if client is None or client.state is LEAVING:
            return
        client.has_broker_sent = True
        client.traffic.to_client_bytes += len(data)
        if client.to_client_quota is not None and client.to_client_quota.spend(len(data)):
            self._host.overdrawn(client, client.to_client_quota)
        if self._unconsumed:
            data = self._unconsumed + data
            self._unconsumed = b""
        session = client.session
        try:
            consumed = session.receive_from_broker(data, client.write)
        except WireError as error:
            client.refuse(error)
            return
        if consumed < len(data):
            self._unconsumed = data[consumed:]
        elif session.passing_to_client >= LARGE_BODY_BYTES:
            client.splice_body(self, False, len(data))
        if session.is_holding:
            written_bytes = self._hold_response(client)
            if client.is_alert:
                client.attend(len(data) + written_bytes)
        elif client.is_alert:
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
        self._host.leaving.end(self)
        self._lose_client()

    @property
    def waiting_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    @property
    def unconsumed_bytes(self) -> int:
        """Bytes that were read, and wait until the response before them has been patched."""
        return len(self._unconsumed)

    def pause_reading(self) -> None:
        self._client_is_full = True
        self.transport.pause_reading()

    def resume_reading(self) -> None:
        self._client_is_full = False
        if self._client is not None and self._client.session.is_working:
            self._work_later()
        self.read_on()

    def read_on(self) -> None:
        """Resume reading, unless another reason to pause remains."""
        client = self._client
        if self._client_is_full or self.transport.is_closing():
            return
        if client is None or not (client.has_response_bodies or client.session.is_working):
            self.transport.resume_reading()

    def _hold_response(self, client: ClientConnection) -> int:
        """Account for a response that is held or paused. Pause reading while there is work on the response.

        Returns: the bytes that are no longer held. The client's transport may keep them as views.
        """
        written_bytes = client.note_response()
        if client.session.is_working:
            self.transport.pause_reading()
            self._work_later()
        return written_bytes

    def _work_later(self) -> None:
        if self._client is not None and not self._client_is_full:
            self._host.turns.add(self._client.source, self._work)

    def _work(self) -> None:
        """Take a step with the response that is held, and resume reading after the last step."""
        client = self._client
        if client is None or not client.session.is_working or self._client_is_full:
            return
        try:
            client.session.work(client.write)
        except WireError as error:
            client.refuse(error)
            return
        if client.is_alert:
            client.attend(PIECE_BYTES)
        if client.session.is_working:
            self._work_later()
            return
        client.note_response()
        self.read_on()
        if self._unconsumed:
            self.data_received(b"")

    def leave(self) -> None:
        """End after the client's end: the broker still gets all bytes, and its responses are discarded."""
        self._client = None
        if self.transport.is_closing():
            return
        self.transport.write_eof()
        self.transport.resume_reading()
        self._host.leaving.begin(self)

    def enable_keep_alive(self) -> None:
        """Enable TCP keep-alive: the kernel ends the connection when the broker's host has vanished."""
        if self._has_keep_alive or self.transport.is_closing():
            return
        self._has_keep_alive = True
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            with suppress(OSError):  # a socket that just closed reports its own end, and must not end a sweep
                keep_alive(sock.fileno(), BROKER_VANISHED_S)

    def abort(self) -> None:
        """Cut the connection: its orderly end has taken too long."""
        self.transport.abort()

    def _lose_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.broker_closed(self._unconsumed)
