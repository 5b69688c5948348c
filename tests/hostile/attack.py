"""Plays hostile clients, many at a time, each on one connection."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import struct
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import uvloop

from fleet.core.model import Endpoint
from tests.hostile.kinds import FIRST_REQUEST, MAX_CONNECTION_S, TIME_LIMITS, Script, ScriptMaker

MAX_QUICK_CONNECTIONS: Final = 64
MAX_LONG_CONNECTIONS: Final = 400
PROGRESS_INTERVAL_CONNECTIONS: Final = 2_000
CONNECT_TIMEOUT_S: Final = 60.0
_LINGER_RESET: Final = struct.pack("ii", 1, 0)


@dataclass
class ConnectionTally:
    """The outcome of the connections.

    Args:
        kinds: number of connections of each kind.
        expected: number of connections that the fleet should have closed, by reason.
        problems: descriptions of connections that ended in a wrong way.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    expected: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    @property
    def connections(self) -> int:
        return self.kinds.total()


class Attackers:
    """Plays scripts against some ports.

    Args:
        plaintext, tls: the endpoints to attack.
        seed: seed of the scripts and of the endpoints that receive them.

    ``tally`` has the outcomes at both kinds of ports.
    """

    def __init__(self, plaintext: Sequence[Endpoint], tls: Sequence[Endpoint], seed: int) -> None:
        self._plaintext, self._tls = plaintext, tls
        self._makers = ScriptMaker(seed)
        self._rng = random.Random(seed)
        self._client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._client_context.check_hostname = False
        self._client_context.verify_mode = ssl.CERT_NONE
        self.tally = {"plaintext": ConnectionTally(), "tls": ConnectionTally()}

    @property
    def connections(self) -> int:
        return sum(each.connections for each in self.tally.values())

    def run(self, numbers: range, say: Callable[[str], None] = lambda _: None) -> None:
        """Play the scripts of these numbers. Return when all connections have ended."""
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._run(numbers, say))

    async def _run(self, numbers: range, say: Callable[[str], None]) -> None:
        quick_slots, long_slots = (
            asyncio.Semaphore(MAX_QUICK_CONNECTIONS),
            asyncio.Semaphore(MAX_LONG_CONNECTIONS),
        )

        async def play(script: Script, slot: asyncio.Semaphore) -> None:
            try:
                await self._play(script)
            finally:
                slot.release()

        async with asyncio.TaskGroup() as group:
            for number in numbers:
                if number % PROGRESS_INTERVAL_CONNECTIONS == 0:
                    say(f"{number} hostile connections")
                script = self._makers.script(number)
                slot = long_slots if script.is_long else quick_slots
                await slot.acquire()
                group.create_task(play(script, slot))
                # Scripts take time, and the fleet has time limits: let the clients make progress.
                await asyncio.sleep(0)

    async def _play(self, script: Script) -> None:
        plaintext = script.port == "plaintext"
        endpoint = self._rng.choice(self._plaintext if plaintext else self._tls)
        tally = self.tally["plaintext" if plaintext else "tls"]
        tally.kinds[script.kind] += 1
        if script.reason is not None:
            tally.expected[script.reason] += 1
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S + MAX_CONNECTION_S):
                problem = await self._converse(script, endpoint)
        except TimeoutError:
            problem = "did not end in time"
        except OSError as error:
            problem = f"could not connect: {error!r}"
        if problem:
            sent = b"".join(script.chunks)[:80]
            tally.problems.append(f"{script.kind} at {endpoint}: {problem}; sent {sent!r}")

    async def _converse(self, script: Script, endpoint: Endpoint) -> str:
        """Returns: the problem, or an empty string."""
        context = self._client_context if script.port == "tls_spoken" else None
        started_s = time.monotonic()
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=context)
        try:
            with suppress(ConnectionError):
                for number, chunk in enumerate(script.chunks):
                    if number and script.pause_s:
                        await asyncio.sleep(script.pause_s)
                    writer.write(chunk)
                    await writer.drain()
                if script.then == "end":
                    writer.write_eof()
            if script.then == "reset":
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
                return ""
            if script.then == "answer":
                try:
                    await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                except (asyncio.IncompleteReadError, ConnectionError) as error:
                    if time.monotonic() - started_s >= TIME_LIMITS[FIRST_REQUEST]:
                        return ""  # on a busy machine a slow writer may exceed the fleet's time limit
                    return f"received no answer: {error!r}"
                return ""
            with suppress(ConnectionError):
                while await reader.read(1 << 16):
                    pass
            return ""
        finally:
            writer.transport.abort()
