"""A worker's line to control: directories and who can be reached in, counters (when asked) and brokers out.

It outlives control processes.
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
COUNT_EVERY_S = 30.0  # not Final: tests change it, and a compiler would write its value into the code
"""What a worker that is killed had counted since is lost, but for what somebody had asked for."""
PASS_EVERY_S = 1.0  # not Final, for the same reason
AGAIN_S = 1.0  # not Final, for the same reason
"""After which counters are sent that could not be."""
GATHER_S: Final = 0.05
"""Brokers seen, or lost, within this time are reported together: every client's first Metadata names all."""


class ControlChannel:
    """Keeps connecting to control, for as long as ``run`` runs.

    Args:
        path: the control socket.
        hello: what to say first.
        apply: called with each directory, on the loop.
        told: called with whether brokers answer, as control has found.
        count: makes a snapshot of the counters.
        passed: what has passed since it was asked last; None where control does not want to know.
    """

    def __init__(
        self,
        path: Path,
        hello: Hello,
        apply: Callable[[Directory], None],
        told: Callable[[Mapping[BrokerId, bool]], None],
        count: Callable[[], WorkerCounters],
        passed: Callable[[], TrafficMessage] | None,
    ) -> None:
        self._path = path
        self._hello = hello
        self._apply = apply
        self._told = told
        self._count = count
        self._passed = passed
        self._channel: Channel | None = None
        self._again: asyncio.TimerHandle | None = None
        self._seen: dict[BrokerId, Broker] = {}
        self._wanted: set[BrokerId] = set()
        self._lost: set[BrokerId] = set()
        self._gathering: asyncio.TimerHandle | None = None
        self.first_directory = asyncio.Event()

    async def run(self) -> None:
        """Follow control for ever."""
        while True:
            await self._follow_once()
            await asyncio.sleep(RECONNECT_S)

    def tell_regularly(self) -> list[PeriodicCallback]:
        """Tell control what is counted, and what passes, until these are stopped."""
        regular = [PeriodicCallback(COUNT_EVERY_S, self.send_counters)]
        if self._passed is not None:
            regular.append(PeriodicCallback(PASS_EVERY_S, partial(self._send_passed, self._passed)))
        return regular

    def send_counters(self) -> None:
        """Tell control at once: something has changed that it waits for.

        Nothing is piled up for a control process that does not read, or that is not there yet: the supervisor
        holds the socket, so connecting to nobody succeeds. It is told later.
        """
        if self._channel is None:
            return
        if not self._channel.waiting_bytes:
            self._channel.send(CountersMessage(self._count()))
        elif self._again is None:
            self._again = asyncio.get_running_loop().call_later(AGAIN_S, self._send_again)

    def _send_again(self) -> None:
        self._again = None
        self.send_counters()

    def saw(self, brokers: Iterable[Broker]) -> None:
        """Report brokers to control, soon; to the next one, where there is none now."""
        self._seen.update((broker.broker_id, broker) for broker in brokers)
        self._report_soon()

    def want(self, broker_id: BrokerId) -> None:
        """Report a broker that clients wait for, because nobody knows where it is."""
        self._wanted.add(broker_id)
        self._report_soon()

    def lost(self, broker_id: BrokerId) -> None:
        """Report a broker that did not take a connection, or has ended one."""
        self._lost.add(broker_id)
        self._report_soon()

    def _report_soon(self) -> None:
        if self._gathering is None and (self._seen or self._wanted or self._lost):
            self._gathering = asyncio.get_running_loop().call_later(GATHER_S, self._report)

    def _report(self) -> None:
        self._gathering = None
        if self._channel is None:
            return
        if self._seen or self._wanted:
            message = BrokersSeenMessage(tuple(self._seen.values()), tuple(self._wanted))
            if self._channel.send(message):
                self._seen.clear()
                self._wanted.clear()
        if self._lost and self._channel.send(BrokersLostMessage(tuple(self._lost))):
            self._lost.clear()

    def _send_passed(self, passed: Callable[[], TrafficMessage]) -> None:
        """Tell control what has passed; later, where there is none that reads."""
        if self._channel is not None and not self._channel.waiting_bytes:
            self._channel.send(passed())

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
                    case ReachableMessage(reachable=reachable):
                        self._told(reachable)
                    case CountMessage():  # one at a time, so that nothing piles up
                        channel.send(CountersMessage(self._count()))
        except ValueError as error:
            log.error("control said what is not a message: %s", str(error).splitlines()[0])
        finally:
            self._channel = None
            channel.close()
        log.warning("control is gone; serving the directory it handed out last")
