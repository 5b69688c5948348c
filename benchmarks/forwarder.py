"""A bare TCP forwarder on uvloop: what any Python proxy costs on this machine before it does anything.

    python -m benchmarks.forwarder LISTEN/UPSTREAM …                    both as HOST:PORT
    python -m benchmarks.forwarder --certificate FILE LISTEN/UPSTREAM …  clients speak TLS

It knows no errors and no back-pressure, on purpose: it is the floor of the platform, not a proxy.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from functools import partial
from typing import cast

import uvloop

from fleet.process import prepare_for_connections


class Side(asyncio.Protocol):
    """One of two connections; the client's knows where to dial for the other."""

    def __init__(self, upstream: tuple[str, str] | None = None, other: Side | None = None) -> None:
        self.upstream, self.other, self.early = upstream, other, b""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's derive from nothing
        if self.upstream is not None:
            self.dial = asyncio.create_task(self.connect(*self.upstream))
        elif self.other is not None:
            self.other.other = self
            self.transport.write(self.other.early)

    async def connect(self, host: str, port: str) -> None:
        await asyncio.get_running_loop().create_connection(partial(Side, None, self), host, int(port))

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)
        else:
            self.early += data

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


async def serve(routes: list[str]) -> None:
    """Forward until killed."""
    loop = asyncio.get_running_loop()
    context = None
    if routes[0] == "--certificate":
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(routes[1])
        routes = routes[2:]
    for route in routes:
        listen, upstream = route.split("/")
        (host, port), (to_host, to_port) = listen.rsplit(":", 1), upstream.rsplit(":", 1)
        await loop.create_server(partial(Side, (to_host, to_port)), host, int(port), ssl=context)
    await asyncio.Event().wait()


if __name__ == "__main__":
    # As a worker does: two fifths of a gigabyte's CPU time, a quarter of a connection's instructions.
    prepare_for_connections()
    uvloop.run(serve(sys.argv[1:]))
