"""Proofs that a link between members is bad, by saying HELLO over it and waiting for the answer.

It is said in the name of the member that dials. Nobody minds: the link that stands is replaced only when more
than a HELLO has come over another connection.
"""

from __future__ import annotations

import asyncio
import json
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fleet.control.links import Hello, Kind
from tests.chaos.seeded.effects import PROOF_LIMIT_S, NoEffect
from tests.chaos.seeded.network import Link

_HEADER = struct.Struct(">IB")
_AT_ONCE = 16
LATE_LIMIT_S = 20.0
_PADDING = 3900
"""A HELLO has 4096 bytes at most."""

Proof = Callable[[Link, Hello], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Greeting:
    """A HELLO that was answered.

    Args:
        took_s: until the answer was whole.
        said: bytes of the HELLO, and not of its answer, which comes the other way.
    """

    took_s: float
    said: int


async def greet(link: Link, hello: Hello, padding: int = 0) -> Greeting:
    """Say HELLO over a link. Raises: NoEffect: it is not answered.

    Args:
        padding: bytes to add to it.
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
        raise NoEffect(f"a HELLO over {link.at} is not answered: {error!r}") from error
    return Greeting(time.monotonic() - started_s, _HEADER.size + len(payload))


async def prove_late(link: Link, hello: Hello, *, latency_s: float, limit_s: float = LATE_LIMIT_S) -> None:
    """Bytes take so long in one direction, and in one alone. Raises: NoEffect: they do not.

    Found: all answers came after three times as long once, where two cores had 20 processes to run; so one
    that was as fast as it can be may come later.
    """
    deadline_s = time.monotonic() + limit_s
    while True:
        took_s = [each.took_s for each in await _greet_at_once(link, hello)]
        if latency_s <= min(took_s) < 2 * latency_s:
            return
        if min(took_s) < latency_s or time.monotonic() >= deadline_s:
            raise NoEffect(f"HELLOs over {link.at} are answered within {_listed(took_s)} s")


async def prove_uneven(link: Link, hello: Hello, *, spread_s: float) -> None:
    """Bytes take now longer, and now less, by so much. Raises: NoEffect: they do not."""
    took_s = [each.took_s for each in await _greet_at_once(link, hello)]
    if max(took_s) - min(took_s) < spread_s:
        raise NoEffect(f"HELLOs over {link.at} are answered within {_listed(took_s)} s")


async def prove_narrow(link: Link, hello: Hello, *, bytes_per_s: int) -> None:
    """No more than so many bytes come in. Raises: NoEffect: there are more.

    Found: with the bytes of the answer, which nothing slows down, a link of 8,000 B/s was half a millisecond
    too fast.
    """
    long = await greet(link, hello, _PADDING)
    if long.said / long.took_s > bytes_per_s:
        raise NoEffect(f"{long.said} bytes into {link.at} took {long.took_s:.3f} s")


async def _greet_at_once(link: Link, hello: Hello) -> list[Greeting]:
    return await asyncio.gather(*(greet(link, hello) for _ in range(_AT_ONCE)))


def _listed(took_s: list[float]) -> str:
    return ", ".join(f"{each:.3f}" for each in sorted(took_s))
