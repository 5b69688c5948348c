"""A connection of the worker's own to a broker, for the few requests that are no client's."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import Sequence
from typing import Final

from fleet.core.errors import MalformedFrame
from fleet.core.model import Endpoint
from fleet.proxy.wire.primitives import read_int32
from fleet.runtime.outbound import Resolver, connect
from fleet.tls.brokers import DIAL_ERRORS

MAX_RESPONSE_BYTES: Final = 64 << 20
STREAM_ERRORS: Final = (*DIAL_ERRORS, EOFError, MalformedFrame, TimeoutError, struct.error)
"""What connecting and asking may raise."""


class BrokerStream:
    """Asks one broker. It has no credentials: a broker that requires SASL closes the connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(
        cls, endpoint: Endpoint, tls: ssl.SSLContext | None, resolver: Resolver, timeout_s: float
    ) -> BrokerStream:
        """Connect to a broker. Raises: the errors of connecting."""
        sock = await connect(await resolver.find(endpoint, timeout_s))
        try:
            name = None if tls is None else endpoint.tls_name
            return cls(*await asyncio.open_connection(sock=sock, ssl=tls, server_hostname=name))
        except BaseException:
            sock.close()
            raise

    async def ask(self, requests: Sequence[bytes]) -> list[bytes]:
        """Send whole requests, and receive their responses, without size fields.

        Raises: EOFError: the broker closed; MalformedFrame: the bytes are not the responses
        """
        self._writer.write(b"".join(requests))
        responses = []
        for request in requests:
            (size,) = read_int32(await self._reader.readexactly(4))
            if not 4 <= size <= MAX_RESPONSE_BYTES:
                raise MalformedFrame("broker", f"impossible response size of {size} bytes")
            response = await self._reader.readexactly(size)
            if response[:4] != request[8:12]:
                raise MalformedFrame("broker", "the response has the id of another request")
            responses.append(response)
        return responses

    def close(self) -> None:
        self._writer.transport.abort()
