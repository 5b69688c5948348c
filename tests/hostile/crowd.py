"""Many connections from one process, which together send a fixed number of bytes per second.

A crowd plays one part on each connection, and again on a new connection where the fleet has ended the last.
What its parts say is in `tests.hostile.strangers` and `tests.hostile.twins`.
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

SOURCE: Final = "127.9.9.9"
"""Where crowds connect from: members and the observers of a run are other sources."""
OPENING_BYTES: Final = 40
"""What a new connection takes of its purse, as its SYN has: opening is sending, too."""
CONNECT_LIMIT_S: Final = 10.0
RETRY_S: Final = 0.5
SMALL_WINDOW_BYTES: Final = 4096
SMALL_SEGMENT_BYTES: Final = 1460
"""With both, the kernels of this machine hold 74 KB between a member and a client that does not read, as on a
real network. Without, they hold 2.8 MB. Measured."""

Port: TypeAlias = Literal["bootstrap", "broker", "tls", "admin", "peer"]


class Purse:
    """The bytes that a connection may send now: its rate, and what it did not use before.

    Args:
        bytes_per_s: its rate.
        delay_s: the time before its first second.
    """

    def __init__(self, bytes_per_s: float, delay_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self._due_s = asyncio.get_running_loop().time() + delay_s

    async def pay(self, size_bytes: int) -> None:
        """Wait until there is enough."""
        self._due_s += size_bytes / self.bytes_per_s
        await asyncio.sleep(max(0.0, self._due_s - asyncio.get_running_loop().time()))


@dataclass
class Sums:
    """What a crowd has done so far.

    Args: failed: openings that nobody took in time.
    """

    opened: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    sent_bytes: int = 0


class Line:
    """One connection of a crowd.

    Args:
        number: of its place in the crowd.
        chance: of this place.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        purse: Purse,
        sums: Sums,
        number: int,
        chance: random.Random,
    ) -> None:
        self._reader, self._writer = reader, writer
        self._purse, self._sums = purse, sums
        self.number = number
        self.chance = chance

    @property
    def bytes_per_s(self) -> float:
        return self._purse.bytes_per_s

    async def send(self, data: bytes, *, free: bool = False) -> None:
        """Send when the purse has enough, and the other side reads. Raises: ConnectionError"""
        if not free:
            await self._purse.pay(len(data))
            self._sums.sent_bytes += len(data)
        if self._writer.transport.is_closing():
            raise ConnectionResetError
        self._writer.write(data)
        await self._writer.drain()

    async def drip(self, data: bytes) -> None:
        """Send one byte a segment."""
        for each in data:
            await self.send(bytes((each,)))

    def read_no_more(self) -> None:
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    async def read(self, size_bytes: int) -> bytes:
        """Raises: IncompleteReadError, ConnectionError."""
        return await self._reader.readexactly(size_bytes)

    async def some(self) -> bytes:
        """What has come, once there is something. Raises: EOFError: there is nothing more."""
        data = await self._reader.read(1 << 16)
        if not data:
            raise EOFError
        return data

    async def answer(self) -> bytes:
        """The next Kafka response, from its correlation id on."""
        (size,) = struct.unpack(">i", await self.read(4))
        return await self.read(size)

    async def head(self) -> bytes:
        """The head of the next HTTP answer, and its body of a length that it says."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        _, found, rest = head.lower().partition(b"content-length:")
        return head + (await self.read(int(rest.split(b"\r\n")[0])) if found else b"")

    async def ended(self) -> None:
        """Read until the other side ends it."""
        while await self._reader.read(1 << 16):
            pass

    def abort(self) -> None:
        self._writer.transport.abort()


Play: TypeAlias = Callable[[Line], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Part:
    """What one connection does.

    Args:
        play: returns, or raises OSError or EOFError, where it is to begin again on a new connection.
        floods: whether it sends whatever it may; others hold what they have.
        reads_little: whether its kernel is to take little, too.
        speaks_tls: whether TLS is spoken below it.
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
        ports: where each kind of port is.
        bytes_per_s: for all connections together. Those that flood share it evenly.
        seed: decides on when each begins, and what it chooses.
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
        self._spoken = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._spoken.check_hostname = False
        self._spoken.verify_mode = ssl.CERT_NONE
        self.sums = Sums()
        self.open = 0

    async def run(self, seconds: float, begin_within_s: float) -> None:
        """Play for so long, and then cut all connections at once."""
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
        chance = random.Random(f"{self._seed}-{number}")
        delay_s = chance.random() * begin_within_s
        purse = Purse(self._rate, delay_s)
        await asyncio.sleep(delay_s)
        while True:
            await purse.pay(OPENING_BYTES)
            self.sums.sent_bytes += OPENING_BYTES
            try:
                async with asyncio.timeout(CONNECT_LIMIT_S):
                    reader, writer = await self._connect(part)
            except (OSError, TimeoutError):
                self.sums.failed += 1
                await asyncio.sleep(RETRY_S)
                continue
            self.sums.opened[part.name] += 1
            self.open += 1
            line = Line(reader, writer, purse, self.sums, number, chance)
            try:
                with suppress(OSError, EOFError, asyncio.LimitOverrunError):
                    await part.play(line)
            finally:
                self.open -= 1
                line.abort()

    async def _connect(self, part: Part) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        at = self._ports[part.port]
        sock = socket.socket()
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if part.reads_little:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_WINDOW_BYTES)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SMALL_SEGMENT_BYTES)
            sock.bind((SOURCE, 0))
            await asyncio.get_running_loop().sock_connect(sock, (at.host, at.port))
            if part.speaks_tls:
                return await asyncio.open_connection(sock=sock, ssl=self._spoken, server_hostname=at.host)
            return await asyncio.open_connection(sock=sock)
        except BaseException:
            sock.close()
            raise
