"""A bare TCP forwarder on uvloop: what any Python proxy costs on this machine before it does any work.

    python -m benchmarks.forwarder LISTEN/UPSTREAM …       both as HOST:PORT
        --certificate FILE                                 clients speak TLS
        --authority FILE                                   upstreams speak TLS, with certificates of this
        authority --processes N                                      N processes wait at the same sockets

The forwarder deliberately handles no errors and has no back-pressure: it is the platform's floor, not a
proxy.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import ssl
from collections.abc import Sequence
from functools import partial
from typing import ClassVar, TypeAlias, cast

import uvloop

from fleet.runtime.child import prepare_for_connections

Route: TypeAlias = tuple[socket.socket, tuple[str, str]]


class Side(asyncio.Protocol):
    """One of two connections; the client's side knows the address of the upstream, and whether it has TLS."""

    secured: ClassVar[ssl.SSLContext | None] = None

    def __init__(self, upstream: tuple[str, str] | None = None, other: Side | None = None) -> None:
        self.upstream, self.other, self.early = upstream, other, b""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transports derive from nothing
        if self.upstream is not None:
            self.dial = asyncio.create_task(self.connect(*self.upstream))
        elif self.other is not None:
            self.other.other = self
            self.transport.write(self.other.early)

    async def connect(self, host: str, port: str) -> None:
        other, loop = partial(Side, None, self), asyncio.get_running_loop()
        await loop.create_connection(other, host, int(port), ssl=self.secured)

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)
        else:
            self.early += data

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


async def serve(arguments: argparse.Namespace, routes: Sequence[Route]) -> None:
    """Forward until killed."""
    loop = asyncio.get_running_loop()
    context = None
    if arguments.certificate:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(arguments.certificate)
    if arguments.authority:
        Side.secured = ssl.create_default_context(cafile=arguments.authority)
    for listening, upstream in routes:
        await loop.create_server(partial(Side, upstream), sock=listening, ssl=context)
    await asyncio.Event().wait()


def bound(route: str) -> Route:
    """Listen at `LISTEN` of `LISTEN/UPSTREAM`. Returns: the socket, and the address to dial."""
    listen, upstream = route.split("/")
    (host, port), (to_host, to_port) = listen.rsplit(":", 1), upstream.rsplit(":", 1)
    return socket.create_server((host, int(port))), (to_host, to_port)


if __name__ == "__main__":
    # As a worker does: the option saves two fifths of a gigabyte's CPU time, a quarter of a connection's
    # instructions.
    prepare_for_connections()
    parser = argparse.ArgumentParser()
    for option in ("--certificate", "--authority"):
        parser.add_argument(option)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("routes", nargs="+")
    given = parser.parse_args()
    listening = [bound(route) for route in given.routes]
    for _ in range(1, given.processes):
        if os.fork() == 0:
            break
    uvloop.run(serve(given, listening))
