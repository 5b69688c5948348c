"""The event loop of what asks brokers through a library, which dials names by `create_connection`."""

from __future__ import annotations

import asyncio
import ssl as tls
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias, TypeVar

import uvloop

from fleet.model import Endpoint
from fleet.outbound import NAMES_KEPT_S, Resolver, connect

_LIMIT_S: Final = 60.0
"""For a look-up. Whoever dials has a limit of its own, which is shorter."""

ProtocolT = TypeVar("ProtocolT", bound=asyncio.BaseProtocol)
Connected: TypeAlias = tuple[asyncio.BaseTransport, ProtocolT]


class ResolvingLoop(uvloop.Loop):  # type: ignore[misc]  # mypy finds no types of it
    """Looks names up as the rest of the fleet does, and tries a name's addresses beside each other.

    uvloop's own loop looks each name up anew, in threads that all share, and waits for one address before it
    tries the next.
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
    """Run it in a loop of this kind, which ends with it."""
    with asyncio.Runner(loop_factory=ResolvingLoop) as runner:
        runner.run(main)
