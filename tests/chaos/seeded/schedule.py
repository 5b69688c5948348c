"""From a seed to a plan of faults; the same seed gives the same plan."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Literal

Direction = Literal["both", "in", "out"]
"""As the target sees it: what it is sent, what it sends, or both."""

LENGTH_S: Final = 20.0
OTHER_WORKLOADS: Final = (
    "acks1",
    "acks0",
    "transactional",
    "aiokafka",
    "kip848",
    "compacted",
    "java",
    "share",
)
"""Two of them are at work in a run, beside the idempotent producer and its group."""
HEAVY: Final = frozenset({"java", "share"})
"""Those that start virtual machines: one of them at most is among the two."""
MEMBERS: Final = (3, 3, 3, 5)
"""How many members a fleet has; one of these for each seed."""


class Kind(StrEnum):
    """What is done, and to whom."""

    KILL_MEMBER = "kill_member"
    FREEZE_MEMBER = "freeze_member"
    BLACKHOLE_MEMBER = "blackhole_member"
    KILL_WORKER = "kill_worker"
    KILL_CONTROL = "kill_control"
    KILL_ALL = "kill_all"
    DRAIN_MEMBER = "drain_member"
    ROLLING_RESTART = "rolling_restart"
    KILL_BROKER = "kill_broker"
    ROLLING_BROKER_RESTART = "rolling_broker_restart"
    BLACKHOLE_PEERS = "blackhole_peers"
    RESET_PEERS = "reset_peers"
    LATENCY_PEERS = "latency_peers"
    BLACKHOLE_CLIENTS = "blackhole_clients"
    RESET_CLIENTS = "reset_clients"
    LATENCY_CLIENTS = "latency_clients"
    JITTER_CLIENTS = "jitter_clients"
    BANDWIDTH_CLIENTS = "bandwidth_clients"
    BLACKHOLE_BROKER = "blackhole_broker"
    RESET_BROKER = "reset_broker"
    LATENCY_BROKER = "latency_broker"
    BANDWIDTH_BROKER = "bandwidth_broker"
    NO_NAMES = "no_names"
    SLOW_NAMES = "slow_names"
    NO_ROUTES = "no_routes"
    NO_DESCRIPTORS = "no_descriptors"


GENTLE: Final = frozenset(
    {
        Kind.LATENCY_PEERS,
        Kind.LATENCY_CLIENTS,
        Kind.JITTER_CLIENTS,
        Kind.BANDWIDTH_CLIENTS,
        Kind.LATENCY_BROKER,
        Kind.BANDWIDTH_BROKER,
    }
)
"""What slows things down and breaks nothing: goes on beside the other faults."""

BROKER_LINKS: Final = frozenset(
    {Kind.BLACKHOLE_BROKER, Kind.RESET_BROKER, Kind.LATENCY_BROKER, Kind.BANDWIDTH_BROKER}
)
"""Want a Toxiproxy between the proxies and the brokers."""

OUTAGES: Final = frozenset({Kind.KILL_MEMBER, Kind.FREEZE_MEMBER, Kind.BLACKHOLE_MEMBER})
"""What keeps clients from a member, while there are others."""

BROKER_ENDS: Final = frozenset({Kind.KILL_BROKER, Kind.ROLLING_BROKER_RESTART})
"""A record that its leader alone has may be lost then: also one that ends in order waits for no follower."""

FIRST_SEED: Final = MappingProxyType(
    {
        Kind.ROLLING_BROKER_RESTART: 201,
        Kind.NO_NAMES: 221,
        Kind.SLOW_NAMES: 221,
        Kind.NO_ROUTES: 221,
        Kind.NO_DESCRIPTORS: 221,
    }
)
"""Of those that draw a kind. Seeds before were run before there was this one: docs/reliability.jsonl."""

LOCAL_FAULTS: Final = frozenset({Kind.NO_NAMES, Kind.SLOW_NAMES, Kind.NO_ROUTES, Kind.NO_DESCRIPTORS})
"""Failures of members' own, for which nobody may be taken for dead."""

_ROLES: Final = ("leader", "follower")
_BROKERS: Final = ("1", "2", "3")
_NOBODY: Final = ("-",)
_ROLES_OR_ALL: Final = (*_ROLES, "all")
_DIRECTIONS: Final[tuple[Direction, ...]] = ("both", "in", "out")


@dataclass(frozen=True, slots=True)
class Shape:
    """How faults of one kind come out.

    Args:
        targets: roles of members, or ids of brokers.
        duration_s: between which seconds it lasts.
        room_s: how long it takes from its beginning until all is whole again, at most, on a busy machine.
        amounts: milliseconds of latency, or KiB/s of bandwidth.
        one_way: whether it may be in one direction alone.
    """

    targets: tuple[str, ...]
    duration_s: tuple[float, float]
    room_s: float
    amounts: tuple[int, ...] = (0,)
    one_way: bool = False


SHAPES: Final = MappingProxyType(
    {
        Kind.KILL_MEMBER: Shape(_ROLES, (1.0, 3.0), 6.0),
        Kind.FREEZE_MEMBER: Shape(_ROLES, (2.0, 5.0), 7.0),
        Kind.BLACKHOLE_MEMBER: Shape(_ROLES, (3.0, 6.0), 8.0, one_way=True),
        Kind.KILL_WORKER: Shape(_ROLES, (0.5, 1.0), 4.0),
        Kind.KILL_CONTROL: Shape(_ROLES, (0.5, 1.0), 5.0),
        Kind.KILL_ALL: Shape(_NOBODY, (0.1, 1.0), 7.0),
        Kind.DRAIN_MEMBER: Shape(_ROLES, (0.5, 2.0), 7.0),
        Kind.ROLLING_RESTART: Shape(_NOBODY, (0.1, 0.5), 18.0),
        Kind.KILL_BROKER: Shape(_BROKERS, (1.0, 4.0), 12.0),
        # Where clients use both cores it takes 40 to 70 s; this is all the room that a plan has.
        Kind.ROLLING_BROKER_RESTART: Shape(_NOBODY, (0.1, 1.0), 18.0),
        Kind.BLACKHOLE_PEERS: Shape(_ROLES, (2.0, 5.0), 7.0, one_way=True),
        Kind.RESET_PEERS: Shape(_ROLES, (0.2, 1.0), 3.0),
        Kind.LATENCY_PEERS: Shape(_ROLES, (4.0, 12.0), 0.0, (100, 200, 300)),
        Kind.BLACKHOLE_CLIENTS: Shape(_ROLES, (2.0, 4.0), 6.0, one_way=True),
        Kind.RESET_CLIENTS: Shape(_ROLES, (0.2, 1.0), 3.0),
        Kind.LATENCY_CLIENTS: Shape(_ROLES, (4.0, 12.0), 0.0, (200, 400), one_way=True),
        Kind.JITTER_CLIENTS: Shape(_ROLES, (4.0, 12.0), 0.0, (200, 300), one_way=True),
        Kind.BANDWIDTH_CLIENTS: Shape(_ROLES, (4.0, 10.0), 0.0, (32, 64), one_way=True),
        Kind.BLACKHOLE_BROKER: Shape(_BROKERS, (2.0, 4.0), 6.0, one_way=True),
        Kind.RESET_BROKER: Shape(_BROKERS, (0.2, 1.0), 3.0),
        Kind.LATENCY_BROKER: Shape(_BROKERS, (4.0, 12.0), 0.0, (200, 400), one_way=True),
        Kind.BANDWIDTH_BROKER: Shape(_BROKERS, (4.0, 10.0), 0.0, (32, 64), one_way=True),
        Kind.NO_NAMES: Shape(_ROLES_OR_ALL, (2.0, 5.0), 8.0),
        Kind.SLOW_NAMES: Shape(_ROLES_OR_ALL, (2.0, 5.0), 8.0),
        Kind.NO_ROUTES: Shape(_ROLES_OR_ALL, (2.0, 5.0), 8.0),
        Kind.NO_DESCRIPTORS: Shape(_ROLES_OR_ALL, (2.0, 5.0), 8.0),
    }
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Args:
        at_s: from the start of the plan; a harsh one waits until the one before it is healed.
        target: "leader" or "follower", as it is then, or "all"; the id of a broker; "-" where there is no
            choice.
        amount: milliseconds of latency (jitter: the most of it), or KiB/s of bandwidth.
    """

    at_s: float
    kind: Kind
    target: str = "-"
    duration_s: float = 1.0
    amount: int = 0
    direction: Direction = "both"

    def __str__(self) -> str:
        details = [f"{self.at_s:5.1f} s  {self.kind.value} {self.target}, for {self.duration_s:.1f} s"]
        if self.amount:
            details.append(f"{self.amount} {'KiB/s' if 'bandwidth' in self.kind else 'ms'}")
        if self.direction != "both":
            details.append(f"{self.direction} alone")
        return ", ".join(details)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done in one run.

    Args:
        name: how it is asked for again: a seed, or one of `CHOSEN`.
        workloads: the clients that are at work meanwhile; see `tests.chaos.seeded.workloads`.
        members: how many the fleet has.
        secured: whether the links between them are mutual TLS.
    """

    name: str
    faults: tuple[Fault, ...]
    workloads: tuple[str, ...] = ("idempotent",)
    length_s: float = LENGTH_S
    members: int = 3
    secured: bool = False

    @property
    def brokers_fail(self) -> bool:
        return any(fault.kind in BROKER_ENDS for fault in self.faults)


def plan_of(seed: int, length_s: float = LENGTH_S) -> Plan:
    """The plan of a seed: harsh faults one after the other, and half the time a gentle one beside them."""
    chance = random.Random(seed)
    faults = []
    if chance.random() < 0.5:
        # First of all, because it is proved while no harsh one is there.
        faults.append(_draw(chance, sorted(GENTLE), round(chance.uniform(0.0, 0.4), 1)))
    at_s = round(chance.uniform(0.5, 2.0), 1)
    while fitting := _that_fit(seed, length_s - at_s):
        fault = _draw(chance, fitting, at_s)
        faults.append(fault)
        at_s = round(at_s + SHAPES[fault.kind].room_s + chance.uniform(0.0, 2.0), 1)
    first = chance.choice(OTHER_WORKLOADS)
    second = chance.choice([each for each in OTHER_WORKLOADS if each != first and not {each, first} <= HEAVY])
    return Plan(
        str(seed),
        tuple(sorted(faults, key=lambda fault: fault.at_s)),
        ("idempotent", first, second),
        length_s,
        chance.choice(MEMBERS),
        # Drawn apart, so that faults and clients of a seed are those that they were before.
        random.Random(f"secured {seed}").random() < 0.5,
    )


def _that_fit(seed: int, room_s: float) -> list[Kind]:
    fitting = (kind for kind, shape in SHAPES.items() if kind not in GENTLE and shape.room_s <= room_s)
    drawn = (kind for kind in fitting if seed >= FIRST_SEED.get(kind, 0))
    return sorted(drawn, key=lambda kind: (FIRST_SEED.get(kind, 0), kind))


def _draw(chance: random.Random, kinds: Sequence[Kind], at_s: float) -> Fault:
    kind = chance.choice(kinds)
    shape = SHAPES[kind]
    return Fault(
        at_s,
        kind,
        chance.choice(shape.targets),
        round(chance.uniform(*shape.duration_s), 1),
        chance.choice(shape.amounts),
        chance.choice(_DIRECTIONS) if shape.one_way else "both",
    )


CHOSEN: Final = MappingProxyType[str, tuple[tuple[str, ...], tuple[Fault, ...]]](
    {
        "leader-kill": (
            ("acks1", "compacted"),
            (
                Fault(1.0, Kind.KILL_MEMBER, "leader", 2.0),
                Fault(7.0, Kind.KILL_MEMBER, "leader", 2.0),
            ),
        ),
        "follower-freeze": (
            ("acks0",),
            (
                Fault(0.5, Kind.JITTER_CLIENTS, "leader", 6.0, 200),
                Fault(1.0, Kind.FREEZE_MEMBER, "follower", 4.0),
            ),
        ),
        "broker-kill": (("transactional", "java"), (Fault(1.0, Kind.KILL_BROKER, "2", 2.0),)),
        "broker-restarts": (("aiokafka",), (Fault(1.0, Kind.ROLLING_BROKER_RESTART, "-", 0.1),)),
        "blackhole": (("aiokafka", "share"), (Fault(1.0, Kind.BLACKHOLE_MEMBER, "follower", 5.0),)),
        "kill-all": (("kip848",), (Fault(1.0, Kind.KILL_ALL, "-", 0.5),)),
        "local-faults": (
            ("acks1",),
            (
                Fault(1.0, Kind.NO_NAMES, "all", 3.0),
                Fault(9.0, Kind.NO_DESCRIPTORS, "leader", 3.0),
            ),
        ),
    }
)
"""Clients and faults by the name of the plan: what `make test-all` runs."""

SECURED: Final = frozenset({"leader-kill", "blackhole"})
"""Of these plans, those with links between members that are mutual TLS."""


def chosen(name: str) -> Plan:
    """A plan by its name."""
    others, faults = CHOSEN[name]
    length_s = max(fault.at_s + fault.duration_s for fault in faults) + 2.0
    return Plan(name, faults, ("idempotent", *others), length_s, secured=name in SECURED)
