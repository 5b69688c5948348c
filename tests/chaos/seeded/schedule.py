"""From a seed to a plan of faults; the same seed gives the same plan."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Literal

Direction = Literal["both", "in", "out"]
"""The direction from the target's point of view: bytes to it, from it, or both."""

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
"""A run uses two of these clients, in addition to the idempotent producer and its group."""
HEAVY: Final = frozenset({"java", "share"})
"""Clients that start Java virtual machines: at most one of the two."""
MEMBERS: Final = (3, 3, 3, 5)
"""Possible numbers of members; each seed chooses one."""


class Kind(StrEnum):
    """Kinds of faults."""

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
"""Faults that only slow the network down. They last during other faults."""

BROKER_LINKS: Final = frozenset(
    {Kind.BLACKHOLE_BROKER, Kind.RESET_BROKER, Kind.LATENCY_BROKER, Kind.BANDWIDTH_BROKER}
)
"""Faults that need Toxiproxy between the proxies and the brokers."""

OUTAGES: Final = frozenset({Kind.KILL_MEMBER, Kind.FREEZE_MEMBER, Kind.BLACKHOLE_MEMBER})
"""Faults that separate clients from one member, but not from the others."""

BROKER_ENDS: Final = frozenset({Kind.KILL_BROKER, Kind.ROLLING_BROKER_RESTART})
"""Faults that may lose a record that only its leader has: even an orderly shutdown waits for no follower."""

FIRST_SEED: Final = MappingProxyType(
    {
        Kind.ROLLING_BROKER_RESTART: 201,
        Kind.NO_NAMES: 221,
        Kind.SLOW_NAMES: 221,
        Kind.NO_ROUTES: 221,
        Kind.NO_DESCRIPTORS: 221,
    }
)
"""First seed that draws this kind. Earlier seeds ran before the kind existed: docs/reliability.jsonl."""

LOCAL_FAULTS: Final = frozenset({Kind.NO_NAMES, Kind.SLOW_NAMES, Kind.NO_ROUTES, Kind.NO_DESCRIPTORS})
"""Local failures of members, which must not cause a suspicion."""

_ROLES: Final = ("leader", "follower")
_BROKERS: Final = ("1", "2", "3")
_NOBODY: Final = ("-",)
_ROLES_OR_ALL: Final = (*_ROLES, "all")
_DIRECTIONS: Final[tuple[Direction, ...]] = ("both", "in", "out")


@dataclass(frozen=True, slots=True)
class Shape:
    """The parameters of one kind of fault.

    Args:
        targets: roles of members, or ids of brokers.
        duration_s: shortest and longest duration.
        room_s: maximum time from the fault until the fleet is whole again, on a busy machine.
        amounts: milliseconds of latency, or KiB/s of bandwidth.
        one_way: whether the fault may affect only one direction.
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
        # If clients use both cores it takes 40 to 70 s. This is all the time that a plan has.
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
        at_s: seconds from the start of the plan. A harsh fault waits until the previous one is healed.
        target: "leader" or "follower" at the time of the fault, or "all"; the id of a broker; "-" without a
            choice.
        amount: milliseconds of latency (for jitter the maximum), or KiB/s of bandwidth.
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
    """The faults and clients of one run.

    Args:
        name: name for a repetition: a seed, or a key of `CHOSEN`.
        workloads: the clients of the run; see `tests.chaos.seeded.workloads`.
        members: number of members.
        secured: whether links between members use mutual TLS.
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
    """The plan of a seed: consecutive harsh faults, and in half of the plans a gentle fault during them."""
    chance = random.Random(seed)
    faults = []
    if chance.random() < 0.5:
        # First, because its proof needs a time without a harsh fault.
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
        # A separate generator, so that faults and clients of older seeds do not change.
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
"""By name of the plan, its clients and faults. `make test-all` runs these plans."""

SECURED: Final = frozenset({"leader-kill", "blackhole"})
"""The plans with mutual TLS between members."""


def chosen(name: str) -> Plan:
    """The plan with a name."""
    others, faults = CHOSEN[name]
    length_s = max(fault.at_s + fault.duration_s for fault in faults) + 2.0
    return Plan(name, faults, ("idempotent", *others), length_s, secured=name in SECURED)
