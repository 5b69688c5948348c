"""What well-formed clients say: the twins of strangers, as many of them, at as many bytes per second."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fleet.core.model import Endpoint
from tests.hostile.crowd import Line, Part, Port
from tests.integration import wire

SMALL_BYTES: Final = 1_000
MOST_AT_ADMIN: Final = 100
"""A member has 128 places for strangers there. More twins would only take each other's."""
WAIT_MS: Final = 500


@dataclass(frozen=True, slots=True)
class Ground:
    """What crowds know of the place.

    Args:
        topic: takes their records, in one partition whose leader is behind the port.
        filled: has records in one such partition, more than anybody asks for at once.
        broker_id: the leader.
        admin: where the admin port is.
    """

    topic: str
    filled: str
    broker_id: int
    admin: Endpoint

    def get(self, path: str) -> bytes:
        """A whole HTTP request."""
        return f"GET {path} HTTP/1.1\r\nHost: {self.admin}\r\n\r\n".encode()


def fetch(number: int, topic: str, max_bytes: int, wait_ms: int = WAIT_MS, least_bytes: int = 1) -> bytes:
    """Fetch v4 from the start of a partition. Source: FetchRequest.json"""
    body = struct.pack(">iiiib", -1, wait_ms, least_bytes, max_bytes, 0)
    body += struct.pack(">i", 1) + wire.string(topic) + struct.pack(">iiqi", 1, 0, 0, max_bytes)
    return wire.request(wire.FETCH, 4, number, body)


class Twins:
    """Makes the parts of well-formed clients."""

    def __init__(self, ground: Ground) -> None:
        records = wire.one_record()
        produced = wire.produce_record(0, ground.topic, 0, records)
        self._anywhere = [wire.request(wire.API_VERSIONS, 0, 0), wire.metadata_of(0, ground.topic)]
        self._at_leader = [*self._anywhere, produced, fetch(0, ground.filled, SMALL_BYTES)]
        self._ready = ground.get("/readyz")

    def of(self, strangers: Sequence[Part]) -> list[Part]:
        """The twin of each stranger: at the same port, where there is room, else at a client's.

        There is nothing well-formed that a client can say at a peer's port.
        """
        found: list[Part] = []
        for each in strangers:
            is_full = sum(part.port == "admin" for part in found) >= MOST_AT_ADMIN
            elsewhere = each.port == "peer" or (each.port == "admin" and is_full)
            found.append(self._part("broker" if elsewhere else each.port))
        return found

    def _part(self, port: Port) -> Part:
        if port == "admin":
            return Part("twin: http", port, self._http)
        play = self._at_leader_of if port == "broker" else self._at_any
        return Part(f"twin: {port}", port, play, speaks_tls=port == "tls")

    async def _http(self, line: Line) -> None:
        while True:
            await line.send(self._ready)
            await line.head()

    async def _at_any(self, line: Line) -> None:
        await self._ask(line, self._anywhere)

    async def _at_leader_of(self, line: Line) -> None:
        await self._ask(line, self._at_leader)

    async def _ask(self, line: Line, requests: Sequence[bytes]) -> None:
        turn = line.number
        while True:
            turn += 1
            await line.send(requests[turn % len(requests)])
            await line.answer()
