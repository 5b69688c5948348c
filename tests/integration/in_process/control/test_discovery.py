"""Reasons for failed discovery. The integration tests use a real Kafka for success."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from pathlib import Path

import pytest

from fleet.config import SaslSettings, Secret, UpstreamSettings, UpstreamTlsSettings
from fleet.control.discovery import discover
from fleet.core.errors import NoMetadata
from fleet.core.model import Endpoint
from fleet.tls.broker_credentials import KafkaAccess
from tests.certificates import Authority
from tests.conftest import PLAINTEXT

PATIENT_S = 30.0


async def why(servers: list[Endpoint], access: KafkaAccess, timeout_s: float = PATIENT_S) -> str:
    with pytest.raises(NoMetadata) as caught:
        await discover(servers, access, timeout_s)
    return str(caught.value)


async def test_error_has_the_reason_of_each_server(tmp_path: Path) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 16)
        writer.close()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(Authority(tmp_path, "foreign").issue("broker").both)
    plain = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    foreign = await asyncio.start_server(hang_up, "127.0.0.1", 0, ssl=context)
    servers = [Endpoint("127.0.0.1", each.sockets[0].getsockname()[1]) for each in (plain, foreign)]
    tls = UpstreamTlsSettings(Authority(tmp_path).certificate, None, None, check_hostname=True, lines={})
    message = await why(servers, KafkaAccess(UpstreamSettings(tls), "f"))
    assert f"{servers[0]}: closed during the handshake" in message
    assert f"{servers[1]}: its certificate is refused: unable to get local issuer certificate" in message
    plain.close()
    gone = servers[0]
    assert "Connect call failed" in await why([gone], PLAINTEXT)


async def test_silent_server_times_out() -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    silent = Endpoint("127.0.0.1", server.sockets[0].getsockname()[1])
    assert await why([silent], PLAINTEXT, 0.1) == f"{silent}: timed out"


async def test_missing_password_prevents_queries() -> None:
    secret = Secret(None, "FLEET_TEST_NO_SUCH_VARIABLE", ("upstream", "sasl", "password"), 3)
    access = KafkaAccess(UpstreamSettings(sasl=SaslSettings("PLAIN", "fleet", secret)), "fleet.yaml")
    message = await why([Endpoint("127.0.0.1", 1)], access)
    assert message.startswith(
        "fleet.yaml:3: upstream.sasl.password: $FLEET_TEST_NO_SUCH_VARIABLE: is not set"
    )


def metadata(*hosts: str | None) -> bytes:
    """The body of a Metadata response v1 with brokers and no topics."""
    brokers = b"".join(
        struct.pack(">ih", number, -1 if host is None else len(host))
        + (host or "").encode()
        + struct.pack(">ih", 9092, -1)
        for number, host in enumerate(hosts)
    )
    return struct.pack(">i", len(hosts)) + brokers + struct.pack(">ii", 0, 0)


async def test_brokers_without_a_host_are_left_out() -> None:
    """Found: an uncaught error ended the control process at each start."""
    named: tuple[str | None, ...] = (None, "kafka1", "")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                key, _, correlation_id = struct.unpack_from(">hhi", frame)
                versions = struct.pack(">hihhhhhh", 0, 2, 3, 1, 1, 18, 0, 0)
                body = struct.pack(">i", correlation_id) + (versions if key == 18 else metadata(*named))
                writer.write(struct.pack(">i", len(body)) + body)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    at = Endpoint("127.0.0.1", server.sockets[0].getsockname()[1])
    assert [each.host for each in await discover([at], PLAINTEXT, PATIENT_S)] == ["kafka1"]
    named = (None,)
    assert "lists no brokers" in await why([at], PLAINTEXT)
