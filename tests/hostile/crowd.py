"""Many connections of one process, which together send a fixed number of bytes per second.

A crowd plays one part on each connection. When the fleet ends a connection, the part restarts on a new one.
The parts are in `tests.hostile.strangers` and `tests.hostile.twins`.
"""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from fleet.core.model import Endpoint

CROWD_SOURCE_HOST: Final = "127.9.9.9"
"""The source address of crowds. Members and observers use other sources."""
OPENING_COST_BYTES: Final = 40
"""The share of a new connection in the byte budget, for its SYN: opening a connection is sending, too."""
CONNECT_TIMEOUT_S: Final = 10.0
RETRY_S: Final = 0.5
SMALL_WINDOW_BYTES: Final = 4096
SMALL_SEGMENT_BYTES: Final = 1460
"""With both limits the kernel holds 74 KB between a member and a client that does not read, as on a real
network. Without the limits it holds 2.8 MB (measured)."""

Port: TypeAlias = Literal["bootstrap", "broker", "tls", "admin", "peer"]


class ByteBudget:
    """The bytes that a connection may send now: its rate and the unused rest.

    Args:
        bytes_per_s: the rate.
        delay_s: the delay before the first second.
    """

    def __init__(self, bytes_per_s: float, delay_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self._due_s = asyncio.get_running_loop().time() + delay_s

    async def spend(self, size_bytes: int) -> None:
        """Wait until the budget allows the bytes."""
        self._due_s += size_bytes / self.bytes_per_s
        await asyncio.sleep(max(0.0, self._due_s - asyncio.get_running_loop().time()))


@dataclass
class CrowdTotals:
    """The activity of a crowd so far.

    Args: failed: connections that were not accepted in time.
    """

    opened: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    sent_bytes: int = 0


class CrowdConnection:
    """One connection of a crowd.

    Args:
        number: number of its slot in the crowd.
        rng: random generator of the slot.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        budget: ByteBudget,
        totals: CrowdTotals,
        number: int,
        rng: random.Random,
    ) -> None:
        self._reader, self._writer = reader, writer
        self._budget, self._totals = budget, totals
        self.number = number
        self.rng = rng

    @property
    def bytes_per_s(self) -> float:
        return self._budget.bytes_per_s

    async def send(self, data: bytes, *, free: bool = False) -> None:
        """Send when the budget allows it and the other side reads.

        Raises: ConnectionError: the fleet closed it.
        """
        if not free:
            await self._budget.spend(len(data))
            self._totals.sent_bytes += len(data)
        if self._writer.transport.is_closing():
            raise ConnectionResetError
        self._writer.write(data)
        await self._writer.drain()

    async def drip(self, data: bytes) -> None:
        """Send one byte per segment."""
        for each in data:
            await self.send(bytes((each,)))

    def stop_reading(self) -> None:
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    async def read(self, size_bytes: int) -> bytes:
        """Raises: IncompleteReadError, ConnectionError."""
        return await self._reader.readexactly(size_bytes)

    async def read_available(self) -> bytes:
        """Return the next data received. Raises: EOFError: the other side has ended the connection."""
        data = await self._reader.read(1 << 16)
        if not data:
            raise EOFError
        return data

    async def read_response(self) -> bytes:
        """Return the next Kafka response, from its correlation id on."""
        (size,) = struct.unpack(">i", await self.read(4))
        return await self.read(size)

    async def read_http_head(self) -> bytes:
        """Return the head of the next HTTP response, and the body if the head has a length."""
        read_http_head = await self._reader.readuntil(b"\r\n\r\n")
        _, has_length, rest = read_http_head.lower().partition(b"content-length:")
        return read_http_head + (await self.read(int(rest.split(b"\r\n")[0])) if has_length else b"")

    async def read_to_end(self) -> None:
        """Read until the other side ends the connection."""
        while await self._reader.read(1 << 16):
            pass

    def abort(self) -> None:
        self._writer.transport.abort()


Play: TypeAlias = Callable[[CrowdConnection], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Part:
    """What one connection does.

    Args:
        play: returns, or raises OSError or EOFError, to start again on a new connection.
        floods: whether it sends as much as it may; other parts hold what they have.
        reads_little: whether its kernel has small receive buffers.
        speaks_tls: whether the connection uses TLS.
    """

    name: str
    port: Port
    play: Play
    floods: bool = True
    reads_little: bool = False
    speaks_tls: bool = False


class Crowd:
    """Plays parts.

    Args:
        parts: one for each connection.
        ports: the endpoint of each kind of port.
        bytes_per_s: rate of all connections together; the flooding ones share it evenly.
        seed: seed of when each connection starts, and of its choices.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        ports: Mapping[Port, Endpoint],
        bytes_per_s: float,
        seed: int,
    ) -> None:
        self._parts, self._ports, self._seed = parts, ports, seed
        self._rate = bytes_per_s / max(1, sum(each.floods for each in parts))
        self._client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._client_context.check_hostname = False
        self._client_context.verify_mode = ssl.CERT_NONE
        self.totals = CrowdTotals()
        self.open = 0

    async def run(self, seconds: float, begin_within_s: float) -> None:
        """Play for a number of seconds, and then cut all connections at once."""
        if not self._parts:
            await asyncio.sleep(seconds)
            return
        tasks = [
            asyncio.create_task(self._repeat(number, part, begin_within_s))
            for number, part in enumerate(self._parts)
        ]
        done, pending = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for each in pending:
            each.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        for each in done:
            each.result()

    async def _repeat(self, number: int, part: Part, begin_within_s: float) -> None:
        rng = random.Random(f"{self._seed}-{number}")
        delay_s = rng.random() * begin_within_s
        budget = ByteBudget(self._rate, delay_s)
        await asyncio.sleep(delay_s)
        while True:
            await budget.spend(OPENING_COST_BYTES)
            self.totals.sent_bytes += OPENING_COST_BYTES
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    reader, writer = await self._connect(part)
            except (OSError, TimeoutError):
                self.totals.failed += 1
                await asyncio.sleep(RETRY_S)
                continue
            self.totals.opened[part.name] += 1
            self.open += 1
            connection = CrowdConnection(reader, writer, budget, self.totals, number, rng)
            try:
                with suppress(OSError, EOFError, asyncio.LimitOverrunError):
                    await part.play(connection)
            finally:
                self.open -= 1
                connection.abort()

    async def _connect(self, part: Part) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        endpoint = self._ports[part.port]
        sock = socket.socket()
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if part.reads_little:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_WINDOW_BYTES)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SMALL_SEGMENT_BYTES)
            sock.bind((CROWD_SOURCE_HOST, 0))
            await asyncio.get_running_loop().sock_connect(sock, (endpoint.host, endpoint.port))
            if part.speaks_tls:
                return await asyncio.open_connection(
                    sock=sock, ssl=self._client_context, server_hostname=endpoint.host
                )
            return await asyncio.open_connection(sock=sock)
        except BaseException:
            sock.close()
            raise
