"""A NAT that records: it forwards TCP connections, and keeps all bytes that went to the clients.

relays = Relays()
relays.forward(Endpoint("127.88.1.1", 20100), Endpoint("127.0.0.1", 20400))
with relays.recording() as recorded:
    …
found = leaks(secrets_of(kafka), recorded)
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from fleet.core.model import Endpoint
from fleet.drills.cluster.kafka import KafkaCluster

READ_BYTES = 1 << 16
LIMIT_S = 30.0


Key: TypeAlias = tuple[int, Endpoint]
"""A connection, and the address at which it arrived."""
Change: TypeAlias = Callable[[bytes], bytes]


@dataclass
class Recording:
    """The bytes sent to clients, one stream for each connection; on request also the bytes sent by clients.

    More may come while it is looked at, from another thread: take a list of `streams`.
    """

    streams: dict[Key, bytearray] = field(default_factory=dict)
    sent: dict[Key, bytearray] | None = None

    def contains(self, pattern: bytes) -> bool:
        return any(pattern in stream for stream in list(self.streams.values()))


class Relays:
    """Forwards connections on an event loop in its own thread, so that a test may block."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relays")
        self._thread.start()
        self._servers: list[asyncio.Server] = []
        self._recordings: list[Recording] = []
        self._connections = 0

    def forward(self, listen: Endpoint, to: Endpoint, change: Change | None = None) -> None:
        """Forward connections from one address to another. Raises: OSError: the address is not available.

        Args: change: what the client gets for a frame that was sent to it.
        """

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(listen, to, change, reader, writer)

        async def start() -> None:
            self._servers.append(await asyncio.start_server(serve, listen.host, listen.port, backlog=512))

        asyncio.run_coroutine_threadsafe(start(), self._loop).result(LIMIT_S)

    @contextmanager
    def recording(self, *, both: bool = False) -> Iterator[Recording]:
        """Record what goes to clients, and with `both` what comes from them, on old and new connections."""
        recording = Recording(sent={} if both else None)
        self._recordings.append(recording)
        try:
            yield recording
        finally:
            self._recordings.remove(recording)

    def close(self) -> None:
        """End every connection, and the thread."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(LIMIT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            await asyncio.wait(others)

    async def _serve(
        self,
        listen: Endpoint,
        to: Endpoint,
        change: Change | None,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._connections += 1
        key = (self._connections, listen)
        try:
            there_reader, there_writer = await asyncio.open_connection(to.host, to.port)
        except OSError:
            _reset(writer)
            return
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._carry(reader, there_writer, key, to_client=False))
                if change is None:
                    both.create_task(self._carry(there_reader, writer, key, to_client=True))
                else:
                    both.create_task(_carry_frames(there_reader, writer, change))
        except* OSError:
            pass  # one side was reset, and the other side is reset, too
        finally:
            _reset(writer)
            _reset(there_writer)

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: Key, *, to_client: bool
    ) -> None:
        """Forward one direction, including its end."""
        while data := await reader.read(READ_BYTES):
            for recording in self._recordings:
                stream = recording.streams if to_client else recording.sent
                if stream is not None:
                    stream.setdefault(key, bytearray()).extend(data)
            writer.write(data)
            await writer.drain()
        writer.write_eof()


async def _carry_frames(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, change: Change) -> None:
    with suppress(asyncio.IncompleteReadError):
        while True:
            size = await reader.readexactly(4)
            frame = await reader.readexactly(int.from_bytes(size, "big"))
            writer.write(change(size + frame))
            await writer.drain()
    writer.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        writer.transport.abort()


# ---- bytes that must not leak


@dataclass(frozen=True, slots=True)
class Secret:
    what: str
    pattern: bytes


def secrets_of(kafka: KafkaCluster) -> tuple[Secret, ...]:
    """Everything that identifies a real address: hosts as text and as bytes, ports as text and as int32."""
    secrets = [Secret("the brokers' network", b"127.77.")]
    for broker_id, broker in kafka.brokers.items():
        secrets += [
            Secret(f"host {broker.host}", broker.host.encode()),
            Secret(f"host {broker.host} as bytes", socket.inet_aton(broker.host)),
        ]
        for port in (broker.port, kafka.listener("CONTROLLER", broker_id).port):
            secrets += [
                Secret(f"port {port}", f":{port}".encode()),
                Secret(f"port {port} as int32", struct.pack(">i", port)),
            ]
    return tuple(secrets)


def leaks(secrets: Iterable[Secret], recorded: Recording) -> list[str]:
    """The leaks and their places: the connection, the address at which it arrived, and the bytes nearby."""
    found = []
    for secret in secrets:
        for (number, endpoint), stream in list(recorded.streams.items()):
            at = stream.find(secret.pattern)
            if at >= 0:
                around = bytes(stream[max(0, at - 60) : at + 60])
                found.append(f"{secret.what} at {at} of connection {number} to {endpoint}: {around!r}")
    return found
