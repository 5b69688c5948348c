"""An event loop for libraries that dial brokers by name with `create_connection`, as aiokafka does."""

from __future__ import annotations

import asyncio
import ssl as tls
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias, TypeVar

import uvloop

from fleet.core.model import Endpoint
from fleet.runtime.outbound import NAME_CACHE_S, Resolver, connect

_LIMIT_S: Final = 60.0
"""The limit of a look-up. Callers have shorter limits."""

ProtocolT = TypeVar("ProtocolT", bound=asyncio.BaseProtocol)
Connected: TypeAlias = tuple[asyncio.BaseTransport, ProtocolT]


class ResolvingLoop(uvloop.Loop):  # type: ignore[misc]  # mypy finds no types of it
    """Resolves names with a `Resolver`, and connects to the first address that answers (RFC 8305).

    uvloop's own `create_connection` resolves a name for each connection, in a small shared pool of
    threads, and tries the second address only after the first has failed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._names = Resolver(NAME_CACHE_S)

    async def create_connection(
        self,
        protocol_factory: Callable[[], ProtocolT],
        host: str | None = None,
        port: int | None = None,
        *,
        ssl: tls.SSLContext | bool | None = None,
        server_hostname: str | None = None,
        **options: Any,
    ) -> Connected[ProtocolT]:
        """Connect as `asyncio.loop.create_connection` does. Raises: OSError: no address can be reached."""
        if host is None or port is None:
            connection: Connected[ProtocolT] = await super().create_connection(
                protocol_factory, ssl=ssl, server_hostname=server_hostname, **options
            )
            return connection
        endpoint = Endpoint(host, port)
        if ssl and server_hostname is None:
            server_hostname = endpoint.tls_name
        addresses = await self._names.find(endpoint, _LIMIT_S)
        try:
            sock = await connect(addresses)
        except OSError:
            self._names.forget(endpoint)
            raise
        try:
            connection = await super().create_connection(
                protocol_factory, sock=sock, ssl=ssl, server_hostname=server_hostname, **options
            )
        except BaseException:
            sock.close()
            raise
        return connection


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in a new `ResolvingLoop`, and close the loop."""
    with asyncio.Runner(loop_factory=ResolvingLoop) as runner:
        runner.run(main)
