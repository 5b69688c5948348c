"""Attack a fleet under load by hostile clients and a fleet by hostile brokers; check what is left."""

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
from tests.hostile.attack import Attackers, ConnectionTally
from tests.hostile.brokers import hostile_broker_fleet
from tests.hostile.kinds import TIME_LIMITS
from tests.integration.metrics import scrape

MAX_STALL_S: Final = 5.0
"""The longest stall of the checked workload: five times its stall next to 90,000 clients."""
WARM_UP_CONNECTIONS: Final = 400
"""Connections before memory is measured: loading something for the first time is no leak."""
MAX_GROWTH_MB: Final = 32.0
MAX_GROWTH_FDS: Final = 12
SETTLE_TIMEOUT_S: Final = 120.0
# A busy machine must not make members suspect each other.
PATIENT_TIMING: Final = {
    **{"suspect_after_s": 5.0, "overlay_ttl_s": 15.0, "control_grace_s": 30.0},
    **{"probe_interval_s": 3.0, "probe_timeout_s": 3.0, "freeze_timeout_s": 10.0},
}
LIMIT_NAMES: Final = {limit_label(limit): limit for limit in get_args(ConnectionLimit)}
"""Maps the label of a limit in metrics to its name in the configuration and in the log."""
_LOGGED: Final = re.compile(
    r"closing the connection of client (\S+)(?: to \S+)?: .*\((\w+); (\d+) more unlogged\)"
)

Say = Callable[[str], None]


@dataclass
class FleetSample:
    """One fleet at a moment.

    Args:
        rss_mb, fds: sums over all workers.
        errors: connections that the fleet has closed, by reason.
        logged: size of each member's log.
    """

    fleet: LocalFleet
    trees: list[Tree]
    rss_mb: float
    fds: int
    errors: Counter[str]
    logged: dict[ProxyId, int]
    at_s: float

    @classmethod
    def of(cls, fleet: LocalFleet) -> FleetSample:
        trees = [Tree(fleet, each) for each in fleet.members]
        at_s = time.monotonic()
        logged = {each: len(fleet.log(each).read_text(errors="replace")) for each in fleet.members}
        return cls(fleet, trees, rss_mb(trees), fds(trees), closed(fleet), logged, at_s)


def rss_mb(trees: list[Tree]) -> float:
    return round(sum(each.worker.memory_info().rss for each in trees) / 2**20, 1)


def fds(trees: list[Tree]) -> int:
    return sum(each.worker.num_fds() for each in trees)


def closed(fleet: LocalFleet) -> Counter[str]:
    """The number of connections that all members have closed, by reason."""
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
    """The result of hostile connections.

    Args:
        kinds: number of connections of each kind.
        closed: connections that the fleet closed, by the reason that it counted.
        workload: records of the checked workload, and its longest stall.
        rss_mb, fds: of all workers of a fleet, before and after.
        problems: the failed checks.
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

    def take(self, tally: ConnectionTally) -> None:
        self.connections += tally.connections
        self.kinds |= tally.kinds
        self.problems += tally.problems

    def compare(self, name: str, before: FleetSample, expected: Mapping[str, int]) -> None:
        """Check that a fleet is as before, and has counted and logged each closed connection once."""
        fleet = before.fleet

        def has_counted_all() -> bool:
            try:
                now = closed(fleet) - before.errors
            except AdminError:
                return False
            return all(now[each] >= number for each, number in expected.items())

        becomes(has_counted_all, SETTLE_TIMEOUT_S, every_s=0.5)
        now = closed(fleet) - before.errors
        for reason in sorted({*now, *expected}):
            # A busy machine may make other clients exceed a time limit, too.
            is_expected = (
                now[reason] >= expected[reason] if reason in TIME_LIMITS else now[reason] == expected[reason]
            )
            if not is_expected:
                self.problems.append(f"{name}: {reason}: counted={now[reason]} expected={expected[reason]}")
        self.closed = dict(sorted((Counter(self.closed) + now).items()))
        becomes(lambda: fds(before.trees) <= before.fds + MAX_GROWTH_FDS, SETTLE_TIMEOUT_S, every_s=0.5)
        becomes(
            lambda: rss_mb(before.trees) <= before.rss_mb + MAX_GROWTH_MB, SETTLE_TIMEOUT_S / 4, every_s=0.5
        )
        self.rss_mb[name] = [before.rss_mb, rss_mb(before.trees)]
        self.fds[name] = [before.fds, fds(before.trees)]
        if self.rss_mb[name][1] > before.rss_mb + MAX_GROWTH_MB:
            self.problems.append(f"{name}: memory of the workers grew: {self.rss_mb[name]} MB")
        if self.fds[name][1] > before.fds + MAX_GROWTH_FDS:
            self.problems.append(f"{name}: workers hold {self.fds[name]} open files")
        for each in before.trees:
            if not all(process.is_running() for process in each.all_processes):
                self.problems.append(f"{name}: a process of {each.supervisor} was replaced")
        self._read_logs(name, before, expected)

    def _read_logs(self, name: str, before: FleetSample, expected: Mapping[str, int]) -> None:
        took_s = time.monotonic() - before.at_s
        reasons: Counter[str] = Counter()
        for proxy_id in before.fleet.members:
            text = before.fleet.log(proxy_id).read_text(errors="replace")
            if "Traceback" in text:
                self.problems.append(f"{name}: a traceback in the log of {proxy_id}")
            reported = Counter(match.group(2) for match in _LOGGED.finditer(text, before.logged[proxy_id]))
            for reason, lines in reported.items():
                if lines > took_s / LOG_EVERY_S + 1:
                    self.problems.append(f"{name}: the log of {proxy_id} has {lines} lines about {reason}")
            reasons += reported
        self.logged_lines += reasons.total()
        silent = {reason for reason, number in expected.items() if number and not reasons[reason]}
        if silent:
            self.problems.append(f"{name}: no log has a line about {sorted(silent)}")


def ports_of(fleet: LocalFleet) -> list[Endpoint]:
    """The ports of all members: bootstrap, and those of the identities."""
    found = []
    for proxy_id in fleet.members:
        member = fleet.settings.member(proxy_id).to_member(fleet.settings)
        identities = (member.endpoint("external", broker_id) for broker_id in (1, 2, 3))
        found += [fleet.bootstrap_endpoint(proxy_id), *(each for each in identities if each is not None)]
    return found


def clients(
    result: Result, kafka: KafkaCluster, topic: str, folder: Path, connections: int, seed: int, say: Say
) -> None:
    """Send hostile clients to a fleet under load and to a fleet with TLS."""
    authority = Authority(folder / "authority")
    pair = authority.issue("listener")
    tls = {"certificate": str(pair.certificate), "key": str(pair.key)}
    limits = dict(TIME_LIMITS)
    with fleets(kafka, folder) as make:
        fleet = make(3, timing=PATIENT_TIMING, limits=limits)
        secure = make(1, name="secure", timing=PATIENT_TIMING, limits=limits, listener_tls=tls)
        attackers = Attackers(ports_of(fleet), ports_of(secure), seed)
        with under_load(fleet, kafka, topic, folder) as harness:
            attackers.run(range(WARM_UP_CONNECTIONS))
            expected_after_warm_up = {
                name: Counter(tally.expected) for name, tally in attackers.tally.items()
            }
            samples_before = {
                name: _settled(each, expected_after_warm_up[name])
                for name, each in (("plaintext", fleet), ("tls", secure))
            }
            say(f"{WARM_UP_CONNECTIONS} connections to warm up")
            started_s = time.monotonic()
            attackers.run(range(WARM_UP_CONNECTIONS, connections), say)
            harness.await_flow()
            ended_s = time.monotonic()
            stall_ms = max(harness.traffic.stalls_ms(started_s, ended_s))
            harness.check_unmoved(started_s)
            for name, tally in attackers.tally.items():
                result.compare(name, samples_before[name], tally.expected - expected_after_warm_up[name])
                result.take(tally)
            result.problems += [f"the workload received an error: {each}" for each in harness.reported()]
        result.seconds = round(ended_s - started_s, 1)
        result.per_s = round((connections - WARM_UP_CONNECTIONS) / (ended_s - started_s), 1)
        result.workload = {
            "acknowledged": len(harness.workload.acknowledged()),
            "received": len(harness.workload.received()),
            # Else `under_load` has failed.
            **dict.fromkeys(("lost", "duplicated", "reordered"), 0),
            "stall_ms": round(stall_ms, 1),
        }
        if stall_ms > MAX_STALL_S * 1000:
            result.problems.append(f"the workload stalled for {stall_ms:.0f} ms")


def _settled(fleet: LocalFleet, expected: Counter[str]) -> FleetSample:
    """Wait until a fleet has counted the connections so far, and return its state."""
    becomes(lambda: not expected - closed(fleet), SETTLE_TIMEOUT_S, every_s=0.5)
    return FleetSample.of(fleet)


def brokers(result: Result, folder: Path, connections: int, seed: int, say: Say) -> None:
    """Let hostile brokers answer the requests of a fleet."""
    with hostile_broker_fleet(folder) as broker_fleet:
        broker_fleet.run(range(WARM_UP_CONNECTIONS // 4), seed)
        expected_after_warm_up = Counter(broker_fleet.tally.expected)
        becomes(
            lambda: not expected_after_warm_up - closed(broker_fleet.fleet), SETTLE_TIMEOUT_S, every_s=0.5
        )
        before = FleetSample.of(broker_fleet.fleet)
        broker_fleet.run(range(WARM_UP_CONNECTIONS // 4, connections), seed + 1)
        say(f"{connections} connections to hostile brokers")
        result.compare("hostile brokers", before, broker_fleet.tally.expected - expected_after_warm_up)
        result.take(broker_fleet.tally)
        result.others_answered = broker_fleet.answered
