"""Hostile clients against a fleet at work, hostile brokers behind another; and what is left of it all."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, get_args

from fleet.admin.metrics import limit_label
from fleet.core.errors import AdminError, ConnectionLimit
from fleet.core.model import Endpoint, ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.proxy.counters import LOG_EVERY_S
from tests.certificates import Authority
from tests.chaos.harness import becomes, under_load
from tests.chaos.trees import Tree
from tests.conftest import fleets
from tests.hostile.attack import Attackers, Told
from tests.hostile.brokers import hostile_ground
from tests.hostile.kinds import TIME_LIMITS
from tests.integration.metrics import scrape

STALL_LIMIT_S: Final = 5.0
"""What the checked workload may stand still for: five times what it did beside 90,000 clients."""
WARM_UP: Final = 400
"""Connections, before memory is looked at: what was never loaded is no leak."""
MORE_MB: Final = 32.0
MORE_FDS: Final = 12
SETTLED_LIMIT_S: Final = 120.0
# Nobody is to be taken for dead because the machine is busy.
PATIENT: Final = {
    **{"suspect_after_s": 5.0, "overlay_ttl_s": 15.0, "control_grace_s": 30.0},
    **{"probe_interval_s": 3.0, "probe_timeout_s": 3.0, "freeze_timeout_s": 10.0},
}
LIMIT_NAMES: Final = {limit_label(limit): limit for limit in get_args(ConnectionLimit)}
"""Label of a limit in metrics → its name in the configuration and in the log."""
_LOGGED: Final = re.compile(
    r"closing the connection of client (\S+)(?: to \S+)?: .*\((\w+); (\d+) more unlogged\)"
)

Say = Callable[[str], None]


@dataclass
class Seen:
    """One fleet at a moment.

    Args: rss_mb, fds: of all workers together; errors: connections that it has closed; logged: how much.
    """

    fleet: LocalFleet
    trees: list[Tree]
    rss_mb: float
    fds: int
    errors: Counter[str]
    logged: dict[ProxyId, int]
    at_s: float

    @classmethod
    def of(cls, fleet: LocalFleet) -> Seen:
        trees = [Tree(fleet, each) for each in fleet.members]
        at_s = time.monotonic()
        logged = {each: len(fleet.log(each).read_text(errors="replace")) for each in fleet.members}
        return cls(fleet, trees, rss_mb(trees), fds(trees), closed(fleet), logged, at_s)


def rss_mb(trees: list[Tree]) -> float:
    return round(sum(each.worker.memory_info().rss for each in trees) / 2**20, 1)


def fds(trees: list[Tree]) -> int:
    return sum(each.worker.num_fds() for each in trees)


def closed(fleet: LocalFleet) -> Counter[str]:
    """How many connections all members have closed, by reason."""
    found: Counter[str] = Counter()
    for proxy_id in fleet.members:
        samples = scrape(fleet, proxy_id)
        for labels, number in samples["fleet_protocol_errors_total"]:
            found[labels["reason"]] += int(number)
        for labels, number in samples["fleet_connections_limited_total"]:
            found[LIMIT_NAMES[labels["limit"]]] += int(number)
    return found


@dataclass
class Result:
    """What came of so many hostile connections.

    Args:
        kinds: how many of each.
        closed: by the fleet, by the reason that it was counted under.
        workload: what was checked meanwhile: records, and its longest stall.
        rss_mb, fds: of all workers of a fleet, before and after.
        problems: what was not as it should be.
    """

    connections: int = 0
    seconds: float = 0.0
    per_s: float = 0.0
    seed: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    closed: dict[str, int] = field(default_factory=dict)
    workload: dict[str, float] = field(default_factory=dict)
    rss_mb: dict[str, list[float]] = field(default_factory=dict)
    fds: dict[str, list[int]] = field(default_factory=dict)
    logged_lines: int = 0
    others_answered: int = 0
    problems: list[str] = field(default_factory=list)

    def take(self, told: Told) -> None:
        self.connections += told.connections
        self.kinds |= told.kinds
        self.problems += told.problems

    def compare(self, name: str, before: Seen, expected: Mapping[str, int]) -> None:
        """Whether a fleet is as it was, and has counted and logged what it closed, each once."""
        fleet = before.fleet

        def counted() -> bool:
            try:
                now = closed(fleet) - before.errors
            except AdminError:
                return False
            return all(now[each] >= number for each, number in expected.items())

        becomes(counted, SETTLED_LIMIT_S, every_s=0.5)
        now = closed(fleet) - before.errors
        for reason in sorted({*now, *expected}):
            # Others may be late, too, where the machine is busy.
            right = (
                now[reason] >= expected[reason] if reason in TIME_LIMITS else now[reason] == expected[reason]
            )
            if not right:
                self.problems.append(f"{name}: {now[reason]} of {expected[reason]} are counted as {reason}")
        self.closed = dict(sorted((Counter(self.closed) + now).items()))
        becomes(lambda: fds(before.trees) <= before.fds + MORE_FDS, SETTLED_LIMIT_S, every_s=0.5)
        becomes(lambda: rss_mb(before.trees) <= before.rss_mb + MORE_MB, SETTLED_LIMIT_S / 4, every_s=0.5)
        self.rss_mb[name] = [before.rss_mb, rss_mb(before.trees)]
        self.fds[name] = [before.fds, fds(before.trees)]
        if self.rss_mb[name][1] > before.rss_mb + MORE_MB:
            self.problems.append(f"{name}: workers have grown from {self.rss_mb[name]} MB")
        if self.fds[name][1] > before.fds + MORE_FDS:
            self.problems.append(f"{name}: workers hold {self.fds[name]} files")
        for each in before.trees:
            if not all(process.is_running() for process in each.everyone):
                self.problems.append(f"{name}: a process of {each.supervisor} is another one")
        self._read_logs(name, before, expected)

    def _read_logs(self, name: str, before: Seen, expected: Mapping[str, int]) -> None:
        took_s = time.monotonic() - before.at_s
        reasons: Counter[str] = Counter()
        for proxy_id in before.fleet.members:
            text = before.fleet.log(proxy_id).read_text(errors="replace")
            if "Traceback" in text:
                self.problems.append(f"{name}: a traceback in the log of {proxy_id}")
            here = Counter(match.group(2) for match in _LOGGED.finditer(text, before.logged[proxy_id]))
            for reason, lines in here.items():
                if lines > took_s / LOG_EVERY_S + 1:
                    self.problems.append(f"{name}: {lines} lines of {proxy_id} tell of {reason}")
            reasons += here
        self.logged_lines += reasons.total()
        silent = {reason for reason, number in expected.items() if number and not reasons[reason]}
        if silent:
            self.problems.append(f"{name}: no line of any log tells of {sorted(silent)}")


def ports_of(fleet: LocalFleet) -> list[Endpoint]:
    """Of all members: the bootstrap port, and those of the identities."""
    found = []
    for proxy_id in fleet.members:
        member = fleet.settings.member(proxy_id).to_member(fleet.settings)
        identities = (member.endpoint("external", broker_id) for broker_id in (1, 2, 3))
        found += [fleet.bootstrap_endpoint(proxy_id), *(each for each in identities if each is not None)]
    return found


def clients(
    result: Result, kafka: KafkaCluster, topic: str, folder: Path, connections: int, seed: int, say: Say
) -> None:
    """Hostile clients, to a fleet under load and to one with TLS."""
    authority = Authority(folder / "authority")
    pair = authority.issue("listener")
    tls = {"certificate": str(pair.certificate), "key": str(pair.key)}
    limits = dict(TIME_LIMITS)
    with fleets(kafka, folder) as make:
        fleet = make(3, timing=PATIENT, limits=limits)
        secure = make(1, name="secure", timing=PATIENT, limits=limits, listener_tls=tls)
        attackers = Attackers(ports_of(fleet), ports_of(secure), seed)
        with under_load(fleet, kafka, topic, folder) as scene:
            attackers.run(range(WARM_UP))
            warm = {name: Counter(told.expected) for name, told in attackers.told.items()}
            befores = {
                name: _settled(each, warm[name]) for name, each in (("plaintext", fleet), ("tls", secure))
            }
            say(f"{WARM_UP} connections to warm up")
            began_s = time.monotonic()
            attackers.run(range(WARM_UP, connections), say)
            scene.await_flow()
            ended_s = time.monotonic()
            stall_ms = max(scene.traffic.stalls_ms(began_s, ended_s))
            scene.nothing_moves(began_s)
            for name, told in attackers.told.items():
                result.compare(name, befores[name], told.expected - warm[name])
                result.take(told)
            result.problems += [f"the workload was told: {each}" for each in scene.reported()]
        result.seconds = round(ended_s - began_s, 1)
        result.per_s = round((connections - WARM_UP) / (ended_s - began_s), 1)
        result.workload = {
            "acknowledged": len(scene.workload.acknowledged()),
            "received": len(scene.workload.received()),
            # Else `under_load` has failed.
            **dict.fromkeys(("lost", "duplicated", "reordered"), 0),
            "stall_ms": round(stall_ms, 1),
        }
        if stall_ms > STALL_LIMIT_S * 1000:
            result.problems.append(f"the workload stood still for {stall_ms:.0f} ms")


def _settled(fleet: LocalFleet, expected: Counter[str]) -> Seen:
    """How a fleet is, once it has counted what there was so far."""
    becomes(lambda: not expected - closed(fleet), SETTLED_LIMIT_S, every_s=0.5)
    return Seen.of(fleet)


def brokers(result: Result, folder: Path, connections: int, seed: int, say: Say) -> None:
    """Hostile brokers."""
    with hostile_ground(folder) as ground:
        ground.run(range(WARM_UP // 4), seed)
        warm = Counter(ground.told.expected)
        becomes(lambda: not warm - closed(ground.fleet), SETTLED_LIMIT_S, every_s=0.5)
        before = Seen.of(ground.fleet)
        ground.run(range(WARM_UP // 4, connections), seed + 1)
        say(f"{connections} connections to hostile brokers")
        result.compare("hostile brokers", before, ground.told.expected - warm)
        result.take(ground.told)
        result.others_answered = ground.answered
