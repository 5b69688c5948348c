"""How long the Java client and aiokafka wait when members are killed.

A part of `benchmarks.takeover`, with a fleet of its own. It measures stalls only: Kafka's Java tool does not
report when its producer got a record, and these clients' Metadata requests are not counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Final

from benchmarks.clients import Kind, await_flow, finish_and_audit, running_clients, stalls_ms
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
FAST_RETURN_TIMING: Final = MappingProxyType({"steady_after_s": 0.1, "rest_after_move_s": 0.2})
"""A member that is back gets its identities again at once; else each kill would take ten seconds more.

The rest that is left out is for librdkafka, whose back-off remembers the last ten seconds (ADR 15).
"""
_WATCH_S: Final = 5.0
"""How long after a kill a stall still belongs to it."""


@dataclass(frozen=True, slots=True)
class Stall:
    """What one kill cost one client.

    Args:
        producer_stall_ms, consumer_stall_ms: the longest interval without an acknowledgement, or without a
            record of its group, on any one partition.
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
    """The results of all kills for one client."""

    audit: Audit
    stalls: tuple[Stall, ...]


async def run(options: Options, names: Sequence[str], rate_per_s: int) -> dict[str, Outcome]:
    """Start the fleet, and kill members while all clients work at the same time.

    Args:   names: of `CLIENTS`.
            rate_per_s: records per second that each client produces.
    Raises: DemoError: a client breaks, no member takes over, or a killed member does not come back before the
            next kill.
    """
    view = Lines()
    async with stage(replace(options, timing=FAST_RETURN_TIMING), view) as running:
        return await measure(running, options.kills, names, rate_per_s, view)


async def measure(
    running: Stage, roles: Sequence[str], names: Sequence[str], rate_per_s: int, view: View
) -> dict[str, Outcome]:
    """Kill members one after the other, and audit all records. Raises: DemoError: see `run`."""
    kinds, kills = {name: CLIENTS[name] for name in names}, []
    async with running_clients(running, "takeover", kinds, rate_per_s) as clients:
        for number, role in enumerate(roles, 1):
            kills.append(await _kill(running, clients, role))
            view.say(f"{number} of {len(roles)}: {describe_kill(kills[-1])}")
        audits = await finish_and_audit(running, clients)
    return {name: Outcome(audit, tuple(each[name] for each in kills)) for name, audit in audits.items()}


async def _kill(running: Stage, clients: Mapping[str, Client], role: str) -> dict[str, Stall]:
    """Bring back members that were killed before, kill a member, and watch. Returns: its cost, by client."""
    fleet, broker_ids = running.fleet, running.broker_ids
    returned = set(fleet.members) - set(fleet.running)
    for each in returned:
        fleet.start(each)
    await in_thread(partial(fleet.await_settled, broker_ids, fleet.members))
    await await_flow(clients)
    victim = await in_thread(partial(choose_victim, fleet, broker_ids, role, returned))
    killed_s = await in_thread(partial(fleet.kill, victim))
    await asyncio.sleep(max(0.0, killed_s + _WATCH_S - time.monotonic()))
    await await_flow(clients)
    stalled_ms = stalls_ms(clients, killed_s, time.monotonic())
    await in_thread(partial(fleet.await_settled, broker_ids, fleet.running))
    return {
        name: Stall(victim, role == "leader", stalled_ms[name], stalled_ms[f"{name}: group"])
        for name in clients
    }


def choose_victim(
    fleet: LocalFleet, broker_ids: frozenset[BrokerId], role: str, returned: Set[ProxyId]
) -> ProxyId:
    """The "leader", or a "follower" that owns something.

    Args:   returned: members that are just back; the choice avoids them, because few clients use them yet.
    Raises: DemoError: there is no such member.
    """
    fleet.wait_until(lambda: fleet.leader() is not None, "a member leads")
    leader = fleet.leader()
    others = followers(fleet, leader, broker_ids)
    found = [leader] if role == "leader" else sorted(others, key=lambda each: each in returned)
    if not found or found[0] is None:
        raise DemoError(f"there is no {role}")
    return found[0]


def describe_kill(kill: Mapping[str, Stall]) -> str:
    """One kill, in one line."""
    first = next(iter(kill.values()))
    role = "the Raft leader" if first.was_leader else "a follower"
    return f"killed {first.killed}, {role}; longest stall: " + ", ".join(
        f"{name} {milliseconds(each.producer_stall_ms)}, its group {milliseconds(each.consumer_stall_ms)}"
        for name, each in kill.items()
    )
