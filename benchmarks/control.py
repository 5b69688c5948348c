"""How long the control plane takes to commit, to hand out a directory, and to commit a takeover.

A follower that owns something is drained. The time of the commit is the time that the HTTP request took. The
time of the directory is how long afterwards a worker of any member still answered Metadata as before.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.errors import BenchError
from benchmarks.metadata_client import Connection, ask
from benchmarks.results import FLEET, Sample
from fleet.admin.client import admin_url
from fleet.admin.client import drain as commit_drain
from fleet.core.model import BrokerId, ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster

CONTROL: Final = "control"
MEMBERS: Final = (3, 5, 7)
WORKERS: Final = (1, 4)
"""Workers of each member."""
_CONNECTIONS_PER_WORKER: Final = 4
"""Each connection leads to any of the workers."""
_LIMIT_S: Final = 30.0
_PAUSE_S: Final = 0.002
_MAX_LEADERS: Final = 20
"""How many leaders may own nothing, one after the other."""


def samples(rounds: int) -> Iterator[Sample]:
    """Measure fleets of each size, one after the other, in front of the same three brokers.

    Raises: BenchError: a change was not handed out. DemoError: Kafka or a fleet does not come up.
    """
    folder = Path(tempfile.mkdtemp(prefix="fleet-control-"))  # a failure keeps the folder
    with KafkaCluster(3, folder / "kafka") as kafka:
        for members in MEMBERS:
            for workers in WORKERS:
                name = f"{members}x{workers}"
                with LocalFleet(folder / name, kafka.endpoints, members, workers=workers) as fleet:
                    fleet.await_settled(frozenset(kafka.brokers))
                    for number in range(rounds):
                        for measure, value in measure_round(fleet, frozenset(kafka.brokers), workers).items():
                            yield Sample(CONTROL, f"{measure}_{name}", FLEET, number, value)
    shutil.rmtree(folder, ignore_errors=True)


def measure_round(fleet: LocalFleet, broker_ids: frozenset[BrokerId], workers: int) -> dict[str, float]:
    """Drain a follower that owns something, undrain it, then kill a follower and the leader."""
    commit_ms, directory_ms = asyncio.run(measure_drain_ms(fleet, follower(fleet, broker_ids), workers))
    found = {"commit_ms": commit_ms, "directory_ms": directory_ms}
    for who in ("follower", "leader"):
        fleet.await_settled(broker_ids)
        victim = follower(fleet, broker_ids) if who == "follower" else find_leading_owner(fleet, broker_ids)
        found[f"takeover_commit_ms_{who}"] = measure_takeover_ms(fleet, victim)
        fleet.start(victim)
    fleet.await_settled(broker_ids)
    return found


def follower(fleet: LocalFleet, broker_ids: frozenset[BrokerId]) -> ProxyId:
    """A follower that owns something."""
    for each in followers(fleet, fleet.leader(), broker_ids):
        return each
    raise BenchError(f"{CONTROL}: no follower of {', '.join(fleet.members)} owns a broker")


def followers(
    fleet: LocalFleet, leader: ProxyId | None, broker_ids: frozenset[BrokerId]
) -> Iterator[ProxyId]:
    """The followers that own something, in the order of the members."""
    return (each for each in fleet.members if each != leader and owns(fleet, each, broker_ids))


def find_leading_owner(fleet: LocalFleet, broker_ids: frozenset[BrokerId]) -> ProxyId:
    """A leader that owns something. In a fleet with more members than brokers some members own nothing, and
    then there is nothing to take over; such a leader is killed, and the next leader is tried.
    """
    for _ in range(_MAX_LEADERS):
        leader = fleet.leader()
        assert leader is not None
        if owns(fleet, leader, broker_ids):
            return leader
        fleet.kill(leader)
        fleet.start(leader)
        fleet.await_settled(broker_ids)
    raise BenchError(f"{CONTROL}: {_MAX_LEADERS} leaders in turn owned nothing")


def owns(fleet: LocalFleet, proxy_id: ProxyId, broker_ids: frozenset[BrokerId]) -> bool:
    documents = fleet.ownership(proxy_id).identities
    return any(proxy_id in each.committed and each.broker_id in broker_ids for each in documents)


def measure_takeover_ms(fleet: LocalFleet, victim: ProxyId) -> float:
    """Kill a member. Returns: when the last survivor had applied its takeover."""
    survivors = [each for each in fleet.members if each != victim]
    killed_s = fleet.kill(victim)

    def committed_s() -> list[float]:
        """When each survivor committed the takeover, for survivors that have."""
        return [
            each.committed_mono_s
            for survivor in survivors
            for each in fleet.ownership(survivor).takeovers[-1:]
            if each.proxy_id == victim
            and each.detected_mono_s > killed_s
            and each.committed_mono_s is not None
        ]

    fleet.wait_until(lambda: len(committed_s()) == len(survivors), f"{victim} is taken over")
    return 1000 * (max(committed_s()) - killed_s)


async def measure_drain_ms(fleet: LocalFleet, victim: ProxyId, workers: int) -> tuple[float, float]:
    """Drain a member and watch the Metadata of all workers.

    Returns: milliseconds from the request to its response, and from the response to the last Metadata
        response
        that still names the member; 0 if the workers changed before the response.
    """
    endpoints = [
        fleet.bootstrap_endpoint(each)
        for each in fleet.members
        for _ in range(_CONNECTIONS_PER_WORKER * workers)
        if each != victim
    ]
    connections = [await asyncio.open_connection(each.host, each.port) for each in endpoints]
    urls = [admin_url(fleet.settings.member(each).admin) for each in fleet.members if each != victim]
    try:
        watched = [asyncio.create_task(_last_named_s(fleet, victim, each)) for each in connections]
        began_s = time.monotonic()
        await commit_drain(urls, victim, drained=True)
        committed_s = time.monotonic()
        async with asyncio.timeout(_LIMIT_S):
            last_s = max(await asyncio.gather(*watched))
    except TimeoutError as error:
        raise BenchError(f"{CONTROL}: {victim} is drained, and still advertised") from error
    finally:
        for _, writer in connections:
            writer.close()
    await commit_drain(urls, victim, drained=False)
    return 1000 * (committed_s - began_s), 1000 * max(0.0, last_s - committed_s)


async def _last_named_s(fleet: LocalFleet, victim: ProxyId, connection: Connection) -> float:
    """Request Metadata until it names no address of a member. Returns: when the last response named one."""
    named_s = 0.0
    while any(fleet.owner_of(at) == victim for at in (await ask(connection)).values()):
        named_s = time.monotonic()
        await asyncio.sleep(_PAUSE_S)
    return named_s
