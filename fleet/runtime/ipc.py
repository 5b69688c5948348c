"""What control and workers say to each other: JSON lines over a Unix socket; the last directory as a file.

The supervisor binds the socket, control accepts on it, each worker connects to it. Control sends directories,
and which brokers can be reached, and asks for counters; workers say hello once, then send their counters,
what has passed, the brokers that they saw in passing responses, and those that they have lost.
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
"""What may wait for a peer that does not read, before the channel is given up."""

BOOTSTRAP: Final[BrokerId] = -1
"""Stands for 'no identity' where counters are kept by broker id: a connection to a bootstrap port."""

REWRITE_BOUNDS_S: Final = (5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2)
"""Upper bounds of the rewrite-time buckets; one more bucket counts what took longer."""

DIRECTORY_FILE: Final = "directory.json"


@dataclass(frozen=True, slots=True)
class WorkerCounters:
    """What one worker has counted since it started (gauges where said so).

    Args:
        requests: api key → requests of clients.
        bytes_to_broker, bytes_to_client: broker id (or ``BOOTSTRAP``) → bytes forwarded.
        connections: broker id (or ``BOOTSTRAP``) → client connections open now.
        errors: reason of a WireError → connections closed for it.
        limited: limit → connections closed because of it.
        rewrite_buckets: responses rewritten, by time: one count for each of ``REWRITE_BOUNDS_S``, and one
            above; each response is counted in one bucket only.
        rewrite_sum_s: time spent in all of them.
        upstream_up: broker id → whether the last attempt to connect succeeded; absent where never tried.
        generation, revision: of the directory in use now.
        draining: whether the worker has stopped accepting.
        dropped_log_lines: that standard error has not taken.
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
    """What passed one listener to and from one broker (or ``BOOTSTRAP``) since the message before.

    Args:
        opened: connections that came, the fleet's own probes among them.
        connections: those that are open in the end.
        in_flight_peak: most requests in flight on one connection, where it was looked.
        apis: by api key.
        clients: client id → requests that were sampled; those that had most.
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
    """A client's connection that has sent a request to a broker, or has ended since.

    Args:
        number: of the connection, at this worker.
        owned: whether this member stood for that broker then.
        client: its address.
        end: None where it has begun. Else why it ended. ``client``: it wished so; ``moved``: it was told to
            go, in order; ``unanswered``: so, but what was in flight took too long; ``broker``: that ended it;
            ``unreachable``: there was none; ``refused``: it carried what is not Kafka's protocol, or
            reached a limit.
        open_s: for how long it was there.
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
    """Control hands out a directory; it replaces the one before."""

    directory: Directory
    kind: Literal["directory"] = "directory"


@dataclass(frozen=True, slots=True)
class CountMessage:
    """Control asks for the counters as they are now: somebody looks at them."""

    kind: Literal["count"] = "count"


@dataclass(frozen=True, slots=True)
class CountersMessage:
    counters: WorkerCounters
    kind: Literal["counters"] = "counters"


@dataclass(frozen=True, slots=True)
class TrafficMessage:
    """What has passed since the message before.

    Args:
        worker: which life of which worker tells it.
        at_ms: wall clock; until when.
        period_ms: since when.
        dropped: connections of which there is no row, for there were too many.
        number: of this worker's messages, from 1 on: where the clock was set back, ``at_ms`` comes again.
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
    """Brokers that a response carried and that the worker did not know, or knew at another address.

    A client may have had a hand in that response: the cluster is to be asked, and this is not to be believed.
    """

    brokers: tuple[Broker, ...]
    wanted: tuple[BrokerId, ...] = ()
    """Brokers that clients of the worker wait for, because nobody knows yet where they are. No message of its
    own: a control process of 0.2.0 skips a field that it does not know, and hangs up at such a message."""
    kind: Literal["brokers_seen"] = "brokers_seen"


@dataclass(frozen=True, slots=True)
class BrokersLostMessage:
    """Brokers that a worker could not connect to, or that have ended a connection."""

    broker_ids: tuple[BrokerId, ...]
    kind: Literal["brokers_lost"] = "brokers_lost"


@dataclass(frozen=True, slots=True)
class ReachableMessage:
    """Whether brokers answer, as control has found; it replaces the message before."""

    reachable: Mapping[BrokerId, bool]
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
    """The message that a line holds.

    Raises: ValueError: it is not one of ours
    """
    return _MESSAGE.validate_json(line)


class Channel:
    """One end of a connection between control and a worker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, message: Message) -> bool:
        """Hand a message to the transport; False where it is closed, or its peer does not read.

        Never blocks and never raises: a peer that does not read is cut off, and has to connect again.
        """
        transport = self._writer.transport
        if transport.is_closing():
            return False
        if transport.get_write_buffer_size() > BACKLOG_LIMIT_BYTES:
            transport.abort()
            return False
        self._writer.write(encode(message))
        return True

    async def receive(self) -> Message | None:
        """The next message; None once the peer is gone.

        Raises: ValueError: the peer sent what is not a message, or longer than ``LINE_LIMIT_BYTES``
        """
        try:
            line = await self._reader.readline()
        except ConnectionError:
            return None
        return decode(line) if line.endswith(b"\n") else None

    async def flush(self) -> None:
        """Wait until the peer reads fast enough; returns at once where it is gone."""
        try:
            await self._writer.drain()
        except ConnectionError:
            return

    @property
    def waiting_bytes(self) -> int:
        """What was sent, and has not even reached the kernel."""
        return self._writer.transport.get_write_buffer_size()

    def close(self) -> None:
        self._writer.close()


async def connect(path: Path) -> Channel:
    """Connect to control.

    Raises: OSError: nobody listens there
    """
    return Channel(*await asyncio.open_unix_connection(str(path), limit=LINE_LIMIT_BYTES))


def write_directory(path: Path, directory: Directory) -> None:
    """Replace the file by the directory, so that readers see the old or the new one, also after a power cut.

    Blocks on the disk.

    Raises: OSError: it cannot be written
    """
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(beside, flags, 0o600), "wb") as out:
            out.write(_DIRECTORY.dump_json(directory))
            out.flush()
            os.fsync(out.fileno())
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_directory(path: Path) -> Directory | None:
    """The directory in the file; None, with a log line, where there is none that can be used."""
    try:
        return _DIRECTORY.validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("ignoring %s: %s", path, str(error).splitlines()[0])
        return None
