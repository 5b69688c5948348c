"""Well-formed clients: the twins of strangers, in the same number and at the same byte rate."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fleet.core.model import Endpoint
from tests.hostile.crowd import CrowdConnection, Part, Port
from tests.integration import wire

SMALL_BYTES: Final = 1_000
MAX_ADMIN_TWINS: Final = 100
"""A member has 128 places for strangers at its admin port. More twins would displace each other."""
WAIT_MS: Final = 500


@dataclass(frozen=True, slots=True)
class CrowdTargets:
    """What crowds know of the fleet.

    Args:
        topic: receives their records, in one partition whose leader is behind the port.
        filled_topic: a topic with one such partition, which has more records than one request fetches.
        broker_id: the leader.
        admin: the endpoint of the admin port.
    """

    topic: str
    filled_topic: str
    broker_id: int
    admin: Endpoint

    def get(self, path: str) -> bytes:
        """Make a whole HTTP request."""
        return f"GET {path} HTTP/1.1\r\nHost: {self.admin}\r\n\r\n".encode()


def fetch(number: int, topic: str, max_bytes: int, wait_ms: int = WAIT_MS, least_bytes: int = 1) -> bytes:
    """Make a Fetch v4 from the start of a partition. Source: FetchRequest.json"""
    body = struct.pack(">iiiib", -1, wait_ms, least_bytes, max_bytes, 0)
    body += struct.pack(">i", 1) + wire.string(topic) + struct.pack(">iiqi", 1, 0, 0, max_bytes)
    return wire.request(wire.FETCH, 4, number, body)


class Twins:
    """Makes the parts of well-formed clients."""

    def __init__(self, targets: CrowdTargets) -> None:
        records = wire.one_record()
        produced = wire.produce_record(0, targets.topic, 0, records)
        self._requests_of_any = [wire.request(wire.API_VERSIONS, 0, 0), wire.metadata_of(0, targets.topic)]
        self._requests_of_leader = [
            *self._requests_of_any,
            produced,
            fetch(0, targets.filled_topic, SMALL_BYTES),
        ]
        self._ready = targets.get("/readyz")

    def for_strangers(self, strangers: Sequence[Part]) -> list[Part]:
        """Make the twin of each stranger: at the same port if it has places left, else at a broker's port.

        A peer port has no well-formed requests of clients.
        """
        found: list[Part] = []
        for each in strangers:
            is_full = sum(part.port == "admin" for part in found) >= MAX_ADMIN_TWINS
            is_moved = each.port == "peer" or (each.port == "admin" and is_full)
            found.append(self._part("broker" if is_moved else each.port))
        return found

    def _part(self, port: Port) -> Part:
        if port == "admin":
            return Part("twin: http", port, self._http)
        play = self._at_leader_of if port == "broker" else self._at_any
        return Part(f"twin: {port}", port, play, speaks_tls=port == "tls")

    async def _http(self, connection: CrowdConnection) -> None:
        while True:
            await connection.send(self._ready)
            await connection.read_http_head()

    async def _at_any(self, connection: CrowdConnection) -> None:
        await self._send_in_turn(connection, self._requests_of_any)

    async def _at_leader_of(self, connection: CrowdConnection) -> None:
        await self._send_in_turn(connection, self._requests_of_leader)

    async def _send_in_turn(self, connection: CrowdConnection, requests: Sequence[bytes]) -> None:
        turn = connection.number
        while True:
            turn += 1
            await connection.send(requests[turn % len(requests)])
            await connection.read_response()
