"""The event loop with which libraries dial brokers."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from fleet.core.model import Endpoint
from fleet.runtime.outbound import Addresses, Resolver
from fleet.runtime.resolving_loop import run
from tests.certificates import Authority

LIMIT_S = 30.0


def names(monkeypatch: pytest.MonkeyPatch, *addresses: tuple[str, int]) -> list[str]:
    """Resolve every name to these addresses. Returns: the names that are looked up."""
    queries: list[str] = []

    async def find(_: Resolver, endpoint: Endpoint, __: float) -> Addresses:
        queries.append(endpoint.host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", each) for each in addresses]

    monkeypatch.setattr(Resolver, "find", find)
    return queries


def limited(main: Coroutine[Any, Any, None]) -> None:
    async def within() -> None:
        async with asyncio.timeout(LIMIT_S):
            await main

    run(within())


def test_answering_address_is_used_with_the_certificate_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Found: `advertised.listeners=SSL://localhost.:9093` never worked, because TLS allows no final dot."""
    authority = Authority(tmp_path)
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_tls.load_cert_chain(authority.issue("broker", hosts=("localhost",)).both)
    client_tls = ssl.create_default_context(cafile=authority.certificate)

    async def main() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"hello")
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=server_tls)
        port = server.sockets[0].getsockname()[1]
        with socket.socket() as silent_server:
            silent_server.bind(("127.0.0.1", 0))
            queries = names(monkeypatch, silent_server.getsockname(), ("127.0.0.1", port))
            reader, writer = await asyncio.open_connection("localhost.", port, ssl=client_tls)
        assert await reader.read() == b"hello"
        assert queries == ["localhost."]
        writer.close()
        server.close()

    limited(main())


def test_given_socket_is_used() -> None:
    async def main() -> None:
        socket_, peer_socket = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=socket_)
        peer_socket.sendall(b"hello")
        peer_socket.close()
        assert await reader.read() == b"hello"
        writer.close()

    limited(main())
