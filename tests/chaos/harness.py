"""Harness of the chaos tests: clients under load, and observations of Metadata and generations.

    with under_load(fleet, kafka, topic, tmp_path) as harness:
        killed = Tree(fleet, "p2")
        killed_at_s = fleet.kill("p2")
        harness.await_takeover("p2", killed_at_s)

At the end of the block the clients stop, and an audit requires that no record is lost, duplicated or out of
order.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fleet.admin.documents import OwnershipDocument, TakeoverDocument
from fleet.core.model import BrokerId, Liveness, ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.drills.workload.audit import audit
from fleet.drills.workload.checker import audit_of
from fleet.drills.workload.clients import Workload, WorkloadSpec, read_log
from fleet.drills.workload.prober import Prober
from fleet.drills.workload.streams import Traffic
from fleet.drills.workload.waiting import background_tasks, pauses_s
from tests.chaos.seeded.workloads import PARTITIONS, Client

RATE_PER_S = 60
FLOW_LIMIT_S = 60.0
ADVERTISED_LIMIT_S = 2.5
COMMITTED_LIMIT_S = 5.0
FROZEN_LIMIT_S = 7.5
"""Five times the promises on a quiet machine: 0.5 s until a dead member is bypassed, 1 s until the change is
committed, and 1.5 s if a member is frozen."""
SLOW_LIMIT_S = 20.0
"""Time limit of an answer over a slow or lossy network: a connection may take three attempts."""
_GENERATION_POLL_S = 0.1

Owners = Mapping[BrokerId, ProxyId | None]


@dataclass(frozen=True, slots=True)
class View:
    """The owners in one member's Metadata, from a moment on."""

    at_s: float
    owners: Owners


class ChaosHarness:
    """Clients that run through a fleet, and observations of the fleet from outside."""

    def __init__(
        self,
        fleet: LocalFleet,
        kafka: KafkaCluster,
        topic: str,
        folder: Path,
        rate_per_s: int = RATE_PER_S,
    ) -> None:
        self.fleet = fleet
        self.broker_ids = frozenset(kafka.brokers)
        self.workload = Workload(
            WorkloadSpec(
                fleet.bootstrap(),
                topic,
                str(folder),
                group=topic,
                partitions=PARTITIONS,
                rate_per_s=rate_per_s,
                client="recommended",
            )
        )
        self.traffic = Traffic(self.workload)
        self.prober = Prober({each: fleet.bootstrap_endpoint(each) for each in fleet.members}, fleet.owner_of)
        self.generations: dict[ProxyId, list[int]] = {each: [] for each in fleet.members}

    # ------------------------------------------------------------------------------------------- clients

    def await_flow(self) -> None:
        """Wait until every partition has a new acknowledgement and a new delivery."""
        since_s = time.monotonic()

        def has_flow() -> bool:
            self.workload.check()
            return self.traffic.flows_since(since_s)

        wait_for(has_flow, "records acknowledged and received on every partition", FLOW_LIMIT_S)

    def log_lines(self) -> list[str]:
        """All lines that the clients have logged or reported."""
        log = self.workload.log
        return log.read_text().splitlines() if log.exists() else []

    def reported(self) -> list[str]:
        """The errors that librdkafka has reported to the application."""
        return self.workload.reported()

    # ------------------------------------------------------------------------------------------ Metadata

    @contextmanager
    def probing_closely(self) -> Iterator[None]:
        """Request Metadata every few milliseconds while the block runs."""
        self.prober.fast = True
        try:
            yield
        finally:
            self.prober.fast = False

    def views(self, proxy_id: ProxyId, since_s: float) -> list[View]:
        """The owners in a member's Metadata: at a moment, and at each change after it."""
        found: list[View] = []
        for change in list(self.prober.changes[proxy_id]):
            owners = {each: self.fleet.owner_of(endpoint) for each, endpoint in change.table.items()}
            if change.at_s <= since_s:
                found = [View(since_s, owners)]
            elif not found or found[-1].owners != owners:
                found.append(View(change.at_s, owners))
        return found

    def changed_s(self, proxy_id: ProxyId, former_owners: Owners, since_s: float) -> float:
        """Seconds since a moment in which a member's Metadata differed from its former content."""
        views = self.views(proxy_id, since_s)
        ends_s = [*(view.at_s for view in views[1:]), time.monotonic()]
        return sum(
            end_s - view.at_s
            for view, end_s in zip(views, ends_s, strict=True)
            if view.owners != former_owners
        )

    def advertised(self) -> dict[ProxyId, Owners]:
        """The owners in each running member's newest Metadata."""
        return {each: self.prober.owners(each) for each in self.fleet.running}

    def members_agree(self) -> bool:
        """Whether all running members advertise the same owner for every identity."""
        first, *others = self.advertised().values()
        return self.broker_ids <= first.keys() and all(each == first for each in others)

    def await_quiet(self, for_s: float, limit_s: float = 60.0, since_s: float = 0.0) -> None:
        """Wait until no Metadata has changed for a given time, counted from a given moment."""

        def is_quiet() -> bool:
            newest_s = max(changes[-1].at_s for changes in self.prober.changes.values() if changes)
            return time.monotonic() - max(newest_s, since_s) >= for_s

        wait_for(is_quiet, f"Metadata unchanged for {for_s:g} s", limit_s)

    # ---------------------------------------------------------------------------------------- ownership

    def member(self, role: str) -> ProxyId:
        """The leader, or a follower that owns an identity."""
        leader = ""

        def has_leader() -> bool:
            nonlocal leader
            leader = self.fleet.leader() or ""
            return bool(leader)

        wait_for(has_leader, "a leader")
        if role == "leader":
            return leader
        owners = set(self.committed(leader).values()) - {leader}
        return max(owners)

    def committed(self, proxy_id: ProxyId) -> dict[BrokerId, ProxyId]:
        """The committed owner of each identity, as one member reports it."""
        return {
            each.broker_id: each.committed[0]
            for each in self.fleet.ownership(proxy_id, SLOW_LIMIT_S).identities
        }

    def generation(self) -> int:
        """The newest generation of any running member."""
        documents = [self.fleet.try_ownership(each) for each in self.fleet.running]
        return max(document.generation for document in documents if document is not None)

    def takeover(self, reporter: ProxyId, victim: ProxyId, since_s: float) -> TakeoverDocument | None:
        """A member's report of the takeover from another member since a moment; None without one."""
        document = self.fleet.try_ownership(reporter)
        takeovers = document.takeovers if document is not None else ()
        return next((t for t in takeovers if t.proxy_id == victim and t.detected_mono_s >= since_s), None)

    def check_unmoved(self, since_s: float) -> None:
        """Check that since a moment no Metadata has changed, and no member has suspected another."""
        for reporter in self.fleet.members:
            assert len(self.views(reporter, since_s)) == 1
            takeovers = self.fleet.ownership(reporter, SLOW_LIMIT_S).takeovers
            assert not [each for each in takeovers if each.detected_mono_s >= since_s]

    def await_advertised(self, survivors: Collection[ProxyId], since_s: float, limit_s: float) -> float:
        """Wait until every survivor's Metadata has a survivor for every identity.

        Returns: seconds from a moment until then, by the prober's observations; at most `limit_s`.
        """

        def is_live() -> bool:
            return self.prober.live_since_s(self.broker_ids, survivors, since_s) is not None

        wait_for(is_live, f"every identity advertised at {survivors}", limit_s + 10.0)
        live_s = self.prober.live_since_s(self.broker_ids, survivors, since_s)
        assert live_s is not None
        assert live_s - since_s <= limit_s, f"advertised after {live_s - since_s:.2f} s"
        return live_s - since_s

    def await_committed(
        self, victim: ProxyId, survivors: Collection[ProxyId], since_s: float, limit_s: float
    ) -> float:
        """Wait until every survivor has applied the new owners of a member's identities.

        Returns: seconds from a moment until then, by the survivors' reports; at most `limit_s`.
        """
        took_s = 0.0
        for survivor in survivors:
            delays_s: list[float] = []

            def committed(survivor: ProxyId = survivor, delays_s: list[float] = delays_s) -> bool:
                takeover = self.takeover(survivor, victim, since_s)
                if takeover is None or takeover.committed_mono_s is None:
                    return False
                delays_s.append(takeover.committed_mono_s - since_s)
                return True

            wait_for(committed, f"takeover from {victim} committed at {survivor}", limit_s + 10.0)
            took_s = max(took_s, delays_s[0])
        assert took_s <= limit_s, f"committed after {took_s:.2f} s"
        return took_s

    # --------------------------------------------------------------------------------------- background

    async def watch(self, stopping: asyncio.Event) -> None:
        """Observe Metadata and generations until cancelled."""
        async with background_tasks(self.prober.run(), *map(self._follow, self.fleet.members)):
            await stopping.wait()

    async def _follow(self, proxy_id: ProxyId) -> None:
        generations = self.generations[proxy_id]
        while True:
            document: OwnershipDocument | None = await asyncio.to_thread(
                self.fleet.try_ownership, proxy_id, 0.5
            )
            if document is not None and (not generations or generations[-1] != document.generation):
                generations.append(document.generation)
            await asyncio.sleep(_GENERATION_POLL_S)


@contextmanager
def under_load(
    fleet: LocalFleet, kafka: KafkaCluster, topic: str, folder: Path, rate_per_s: int = RATE_PER_S
) -> Iterator[ChaosHarness]:
    """Run clients and observers, and audit every record at the end."""
    harness = ChaosHarness(fleet, kafka, topic, folder, rate_per_s)
    with _observing(harness):
        harness.workload.start()
        try:
            harness.await_flow()
            yield harness
            harness.await_flow()
            harness.workload.stop()
        finally:
            harness.workload.kill()
    workload = harness.workload
    verdict = audit(workload.acknowledged(), workload.received(), read_log(kafka.bootstrap_servers, topic))
    assert verdict.acknowledged >= rate_per_s, verdict
    assert (verdict.lost, verdict.duplicated, verdict.out_of_order) == (0, 0, 0), verdict
    for proxy_id, generations in harness.generations.items():
        assert generations == sorted(generations), f"the generation of {proxy_id} fell: {generations}"


@contextmanager
def clients_running(clients: Sequence[Client], kafka: KafkaCluster, *, silent: bool = True) -> Iterator[None]:
    """Run clients, and require that no record is lost, repeated or out of order.

    Args: silent: whether the clients must report no error.
    """
    try:
        for client in clients:
            client.workload.start()
        await_flow(clients)
        yield
        for client in clients:
            client.stop()
    finally:
        for client in clients:
            client.workload.kill()
    for client in clients:
        assert not silent or client.workload.reported() == [], client.name
        verdict = audit_of(client.stream(kafka.bootstrap_servers))
        assert verdict.passed, (client.name, verdict)


def await_flow(clients: Sequence[Client]) -> None:
    """Wait until every partition of every client has a new acknowledgement and a new delivery."""
    since_s = time.monotonic()

    def has_flow() -> bool:
        for client in clients:
            client.workload.check()
        return all([client.traffic.flows_since(since_s) for client in clients])

    wait_for(has_flow, f"records of {', '.join(each.name for each in clients)}", FLOW_LIMIT_S)


@contextmanager
def _observing(harness: ChaosHarness) -> Iterator[None]:
    """Run the harness's observers on an event loop in their own thread, because the tests block."""
    loop = asyncio.new_event_loop()
    stopping = asyncio.Event()
    failures: list[BaseException] = []

    def run_loop() -> None:
        try:
            loop.run_until_complete(harness.watch(stopping))
        except BaseException as error:
            failures.append(error)
        finally:
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    thread = threading.Thread(target=run_loop, name="watchers")
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join()
    assert not failures, failures


def is_fully_linked(fleet: LocalFleet) -> bool:
    """Whether every member is connected to every other member and considers it alive."""
    documents = [fleet.try_ownership(reporter) for reporter in fleet.members]
    return all(
        document is not None
        and all(
            each.connected and each.liveness is Liveness.UP
            for each in document.members
            if each.proxy_id != document.proxy_id
        )
        for document in documents
    )


def check_until(until_s: float, check: Callable[[], None]) -> None:
    """Wait until a moment, and observe the fleet meanwhile."""
    while time.monotonic() < until_s:
        check()
        time.sleep(0.2)


def becomes(condition: Callable[[], object], limit_s: float, *, every_s: float | None = None) -> bool:
    """Wait until a condition holds. Returns: whether it holds in time."""
    deadline_s, pauses = time.monotonic() + limit_s, pauses_s()
    while not condition():
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(every_s or next(pauses))
    return True


def wait_for(
    condition: Callable[[], object], what: str, limit_s: float = 30.0, *, every_s: float | None = None
) -> None:
    """Wait until a condition holds. Fails the test if it does not hold in time."""
    assert becomes(condition, limit_s, every_s=every_s), f"{what}: not within {limit_s:g} s"
