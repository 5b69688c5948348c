"""Messages between control and workers: JSON lines over a Unix socket; and the last directory as a file.

The supervisor binds the socket, control accepts on it, and each worker connects to it. Control sends
directories and the reachability of brokers, and requests counters. A worker sends hello once, then its
counters, its traffic, brokers that it saw in responses, and brokers that it cannot connect to.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field, TypeAdapter

from fleet.core.model import Broker, BrokerId, Directory
from fleet.core.traffic import ApiTraffic, ConnectionEnd

log = logging.getLogger(__name__)

LINE_LIMIT_BYTES: Final = 64 << 20
"""A directory of 10,000 identities over 100 members takes about 2 MiB."""

BACKLOG_LIMIT_BYTES: Final = 4 * LINE_LIMIT_BYTES
"""How much data may be buffered for a peer that does not read, before the channel is closed."""

BOOTSTRAP: Final[BrokerId] = -1
"""The broker id of connections to a bootstrap port, in counters by broker id."""

REWRITE_BOUNDS_S: Final = (5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2)
"""Upper bounds of the rewrite-time buckets. One more bucket counts longer times."""

DIRECTORY_FILE: Final = "directory.json"


@dataclass(frozen=True, slots=True)
class WorkerCounters:
    """The counters of one worker since it started, and some gauges.

    Args:
        requests: api key → requests of clients.
        bytes_to_broker, bytes_to_client: broker id (or ``BOOTSTRAP``) → forwarded bytes.
        connections: broker id (or ``BOOTSTRAP``) → currently open client connections.
        errors: reason of a WireError → connections closed for this reason.
        limited: limit → connections closed because of this limit.
        rewrite_buckets: rewritten responses by time: one count for each of ``REWRITE_BOUNDS_S``, and one for
            longer times; each response is counted in one bucket only.
        rewrite_sum_s: the total time of all rewrites.
        upstream_up: broker id → whether the last attempt to connect succeeded; absent before the first one.
        generation, revision: of the current directory.
        draining: whether the worker has stopped accepting.
        dropped_log_lines: log lines that could not be written to standard error.
    """

    requests: Mapping[int, int] = field(default_factory=dict)
    bytes_to_broker: Mapping[BrokerId, int] = field(default_factory=dict)
    bytes_to_client: Mapping[BrokerId, int] = field(default_factory=dict)
    connections: Mapping[BrokerId, int] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)
    limited: Mapping[str, int] = field(default_factory=dict)
    rewrite_buckets: tuple[int, ...] = (0,) * (len(REWRITE_BOUNDS_S) + 1)
    rewrite_sum_s: float = 0.0
    upstream_up: Mapping[BrokerId, bool] = field(default_factory=dict)
    generation: int = 0
    revision: int = 0
    draining: bool = False
    dropped_log_lines: int = 0


@dataclass(frozen=True, slots=True)
class TrafficRow:
    """The traffic between one listener and one broker (or ``BOOTSTRAP``) since the previous message.

    Args:
        opened: new connections, including the fleet's own probes.
        connections: connections that are open at the end of the period.
        in_flight_peak: the highest number of requests in flight on one connection, as far as sampled.
        apis: traffic by api key.
        clients: client id → sampled requests, for the clients with the most requests.
    """

    listener: str
    broker_id: BrokerId
    opened: int
    connections: int
    bytes_to_broker: int
    bytes_to_client: int
    in_flight_peak: int
    apis: Mapping[int, ApiTraffic]
    clients: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ConnectionRow:
    """The beginning or the end of a client connection that has sent a request to a broker.

    Args:
        number: the number of the connection at this worker.
        owned: whether this member owned that broker at that time.
        client: the address of the client.
        end: None for a beginning; else the reason of the end. ``client``: the client closed it; ``moved``:
            the worker closed it after a move, with all requests answered; ``unanswered``: as ``moved``, but
            requests in flight took too long; ``broker``: the broker closed it; ``unreachable``: the broker
            could not be reached; ``refused``: it carried another protocol than Kafka's, or reached a limit.
        open_s: how long the connection was open.
    """

    number: int
    at_ms: int
    listener: str
    broker_id: BrokerId
    owned: bool
    client: str
    client_id: str
    end: ConnectionEnd | None = None
    open_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a worker."""

    worker: int
    pid: int
    kind: Literal["hello"] = "hello"


@dataclass(frozen=True, slots=True)
class DirectoryMessage:
    """A new directory from control, which replaces the previous one."""

    directory: Directory
    kind: Literal["directory"] = "directory"


@dataclass(frozen=True, slots=True)
class CountMessage:
    """Control requests the current counters, because a client of the admin API needs them."""

    kind: Literal["count"] = "count"


@dataclass(frozen=True, slots=True)
class CountersMessage:
    counters: WorkerCounters
    kind: Literal["counters"] = "counters"


@dataclass(frozen=True, slots=True)
class TrafficMessage:
    """The traffic since the previous message.

    Args:
        worker: the worker that sends the message, and its life.
        at_ms: the end of the period, by the wall clock.
        period_ms: the length of the period.
        dropped: connections without a row, because there were too many.
        number: counts the messages of this worker from 1. ``at_ms`` may repeat if the clock is set back.
    """

    worker: str
    at_ms: int
    period_ms: int
    rows: tuple[TrafficRow, ...]
    connections: tuple[ConnectionRow, ...]
    dropped: int = 0
    number: int = 0
    kind: Literal["traffic"] = "traffic"


@dataclass(frozen=True, slots=True)
class BrokersSeenMessage:
    """Brokers in a response that the worker did not know, or knew at another address.

    A client may have forged that response. Control must verify the addresses with the cluster.
    """

    brokers: tuple[Broker, ...]
    wanted: tuple[BrokerId, ...] = ()  # words: the name in messages of this and earlier releases
    """Brokers with unknown addresses that clients of the worker wait for. This is not a separate message,
    because a control process of 0.2.0 ignores an unknown field, but disconnects at an unknown message."""
    kind: Literal["brokers_seen"] = "brokers_seen"


@dataclass(frozen=True, slots=True)
class BrokersLostMessage:
    """Brokers that a worker could not connect to, or that closed a connection."""

    broker_ids: tuple[BrokerId, ...]
    kind: Literal["brokers_lost"] = "brokers_lost"


@dataclass(frozen=True, slots=True)
class ReachableMessage:
    """The reachability of brokers, as determined by control; replaces the previous message.

    Args:
        api_versions: the last answer of each broker to ApiVersions v3 or above, as hexadecimal digits of the
            bytes after the correlation id. Collected only if a listener needs them.
    """

    reachable: Mapping[BrokerId, bool]
    api_versions: Mapping[BrokerId, str] = field(default_factory=dict)
    kind: Literal["reachable"] = "reachable"


Message: TypeAlias = (
    Hello
    | DirectoryMessage
    | CountMessage
    | CountersMessage
    | TrafficMessage
    | BrokersSeenMessage
    | BrokersLostMessage
    | ReachableMessage
)

_MESSAGE: Final[TypeAdapter[Message]] = TypeAdapter(Annotated[Message, Field(discriminator="kind")])
_DIRECTORY: Final[TypeAdapter[Directory]] = TypeAdapter(Directory)


def encode(message: Message) -> bytes:
    """The message as one line, line feed included."""
    return _MESSAGE.dump_json(message) + b"\n"


def decode(line: bytes) -> Message:
    """Decode the message in a line.

    Raises: ValueError: the line is not a message of this module
    """
    return _MESSAGE.validate_json(line)


class Channel:
    """One end of a connection between control and a worker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    def send(self, message: Message) -> bool:
        """Pass a message to the transport; False if it is closed, or its peer does not read.

        Never blocks and never raises. A peer that does not read is disconnected and must connect again.
        """
        transport = self.writer.transport
        if transport.is_closing():
            return False
        if transport.get_write_buffer_size() > BACKLOG_LIMIT_BYTES:
            transport.abort()
            return False
        self.writer.write(encode(message))
        return True

    async def receive(self) -> Message | None:
        """The next message; None after the end of the connection.

        Raises: ValueError: the line is not a message, or is longer than ``LINE_LIMIT_BYTES``
        """
        try:
            line = await self._reader.readline()
        except ConnectionError:
            return None
        return decode(line) if line.endswith(b"\n") else None

    async def flush(self) -> None:
        """Wait until the peer reads fast enough. Returns immediately if the connection has ended."""
        try:
            await self.writer.drain()
        except ConnectionError:
            return

    @property
    def waiting_bytes(self) -> int:
        """The number of sent bytes that have not reached the kernel yet."""
        return self.writer.transport.get_write_buffer_size()

    def close(self) -> None:
        self.writer.close()


async def connect(path: Path) -> Channel:
    """Connect to control.

    Raises: OSError: control does not listen on the socket
    """
    return Channel(*await asyncio.open_unix_connection(str(path), limit=LINE_LIMIT_BYTES))


def write_directory(path: Path, directory: Directory) -> None:
    """Replace the file by the directory. Readers see the old or the new file, also after a power cut.

    Blocks on the disk.

    Raises: OSError: the file cannot be written
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(temporary, flags, 0o600), "wb") as out:
            out.write(_DIRECTORY.dump_json(directory))
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_directory(path: Path) -> Directory | None:
    """The directory in the file; None if the file is missing or, with a log line, unusable."""
    try:
        return _DIRECTORY.validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("ignoring an unusable directory file: path=%s: %s", path, str(error).splitlines()[0])
        return None
