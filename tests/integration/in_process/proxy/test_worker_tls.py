"""A worker with TLS clients: who is admitted, how clients leave, and new certificates."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import struct
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, cast

import pytest

from fleet.config.settings import Limits, ListenerTlsSettings
from fleet.core.model import Broker
from fleet.proxy import counters, tls_server
from fleet.proxy.host import State
from fleet.runtime.ipc import BOOTSTRAP
from tests.certificates import Authority, Pair
from tests.integration.in_process.proxy.test_worker import (
    DATA_BYTES,
    FETCH,
    LIMIT_S,
    LONG_LINGER_S,
    METADATA,
    PRODUCE,
    BrokerScript,
    Running,
    alive,
    broker_script,
    ends,
    eventually,
    fetch,
    hold_dials,
    metadata,
    never,
    produce,
    read_frame,
    request,
    response,
    running,
)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certs")


@pytest.fixture
def tls(authority: Authority) -> ListenerTlsSettings:
    return tls_settings(authority)


def tls_settings(authority: Authority) -> ListenerTlsSettings:
    pair = authority.issue("external")
    return ListenerTlsSettings(pair.certificate, pair.key)


def trusting(authority: Authority, pair: Pair | None = None) -> ssl.SSLContext:
    """A client that trusts only the authority, and has its own certificate if one is given."""
    context = ssl.create_default_context(cafile=authority.certificate)
    if pair is not None:
        context.load_cert_chain(pair.certificate, pair.key)
    return context


def refused(worker: Running, caplog: pytest.LogCaptureFixture) -> tuple[int, str]:
    """Return the number of failed handshakes, and the last log line about one."""
    lines = [each.getMessage() for each in caplog.records if "(handshake;" in each.getMessage()]
    return worker.worker.snapshot().errors.get("handshake", 0), lines[-1] if lines else ""


async def is_served(worker: Running, client: ssl.SSLContext) -> bool:
    try:
        reader, writer = await worker.connect(1, client)
        writer.write(fetch(1))
        answer = await read_frame(reader)
    except (OSError, asyncio.IncompleteReadError):
        return False
    writer.close()
    return answer == response(1, b"answer")[4:]


def connect_and_check(
    worker: Running, client: ssl.SSLContext, name: str | None = "127.0.0.1", broker_id: int = 1
) -> None:
    """Do a handshake like most clients, which send an alert when they refuse. Blocks."""
    with socket.create_connection(("127.0.0.1", worker.ports[broker_id]), LIMIT_S) as sock:
        client.wrap_socket(sock, server_hostname=name).close()


async def test_frames_of_any_size_pass_in_both_directions(
    tmp_path: Path, authority: Authority, tls: ListenerTlsSettings
) -> None:
    great = bytes(range(256)) * (3 * DATA_BYTES // 256)

    async def answer(script: BrokerScript, key: int, number: int, writer: asyncio.StreamWriter) -> None:
        writer.write(response(number, great if key == FETCH else b"answer"))

    async with broker_script(answer) as one, running(tmp_path, [one.port], listener_tls=tls) as worker:
        worker.worker.apply(worker.directory([one]))
        reader, writer = await worker.connect(1, trusting(authority))
        for number in range(1, 9):
            writer.write(produce(2 * number, acks=1, records_bytes=3 * DATA_BYTES))
            assert await read_frame(reader) == response(2 * number, b"answer")[4:]
            writer.write(fetch(2 * number + 1))
            assert await read_frame(reader) == response(2 * number + 1, great)[4:]
        writer.close()
        await eventually(lambda: not worker.connections(), "the client has gone")
        await eventually(lambda: one.ended, "and the broker sees the end")


@asynccontextmanager
async def openssl(
    worker: Running, *options: str
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """OpenSSL's own client: its output with each message; its input is sent, or is a command."""
    command = ("openssl", "s_client", "-msg", *options, "-connect", f"127.0.0.1:{worker.ports[1]}")
    client = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=STDOUT)
    assert client.stdout is not None
    assert client.stdin is not None
    try:
        async with asyncio.timeout(LIMIT_S):
            yield client.stdout, client.stdin
    finally:
        if client.returncode is None:
            client.kill()
        await client.communicate()


async def test_client_key_update_is_answered(
    tmp_path: Path, authority: Authority, tls: ListenerTlsSettings
) -> None:
    """TLS 1.3 agrees on new keys between two requests. Source: RFC 8446, section 4.6.3"""
    async with broker_script() as one, running(tmp_path, [one.port], listener_tls=tls) as worker:
        worker.worker.apply(worker.directory([one]))
        async with openssl(worker, "-tls1_3") as (printed, client):
            await printed.readuntil(b"NewSessionTicket")
            client.write(b"K\n")  # requests the other side's new keys, too, with the next bytes
            await printed.readuntil(b"KEYUPDATE")
            client.write(fetch(1))
            await printed.readuntil(b"<<< TLS 1.3, Handshake [length 0005], KeyUpdate")
            await printed.readuntil(response(1, b"answer"))
        await eventually(lambda: not worker.connections(), "the client has gone")
        assert worker.worker.snapshot().errors == {}


async def test_renegotiation_is_refused(
    tmp_path: Path, authority: Authority, tls: ListenerTlsSettings
) -> None:
    """And the alert is sent at once, not with the next write."""
    async with broker_script() as one, running(tmp_path, [one.port], listener_tls=tls) as worker:
        worker.worker.apply(worker.directory([one]))
        async with openssl(worker, "-tls1_2") as (printed, client):
            await printed.readuntil(b"Verify return code")
            client.write(fetch(1))
            await printed.readuntil(response(1, b"answer"))
            client.write(b"R\n")
            await printed.readuntil(b"<<< TLS 1.2, Alert [length 0002], warning no_renegotiation")
        await eventually(lambda: not worker.connections(), "the client has gone")


async def test_plaintext_client_of_a_tls_listener_is_refused(
    tmp_path: Path, tls: ListenerTlsSettings, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker_script() as one, running(tmp_path, [one.port], listener_tls=tls) as worker:
        worker.worker.apply(worker.directory([one]))
        reader, writer = await worker.connect(1)
        writer.write(fetch(1))
        assert b"answer" not in await reader.read()
        writer.close()
        await eventually(lambda: refused(worker, caplog)[0] == 1, "the failed handshake is counted")
        assert "client 127.0.0.1:" in refused(worker, caplog)[1]
        assert "it does not speak TLS" in refused(worker, caplog)[1]
        assert (one.accepted, worker.connections()) == (0, [])


@pytest.mark.parametrize(
    ("first_bytes", "expected"),
    [
        (fetch(1), "it speaks Kafka to the TLS listener external; set security.protocol=SSL or SASL_SSL"),
        (b"GET / HTTP/1.1\r\n\r\n", "it speaks HTTP to the TLS listener external; send health checks"),
        (b"POST / HTTP/1.1\r\n\r\n", "it speaks HTTP to the TLS listener external; "),
        (b"PROXY TCP4 10.0.0.1 10.0.0.2 5 9092\r\n", "it speaks PROXY protocol v1 to the TLS"),
        (b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c", "it speaks PROXY protocol v2 to the"),
        (b"SSH-2.0-OpenSSH_9.2p1\r\n", "it speaks SSH to the TLS listener external; correct the port"),
    ],
)
async def test_first_bytes_in_place_of_tls_are_named_in_the_log(
    tmp_path: Path,
    tls: ListenerTlsSettings,
    caplog: pytest.LogCaptureFixture,
    first_bytes: bytes,
    expected: str,
) -> None:
    async with broker_script() as one, running(tmp_path, [one.port], listener_tls=tls) as worker:
        reader, writer = await worker.connect(1)
        writer.write(first_bytes)
        await reader.read()
        writer.close()
        await eventually(lambda: refused(worker, caplog)[0] == 1, "the failed handshake is counted")
        assert f"client: it does not speak TLS: {expected}" in refused(worker, caplog)[1]


async def test_http_within_tls_is_named_in_the_log(
    tmp_path: Path, authority: Authority, tls: ListenerTlsSettings, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker_script() as one, running(tmp_path, [one.port], listener_tls=tls) as worker:
        reader, writer = await worker.connect(1, trusting(authority))
        writer.write(b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n")
        await reader.read()
        writer.close()
        await eventually(lambda: bool(worker.worker.snapshot().errors), "the failed handshake is counted")
        assert "client: it speaks HTTP to the TLS listener external; send health checks" in caplog.text


async def test_connection_ends_with_its_last_reference(
    tmp_path: Path, tls: ListenerTlsSettings, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same as without TLS, with and without a complete handshake."""
    monkeypatch.setattr(counters.log, "disabled", True)
    gc.collect()
    before = [*alive(), *has_handshake()]
    gc.disable()
    try:
        async with broker_script() as one, running(tmp_path, [one.port], listener_tls=tls) as worker:
            worker.worker.apply(worker.directory([one]))
            for number in range(3):
                reader, writer = await worker.connect(1, trusting(authority))
                writer.write(fetch(number))
                await read_frame(reader)
                assert len(alive()) + len(has_handshake()) > len(before) + 1
                writer.close()
                reader, writer = await worker.connect(1)
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                await ends(reader)
                writer.close()
            del reader, writer
            await eventually(
                lambda: len(alive()) + len(has_handshake()) == len(before),
                "no object of the connections is left",
            )
    finally:
        gc.enable()


def has_handshake() -> list[object]:
    return [each for each in gc.get_objects() if type(each).__name__ == "TlsTransport"]


async def test_client_with_another_ca_refuses_the_worker(
    tmp_path: Path, tls: ListenerTlsSettings, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker_script() as one, running(tmp_path, [one.port], listener_tls=tls) as worker:
        worker.worker.apply(worker.directory([one]))
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.to_thread(
                connect_and_check, worker, trusting(Authority(tmp_path / "else", "others"))
            )
        await eventually(lambda: refused(worker, caplog)[0] == 1, "the failed handshake is counted")
        assert "unknown ca" in refused(worker, caplog)[1]


async def test_unfinished_handshake_is_closed(
    tmp_path: Path, tls: ListenerTlsSettings, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        broker_script() as one,
        running(tmp_path, [one.port], Limits(first_request_timeout_s=0.1), tls) as worker,
    ):
        worker.worker.apply(worker.directory([one]))
        reader, writer = await worker.connect(1)
        async with asyncio.timeout(LIMIT_S):
            assert await reader.read() == b""
        assert refused(worker, caplog) == (1, refused(worker, caplog)[1])
        assert "no handshake within 0.1 s" in refused(worker, caplog)[1]
        writer.close()


async def test_last_bytes_reach_a_broker_that_is_still_dialed(
    tmp_path: Path,
    authority: Authority,
    tls: ListenerTlsSettings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The bytes may be Produce with acks=0. Found by reading: uvloop warned about half-open TLS."""
    async with broker_script() as one, running(tmp_path, [one.port], listener_tls=tls) as worker:
        worker.worker.apply(worker.directory([one]))
        released = hold_dials(worker, monkeypatch)
        _, writer = await worker.connect(1, trusting(authority))
        writer.write(produce(1, acks=0))
        writer.close()  # both come with one read
        await eventually(
            lambda: [each.has_ended for each in worker.connections()] == [True], "its end is seen"
        )
        assert [each.state for each in worker.connections()] == [State.DIALING]
        released.set()
        await eventually(lambda: one.requests == [(PRODUCE, 1)], "the broker has the request")
        await eventually(lambda: not worker.connections(), "the connection is closed")
        assert worker.worker.snapshot().limited == {}
        assert "no effect" not in caplog.text


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_acks_0_is_forwarded_until_the_clients_goodbye(
    tmp_path: Path, authority: Authority, tls: ListenerTlsSettings, version: ssl.TLSVersion
) -> None:
    """The sender counts Produce with acks=0 as delivered once it is sent."""
    client = trusting(authority)
    client.maximum_version = version

    def connect() -> ssl.SSLSocket:
        sock = socket.create_connection(("127.0.0.1", worker.ports[1]), LIMIT_S)
        return client.wrap_socket(sock, server_hostname="127.0.0.1")

    async with (
        broker_script() as one,
        running(tmp_path, [one.port], listener_tls=tls, drain_timeout_s=LONG_LINGER_S) as worker,
    ):
        worker.worker.apply(worker.directory([one]))
        sock = await asyncio.to_thread(connect)
        await asyncio.to_thread(sock.sendall, produce(1, acks=0))
        await eventually(lambda: one.requests, "the broker has the request")
        worker.worker.apply(worker.directory([one], advertised={1: ("p2",)}))
        assert await asyncio.to_thread(sock.recv, 1) == b""
        late = produce(2, acks=0, records_bytes=2 * DATA_BYTES)
        for each in (late[:15], late[15:] + produce(3, acks=0) + produce(4, acks=1) + produce(5, acks=0)):
            await asyncio.to_thread(sock.sendall, each)
        await eventually(lambda: one.ended, "the broker has received all expected bytes")
        assert one.requests == [(PRODUCE, 1), (PRODUCE, 2), (PRODUCE, 3)]
        sock.close()
        await eventually(lambda: not worker.connections(), "the client has gone")


async def test_idle_handshakes_do_not_block_other_clients(
    tmp_path: Path, tls: ListenerTlsSettings, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_server, "MAX_HANDSHAKES", 3)
    async with (
        broker_script() as one,
        running(tmp_path, [one.port], Limits(first_request_timeout_s=LIMIT_S), tls) as worker,
    ):
        worker.worker.apply(worker.directory([one]))
        silent = [await worker.connect(1) for _ in range(3)]
        assert await is_served(worker, trusting(authority))
        assert await silent[0][0].read() == b""  # the oldest one was closed
        for _, writer in silent:
            writer.close()


@pytest.mark.parametrize("client_certificates", ["allowed", "required"])
async def test_client_certificates_are_verified_as_configured(
    tmp_path: Path,
    tls: ListenerTlsSettings,
    authority: Authority,
    client_certificates: Literal["allowed", "required"],
) -> None:
    asking = replace(tls, client_ca=authority.certificate, client_certificates=client_certificates)
    async with broker_script() as one, running(tmp_path, [one.port], listener_tls=asking) as worker:
        worker.worker.apply(worker.directory([one]))
        assert await is_served(worker, trusting(authority, authority.issue("app")))
        assert await is_served(worker, trusting(authority)) == (client_certificates == "allowed")
        stranger = Authority(tmp_path / "else", "others").issue("app")
        assert not await is_served(worker, trusting(authority, stranger))
        expired = authority.issue("late", until=datetime.now(UTC) - timedelta(hours=1))
        assert not await is_served(worker, trusting(authority, expired))


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (ssl.TLSVersion.TLSv1_2, "ALERT_HANDSHAKE_FAILURE"),
        (ssl.TLSVersion.TLSv1_3, "ALERT_CERTIFICATE_REQUIRED"),
    ],
)
async def test_refused_client_gets_an_alert(
    tmp_path: Path, tls: ListenerTlsSettings, authority: Authority, version: ssl.TLSVersion, reason: str
) -> None:
    """With uvloop's TLS the connection was closed before the alert was sent."""
    client = trusting(authority)
    client.maximum_version = version

    def is_connected() -> None:
        with socket.create_connection(("127.0.0.1", worker.ports[1]), LIMIT_S) as sock:
            client.wrap_socket(sock, server_hostname="127.0.0.1").recv(1)

    asking = replace(tls, client_ca=authority.certificate, client_certificates="required")
    async with broker_script() as one, running(tmp_path, [one.port], listener_tls=asking) as worker:
        with pytest.raises(ssl.SSLError) as caught:
            await asyncio.to_thread(is_connected)
        assert caught.value.reason.endswith(reason)


@pytest.mark.parametrize("lowest", ["1.2", "1.3"])
async def test_clients_below_min_version_are_refused(
    tmp_path: Path, tls: ListenerTlsSettings, authority: Authority, lowest: Literal["1.2", "1.3"]
) -> None:
    old = trusting(authority)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    asking = replace(tls, min_version=lowest)
    async with broker_script() as one, running(tmp_path, [one.port], listener_tls=asking) as worker:
        worker.worker.apply(worker.directory([one]))
        assert await is_served(worker, old) == (lowest == "1.2")
        assert await is_served(worker, trusting(authority))


async def test_configured_ciphers_apply_to_tls_1_2(
    tmp_path: Path, tls: ListenerTlsSettings, authority: Authority
) -> None:
    old = trusting(authority)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    asking = replace(tls, ciphers="ECDHE-ECDSA-CHACHA20-POLY1305")
    async with broker_script() as one, running(tmp_path, [one.port], listener_tls=asking) as worker:
        worker.worker.apply(worker.directory([one]))
        _, writer = await worker.connect(1, old)
        assert writer.get_extra_info("cipher")[0] == "ECDHE-ECDSA-CHACHA20-POLY1305"
        writer.close()


async def test_new_certificate_applies_to_new_clients_only(
    tmp_path: Path, tls: ListenerTlsSettings, authority: Authority
) -> None:
    async def serial(writer: asyncio.StreamWriter) -> str:
        return str(writer.get_extra_info("peercert")["serialNumber"])

    async with broker_script() as one, running(tmp_path, [one.port], listener_tls=tls) as worker:
        worker.worker.apply(worker.directory([one]))
        reader, writer = await worker.connect(1, trusting(authority))
        before = await serial(writer)
        authority.issue("external")
        _, newer = await worker.connect(1, trusting(authority))
        assert await serial(newer) != before
        tls.key.write_bytes(b"in the middle of a copy")
        _, newest = await worker.connect(1, trusting(authority))
        assert await serial(newest) == await serial(newer)
        writer.write(fetch(1))
        assert await read_frame(reader) == response(1, b"answer")[4:]
        for each in (writer, newer, newest):
            each.close()


async def test_leaving_clients_get_their_answers_and_a_goodbye(
    tmp_path: Path, tls: ListenerTlsSettings, authority: Authority
) -> None:
    async with (
        broker_script(never) as one,
        running(tmp_path, [one.port], listener_tls=tls, move_timeout_s=0.5) as worker,
    ):
        worker.worker.apply(worker.directory([one]))
        reader, writer = await worker.connect(1, trusting(authority))
        writer.write(produce(1, acks=0) + fetch(2))
        await eventually(lambda: len(one.requests) == 2, "the requests are at the broker")
        worker.worker.apply(worker.directory([one], advertised={1: ("p2",)}))
        await eventually(lambda: worker.connections()[0].is_draining, "the time for a quiet moment is over")
        # Unread bytes would turn the goodbye into a reset, and lose the answer.
        writer.write(fetch(3) + produce(4, acks=1, records_bytes=4 * DATA_BYTES))
        one.released.set()
        assert await ends(reader) == response(2, b"answer")
        assert one.requests == [(PRODUCE, 1), (FETCH, 2)]
        writer.close()
        await eventually(lambda: not worker.connections(), "the client has gone")


async def test_client_that_is_quiet_leaves_at_once(
    tmp_path: Path, tls: ListenerTlsSettings, authority: Authority
) -> None:
    async with (
        broker_script() as one,
        running(tmp_path, [one.port], listener_tls=tls, move_timeout_s=LIMIT_S) as worker,
    ):
        worker.worker.apply(worker.directory([one]))
        reader, writer = await worker.connect(1, trusting(authority))
        writer.write(fetch(1))
        assert await read_frame(reader) == response(1, b"answer")[4:]
        worker.worker.apply(worker.directory([one], advertised={1: ("p2",)}))
        assert await ends(reader) == b""
        writer.close()
        await eventually(lambda: one.ended, "the broker sees the end")


async def test_client_that_never_answers_the_goodbye_is_cut(
    tmp_path: Path, tls: ListenerTlsSettings, authority: Authority
) -> None:
    async with (
        broker_script() as one,
        running(tmp_path, [one.port], listener_tls=tls, drain_timeout_s=5.0) as worker,
    ):
        worker.worker.apply(worker.directory([one]))
        reader, writer = await worker.connect(1, trusting(authority))
        writer.write(fetch(1))
        assert await read_frame(reader) == response(1, b"answer")[4:]
        cast(asyncio.Transport, writer.transport).pause_reading()
        worker.worker.apply(worker.directory([one], advertised={1: ("p2",)}))
        await eventually(
            lambda: not worker.connections(), "the connection has ended, whatever the client does"
        )
        writer.transport.abort()


async def test_stopping_worker_answers_requests_before_it_closes(
    tmp_path: Path, tls: ListenerTlsSettings, authority: Authority
) -> None:
    async with broker_script(never) as one, running(tmp_path, [one.port], listener_tls=tls) as worker:
        worker.worker.apply(worker.directory([one]))
        reader, writer = await worker.connect(1, trusting(authority))
        writer.write(fetch(1))
        await eventually(lambda: one.requests, "the request is in flight")
        worker.stop.set()
        await eventually(lambda: worker.connections()[0].is_moving, "the connection has to leave")
        one.released.set()
        assert await ends(reader) == response(1, b"answer")
        writer.close()
        async with asyncio.timeout(LIMIT_S):
            await worker.task


# ---- server names


BROKER_HOST = "broker-{broker_id}.proxy1.example"


async def responses_for(worker: Running, client: ssl.SSLContext, name: str) -> tuple[bytes, list[int]]:
    """Return the results of a connection with a server name: the Metadata response, and the counted
    identity."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", worker.ports[BOOTSTRAP], ssl=client, server_hostname=name
    )
    writer.write(request(METADATA, 1, 8, struct.pack(">i", -1)))
    answer = await read_frame(reader)
    served = [key for key, count in worker.worker.snapshot().connections.items() if count]
    writer.close()
    await eventually(lambda: not worker.connections(), "the connection is closed")
    return answer, served


async def test_server_name_selects_the_identity(tmp_path: Path, authority: Authority) -> None:
    pair = authority.issue("external", ["proxy1.example", "*.proxy1.example"])
    tls = ListenerTlsSettings(pair.certificate, pair.key)
    async with (
        broker_script() as one,
        broker_script() as two,
        running(tmp_path, [one.port], listener_tls=tls, broker_host=BROKER_HOST) as worker,
    ):
        one.known = two.known = [Broker(1, "127.0.0.1", one.port), Broker(2, "127.0.0.1", two.port)]
        worker.worker.apply(worker.directory([one, two]))
        proxied = metadata([Broker(each, f"broker-{each}.proxy1.example", 9100) for each in (1, 2)])
        for name, broker_id, requests in (
            ("broker-2.proxy1.example", 2, (0, 1)),
            ("BROKER-1.proxy1.example", 1, (1, 1)),
            ("proxy1.example", BOOTSTRAP, None),
        ):
            answer, served = await responses_for(worker, trusting(authority), name)
            assert (answer, served) == (response(8, proxied)[4:], [broker_id])
            assert requests in (None, (len(one.requests), len(two.requests)))


@pytest.mark.parametrize("name", ["broker-9.proxy1.example", "elsewhere.example", None])
async def test_unknown_server_name_is_refused(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture, name: str | None
) -> None:
    pair = authority.issue("external", ["proxy1.example"])
    tls = ListenerTlsSettings(pair.certificate, pair.key)
    client = trusting(authority)
    client.check_hostname = False
    async with (
        broker_script() as one,
        running(tmp_path, [one.port], listener_tls=tls, broker_host=BROKER_HOST) as worker,
    ):
        worker.worker.apply(worker.directory([one]))
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.to_thread(connect_and_check, worker, client, name, BOOTSTRAP)
        await eventually(lambda: refused(worker, caplog)[0] == 1, "the failed handshake is counted")
        assert "its server name does not belong to this listener" in refused(worker, caplog)[1]
        assert one.accepted == 0
