"""One round: kill a member, watch the others take over, measure, and bring it back."""

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
from fleet.drills.workload.waiting import happens, in_thread, until

TAKEOVER_LIMIT_S = 20.0
RETURN_LIMIT_S = 60.0
_WATCH_S = 5.0
"""How long after a kill a stall still belongs to it."""
_SETTLE_S = 0.5


class Rounds:
    """Kills members of a fleet, one at a time, under a workload, while a prober watches.

    Args:
        broker_ids: the identities that must always have a live address.
    """

    def __init__(
        self, fleet: LocalFleet, broker_ids: AbstractSet[BrokerId], workload: Workload, prober: Prober
    ) -> None:
        self._fleet = fleet
        self._last_victim: ProxyId | None = None
        self._broker_ids = broker_ids
        self._workload = workload
        self._prober = prober
        self.traffic = Traffic(workload)

    async def flowing(self, limit_s: float = RETURN_LIMIT_S) -> None:
        """Wait until records pass on every partition. Raises: DemoError: they do not."""
        since_s = time.monotonic()

        def flows() -> bool:
            self._workload.check()
            return self.traffic.flows_since(since_s)

        await until(flows, "records acknowledged and received on every partition", limit_s)

    async def aim(self, wish: str) -> tuple[ProxyId, bool]:
        """Choose, and wait until the prober's last answers before the kill, which is to be next, are fresh.

        Args, returns and raises: as `choose`.
        """
        victim = await self.choose(wish)
        self._prober.fast = True
        await asyncio.sleep(_SETTLE_S)
        return victim

    async def kill(self, victim: ProxyId, was_leader: bool) -> Round:
        """Kill a member that was aimed at, and measure until everything flows again.

        Returns: what was measured; None where something did not happen within `TAKEOVER_LIMIT_S`.
        Raises:  DemoError: the workload broke.
        """
        self._last_victim = victim
        survivors = tuple(each for each in self._fleet.running if each != victim)
        killed_at_s = await in_thread(lambda: self._fleet.kill(victim))

        def advertised() -> bool:
            return self._prober.live_since_s(self._broker_ids, survivors, killed_at_s) is not None

        await happens(advertised, TAKEOVER_LIMIT_S)
        await happens(lambda: self.traffic.flows_since(time.monotonic() - 0.2), TAKEOVER_LIMIT_S, 0.05)
        await asyncio.sleep(max(0.0, killed_at_s + _WATCH_S - time.monotonic()))
        self._prober.fast = False
        self._workload.check()
        takeovers = await self._takeovers(victim, survivors, killed_at_s)
        producer_stall_ms, consumer_stall_ms = self.traffic.stalls_ms(killed_at_s, time.monotonic())
        advertised_s = self._prober.live_since_s(self._broker_ids, survivors, killed_at_s)
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
        """Start a killed member again and wait until it owns identities and traffic flows.

        Raises: DemoError: it does not come back.
        """
        self._fleet.start(victim)
        await in_thread(lambda: self._fleet.await_ready(victim, limit_s=RETURN_LIMIT_S))
        await in_thread(lambda: self._fleet.await_settled(self._broker_ids, limit_s=RETURN_LIMIT_S))
        await self.flowing()

    async def choose(self, wish: str) -> tuple[ProxyId, bool]:
        """The member to kill.

        Args:    wish: "leader", "follower" or the id of a member.
        Returns: it, and whether it is the leader.
        Raises:  DemoError: nobody leads, or there is no such running member.
        """
        leader: ProxyId | None = None
        deadline_s = time.monotonic() + TAKEOVER_LIMIT_S
        while leader is None:
            leader = await in_thread(self._fleet.leader)
            if leader is None and time.monotonic() > deadline_s:
                raise DemoError("no member leads")
        if wish == "leader":
            return leader, True
        if wish != "follower":
            return wish, wish == leader
        owners = set(self._prober.owners(leader).values())
        followers = [each for each in self._fleet.running if each != leader]
        # One that stands for something, where there is one: killing another would show nothing. And not the
        # one that was killed before, where there is a choice.
        return max(followers, key=lambda each: (each in owners, each != self._last_victim)), False

    async def _takeovers(
        self, victim: ProxyId, survivors: Iterable[ProxyId], since_s: float
    ) -> list[TakeoverDocument | None]:
        """How each survivor tells the takeover from the victim; None for one that tells of none."""
        told: list[TakeoverDocument | None] = []
        for survivor in survivors:
            document = await in_thread(partial(self._fleet.try_ownership, survivor))
            takeovers = document.takeovers if document else ()
            since = (
                each for each in takeovers if each.proxy_id == victim and each.detected_mono_s >= since_s
            )
            told.append(next(since, None))
        return told


def _last_ms(moments_s: Iterable[float | None], since_s: float) -> float | None:
    """From a moment to the last of some; None where one of them never came."""
    known = list(moments_s)
    if not known or any(moment_s is None for moment_s in known):
        return None
    return max((moment_s - since_s) * 1000.0 for moment_s in known if moment_s is not None)
