"""TLS of one connection, between a simulated socket and OpenSSL as the other side."""

from __future__ import annotations

import asyncio
import gc
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest
import pytest_asyncio

from fleet.proxy.tls_transport import (
    MAX_BYTES_WITHOUT_DATA,
    PIECE_BYTES,
    RECORD_BYTES,
    UNREAD_ANSWER_BYTES,
    SharedTls,
    TlsTransport,
)
from tests.certificates import Authority
from tests.integration.in_process.proxy.test_worker import eventually
from tests.key_updates import request_key_update

HOST = "127.0.0.1"


class PaperSocket:
    """A socket's transport that keeps the written bytes."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.calls: list[str] = []

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.calls.append("close")

    def abort(self) -> None:
        self.calls.append("abort")

    def pause_reading(self) -> None:
        self.calls.append("pause_reading")

    def resume_reading(self) -> None:
        self.calls.append("resume_reading")


class Carried(asyncio.Protocol):
    """The carried protocol: records its calls, and checks at each call that the shared buffers are empty."""

    def __init__(self, shared: SharedTls) -> None:
        self._shared = shared
        self.received: list[bytes] = []
        self.calls: list[str] = []
        self.stays_half_open = False
        self.raises = False
        """Called as soon as the connection is made."""
        self.then: Callable[[], None] = lambda: None
        """Called with each read."""

    def _note(self, call: str) -> None:
        assert (self._shared.incoming.pending, self._shared.outgoing.pending) == (0, 0), call
        self.calls.append(call)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._note("made")
        if self.raises:
            raise RuntimeError

    def data_received(self, data: bytes) -> None:
        self._note("data")
        self.received.append(data)
        self.then()

    def eof_received(self) -> bool:
        self._note("eof")
        return self.stays_half_open

    def connection_lost(self, exc: Exception | None) -> None:
        self._note("lost")


class Connection:
    """The side under test, and the other side."""

    def __init__(self, shared: SharedTls, server: ssl.SSLContext, client: ssl.SSLContext, ours: str) -> None:
        self.socket = PaperSocket()
        self.carried = Carried(shared)
        self._to_other, self._from_other = ssl.MemoryBIO(), ssl.MemoryBIO()
        mine, theirs = (server, client) if ours == "server" else (client, server)
        self.tls = TlsTransport(shared, mine, lambda _: self.carried, None if ours == "server" else HOST)
        self.other = theirs.wrap_bio(
            self._to_other, self._from_other, ours == "client", HOST if ours == "server" else None
        )
        self.tls.connection_made(cast(asyncio.Transport, self.socket))

    def wire(self) -> bytes:
        """Return the bytes of the other side, as they would arrive from the network."""
        return self._from_other.read()

    def deliver(self) -> None:
        """Deliver the bytes written to the socket to the other side."""
        self._to_other.write(bytes(self.socket.written))
        self.socket.written.clear()

    def shake_hands(self) -> None:
        for _ in range(3):
            with suppress(ssl.SSLWantReadError):
                self.other.do_handshake()
            if sent := self.wire():
                self.tls.data_received(sent)
            self.deliver()

    def other_reads(self, size_bytes: int) -> bytes:
        self.deliver()
        read = b""
        while len(read) < size_bytes:
            read += self.other.read(size_bytes - len(read))
        return read

    def other_ends(self) -> bytes:
        """Return the other side's goodbye, as it would arrive from the network."""
        with pytest.raises(ssl.SSLWantReadError):
            self.other.unwrap()
        return self.wire()


@pytest_asyncio.fixture
async def shared() -> SharedTls:
    return SharedTls(0.05)


@pytest.fixture(params=["1.2", "1.3"])
def version(request: pytest.FixtureRequest) -> ssl.TLSVersion:
    return {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}[request.param]


@pytest_asyncio.fixture(params=["server", "client"])
async def make(
    request: pytest.FixtureRequest, shared: SharedTls, tmp_path: Path, version: ssl.TLSVersion
) -> AsyncIterator[Callable[[], Connection]]:
    authority = Authority(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(authority.issue("one", [HOST]).both)
    client = ssl.create_default_context(cafile=authority.certificate)
    client.maximum_version = version
    yield lambda: Connection(shared, server, client, request.param)
    assert (shared.incoming.pending, shared.outgoing.pending) == (0, 0)


@pytest_asyncio.fixture
async def made(make: Callable[[], Connection]) -> Connection:
    """A connection whose handshake is complete."""
    connection = make()
    connection.shake_hands()
    assert connection.carried.calls == ["made"]
    return connection


async def test_lost_connection_owes_no_goodbye(made: Connection, shared: SharedTls) -> None:
    made.tls.close()
    assert len(shared.goodbyes) == 1
    made.tls.connection_lost(None)
    assert len(shared.goodbyes) == 0


async def test_bytes_arriving_one_by_one_are_decrypted(made: Connection) -> None:
    for sent in (b"first", bytes(RECORD_BYTES)):
        made.other.write(sent)
        for each in made.wire():
            made.tls.data_received(bytes([each]))
        assert b"".join(made.carried.received) == sent
        made.carried.received.clear()


async def test_records_of_one_read_are_delivered_together(made: Connection) -> None:
    sent = bytes(range(256)) * (5 * RECORD_BYTES // 256)
    made.other.write(sent)
    made.other.write(b"and another")
    made.tls.data_received(made.wire())
    assert made.carried.received == [sent + b"and another"]


async def test_rest_of_a_record_comes_with_the_next(made: Connection) -> None:
    made.other.write(b"one")
    made.other.write(b"two")
    wire = made.wire()
    made.tls.data_received(wire[:-1])
    assert made.carried.received == [b"one"]
    made.other.write(b"three")
    made.tls.data_received(wire[-1:] + made.wire())
    assert made.carried.received == [b"one", b"twothree"]


@pytest.mark.parametrize("size_bytes", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES - 7])
async def test_written_bytes_arrive(made: Connection, size_bytes: int) -> None:
    sent = bytes(range(256)) * (size_bytes // 256 + 1)
    made.tls.write(memoryview(sent)[:size_bytes])
    made.tls.write(b"!")
    assert made.other_reads(size_bytes + 1) == sent[:size_bytes] + b"!"


async def test_connections_with_shared_buffers_stay_apart(make: Callable[[], Connection]) -> None:
    """Each has half of a record, and closes the other connection in the middle of its own read."""
    one, two = make(), make()
    one.shake_hands()
    two.shake_hands()
    for each in (one, two):
        each.other.write(b"half")
    one_wire, two_wire = one.wire(), two.wire()
    one.tls.data_received(one_wire[:20])
    two.tls.data_received(two_wire[:20])
    one.tls.data_received(one_wire[20:])
    two.tls.data_received(two_wire[20:])
    assert (one.carried.received, two.carried.received) == ([b"half"], [b"half"])

    def end_the_other() -> None:
        two.tls.write(b"last")
        two.tls.close()

    one.other.write(b"all")
    one.other.write(b"of it")
    one.carried.then = end_the_other
    one.tls.data_received(one.wire())
    assert one.carried.received == [b"half", b"allof it"]
    assert two.other_reads(4) == b"last"
    assert two.other.read(1) == b""
    assert (one.socket.calls, two.socket.calls) == ([], ["resume_reading"])


async def test_goodbye_follows_the_data_of_the_same_read(made: Connection) -> None:
    made.other.write(b"last")
    sent = made.wire()
    made.tls.data_received(sent + made.other_ends() + b"and what is none of TLS")
    assert made.carried.received == [b"last"]
    assert made.carried.calls == ["made", "data", "eof"]
    assert made.socket.calls == ["close"]
    made.tls.data_received(b"whatever comes then")
    assert made.carried.calls == ["made", "data", "eof"]
    assert made.socket.calls == ["close"]


@pytest.mark.parametrize("goodbye", [False, True])
async def test_half_open_connection_may_still_write(made: Connection, goodbye: bool) -> None:
    made.carried.stays_half_open = True
    if goodbye:
        made.tls.data_received(made.other_ends())
        made.tls.data_received(b"whatever comes then")
    assert made.tls.eof_received() is True
    assert made.carried.calls == ["made", "eof"]
    made.tls.write(b"answer")
    assert made.other_reads(6) == b"answer"
    assert made.socket.calls == []
    made.tls.close()
    assert made.socket.calls == ["close"]


async def test_own_goodbye_ends_writing_but_not_reading(made: Connection) -> None:
    made.tls.write(b"last")
    made.tls.write_eof()
    made.tls.write_eof()
    made.tls.write(b"too late")
    assert made.other_reads(4) == b"last"
    assert made.other.read(1) == b""
    made.other.write(b"still")
    made.tls.data_received(made.wire())
    assert made.carried.received == [b"still"]
    assert made.socket.calls == []
    made.other.unwrap()
    made.tls.data_received(made.wire())
    assert made.carried.calls == ["made", "data", "eof"]
    assert made.socket.calls == ["close"]


async def test_close_waits_for_the_peers_goodbye(
    made: Connection,
) -> None:
    made.tls.pause_reading()
    made.tls.close()
    made.tls.close()
    assert made.tls.is_closing()
    assert made.socket.calls == ["pause_reading", "resume_reading"]
    made.tls.pause_reading()
    assert made.socket.calls == ["pause_reading", "resume_reading"]
    made.other.write(b"on its way")
    made.tls.data_received(made.wire())
    assert made.carried.received == []
    made.deliver()
    assert made.other.read(1) == b""
    made.other.unwrap()
    made.tls.data_received(made.wire())
    assert made.socket.calls == ["pause_reading", "resume_reading", "close"]
    made.tls.connection_lost(None)
    assert made.carried.calls == ["made", "lost"]


@pytest.mark.parametrize("how", ["closed", "ended", "ended without a goodbye", "broken"])
async def test_peer_that_reads_the_rest_too_slowly_is_cut(made: Connection, how: str) -> None:
    """Found by review: a client that requested much, read nothing and sent one bad record stayed forever."""
    made.tls.write(b"much")
    if how == "closed":
        made.tls.close()
    elif how == "ended":
        made.tls.data_received(made.other_ends())
    elif how == "broken":
        made.tls.data_received(b"GET / HTTP/1.1\r\n\r\n")
    else:
        assert made.tls.eof_received() is False
    await eventually(lambda: "abort" in made.socket.calls, "its time is up")
    made.tls.connection_lost(None)
    assert made.carried.calls[-1] == "lost"


async def test_invalid_record_ends_the_connection_with_an_alert(made: Connection) -> None:
    made.other.write(b"good")
    good = made.wire()
    made.other.write(b"fine")
    wire = bytearray(made.wire())
    wire[-1] ^= 1
    made.tls.data_received(good + bytes(wire) + b"and more")
    assert made.carried.received == [b"good"]
    assert made.socket.calls == ["close"]
    assert made.tls.is_closing()
    made.deliver()
    with pytest.raises(ssl.SSLError, match=r"(?i)bad.record.mac"):
        made.other.read(1)
    made.tls.write(b"nothing")
    made.tls.close()
    assert made.socket.written == b""
    made.tls.connection_lost(None)
    assert made.carried.calls == ["made", "data", "lost"]


async def test_handshake_returns_or_raises_at_its_end(make: Callable[[], Connection]) -> None:
    connection = make()
    waiting = asyncio.create_task(connection.tls.handshake())
    connection.shake_hands()
    await waiting
    connection = make()
    waiting = asyncio.create_task(connection.tls.handshake())
    assert connection.tls.eof_received() is False
    connection.tls.connection_lost(None)
    with pytest.raises(ConnectionResetError):
        await waiting
    assert connection.carried.calls == []


async def test_handshake_that_is_not_tls_fails(make: Callable[[], Connection]) -> None:
    connection = make()
    waiting = asyncio.create_task(connection.tls.handshake())
    connection.tls.data_received(b"SSH-2.0-OpenSSH_9.2p1\r\n")
    with pytest.raises(ssl.SSLError):
        await waiting
    assert connection.socket.calls == ["close"]
    connection.tls.connection_lost(None)
    assert connection.carried.calls == []


async def test_cancelled_handshake_is_cut(make: Callable[[], Connection]) -> None:
    connection = make()
    waiting = asyncio.create_task(connection.tls.handshake())
    asyncio.get_running_loop().call_soon(waiting.cancel)  # while it waits
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert connection.socket.calls == ["abort"]
    connection.shake_hands()  # bytes in transit
    connection.tls.connection_lost(None)
    assert connection.carried.calls == []


@pytest.mark.parametrize("error", [None, OSError("no route"), KeyError("of the factory's")])
async def test_handshake_fails_if_the_protocol_cannot_be_created(
    make: Callable[[], Connection], error: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    connection = make()
    waiting = asyncio.create_task(connection.tls.handshake())
    connection.carried.raises = True
    with pytest.raises(RuntimeError):
        connection.shake_hands()
    connection.tls.connection_lost(error)
    with pytest.raises(OSError, match=r"^no route$" if isinstance(error, OSError) else r"^$"):
        await waiting
    connection = make()
    connection.tls.connection_lost(error)
    del connection
    gc.collect()
    assert caplog.text == ""


async def test_close_before_the_handshake_sends_nothing(make: Callable[[], Connection]) -> None:
    connection = make()
    sent = bytes(connection.socket.written)
    connection.tls.close()
    assert connection.socket.calls == ["close"]
    assert connection.socket.written == sent


# ---- peers that do not read, and peers that request new keys again and again


def request_new_keys(made: Connection, count: int) -> bytes:
    """Return a number of KeyUpdates of the other side, as they would arrive from the network."""
    for _ in range(count):
        request_key_update(made.other)
        made.other.do_handshake()
    return made.wire()


ONLY_1_3 = pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_3])
"""TLS 1.2 has no KeyUpdate."""
ONLY_SERVER = pytest.mark.parametrize("make", ["server"], indirect=True)
ONLY_CLIENT = pytest.mark.parametrize("make", ["client"], indirect=True)


@ONLY_1_3
async def test_key_updates_between_data_are_answered(made: Connection) -> None:
    for number in range(50):
        made.other.write(b"%d" % number)
        made.tls.data_received(request_new_keys(made, 1))
        made.tls.write(b"answer")
        assert made.other_reads(6) == b"answer"
    assert b"".join(made.carried.received) == b"".join(b"%d" % number for number in range(50))
    assert not made.tls.is_closing()


@ONLY_1_3
@pytest.mark.parametrize("size_bytes", [1_000, 300_000])
async def test_key_updates_without_data_cut_the_connection(made: Connection, size_bytes: int) -> None:
    """Found: 250 KB of them took 0.2 s of CPU, and the same number of bytes of answers was held."""
    flood = request_new_keys(made, 2_000)
    flood *= size_bytes // len(flood) + 1
    for at in range(0, len(flood), size_bytes):
        made.tls.data_received(flood[at : at + size_bytes])
        if made.tls.is_closing():
            break
    assert made.tls.is_closing()
    assert len(made.socket.written) <= MAX_BYTES_WITHOUT_DATA + size_bytes
    assert made.socket.calls[-1] == "close"


@ONLY_1_3
async def test_key_updates_between_single_bytes_are_cut(made: Connection) -> None:
    """Found: one byte of data in each read was enough to continue forever."""
    for _ in range(20):
        flood = request_new_keys(made, 500)
        made.other.write(b"x")
        made.tls.data_received(flood + made.wire())
        if made.tls.is_closing():
            break
    assert made.tls.is_closing()


@ONLY_1_3
async def test_unread_answers_of_tls_are_limited(made: Connection) -> None:
    made.tls.pause_writing()
    kept = len(made.socket.written)
    for _ in range(UNREAD_ANSWER_BYTES // 27 + 2):
        made.other.write(b"x")
        made.tls.data_received(request_new_keys(made, 1))
    assert made.tls.is_closing()
    assert len(made.socket.written) - kept <= UNREAD_ANSWER_BYTES + 100


@ONLY_SERVER
async def test_handshake_pauses_when_the_client_does_not_read(
    make: Callable[[], Connection],
) -> None:
    connection = make()
    connection.tls.pause_writing()
    assert connection.socket.calls == ["pause_reading"]
    connection.tls.resume_writing()
    assert connection.socket.calls == ["pause_reading", "resume_reading"]


@ONLY_SERVER
@pytest.mark.parametrize("first", ["pause_reading", "pause_writing"])
async def test_client_is_read_again_once_both_pauses_end(made: Connection, first: str) -> None:
    both = (
        ["pause_reading", "pause_writing"] if first == "pause_reading" else ["pause_writing", "pause_reading"]
    )
    for each in both:
        getattr(made.tls, each)()
    made.socket.calls.clear()
    getattr(made.tls, both[0].replace("pause", "resume"))()
    assert "resume_reading" not in made.socket.calls
    getattr(made.tls, both[1].replace("pause", "resume"))()
    assert made.socket.calls[-1] == "resume_reading"


@ONLY_CLIENT
async def test_broker_that_does_not_read_is_read_from(made: Connection) -> None:
    """The broker may read nothing more before it has written: otherwise both sides would wait forever."""
    made.tls.pause_writing()
    assert made.socket.calls == []


@ONLY_SERVER
async def test_goodbye_to_a_client_that_does_not_read_is_cut_in_time(
    made: Connection, shared: SharedTls
) -> None:
    made.tls.pause_writing()
    made.tls.close()
    assert "resume_reading" not in made.socket.calls
    await eventually(lambda: "abort" in made.socket.calls, "the connection is cut")
