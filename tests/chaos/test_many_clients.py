"""2,000 clients of a killed proxy: the other proxies serve all of them."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
import uvloop

from fleet.core.errors import WireError
from fleet.core.model import BrokerId, Endpoint
from fleet.drills.cluster.fleet import LocalFleet
from fleet.proxy.wire.metadata import brokers_of, metadata_request
from tests.chaos.conftest import Note
from tests.chaos.trees import Tree

pytestmark = pytest.mark.size("test-all")

CLIENT_COUNT = 2_000
PARALLEL_CONNECTS = 200
"""Number of clients that connect in parallel at the beginning."""
SERVED_LIMIT_S = 15.0
"""Five times the promise on a quiet machine."""
CONNECT_LIMIT_S = 120.0
RETRY_PAUSE_S = 0.05

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def ask(connection: Connection) -> dict[BrokerId, Endpoint]:
    """One Metadata request and its answer."""
    reader, writer = connection
    writer.write(metadata_request(1))
    size = int.from_bytes(await reader.readexactly(4), "big")
    return dict(brokers_of(await reader.readexactly(size), 1))


async def served_at(endpoint: Endpoint) -> Connection:
    """Open a connection on which a broker has answered."""
    connection = await asyncio.open_connection(endpoint.host, endpoint.port)
    try:
        await ask(connection)
    except BaseException:
        connection[1].transport.abort()
        raise
    return connection


async def live(
    broker_id: BrokerId, first: Endpoint, bootstrap: Callable[[], Endpoint], ready: asyncio.Event
) -> float:
    """Run one client, which looks up its broker again when its connection ends.

    Returns: the time at which the client was served again.
    """
    reader, writer = await served_at(first)
    ready.set()
    await reader.read(1)
    writer.transport.abort()
    while True:
        with suppress(OSError, asyncio.IncompleteReadError, WireError):
            connection = await asyncio.open_connection(*astuple(bootstrap()))
            try:
                found = await ask(connection)
            finally:
                connection[1].transport.abort()
            _, writer = await served_at(found[broker_id])
            served_s = time.monotonic()
            writer.transport.abort()
            return served_s
        await asyncio.sleep(RETRY_PAUSE_S)


def astuple(endpoint: Endpoint) -> tuple[str, int]:
    return endpoint.host, endpoint.port


async def play(fleet: LocalFleet, victim: str) -> float:
    """Connect all clients, kill the proxy, and wait until all are served. Returns: seconds since the kill."""
    identities = [each for each in fleet.ownership(victim).identities if victim in each.committed]
    broker_id = identities[0].broker_id
    host, _, port = identities[0].endpoints[0].addresses[0].rpartition(":")
    survivors = itertools.cycle([fleet.bootstrap_endpoint(each) for each in fleet.members if each != victim])
    clients: list[asyncio.Task[float]] = []
    for _ in range(CLIENT_COUNT // PARALLEL_CONNECTS):
        readies = [asyncio.Event() for _ in range(PARALLEL_CONNECTS)]
        clients += [
            asyncio.create_task(live(broker_id, Endpoint(host, int(port)), lambda: next(survivors), ready))
            for ready in readies
        ]
        async with asyncio.timeout(CONNECT_LIMIT_S):
            await asyncio.gather(*(ready.wait() for ready in readies))
    assert not any(client.done() for client in clients)
    tree = Tree(fleet, victim)
    killed_s = fleet.kill(victim)
    tree.prove_gone()
    async with asyncio.timeout(CONNECT_LIMIT_S):
        served_s = await asyncio.gather(*clients)
    return max(served_s) - killed_s


def test_two_thousand_clients_are_served_by_the_survivors(fleet: LocalFleet, note: Note) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        took_s = runner.run(play(fleet, fleet.members[1]))
    note("all clients served after", took_s)
    assert took_s <= SERVED_LIMIT_S
