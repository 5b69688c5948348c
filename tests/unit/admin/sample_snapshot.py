"""A fleet of three members and three brokers as one of them sees it, for tests of what is made of a view."""

from __future__ import annotations

from dataclasses import dataclass, field

from fleet.admin.snapshot import Check, FleetView, MemberView, RaftView, WorkerView
from fleet.core.errors import UnknownMember
from fleet.core.model import (
    AdvertisedListener,
    Broker,
    BrokerId,
    Directory,
    Endpoint,
    FleetState,
    IdentitySpace,
    Liveness,
    Member,
    Ownership,
    ProxyId,
)
from fleet.core.state import Outcome
from fleet.core.takeover import Moment, Takeover, TakeoverLog
from fleet.events.progress import EventsView
from fleet.runtime.ipc import BOOTSTRAP, WorkerCounters

SPACE = IdentitySpace(first_id=1, count=4)


def member(number: int) -> Member:
    return Member(
        proxy_id=f"p{number}",
        rack="abc"[number - 1],
        listeners=(
            AdvertisedListener("external", f"proxy{number}.test", 9000 + 100 * number, 9001 + 100 * number),
        ),
        identities=SPACE,
        incarnation=number,
    )


MEMBERS = {f"p{number}": member(number) for number in (1, 2, 3)}
BROKERS = {broker_id: Broker(broker_id, f"kafka{broker_id}.test", 9092) for broker_id in (1, 2, 3)}
COMMITTED = {1: ("p1",), 2: ("p2",), 3: ("p3",)}

COUNTERS = WorkerCounters(
    requests={0: 7, 1: 9, 3: 2},
    bytes_to_broker={1: 100, 2: 50},
    bytes_to_client={1: 1000, BOOTSTRAP: 10},
    connections={1: 3, BOOTSTRAP: 1},
    errors={"oversize": 2},
    limited={"max_connections": 4},
    rewrite_buckets=(5, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1),
    rewrite_sum_s=0.5,
    upstream_up={1: True},
    generation=7,
    revision=12,
)


def view(**changes: object) -> FleetView:
    """p2 is dead and advertised at p3; p1, the leader, tells it, and Raft has not committed it yet."""
    members = tuple(
        MemberView(
            proxy_id=proxy_id,
            rack=committed.rack,
            voter=True,
            witness=False,
            admin=Endpoint("127.0.0.1", 7200 + number),
            committed=committed,
            liveness=Liveness.SUSPECT if proxy_id == "p2" else Liveness.UP,
            ready=proxy_id != "p2",
            generation=7,
            connected=proxy_id == "p3",
            silent_s=0.0 if proxy_id == "p1" else 0.5,
        )
        for number, (proxy_id, committed) in enumerate(MEMBERS.items(), start=1)
    )
    detected, advertised = Moment(1_000_000, 100.0), Moment(1_000_003, 100.003)
    taken = Takeover("p2", "reset", detected, (2,), advertised)
    fields: dict[str, object] = {
        "fleet": "demo",
        "me": "p1",
        "now": Moment(1_000_500, 100.5),
        "started_mono_s": 40.0,
        "incarnation": 1,
        "state": FleetState(
            generation=7,
            members=MEMBERS,
            brokers=BROKERS,
            ownership={
                broker_id: Ownership(owners, tuple(each for each in MEMBERS if each not in owners))
                for broker_id, owners in COMMITTED.items()
            },
            pins={3: "p3"},
        ),
        "directory": Directory(
            generation=7,
            revision=12,
            advertised={1: ("p1",), 2: ("p3",), 3: ("p3",)},
            committed=COMMITTED,
            members=MEMBERS,
            brokers=BROKERS,
            suspects=("p2",),
        ),
        "raft": RaftView(role="leader", leader="p1", term=4, commit_index=33, has_quorum=True),
        "members": members,
        "workers": (WorkerView(0, 4711, COUNTERS),),
        "upstream_up": {1: True, 2: False},
        "takeovers": TakeoverLog().put(taken),
        "events": EventsView(sent=40, waiting=2, dropped=1),
        "thread_restarts": {"events": 0, "weights": 2},
        "certificate_expiry_s": {"peer_tls.ca": 2_100_000_000.0, "peer_tls.certificate": 1_900_000_000.0},
        "checks": (Check("workers", True, "1 of 1"), Check("directory", True), Check("upstream", True)),
    }
    return FleetView(**(fields | changes))  # type: ignore[arg-type]


@dataclass
class Source:
    """An AdminSource that shows what it is told to, and notes what is asked of it."""

    shown: FleetView = field(default_factory=view)
    outcome: Outcome | Exception = field(default_factory=lambda: Outcome(True, "", 8))
    asked: list[tuple[ProxyId, bool]] = field(default_factory=list)
    pinned: list[tuple[BrokerId, ProxyId | None]] = field(default_factory=list)
    counts: int = 0

    @property
    def changes(self) -> int:
        return len(self.asked) + len(self.pinned)

    def view(self) -> FleetView:
        return self.shown

    async def counted_view(self) -> FleetView:
        self.counts += 1
        return self.view()

    async def drain(self, proxy_id: ProxyId, drained: bool) -> Outcome:
        self.asked.append((proxy_id, drained))
        return self._answer(proxy_id)

    async def pin(self, broker_id: BrokerId, proxy_id: ProxyId | None) -> Outcome:
        self.pinned.append((broker_id, proxy_id))
        return self._answer(proxy_id)

    def _answer(self, proxy_id: ProxyId | None) -> Outcome:
        if proxy_id is not None and proxy_id not in MEMBERS:
            raise UnknownMember(f"no member {proxy_id!r}")
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome
