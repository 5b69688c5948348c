"""Control's side of the local socket: directories go to the workers, counters and observations come back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from socket import socket
from typing import Final

from fleet.admin.snapshot import WorkerView
from fleet.admin.totals import retire
from fleet.core.model import Broker, BrokerId, Directory
from fleet.runtime import ipc
from fleet.runtime.ipc import (
    BrokersLostMessage,
    BrokersSeenMessage,
    Channel,
    CountersMessage,
    CountMessage,
    DirectoryMessage,
    Hello,
    ReachableMessage,
    TrafficMessage,
    WorkerCounters,
)

log = logging.getLogger(__name__)

COUNTERS_ANSWER_TIMEOUT_S: Final = 0.25
"""How long a request for counters waits for a worker that does not answer."""
COUNTERS_MAX_AGE_S: Final = 0.1
"""Counters that are younger are not requested again, however often a client asks for them."""


class WorkerChannels:
    """The connected workers of this member, and the counters of dead workers (``retired``).

    Args:
        listen_socket: the bound control socket.
        on_brokers_seen: called with the brokers in a passing response.
        on_brokers_requested: called with the brokers that clients wait for, because their address is unknown.
        on_brokers_lost: called with the brokers that did not accept a connection, or have ended one.
        on_applied: called with the revision that every connected worker uses now.
        on_traffic: called with the traffic that has passed a worker.
    """

    def __init__(
        self,
        listen_socket: socket,
        on_brokers_seen: Callable[[tuple[Broker, ...]], None],
        on_brokers_requested: Callable[[tuple[BrokerId, ...]], None],
        on_brokers_lost: Callable[[tuple[BrokerId, ...]], None],
        on_applied: Callable[[int], None],
        on_traffic: Callable[[TrafficMessage], None],
    ) -> None:
        self._socket = listen_socket
        self._on_brokers_seen = on_brokers_seen
        self._on_brokers_requested = on_brokers_requested
        self._on_brokers_lost = on_brokers_lost
        self._on_applied = on_applied
        self._on_traffic = on_traffic
        self._server: asyncio.Server | None = None
        self.channels: dict[Channel, WorkerCounters] = {}
        self._hellos: dict[Channel, Hello] = {}
        self._pending_counts: dict[Channel, asyncio.Future[None]] = {}
        self._counters_received_s: dict[Channel, float] = {}
        self._worker_ids: set[int] = set()
        self._pids: set[int] = set()
        self.retired = WorkerCounters()
        self.restarts = 0
        self._first_connected = asyncio.Event()
        self._directory: Directory | None = None
        self._reachable = ReachableMessage({})

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(
            self._serve, sock=self._socket, limit=ipc.LINE_LIMIT_BYTES
        )

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for channel in list(self.channels):
            channel.close()

    @property
    def connected(self) -> int:
        """Number of workers that have sent a hello and are still connected."""
        return len(self._hellos)

    async def wait_for_first(self) -> None:
        """Wait until a worker has sent its hello."""
        await self._first_connected.wait()

    @property
    def applied_revision(self) -> int:
        """The oldest revision that a connected worker uses; -1 while no worker is connected."""
        return min((each.revision for each in self.channels.values()), default=-1)

    def publish(self, directory: Directory) -> None:
        """Send the directory to every worker, and to workers that connect later."""
        self._directory = directory
        message = DirectoryMessage(directory)
        for channel in list(self.channels):
            channel.send(message)

    def publish_reachable(
        self, reachable: Mapping[BrokerId, bool], api_versions: Mapping[BrokerId, bytes]
    ) -> None:
        """Send the reachability and the versions of brokers to every worker if they have changed, and to
        workers that connect later."""
        message = ReachableMessage(
            dict(reachable), {broker_id: body.hex() for broker_id, body in api_versions.items()}
        )
        if self._reachable == message:
            return
        self._reachable = message
        for channel in list(self.channels):
            channel.send(message)

    async def refresh_counters(self) -> None:
        """Request fresh counters from every worker.

        A worker that does not answer within ``COUNTERS_ANSWER_TIMEOUT_S`` keeps its last counters.
        """
        stale_s = asyncio.get_running_loop().time() - COUNTERS_MAX_AGE_S
        answers = [
            self._request_counters(each)
            for each in self._hellos
            if self._counters_received_s.get(each, 0.0) < stale_s
        ]
        if answers:
            await asyncio.wait(answers, timeout=COUNTERS_ANSWER_TIMEOUT_S)

    def _request_counters(self, channel: Channel) -> asyncio.Future[None]:
        answer = self._pending_counts.get(channel)
        if answer is None:
            answer = self._pending_counts[channel] = asyncio.get_running_loop().create_future()
            channel.send(CountMessage())
        return answer

    def _complete_count(self, channel: Channel) -> None:
        answer = self._pending_counts.pop(channel, None)
        if answer is not None:
            answer.set_result(None)

    def views(self) -> tuple[WorkerView, ...]:
        """The connected workers, each with its last counters."""
        return tuple(
            WorkerView(hello.worker, hello.pid, self.channels[channel])
            for channel, hello in sorted(self._hellos.items(), key=lambda item: item[1].worker)
        )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel = Channel(reader, writer)
        self.channels[channel] = WorkerCounters()
        if self._directory is not None:
            channel.send(DirectoryMessage(self._directory))
        if self._reachable.reachable:
            channel.send(self._reachable)
        try:
            while (message := await channel.receive()) is not None:
                self._on_message(channel, message)
        except ValueError as error:
            log.error("a worker sent an invalid message: %s", str(error).splitlines()[0])
        finally:
            self.retired = retire(self.retired, self.channels.pop(channel))
            self._hellos.pop(channel, None)
            self._counters_received_s.pop(channel, None)
            self._complete_count(channel)
            channel.close()
            self._report_applied()

    def _report_applied(self) -> None:
        if self.channels:
            self._on_applied(self.applied_revision)

    def _on_message(self, channel: Channel, message: ipc.Message) -> None:
        match message:
            case Hello(worker=worker, pid=pid):
                self.restarts += worker in self._worker_ids and pid not in self._pids
                self._worker_ids.add(worker)
                self._pids.add(pid)
                self._hellos[channel] = message
                self._first_connected.set()
                log.info("worker connected: worker=%d pid=%d", worker, pid)
            case CountersMessage(counters=counters):
                self.channels[channel] = counters
                self._counters_received_s[channel] = asyncio.get_running_loop().time()
                self._complete_count(channel)
                self._report_applied()
            case TrafficMessage():
                self._on_traffic(message)
            case BrokersSeenMessage(brokers=brokers, wanted=requested):  # words: a field of the message
                if brokers:
                    self._on_brokers_seen(brokers)
                if requested:
                    self._on_brokers_requested(requested)
            case BrokersLostMessage(broker_ids=broker_ids):
                self._on_brokers_lost(broker_ids)
            case DirectoryMessage() | ReachableMessage() | CountMessage():
                log.error("a worker sent a %s message, which only control may send", message.kind)
