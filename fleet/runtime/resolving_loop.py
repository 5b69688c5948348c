"""An event loop for libraries that dial brokers by name with `create_connection`, as aiokafka does."""

from __future__ import annotations

import asyncio
import ssl as tls
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias, TypeVar

import uvloop

from fleet.core.model import Endpoint
from fleet.runtime.outbound import NAMES_KEPT_S, Resolver, connect

_LIMIT_S: Final = 60.0
"""For a look-up. Callers have shorter limits of their own."""

ProtocolT = TypeVar("ProtocolT", bound=asyncio.BaseProtocol)
Connected: TypeAlias = tuple[asyncio.BaseTransport, ProtocolT]


class ResolvingLoop(uvloop.Loop):  # type: ignore[misc]  # mypy finds no types of it
    """Resolves names with a `Resolver`, and connects to the first address that answers (RFC 8305).

    uvloop's own `create_connection` resolves a name for each connection, in a small shared pool of
    threads, and tries the second address only after the first has failed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._names = Resolver(NAMES_KEPT_S)

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
        """As of `asyncio.loop.create_connection`. Raises: OSError: nobody is reached there."""
        if host is None or port is None:
            made: Connected[ProtocolT] = await super().create_connection(
                protocol_factory, ssl=ssl, server_hostname=server_hostname, **options
            )
            return made
        at = Endpoint(host, port)
        if ssl and server_hostname is None:
            server_hostname = at.tls_name
        addresses = await self._names.find(at, _LIMIT_S)
        try:
            sock = await connect(addresses)
        except OSError:
            self._names.forget(at)
            raise
        try:
            made = await super().create_connection(
                protocol_factory, sock=sock, ssl=ssl, server_hostname=server_hostname, **options
            )
        except BaseException:
            sock.close()
            raise
        return made


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in a new `ResolvingLoop`, and close the loop."""
    with asyncio.Runner(loop_factory=ResolvingLoop) as runner:
        runner.run(main)
