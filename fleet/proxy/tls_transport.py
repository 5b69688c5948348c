"""TLS of one connection: the protocol of the socket's transport, and the transport of the carried protocol.

    SHAKING ──handshake──► OPEN ──write_eof──► reads only ──close, the other side's end, or time──► LOST

It avoids costs of uvloop's own TLS. All connections of a worker share two buffers, because they work one
after the other; uvloop has buffers for each connection. uvloop raises an exception each time all bytes are
read, and stops reading when writing ends. Here the goodbye is close_notify, after which the other side may
still send.

    Source: RFC 8446, section 6.1
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, cast

from fleet.core.foreign_protocols import NotTls, name_protocol
from fleet.proxy.deadlines import Deadlines

RECORD_BYTES: Final = 16 * 1024
"""The longest plaintext of one record. Source: RFC 8446, section 5.1"""
PIECE_BYTES: Final = 64 * 1024
"""The most bytes that are encrypted at a time: such a buffer stays in a cache. Reasoned, not measured."""
SLICE_BYTES: Final = 32 * 1024
"""The most bytes that are decrypted before the result is checked."""
MAX_BYTES_WITHOUT_DATA: Final = 32 * 1024
"""Bytes received after the handshake without any data in them, above which the connection is cut. A record is
half as long. Each byte of data makes up for ``DATA_CREDIT`` other bytes: a peer that changes keys has data to
send. Found: 250 KB of KeyUpdate took 0.2 s of CPU.
"""
DATA_CREDIT: Final = 64
UNREAD_ANSWER_BYTES: Final = 16 * 1024
"""Bytes of TLS's own answers (such as to KeyUpdate) that a peer may leave unread before it is cut."""
_WantRead: Final = ssl.SSLWantReadError


class SharedTls:
    """The state that all TLS connections of one worker share.

    Args:
        goodbye_s: how long the other side may take to answer a goodbye (close_notify), or to read the bytes
            before it.
    """

    __slots__ = ("goodbyes", "incoming", "outgoing")

    def __init__(self, goodbye_s: float) -> None:
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        """The two buffers of all connections: whatever a connection does, both are empty afterwards."""
        self.goodbyes: Deadlines[TlsTransport] = Deadlines(goodbye_s, TlsTransport.abort)


class TlsTransport(asyncio.Protocol):
    """One TLS connection.

    Args:
        shared: the TLS state that all connections of the worker share.
        context: the TLS context; without renegotiation, so that writing never has to wait for reading.
        factory: creates the carried protocol once the handshake is complete.
        server_hostname: the expected name of the other side; None if the other side is a client.
    Raises: ValueError: ``server_hostname`` is not a valid name.
    """

    __slots__ = (
        "_broken",
        "_bytes_without_data",
        "_closing",
        "_ended",
        "_factory",
        "_full",
        "_handshake",
        "_has_said_goodbye",
        "_paused",
        "_protocol",
        "_shared",
        "_socket",
        "_tls",
        "_unread_answer_bytes",
    )

    _socket: asyncio.Transport

    def __init__(
        self,
        shared: SharedTls,
        context: ssl.SSLContext,
        factory: Callable[[ssl.SSLObject], asyncio.Protocol],
        server_hostname: str | None = None,
    ) -> None:
        self._shared = shared
        self._tls = context.wrap_bio(
            shared.incoming,
            shared.outgoing,
            server_side=server_hostname is None,
            server_hostname=server_hostname,
        )
        self._protocol: asyncio.Protocol | None = None
        """None before the handshake is complete, and after the connection is lost."""
        self._closing = False
        self._full = False
        """Whether the other side does not read what was written."""
        self._paused = False
        """Whether the carried protocol has paused reading."""
        self._unread_answer_bytes = 0
        self._bytes_without_data = 0
        self._broken = False
        self._has_said_goodbye = False
        self._ended = False
        """Whether the other side has ended, with close_notify or without."""
        self._factory = factory
        self._handshake: asyncio.Future[None] | None = asyncio.get_running_loop().create_future()
        """None once awaited: its error refers to this connection by its traceback, which would be a cycle."""

    async def handshake(self) -> None:
        """Wait for the handshake; call once, when the socket is connected. Cancelling cuts the connection.

        Raises: OSError: the handshake failed. The other side got an alert if TLS has one for the reason.
        """
        assert self._handshake is not None
        try:
            await self._handshake
        except OSError:
            raise
        except BaseException:
            self.abort()
            raise
        finally:
            self._handshake = None

    # ---- called by the socket's transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast(asyncio.Transport, transport)  # uvloop's is no instance of the class
        if not self._tls.server_side:
            self._shake_hands()

    def data_received(self, data: bytes) -> None:
        if self._ended or self._broken:
            return
        protocol = self._protocol
        if protocol is not None:
            plain = self._decrypt_slices(data) if len(data) > SLICE_BYTES else self._decrypt(data)
        else:
            self._shared.incoming.write(data)
            if not self._shake_hands(data):
                return
            plain = self._decrypt(b"")
        if protocol is None:
            if self._closing:
                return
            protocol = self._protocol = self._factory(self._tls)
            protocol.connection_made(cast(asyncio.Transport, self))
            self._finish_handshake()
        if plain and not self._closing:
            protocol.data_received(plain)
        if self._broken:
            self._break_off()
        elif self._ended:
            self._end()

    def eof_received(self) -> bool:
        if self._protocol is None or self._ended:
            return self._ended and not self._closing
        self._ended = True
        return self._end()

    def pause_writing(self) -> None:
        """Pause reading from a client that does not read, even in its handshake: TLS itself writes, too.

        Reading from a broker continues: a broker may read nothing more before it has written.
        """
        self._full = True
        if self._tls.server_side:
            self._socket.pause_reading()
        if self._protocol is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._full = False
        self._unread_answer_bytes = 0
        if self._protocol is not None:
            self._protocol.resume_writing()
        if not self._paused:
            self._read_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._shared.goodbyes.end(self)
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.connection_lost(exc)
        self._finish_handshake(exc if isinstance(exc, OSError) else ConnectionResetError())

    # ---- called by the carried protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        size_bytes = len(data)
        if size_bytes <= PIECE_BYTES:
            if size_bytes:
                self._encrypt(data)
            return
        with memoryview(data) as view:
            for begin in range(0, size_bytes, PIECE_BYTES):
                self._encrypt(view[begin : begin + PIECE_BYTES])

    def write_eof(self) -> None:
        """Say goodbye after the written bytes; bytes from the other side are still received."""
        if self._has_said_goodbye:
            return
        self._has_said_goodbye = True
        with suppress(ssl.SSLError):  # the other side's goodbye has not come yet
            self._tls.unwrap()
        self._flush()

    def close(self) -> None:
        """Say goodbye after the written bytes, and end once the other side has said goodbye, too."""
        if self._closing:
            return
        self._closing = True
        self._shared.goodbyes.begin(self)
        if self._protocol is not None:
            self.write_eof()
        if self._protocol is None or self._ended:
            self._socket.close()
        else:
            self._paused = False
            self._read_on()

    def abort(self) -> None:
        self._closing = True
        self._socket.abort()

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        if not self._closing:
            self._paused = True
            self._socket.pause_reading()

    def resume_reading(self) -> None:
        self._paused = False
        self._read_on()

    def is_reading(self) -> bool:
        return not self._closing and self._socket.is_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._socket.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Return the number of encrypted bytes that wait."""
        return self._socket.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self._tls
        return self._socket.get_extra_info(name, default)

    # ---- inside

    def _read_on(self) -> None:
        if not (self._full and self._tls.server_side):
            self._socket.resume_reading()

    def _shake_hands(self, received: bytes = b"") -> bool:
        """Continue the handshake with the bytes just received. Returns: whether it is complete."""
        try:
            self._tls.do_handshake()
        except _WantRead:
            self._flush()
            return False
        except OSError as error:
            self._shared.incoming.read()
            protocol = name_protocol(received)
            self._finish_handshake(error if protocol is None or protocol == "TLS" else NotTls(protocol))
            self._break_off()
            return False
        self._flush()
        return True

    def _decrypt_slices(self, data: bytes) -> bytes:
        """Return the plaintext of a read that may have thousands of records."""
        plain: list[bytes] = []
        for begin in range(0, len(data), SLICE_BYTES):
            if self._ended or self._broken:
                break
            plain.append(self._decrypt(data[begin : begin + SLICE_BYTES]))
        return b"".join(plain)

    def _decrypt(self, data: bytes) -> bytes:
        """Return the plaintext of received bytes; notes the other side's goodbye and invalid records."""
        incoming, tls = self._shared.incoming, self._tls
        incoming.write(data)
        plain = b""
        more: list[bytes] | None = None
        try:
            while incoming.pending:
                record = tls.read(RECORD_BYTES)
                if not record:
                    self._ended = True
                    break
                if not plain:
                    plain = record
                elif more is None:
                    more = [plain, record]
                else:
                    more.append(record)
        except _WantRead:
            pass  # the rest of the record has not come yet
        except ssl.SSLZeroReturnError:
            self._ended = True
        except ssl.SSLError:
            self._broken = True
        finally:
            if incoming.pending:
                incoming.read()
        if more is not None:
            plain = b"".join(more)
        if data:
            barren_bytes = self._bytes_without_data + len(data) - DATA_CREDIT * len(plain)
            self._bytes_without_data = barren_bytes if barren_bytes > 0 else 0
        if self._bytes_without_data > MAX_BYTES_WITHOUT_DATA or self._shared.outgoing.pending:
            self._send_answers()
        return plain

    def _send_answers(self) -> None:
        """Write TLS's own answers, such as new keys. Cut a peer that causes too many of them."""
        if self._full:
            self._unread_answer_bytes += self._shared.outgoing.pending
        if (
            self._bytes_without_data > MAX_BYTES_WITHOUT_DATA
            or self._unread_answer_bytes > UNREAD_ANSWER_BYTES
        ):
            self._shared.outgoing.read()
            self._broken = True
        self._flush()

    def _encrypt(self, piece: bytes | bytearray | memoryview) -> None:
        if self._has_said_goodbye:
            return
        try:
            self._tls.write(piece)
        except ssl.SSLError:
            self._break_off()
        else:
            self._socket.write(self._shared.outgoing.read())

    def _end(self) -> bool:
        """Handle the end of the other side's bytes. Returns: whether the other side may still get bytes."""
        if self._closing:
            self._socket.close()
            return False
        if self._protocol is not None and self._protocol.eof_received():
            return True
        self.close()
        return False

    def _break_off(self) -> None:
        """Cut a connection that is not TLS, or whose peer is not the expected one; an alert says so."""
        self._flush()
        if not self._closing:
            self._shared.goodbyes.begin(self)
        self._closing = self._has_said_goodbye = True
        self._socket.close()

    def _finish_handshake(self, error: OSError | None = None) -> None:
        """Complete `handshake`, or fail it with an error; only the first call counts."""
        if self._handshake is None or self._handshake.done():
            return
        if error is None:
            self._handshake.set_result(None)
        else:
            self._handshake.set_exception(error)
            self._handshake.exception()  # marks the error as seen, if nothing awaits the handshake

    def _flush(self) -> None:
        outgoing = self._shared.outgoing
        if outgoing.pending:
            self._socket.write(outgoing.read())
