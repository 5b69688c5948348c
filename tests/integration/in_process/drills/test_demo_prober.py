"""The prober follows a member over connections that break."""

from __future__ import annotations

import asyncio
import struct

from fleet.core.model import Endpoint
from fleet.drills.workload.prober import Prober
from fleet.drills.workload.waiting import eventually
from tests.drills.test_demo_prober import OWNERS, P1, P2, P3, response


async def test_prober_follows_a_member_over_broken_connections() -> None:
    """A member answers twice on each connection, with a new table each time, then closes the connection."""
    tables = [{1: P1}, {1: P2}, {1: P3}, {1: P1, 2: P2}]
    served = 0

    async def member(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        for _ in range(2):
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            (correlation_id,) = struct.unpack_from(">i", await reader.readexactly(size), 4)
            body = response(correlation_id, tables[min(served, len(tables) - 1)])
            served += 1
            writer.write(struct.pack(">i", len(body)) + body)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(member, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    probing = Prober({"p1": Endpoint(host, port)}, OWNERS.get)
    probing.fast = True
    task = asyncio.create_task(probing.run())
    try:
        assert await eventually(lambda: len(probing.changes["p1"]) == len(tables), 20.0)
    finally:
        task.cancel()
        server.close()
    assert [change.table for change in probing.changes["p1"]] == tables
    moments = [change.at_s for change in probing.changes["p1"]]
    assert moments == sorted(moments)
