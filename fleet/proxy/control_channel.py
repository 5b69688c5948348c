"""A worker's connection to control.

Control sends directories and which brokers are reachable. The worker sends counters, traffic and brokers. A
channel outlives control processes: it reconnects.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

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
from fleet.runtime.ticker import PeriodicCallback

log = logging.getLogger(__name__)

RECONNECT_S: Final = 0.1
COUNTERS_INTERVAL_S = 30.0  # not Final: tests change it, and a compiler would write its value into the code
"""The interval of counters. A killed worker loses the counts since its last message."""
TRAFFIC_INTERVAL_S = 1.0  # not Final, for the same reason
RESEND_COUNTERS_S = 1.0  # not Final, for the same reason
"""How long after a failed attempt counters are sent again."""
REPORT_DELAY_S: Final = 0.05
"""Brokers seen or lost within this time are reported together: each client's Metadata lists all brokers."""


class ControlChannel:
    """Reconnects to control for as long as ``run`` runs.

    Args:
        path: the control socket.
        hello: the first message on each connection.
        apply: called with each directory, on the loop.
        on_reachable: called with broker id → whether the broker answers control, and broker id → its versions
            (see `ReachableMessage`).
        snapshot: returns the counters as they are now.
        take_traffic: returns the traffic since its last call; None when control collects no traffic.
    """

    def __init__(
        self,
        path: Path,
        hello: Hello,
        apply: Callable[[Directory], None],
        on_reachable: Callable[[Mapping[BrokerId, bool], Mapping[BrokerId, str]], None],
        snapshot: Callable[[], WorkerCounters],
        take_traffic: Callable[[], TrafficMessage] | None,
    ) -> None:
        self._path = path
        self._hello = hello
        self._apply = apply
        self._on_reachable = on_reachable
        self._snapshot = snapshot
        self._take_traffic = take_traffic
        self._channel: Channel | None = None
        self._resend_timer: asyncio.TimerHandle | None = None
        self._seen_brokers: dict[BrokerId, Broker] = {}
        self._unknown_brokers: set[BrokerId] = set()
        self._lost_brokers: set[BrokerId] = set()
        self._report_timer: asyncio.TimerHandle | None = None
        self.first_directory = asyncio.Event()

    async def run(self) -> None:
        """Receive messages from control, forever."""
        while True:
            await self._follow_once()
            await asyncio.sleep(RECONNECT_S)

    def start_reporting(self) -> list[PeriodicCallback]:
        """Send counters and traffic to control at intervals, until the returned callbacks are stopped."""
        regular = [PeriodicCallback(COUNTERS_INTERVAL_S, self.send_counters)]
        if self._take_traffic is not None:
            regular.append(
                PeriodicCallback(TRAFFIC_INTERVAL_S, partial(self._send_traffic, self._take_traffic))
            )
        return regular

    def send_counters(self) -> None:
        """Send counters to control at once, because a value changed that control waits for.

        Messages do not pile up for a control process that does not read, or that does not run yet. Connecting
        succeeds without a control process, because the supervisor holds the socket. Such counters are sent
        later.
        """
        if self._channel is None:
            return
        if not self._channel.waiting_bytes:
            self._channel.send(CountersMessage(self._snapshot()))
        elif self._resend_timer is None:
            self._resend_timer = asyncio.get_running_loop().call_later(
                RESEND_COUNTERS_S, self._resend_counters
            )

    def _resend_counters(self) -> None:
        self._resend_timer = None
        self.send_counters()

    def report_brokers(self, brokers: Iterable[Broker]) -> None:
        """Report brokers to control soon; without a control process, report them to the next one."""
        self._seen_brokers.update((broker.broker_id, broker) for broker in brokers)
        self._report_soon()

    def report_unknown_broker(self, broker_id: BrokerId) -> None:
        """Report a broker that clients wait for, because its address is unknown."""
        self._unknown_brokers.add(broker_id)
        self._report_soon()

    def report_lost_broker(self, broker_id: BrokerId) -> None:
        """Report a broker that did not accept a connection, or that closed one."""
        self._lost_brokers.add(broker_id)
        self._report_soon()

    def _report_soon(self) -> None:
        if self._report_timer is None and (self._seen_brokers or self._unknown_brokers or self._lost_brokers):
            self._report_timer = asyncio.get_running_loop().call_later(REPORT_DELAY_S, self._report)

    def _report(self) -> None:
        self._report_timer = None
        if self._channel is None:
            return
        if self._seen_brokers or self._unknown_brokers:
            message = BrokersSeenMessage(tuple(self._seen_brokers.values()), tuple(self._unknown_brokers))
            if self._channel.send(message):
                self._seen_brokers.clear()
                self._unknown_brokers.clear()
        if self._lost_brokers and self._channel.send(BrokersLostMessage(tuple(self._lost_brokers))):
            self._lost_brokers.clear()

    def _send_traffic(self, take_traffic: Callable[[], TrafficMessage]) -> None:
        """Send traffic to control; skip this time when control does not read."""
        if self._channel is not None and not self._channel.waiting_bytes:
            self._channel.send(take_traffic())

    async def _follow_once(self) -> None:
        try:
            channel = await ipc.connect(self._path)
        except OSError:
            return
        try:
            channel.send(self._hello)
            self._channel = channel
            self._report()
            while (message := await channel.receive()) is not None:
                match message:
                    case DirectoryMessage(directory=directory):
                        self._apply(directory)
                        self.first_directory.set()
                        self.send_counters()
                    case ReachableMessage(reachable=reachable, api_versions=api_versions):
                        self._on_reachable(reachable, api_versions)
                    case CountMessage():  # control sends one at a time, so that messages do not pile up
                        channel.send(CountersMessage(self._snapshot()))
        except ValueError as error:
            log.error("invalid message from control: %s", str(error).splitlines()[0])
        finally:
            self._channel = None
            channel.close()
        log.warning("lost the connection to control; serving its last directory")
