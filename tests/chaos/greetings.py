"""Proves that a link between members is bad: sends HELLO over the link and waits for the answer.

The HELLO carries the name of the member that dials. The existing link is not disturbed: a member replaces a
link only when more than a HELLO has arrived over a second connection.
"""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fleet.control.links import Hello, Kind
from fleet.core.errors import FaultNotObserved
from tests.chaos.seeded.effects import PROOF_LIMIT_S
from tests.chaos.seeded.network import Link

_HEADER = struct.Struct(">IB")
_PARALLEL_GREETINGS = 16
LATE_LIMIT_S = 20.0
_PADDING_BYTES = 3900
"""A HELLO has at most 4096 bytes."""

Proof = Callable[[Link, Hello], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Greeting:
    """A HELLO with an answer.

    Args:
        took_s: seconds until the answer was complete.
        sent_bytes: size of the HELLO. Its answer, which travels in the other direction, does not count.
    """

    took_s: float
    sent_bytes: int


async def greet(link: Link, hello: Hello, padding: int = 0) -> Greeting:
    """Send HELLO over a link. Raises: FaultNotObserved: no answer arrives.

    Args:
        padding: number of bytes to add to the HELLO.
    """
    payload = json.dumps({**json.loads(hello.encode()), "padding": "." * padding}).encode()
    started_s = time.monotonic()
    try:
        async with asyncio.timeout(PROOF_LIMIT_S):
            reader, writer = await asyncio.open_connection(link.at.host, link.at.port)
            try:
                writer.write(_HEADER.pack(1 + len(payload), Kind.HELLO) + payload)
                (rest, _) = _HEADER.unpack(await reader.readexactly(_HEADER.size))
                await reader.readexactly(rest - 1)
            finally:
                writer.transport.abort()
    except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
        raise FaultNotObserved(f"no answer to a HELLO over {link.at}: {error!r}") from error
    return Greeting(time.monotonic() - started_s, _HEADER.size + len(payload))


async def prove_late(link: Link, hello: Hello, *, latency_s: float, limit_s: float = LATE_LIMIT_S) -> None:
    """Check that bytes take `latency_s` in exactly one direction. Raises: FaultNotObserved: they do not.

    The check is repeated: on two cores with 20 processes, all answers once took three times as long.
    """
    deadline_s = time.monotonic() + limit_s
    while True:
        took_s = [each.took_s for each in await _greet_at_once(link, hello)]
        if latency_s <= min(took_s) < 2 * latency_s:
            return
        if min(took_s) < latency_s or time.monotonic() >= deadline_s:
            raise FaultNotObserved(f"HELLOs over {link.at} are answered within {_listed(took_s)} s")


async def prove_uneven(link: Link, hello: Hello, *, spread_s: float) -> None:
    """Check that latencies vary by at least `spread_s`. Raises: FaultNotObserved: they do not."""
    took_s = [each.took_s for each in await _greet_at_once(link, hello)]
    if max(took_s) - min(took_s) < spread_s:
        raise FaultNotObserved(f"HELLOs over {link.at} are answered within {_listed(took_s)} s")


async def prove_narrow(link: Link, hello: Hello, *, bytes_per_s: int) -> None:
    """Check that at most `bytes_per_s` arrive. Raises: FaultNotObserved: more bytes arrive.

    The bytes of the answer, which no toxic slows down, do not count: with them a link of 8,000 B/s was half a
    millisecond too fast.
    """
    long = await greet(link, hello, _PADDING_BYTES)
    if long.sent_bytes / long.took_s > bytes_per_s:
        raise FaultNotObserved(f"{long.sent_bytes} bytes into {link.at} took {long.took_s:.3f} s")


async def _greet_at_once(link: Link, hello: Hello) -> list[Greeting]:
    return await asyncio.gather(*(greet(link, hello) for _ in range(_PARALLEL_GREETINGS)))


def _listed(took_s: list[float]) -> str:
    return ", ".join(f"{each:.3f}" for each in sorted(took_s))
