"""The broker's side of a client's connection, as an asyncio protocol (see ``connection``)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from fleet.core.errors import WireError
from fleet.proxy.host import LEAVING, Host
from fleet.proxy.rewriter import PIECE_BYTES
from fleet.proxy.splice import LARGE_BYTES
from fleet.proxy.streaming_patch import Write
from fleet.runtime.socket_options import BROKER_VANISHED_S, keep_alive

if TYPE_CHECKING:
    from fleet.proxy.connection import ClientConnection

UNNOTICED_BY_BROKER_BYTES: Final = 1024
"""What may wait for a broker before each read is followed by a look at how much does."""


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
        if self._client is None or not self._client.attach_broker(self):
            self._client = None
            transport.abort()

    def data_received(self, data: bytes) -> None:
        client = self._client
        if client is None or client.state is LEAVING:
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
            client.splice_body(self, False, len(data))
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
