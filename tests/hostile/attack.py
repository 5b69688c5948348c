"""Hostile clients at work, many at a time, each on one connection."""

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
from tests.hostile.kinds import FIRST_REQUEST, LONGEST_S, TIME_LIMITS, Kinds, Script

AT_ONCE: Final = 64
LASTING_AT_ONCE: Final = 400
SAY_EVERY: Final = 2_000
CONNECT_LIMIT_S: Final = 60.0
_RESET: Final = struct.pack("ii", 1, 0)


@dataclass
class Told:
    """What became of the connections.

    Args:
        kinds: how many there were of each.
        expected: how many the fleet is to have closed, by reason.
        problems: what ended otherwise than it should, in words.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    expected: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    @property
    def connections(self) -> int:
        return self.kinds.total()


class Attackers:
    """Play scripts against some ports.

    Args:
        plaintext, tls: where to.
        seed: decides on scripts, and who gets them.

    ``told`` is of both kinds of ports.
    """

    def __init__(self, plaintext: Sequence[Endpoint], tls: Sequence[Endpoint], seed: int) -> None:
        self._plaintext, self._tls = plaintext, tls
        self._kinds = Kinds(seed)
        self._chance = random.Random(seed)
        self._spoken = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._spoken.check_hostname = False
        self._spoken.verify_mode = ssl.CERT_NONE
        self.told = {"plaintext": Told(), "tls": Told()}

    @property
    def connections(self) -> int:
        return sum(each.connections for each in self.told.values())

    def run(self, numbers: range, say: Callable[[str], None] = lambda _: None) -> None:
        """Play the scripts of these numbers; returns when all of their connections have ended."""
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._run(numbers, say))

    async def _run(self, numbers: range, say: Callable[[str], None]) -> None:
        quick, lasting = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(LASTING_AT_ONCE)

        async def play(script: Script, place: asyncio.Semaphore) -> None:
            try:
                await self._play(script)
            finally:
                place.release()

        async with asyncio.TaskGroup() as group:
            for number in numbers:
                if number % SAY_EVERY == 0:
                    say(f"{number} hostile connections")
                script = self._kinds.script(number)
                place = lasting if script.lasts else quick
                await place.acquire()
                group.create_task(play(script, place))
                # Scripts take their time, and the fleet has time limits: between each two the clients go on.
                await asyncio.sleep(0)

    async def _play(self, script: Script) -> None:
        plaintext = script.port == "plaintext"
        at = self._chance.choice(self._plaintext if plaintext else self._tls)
        told = self.told["plaintext" if plaintext else "tls"]
        told.kinds[script.kind] += 1
        if script.reason is not None:
            told.expected[script.reason] += 1
        try:
            async with asyncio.timeout(CONNECT_LIMIT_S + LONGEST_S):
                problem = await self._converse(script, at)
        except TimeoutError:
            problem = "has not ended in time"
        except OSError as error:
            problem = f"could not begin: {error!r}"
        if problem:
            sent = b"".join(script.chunks)[:80]
            told.problems.append(f"{script.kind} at {at}: {problem}; sent {sent!r}")

    async def _converse(self, script: Script, at: Endpoint) -> str:
        """Returns: what is wrong, if anything is."""
        context = self._spoken if script.port == "tls_spoken" else None
        began_s = time.monotonic()
        reader, writer = await asyncio.open_connection(at.host, at.port, ssl=context)
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
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                return ""
            if script.then == "answer":
                try:
                    await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                except (asyncio.IncompleteReadError, ConnectionError) as error:
                    if time.monotonic() - began_s >= TIME_LIMITS[FIRST_REQUEST]:
                        return ""  # on a busy machine a slow writer may take longer than the fleet allows
                    return f"was not answered: {error!r}"
                return ""
            with suppress(ConnectionError):
                while await reader.read(1 << 16):
                    pass
            return ""
        finally:
            writer.transport.abort()
