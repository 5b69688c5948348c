"""Rounds of the demo: kill a member, measure the takeover, and restart the member."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from functools import partial

from fleet.admin.documents import TakeoverDocument
from fleet.core.errors import DemoError
from fleet.core.model import BrokerId, ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.demo.result import Round
from fleet.drills.workload.clients import Workload
from fleet.drills.workload.prober import Prober
from fleet.drills.workload.streams import Traffic
from fleet.drills.workload.waiting import eventually, in_thread, wait_until

TAKEOVER_LIMIT_S = 20.0
RETURN_LIMIT_S = 60.0
_STALL_WINDOW_S = 5.0
"""Stalls within this time after a kill belong to the kill."""
_FAST_PROBE_LEAD_S = 0.5
"""Fast probing starts this long before a kill."""
_FLOW_WINDOW_S = 0.2


class Rounds:
    """Kills members of a fleet under load, one at a time, and measures each takeover with a prober.

    Args:
        broker_ids: the identities that must always have a live address.
    """

    def __init__(
        self, fleet: LocalFleet, broker_ids: AbstractSet[BrokerId], workload: Workload, prober: Prober
    ) -> None:
        self._fleet = fleet
        self.last_victim: ProxyId | None = None
        self._broker_ids = broker_ids
        self._workload = workload
        self.prober = prober
        self.traffic = Traffic(workload)

    async def await_flow(self, limit_s: float = RETURN_LIMIT_S) -> None:
        """Wait until records flow on every partition. Raises: DemoError: a partition is stuck."""
        since_s = time.monotonic()

        def flows() -> bool:
            self._workload.check()
            return self.traffic.flows_since(since_s)

        await wait_until(flows, "records acknowledged and received on every partition", limit_s)

    async def aim(self, target: str) -> tuple[ProxyId, bool]:
        """Choose the member to kill next, and make the prober probe fast.

        Args, returns and raises: see `choose`.
        """
        victim = await self.choose(target)
        self.prober.fast = True
        await asyncio.sleep(_FAST_PROBE_LEAD_S)
        return victim

    async def kill(self, victim: ProxyId, was_leader: bool) -> Round:
        """Kill the member that `aim` returned, and measure until records flow again.

        Returns: the times; None for a step that did not happen within `TAKEOVER_LIMIT_S`.
        Raises:  DemoError: the workload has ended, or a record was not delivered.
        """
        self.last_victim = victim
        survivors = tuple(each for each in self._fleet.running if each != victim)
        killed_at_s = await in_thread(lambda: self._fleet.kill(victim))

        def advertised() -> bool:
            return self.prober.live_since_s(self._broker_ids, survivors, killed_at_s) is not None

        def flows() -> bool:
            return self.traffic.flows_since(time.monotonic() - _FLOW_WINDOW_S)

        await eventually(advertised, TAKEOVER_LIMIT_S)
        await eventually(flows, TAKEOVER_LIMIT_S, 0.05)
        await asyncio.sleep(max(0.0, killed_at_s + _STALL_WINDOW_S - time.monotonic()))
        self.prober.fast = False
        self._workload.check()
        takeovers = await self._takeovers(victim, survivors, killed_at_s)
        producer_stall_ms, consumer_stall_ms = self.traffic.stalls_ms(killed_at_s, time.monotonic())
        advertised_s = self.prober.live_since_s(self._broker_ids, survivors, killed_at_s)
        return Round(
            killed=victim,
            was_leader=was_leader,
            detected_ms=_last_ms((each.detected_mono_s if each else None for each in takeovers), killed_at_s),
            advertised_ms=_last_ms([advertised_s], killed_at_s),
            committed_ms=_last_ms(
                (each.committed_mono_s if each else None for each in takeovers), killed_at_s
            ),
            producer_stall_ms=producer_stall_ms,
            consumer_stall_ms=consumer_stall_ms,
        )

    async def bring_back(self, victim: ProxyId) -> None:
        """Start a killed member again, and wait until it owns identities and records flow.

        Raises: DemoError: the member is not ready, or owns no identity, in time.
        """
        self._fleet.start(victim)
        await in_thread(lambda: self._fleet.await_ready(victim, limit_s=RETURN_LIMIT_S))
        await in_thread(lambda: self._fleet.await_settled(self._broker_ids, limit_s=RETURN_LIMIT_S))
        await self.await_flow()

    async def choose(self, target: str) -> tuple[ProxyId, bool]:
        """Choose the member to kill.

        Args:    target: "leader", "follower" or the id of a member.
        Returns: the member, and whether it is the leader.
        Raises:  DemoError: no member leads.
        """
        leader: ProxyId | None = None
        deadline_s = time.monotonic() + TAKEOVER_LIMIT_S
        while leader is None:
            leader = await in_thread(self._fleet.leader)
            if leader is None and time.monotonic() > deadline_s:
                raise DemoError(f"no member leads after {TAKEOVER_LIMIT_S:.0f} s; see the members' logs")
        if target == "leader":
            return leader, True
        if target != "follower":
            return target, target == leader
        owners = set(self.prober.owners(leader).values())
        followers = [each for each in self._fleet.running if each != leader]
        # Prefer a follower that owns an identity: killing another would show nothing. Then prefer a follower
        # that was not killed in the last round.
        return max(followers, key=lambda each: (each in owners, each != self.last_victim)), False

    async def _takeovers(
        self, victim: ProxyId, survivors: Iterable[ProxyId], since_s: float
    ) -> list[TakeoverDocument | None]:
        """Each survivor's report of the takeover from the victim; None if a survivor reports none."""
        reports: list[TakeoverDocument | None] = []
        for survivor in survivors:
            document = await in_thread(partial(self._fleet.try_ownership, survivor))
            takeovers = document.takeovers if document else ()
            matching = (
                each for each in takeovers if each.proxy_id == victim and each.detected_mono_s >= since_s
            )
            reports.append(next(matching, None))
        return reports


def _last_ms(moments_s: Iterable[float | None], since_s: float) -> float | None:
    """Milliseconds from `since_s` to the last of some moments; None if a moment is None."""
    moments = list(moments_s)
    if not moments or any(moment_s is None for moment_s in moments):
        return None
    return max((moment_s - since_s) * 1000.0 for moment_s in moments if moment_s is not None)
