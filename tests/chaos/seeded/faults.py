"""Injects the faults of a plan, and proves each from outside: a fault without an effect is an error."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

import psutil
from confluent_kafka.admin import AdminClient

from fleet.admin.documents import MemberDocument
from fleet.core.errors import DemoError, FaultNotObserved
from fleet.core.model import BrokerId, ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import STOPPED, KafkaCluster
from fleet.drills.workload.checker import Outage
from fleet.drills.workload.waiting import eventually, in_thread
from tests.chaos.seeded.effects import (
    PROOF_LIMIT_S,
    becomes,
    find_child,
    hears_all,
    in_sync,
    is_another,
    is_gone,
    is_stopped,
    prove,
    prove_black,
    time_of_answer,
    time_of_hanging_up,
)
from tests.chaos.seeded.local_faults import LocalFaults
from tests.chaos.seeded.network import Knock, Link, Toxiproxy, knock
from tests.chaos.seeded.schedule import GENTLE, Fault, Kind

WHOLE_LIMIT_S: Final = 90.0
"""Time limit for every member to be ready and linked with all others after a fault, on a busy machine."""
REFUSED_LIMIT_S: Final = 2.5
SILENT_LIMIT_S: Final = 7.5
"""Five times the promises on a quiet machine: 0.5 s, and 1.5 s if no connection is reset."""
SLOW_SLACK_S: Final = 2.5
"""Additional time while the network is slow as well."""
_SILENT_S = 0.5
_PROOF_SHARE = 0.8
"""The share of a latency, or of the time that bandwidth costs, that a proof requires."""

_DRAIN: Final = "drain"
"""The reason of a takeover that is not a suspected death."""

TakenOver = Callable[[Collection[ProxyId], float], bool]


@dataclass(frozen=True, slots=True)
class Done:
    """One fault that was injected, proved and healed.

    Args:
        victims: members, places or brokers.
        at_s: right before the fault.
        healed_s: when the fleet was whole again.
        proof: the observed effect.
        outage: None if the fault made no member unreachable.
    """

    fault: Fault
    victims: tuple[str, ...]
    at_s: float
    healed_s: float
    proof: str
    outage: Outage | None = None


class Injector:
    """Injects faults into a fleet, its network and its brokers.

    Args:
        taken_over: returns whether the Metadata of given members has named only these members since a moment.
        say: called with a line for each step.
    """

    def __init__(
        self,
        fleet: LocalFleet,
        kafka: KafkaCluster,
        network: Toxiproxy,
        local_faults: LocalFaults,
        taken_over: TakenOver,
        say: Callable[[str], None],
    ) -> None:
        self._fleet = fleet
        self._kafka = kafka
        self._network = network
        self._local_faults = local_faults
        self._taken_over = taken_over
        self._say = say
        self._harsh = asyncio.Lock()
        self._slow = 0

    async def inject(self, fault: Fault) -> Done:
        """Inject one fault, prove it, hold it, and heal it. Harsh faults wait for one another.

        Raises:
            FaultNotObserved: the fault has no visible effect.
            DemoError: the fleet or the cluster does not recover.
        """
        action = _ACTIONS[fault.kind]
        if fault.kind in GENTLE:
            return await action(self, fault)
        async with self._harsh:
            return await action(self, fault)

    # ------------------------------------------------------------------------------------ whole processes

    async def _kill_member(self, fault: Fault) -> Done:
        victim = await self._member(fault.target)
        return await self._kill(fault, (victim,))

    async def _kill_all(self, fault: Fault) -> Done:
        return await self._kill(fault, self._fleet.members)

    async def _kill(self, fault: Fault, victims: tuple[ProxyId, ...]) -> Done:
        processes = [process for victim in victims for process in self._tree(victim)]
        self._announce(fault, victims)
        at_s = await in_thread(lambda: self._fleet.kill(*victims))
        there_s = time.monotonic()
        await prove(lambda: all(map(is_gone, processes)), f"the end of {len(processes)} processes")
        outage = await self._outage(fault, victims, at_s, there_s, REFUSED_LIMIT_S)
        self._fleet.start(*victims)
        return await self._done(fault, victims, at_s, f"{len(processes)} processes ended", outage)

    async def _freeze_member(self, fault: Fault) -> Done:
        victim = await self._member(fault.target)
        processes = self._tree(victim)
        self._announce(fault, (victim,))
        at_s = await in_thread(lambda: self._fleet.freeze(victim))
        there_s = time.monotonic()
        try:
            await prove(lambda: all(map(is_stopped, processes)), f"{len(processes)} processes in state T")
            outage = await self._outage(fault, (victim,), at_s, there_s, SILENT_LIMIT_S)
        finally:
            self._fleet.thaw(victim)
        await prove(lambda: not any(map(is_stopped, processes)), f"{victim} resumes")
        return await self._done(fault, (victim,), at_s, f"{len(processes)} processes in state T", outage)

    async def _kill_child(self, fault: Fault) -> Done:
        victim = await self._member(fault.target)
        place = f"{victim}/{'worker-0' if fault.kind is Kind.KILL_WORKER else 'control'}"
        process = self._child(victim, place)
        if process is None:
            raise FaultNotObserved(f"there is no {place} to kill")
        self._announce(fault, (place,))
        at_s = time.monotonic()
        process.kill()
        await prove(lambda: is_gone(process), f"the end of {place}")

        def replaced() -> bool:
            after = self._child(victim, place)
            return after is not None and after.pid != process.pid

        if not await eventually(replaced, WHOLE_LIMIT_S):
            raise DemoError(f"{place} was not restarted within {WHOLE_LIMIT_S:.0f} s")
        return await self._done(fault, (place,), at_s, f"process {process.pid} ended, and a new process runs")

    async def _drain_member(self, fault: Fault) -> Done:
        victim = await self._member(fault.target)
        return await self._restart(fault, (victim,))

    async def _rolling_restart(self, fault: Fault) -> Done:
        return await self._restart(fault, self._fleet.members)

    async def _restart(self, fault: Fault, victims: tuple[ProxyId, ...]) -> Done:
        at_s = time.monotonic()
        for victim in victims:
            processes = self._tree(victim)
            self._announce(fault, (victim,))
            code = await in_thread(partial(self._fleet.stop, victim, WHOLE_LIMIT_S))
            if code != 0:
                raise DemoError(f"{victim} ended with code {code} after SIGTERM")
            await prove(lambda gone=processes: all(map(is_gone, gone)), f"the end of {victim}")  # type: ignore[misc]
            await asyncio.sleep(fault.duration_s)
            self._fleet.start(victim)
            await self._whole()
        return await self._done(fault, victims, at_s, "every process ended, exit code 0")

    async def _kill_broker(self, fault: Fault) -> Done:
        broker_id = int(fault.target)
        process = psutil.Process(self._kafka.pid(broker_id))
        self._announce(fault, (f"broker {broker_id}",))
        at_s = time.monotonic()
        await in_thread(lambda: self._kafka.kill(broker_id))
        await prove(lambda: is_gone(process), f"the end of broker {broker_id}")
        await asyncio.sleep(fault.duration_s)
        await self._start_broker(broker_id)
        return await self._done(fault, (fault.target,), at_s, f"process {process.pid} ended")

    async def _restart_brokers(self, fault: Fault) -> Done:
        """Restart one broker after the other. Each restart waits until all replicas are in sync."""
        former = {broker_id: psutil.Process(self._kafka.pid(broker_id)) for broker_id in self._kafka.brokers}
        at_s = time.monotonic()
        for broker_id in former:
            self._announce(fault, (f"broker {broker_id}",))
            code = await in_thread(partial(self._kafka.stop_broker, broker_id, WHOLE_LIMIT_S))
            if code != STOPPED:
                raise DemoError(f"broker {broker_id} ended with code {code} after SIGTERM")
            await asyncio.sleep(fault.duration_s)
            await self._start_broker(broker_id)
        for broker_id, before in former.items():
            process = psutil.Process(self._kafka.pid(broker_id))
            if not is_another(process, before):
                raise FaultNotObserved(f"broker {broker_id} was {before}, and is {process} now")
        proof = f"{len(former)} processes ended with exit code {STOPPED}, and new processes run"
        return await self._done(fault, tuple(map(str, former)), at_s, proof)

    async def _start_broker(self, broker_id: BrokerId) -> None:
        """Start a broker, and wait until every partition has all its replicas in sync."""
        self._kafka.start_broker(broker_id)
        await in_thread(self._kafka.await_ready)
        broker = self._kafka.brokers[broker_id]
        direct = AdminClient({"bootstrap.servers": f"{broker.host}:{broker.port}", "log_level": 0})
        if not await becomes(lambda: in_sync(direct), WHOLE_LIMIT_S):
            raise DemoError(
                f"replicas were not in sync {WHOLE_LIMIT_S:.0f} s after the start of broker {broker_id}"
            )

    # -------------------------------------------------------------------------------------------- network

    async def _blackhole_member(self, fault: Fault) -> Done:
        """Drop all bytes between a member and its peers and clients. The member still reaches the brokers."""
        victim = await self._member(fault.target)
        client_links, links = self._network.client_links(victim), self._network.peer_links(victim)
        self._announce(fault, (victim,))
        await time_of_answer(client_links[0])
        at_s = time.monotonic()
        try:
            await self._swallow([*links, *client_links], fault)
            there_s = time.monotonic()
            proofs = [await prove_black(client_links[0]), await self._prove_silent(victim, fault)]
            outage = await self._outage(fault, (victim,), at_s, there_s, SILENT_LIMIT_S)
        finally:
            await in_thread(lambda: self._network.heal([*links, *client_links]))
        return await self._done(fault, (victim,), at_s, "; ".join(proofs), outage)

    async def _blackhole_peers(self, fault: Fault) -> Done:
        victim = await self._member(fault.target)
        links = self._network.peer_links(victim)
        self._announce(fault, (victim,))
        at_s = time.monotonic()
        try:
            await self._swallow(links, fault)
            proof = await self._prove_silent(victim, fault)
            await asyncio.sleep(fault.duration_s)
        finally:
            await in_thread(lambda: self._network.heal(links))
        return await self._done(fault, (victim,), at_s, proof)

    async def _blackhole(self, fault: Fault) -> Done:
        """Drop all bytes between clients and a member, or between the proxies and a broker."""
        victim, links = await self._way(fault)
        self._announce(fault, (victim,))
        await time_of_answer(links[0])
        at_s = time.monotonic()
        try:
            await self._swallow(links, fault)
            proof = await prove_black(links[0])
            await asyncio.sleep(fault.duration_s)
        finally:
            await in_thread(lambda: self._network.heal(links))
        return await self._done(fault, (victim,), at_s, proof)

    async def _reset(self, fault: Fault) -> Done:
        victim, links = await self._way(fault)
        self._announce(fault, (victim,))
        await time_of_answer(links[0])
        at_s = time.monotonic()
        try:
            await in_thread(lambda: self._network.poison(links, "reset_peer", {"timeout": 0}, "both"))
            answer = await knock(links[0].at, PROOF_LIMIT_S)
            if not answer.broken:
                raise FaultNotObserved(f"{fault}: a connection was not reset: {answer}")
            await asyncio.sleep(fault.duration_s)
        finally:
            await in_thread(lambda: self._network.heal(links))
        return await self._done(fault, (victim,), at_s, "a connection was reset")

    async def _reset_peers(self, fault: Fault) -> Done:
        victim = await self._member(fault.target)
        links = self._network.peer_links(victim)
        self._announce(fault, (victim,))
        at_s = time.monotonic()
        try:
            await in_thread(lambda: self._network.poison(links, "reset_peer", {"timeout": 0}, "both"))
            await self._prove_of_peers(victim, fault, lambda peer: not peer.connected, "a broken link")
            await asyncio.sleep(fault.duration_s)
        finally:
            await in_thread(lambda: self._network.heal(links))
        return await self._done(fault, (victim,), at_s, "links were broken")

    async def _latency(self, fault: Fault) -> Done:
        """Add a fixed latency, or a latency that varies between zero and the amount."""
        jitter = fault.kind is Kind.JITTER_CLIENTS
        half = fault.amount // 2
        attributes = {"latency": half, "jitter": half} if jitter else {"latency": fault.amount}
        ask = time_of_hanging_up if fault.kind is Kind.LATENCY_PEERS else time_of_answer

        async def show(link: Link) -> str:
            slowest_s = max([await ask(link) for _ in range(8 if jitter else 1)])
            least_s = _PROOF_SHARE * (half if jitter else fault.amount) / 1000.0
            if slowest_s < least_s:
                raise FaultNotObserved(f"{fault}: an answer took only {slowest_s * 1000:.0f} ms")
            return f"an answer took {slowest_s * 1000:.0f} ms"

        return await self._slow_down(fault, "latency", attributes, ask, show)

    async def _bandwidth(self, fault: Fault) -> Done:
        # Many small requests if only answers are slow, else some big requests.
        requests, padding = (2000, 0) if fault.direction == "out" else (60, 480)

        async def ask(link: Link) -> float:
            return (await self._many(link, requests, padding)).took_s or 0.0

        async def show(link: Link) -> str:
            answer = await self._many(link, requests, padding)
            size = answer.bytes_in if fault.direction == "out" else answer.bytes_out
            took_s, least_s = answer.took_s or 0.0, _PROOF_SHARE * size / 1024 / fault.amount
            if took_s < least_s:
                raise FaultNotObserved(f"{fault}: {size} bytes took only {took_s:.2f} s, not {least_s:.2f}")
            return f"{size} bytes took {took_s:.2f} s"

        return await self._slow_down(fault, "bandwidth", {"rate": fault.amount}, ask, show)

    async def _many(self, link: Link, requests: int, padding: int) -> Knock:
        answer = await knock(link.at, 4 * PROOF_LIMIT_S, requests, padding)
        if answer.took_s is None:
            raise FaultNotObserved(f"{requests} requests over {link.at} were not answered: {answer}")
        return answer

    async def _slow_down(
        self,
        fault: Fault,
        toxic: str,
        attributes: dict[str, int],
        ask: Callable[[Link], Awaitable[float]],
        show: Callable[[Link], Awaitable[str]],
    ) -> Done:
        async with self._harsh:  # no other fault may cause what the proof observes
            victim, links = await self._way(fault)
            self._announce(fault, (victim,))
            before_s = await ask(links[0])
            self._slow += 1
            at_s = time.monotonic()
            try:
                await in_thread(lambda: self._network.poison(links, toxic, attributes, fault.direction))
                proof = f"{await show(links[0])}, {before_s * 1000:.0f} ms before"
            except BaseException:
                await in_thread(lambda: self._network.heal(links))
                raise
        try:
            await asyncio.sleep(fault.duration_s)
        finally:
            await in_thread(lambda: self._network.heal(links))
            self._slow -= 1
        return Done(fault, (victim,), at_s, time.monotonic(), proof)

    async def _way(self, fault: Fault) -> tuple[str, list[Link]]:
        if fault.target.isdigit():
            return f"broker {fault.target}", self._network.broker_links(int(fault.target))
        victim = await self._member(fault.target)
        peers = fault.kind is Kind.LATENCY_PEERS
        return victim, self._network.peer_links(victim) if peers else self._network.client_links(victim)

    async def _swallow(self, links: Sequence[Link], fault: Fault) -> None:
        await in_thread(lambda: self._network.poison(links, "timeout", {"timeout": 0}, fault.direction))

    # ------------------------------------------------------------------------------------- local failures

    async def _fail_locally(self, fault: Fault) -> Done:
        """Make members' own probes fail. Raises: DemoError: a member suspects a healthy member."""
        victims = self._fleet.members if fault.target == "all" else (await self._member(fault.target),)
        counted = await in_thread(lambda: {each: self._local_faults.failures(each) for each in victims})
        self._announce(fault, victims)
        at_s = time.monotonic()
        with self._local_faults.failing(victims, fault.kind):
            await asyncio.sleep(fault.duration_s)

        def failed(victim: ProxyId) -> bool:
            return self._local_faults.failures(victim) > counted[victim]

        for victim in victims:
            if not await becomes(partial(failed, victim), PROOF_LIMIT_S):
                raise FaultNotObserved(f"{fault}: {victim} counted no local failure")
        await self._whole()
        for reporter in self._fleet.members:
            document = await in_thread(partial(self._fleet.ownership, reporter))
            for each in document.takeovers:
                if each.detected_mono_s > at_s and each.proxy_id != reporter and each.reason != _DRAIN:
                    raise DemoError(
                        f"{fault}: {reporter} suspected {each.proxy_id} ({each.reason}), which was healthy"
                    )
        return await self._done(fault, victims, at_s, f"failures counted by {', '.join(victims)}")

    # --------------------------------------------------------------------------------------------- proofs

    async def _prove_silent(self, victim: ProxyId, fault: Fault) -> str:
        def silent(peer: MemberDocument) -> bool:
            return not peer.connected or (peer.silent_s or 0.0) > _SILENT_S

        return await self._prove_of_peers(victim, fault, silent, f"silence for {_SILENT_S} s")

    async def _prove_of_peers(
        self, victim: ProxyId, fault: Fault, holds: Callable[[MemberDocument], bool], what: str
    ) -> str:
        """Wait until every member that a fault affects reports its effect, for each affected peer."""
        others = [each for each in self._fleet.members if each != victim]
        pairs = [(other, victim) for other in others if fault.direction != "in"]
        pairs += [(victim, other) for other in others if fault.direction != "out"]
        for reporter, peer in pairs:

            def is_reported(reporter: ProxyId = reporter, peer: ProxyId = peer) -> bool:
                document = self._fleet.ownership(reporter)
                return any(each.proxy_id == peer and holds(each) for each in document.members)

            if not await becomes(is_reported, PROOF_LIMIT_S):
                raise FaultNotObserved(f"{fault}: {reporter} does not report {what} from {peer}")
        return f"{what}, reported for {len(pairs)} pairs of members"

    # ---------------------------------------------------------------------------------------------- parts

    async def _outage(
        self, fault: Fault, victims: tuple[ProxyId, ...], at_s: float, there_s: float, bound_s: float
    ) -> Outage | None:
        """Hold a fault for its duration, and until the survivors have taken over or the limit has passed."""
        survivors = tuple(each for each in self._fleet.running if each not in victims)
        bound_s += SLOW_SLACK_S if self._slow else 0.0
        if survivors:
            left_s = at_s + bound_s + 0.5 - time.monotonic()
            await eventually(lambda: self._taken_over(survivors, at_s), left_s)
        await asyncio.sleep(max(0.0, at_s + fault.duration_s - time.monotonic()))
        if not survivors:
            return None
        return Outage(fault.kind.value, victims, survivors, at_s, time.monotonic(), bound_s, there_s)

    async def _done(
        self, fault: Fault, victims: tuple[str, ...], at_s: float, proof: str, outage: Outage | None = None
    ) -> Done:
        await self._whole()
        return Done(fault, victims, at_s, time.monotonic(), proof, outage)

    async def _whole(self) -> None:
        """Wait until every member is ready and linked with all others."""
        if not await becomes(self._is_whole, WHOLE_LIMIT_S):
            raise DemoError(
                f"the fleet was not whole {WHOLE_LIMIT_S:.0f} s after a fault; see {self._fleet.logs}"
            )

    def _is_whole(self) -> bool:
        return all(
            self._fleet.is_ready(each) and hears_all(self._fleet.ownership(each))
            for each in self._fleet.members
        )

    async def _member(self, role: str) -> ProxyId:
        """The newest leader, or a follower that owns an identity if there is one."""
        found: list[ProxyId] = []

        def led() -> bool:
            leader = self._fleet.leader()
            found[:] = [leader] if leader is not None else []
            return bool(found)

        if not await becomes(led, WHOLE_LIMIT_S):
            raise DemoError(f"no member leads for {WHOLE_LIMIT_S:.0f} s")
        (leader,) = found
        if role == "leader":
            return leader
        document = await in_thread(lambda: self._fleet.ownership(leader))
        owners = {owner for identity in document.identities for owner in identity.committed}
        return max(
            (each for each in self._fleet.members if each != leader), key=lambda each: (each in owners, each)
        )

    def _tree(self, proxy_id: ProxyId) -> list[psutil.Process]:
        root = psutil.Process(self._fleet.pid(proxy_id))
        processes = [root, *root.children(recursive=True)]
        if len(processes) < 3:
            raise FaultNotObserved(
                f"{proxy_id} has {len(processes)} processes; supervisor, control or worker is missing"
            )
        return processes

    def _child(self, proxy_id: ProxyId, place: str) -> psutil.Process | None:
        return find_child(self._fleet.pid(proxy_id), place)

    def _announce(self, fault: Fault, victims: Collection[str]) -> None:
        self._say(f"  {fault.kind.value}: {', '.join(victims)}")


Action = Callable[[Injector, Fault], Awaitable[Done]]

_ACTIONS: Final = MappingProxyType[Kind, Action](
    {
        Kind.KILL_MEMBER: Injector._kill_member,
        Kind.FREEZE_MEMBER: Injector._freeze_member,
        Kind.BLACKHOLE_MEMBER: Injector._blackhole_member,
        Kind.KILL_WORKER: Injector._kill_child,
        Kind.KILL_CONTROL: Injector._kill_child,
        Kind.KILL_ALL: Injector._kill_all,
        Kind.DRAIN_MEMBER: Injector._drain_member,
        Kind.ROLLING_RESTART: Injector._rolling_restart,
        Kind.KILL_BROKER: Injector._kill_broker,
        Kind.ROLLING_BROKER_RESTART: Injector._restart_brokers,
        Kind.BLACKHOLE_PEERS: Injector._blackhole_peers,
        Kind.RESET_PEERS: Injector._reset_peers,
        Kind.LATENCY_PEERS: Injector._latency,
        Kind.BLACKHOLE_CLIENTS: Injector._blackhole,
        Kind.RESET_CLIENTS: Injector._reset,
        Kind.LATENCY_CLIENTS: Injector._latency,
        Kind.JITTER_CLIENTS: Injector._latency,
        Kind.BANDWIDTH_CLIENTS: Injector._bandwidth,
        Kind.BLACKHOLE_BROKER: Injector._blackhole,
        Kind.RESET_BROKER: Injector._reset,
        Kind.LATENCY_BROKER: Injector._latency,
        Kind.BANDWIDTH_BROKER: Injector._bandwidth,
        Kind.NO_NAMES: Injector._fail_locally,
        Kind.SLOW_NAMES: Injector._fail_locally,
        Kind.NO_ROUTES: Injector._fail_locally,
        Kind.NO_DESCRIPTORS: Injector._fail_locally,
    }
)
