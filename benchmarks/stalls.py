"""How long clients wait that are not librdkafka when members are killed: the Java client and aiokafka.

A part of `benchmarks.takeover`, on a stage of its own. There are the stalls alone: Kafka's Java tool does not
tell when its producer was given a record, and what these clients ask for nobody counts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Final

from benchmarks.clients import Kind, at_work, await_flow, finish, stalls_ms
from benchmarks.control import followers
from fleet.core.errors import DemoError
from fleet.core.model import BrokerId, ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.demo.run import Options, Stage, stage
from fleet.drills.demo.view import Lines, View, milliseconds
from fleet.drills.workload.audit import Audit
from fleet.drills.workload.waiting import in_thread
from tests.chaos.seeded.workloads import Client

CLIENTS: Final = MappingProxyType[str, Kind](
    {"java": Kind("java", "default"), "aiokafka": Kind("aiokafka", "default")}
)
MEASURES: Final = ("producer_stall_ms", "consumer_stall_ms")
SOON: Final = MappingProxyType({"steady_after_s": 0.1, "rest_after_move_s": 0.2})
"""A member that is back is given its identities again at once, or each kill would take ten seconds more.

The rest that is left out is for librdkafka, whose back-off remembers the last ten seconds (ADR 15).
"""
_WATCH_S: Final = 5.0
"""How long after a kill a stall still belongs to it."""


@dataclass(frozen=True, slots=True)
class Stall:
    """What one kill cost one client.

    Args:
        producer_stall_ms, consumer_stall_ms: the longest interval without an acknowledgement, or a record of
            its group, on any one partition.
    """

    killed: ProxyId
    was_leader: bool
    producer_stall_ms: float
    consumer_stall_ms: float

    def value(self, measure: str) -> float:
        found: float = getattr(self, measure)
        return found


@dataclass(frozen=True, slots=True)
class Outcome:
    """What all kills came to for one client."""

    audit: Audit
    stalls: tuple[Stall, ...]


async def run(options: Options, names: Sequence[str], rate_per_s: int) -> dict[str, Outcome]:
    """Set the stage, and kill members while clients are at work, all at the same time.

    Args:   names: of `CLIENTS`.
            rate_per_s: records per second that each of them produces.
    Raises: DemoError: a client breaks, nobody takes over, or a killed member does not come back before the
            next kill.
    """
    view = Lines()
    async with stage(replace(options, timing=SOON), view) as running:
        return await measure(running, options.kills, names, rate_per_s, view)


async def measure(
    running: Stage, wishes: Sequence[str], names: Sequence[str], rate_per_s: int, view: View
) -> dict[str, Outcome]:
    """Kill members one after the other, and audit what came through. Raises: DemoError: see `run`."""
    kinds, kills = {name: CLIENTS[name] for name in names}, []
    async with at_work(running, "takeover", kinds, rate_per_s) as clients:
        for number, wish in enumerate(wishes, 1):
            kills.append(await _kill(running, clients, wish))
            view.say(f"{number} of {len(wishes)}: {line(kills[-1])}")
        audits = await finish(running, clients)
    return {name: Outcome(audit, tuple(each[name] for each in kills)) for name, audit in audits.items()}


async def _kill(running: Stage, clients: Mapping[str, Client], wish: str) -> dict[str, Stall]:
    """Bring back whoever was killed before, kill a member, and watch. Returns: what it cost, by client."""
    fleet, broker_ids = running.fleet, running.broker_ids
    back = set(fleet.members) - set(fleet.running)
    for each in back:
        fleet.start(each)
    await in_thread(partial(fleet.await_settled, broker_ids, fleet.members))
    await await_flow(clients)
    victim = await in_thread(partial(choose, fleet, broker_ids, wish, back))
    killed_s = await in_thread(partial(fleet.kill, victim))
    await asyncio.sleep(max(0.0, killed_s + _WATCH_S - time.monotonic()))
    await await_flow(clients)
    stalled_ms = stalls_ms(clients, killed_s, time.monotonic())
    await in_thread(partial(fleet.await_settled, broker_ids, fleet.running))
    return {
        name: Stall(victim, wish == "leader", stalled_ms[name], stalled_ms[f"{name}: group"])
        for name in clients
    }


def choose(fleet: LocalFleet, broker_ids: frozenset[BrokerId], wish: str, back: Set[ProxyId]) -> ProxyId:
    """The "leader", or a "follower" that owns something.

    Args:   back: who has just come back: not them, where there is a choice, for clients have hardly met them.
    Raises: DemoError: there is none.
    """
    fleet.wait_until(lambda: fleet.leader() is not None, "a member leads")
    leader = fleet.leader()
    others = followers(fleet, leader, broker_ids)
    found = [leader] if wish == "leader" else sorted(others, key=lambda each: each in back)
    if not found or found[0] is None:
        raise DemoError(f"there is no {wish}")
    return found[0]


def line(kill: Mapping[str, Stall]) -> str:
    """One kill, in one line."""
    first = next(iter(kill.values()))
    role = "the Raft leader" if first.was_leader else "a follower"
    return f"killed {first.killed}, {role}; longest stall: " + ", ".join(
        f"{name} {milliseconds(each.producer_stall_ms)}, its group {milliseconds(each.consumer_stall_ms)}"
        for name, each in kill.items()
    )
