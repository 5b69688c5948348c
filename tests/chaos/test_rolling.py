"""A rolling restart of a fleet under load: applications do not notice."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.takeover import Deliveries
from fleet.config.settings import Timing
from fleet.core.model import ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.drills.workload.streams import Traffic
from tests.chaos.conftest import PATIENT_TIMING, Note, StartLoad
from tests.chaos.harness import await_flow, becomes, clients_running
from tests.chaos.manager import Manager
from tests.chaos.seeded.workloads import PARTITIONS, Client
from tests.conftest import fleets

pytestmark = pytest.mark.size("test-all")

OTHER_CLIENTS = ("java", "aiokafka")
"""Client libraries besides librdkafka, each with an idempotent producer and a group."""
RATE_PER_S = 30
"""Records per second of each client. With several times this rate two cores cannot run three brokers, six
clients and five members: partitions stall for a second without any restart."""
CALM_MS, CALM_S = 500.0, 5.0
"""The restart begins after this time without a longer stall of any partition: clients stall shortly after
their start, because the brokers' code is not compiled yet."""
CALM_LIMIT_S = 30.0
"""On a machine that never comes to rest the restart begins anyway. The summary has the earlier stalls."""
STALL_LIMIT_MS = 5000.0
"""Five times the promise on a quiet machine."""


@pytest.fixture
def roomy(pytestconfig: pytest.Config, kafka: KafkaCluster, tmp_path: Path) -> Iterator[LocalFleet]:
    """A whole fleet with default timing: three members, or `--members 5`."""
    proxies = int(pytestconfig.getoption("--members"))
    with fleets(kafka, tmp_path / "fleets") as make:
        yield make(
            proxies=proxies, timing={**PATIENT_TIMING, "rest_after_move_s": Timing().rest_after_move_s}
        )


@pytest.mark.proves("librdkafka", "planned move")
@pytest.mark.proves("Java", "planned move")
@pytest.mark.proves("aiokafka", "planned move")
@pytest.mark.timeout(900)
def test_rolling_restart_is_unnoticed_by_applications(
    roomy: LocalFleet,
    start_load: StartLoad,
    kafka: KafkaCluster,
    make_topic: Callable[..., str],
    tmp_path: Path,
    note: Note,
) -> None:
    fleet = roomy
    others = [
        Client(name, fleet.bootstrap(), make_topic(PARTITIONS), tmp_path / name, rate_per_s=RATE_PER_S)
        for name in OTHER_CLIENTS
    ]
    with (
        start_load(fleet, rate_per_s=RATE_PER_S) as harness,
        clients_running(others, kafka),
        Manager(fleet, fleet.data) as manager,
    ):
        traffics = {"librdkafka": harness.traffic, **{each.name: each.traffic for each in others}}
        # The Java client does not report when it received its records.
        deliveries = {"librdkafka": Deliveries(harness.workload)}
        deliveries |= {each.name: Deliveries(each.workload) for each in others if each.name != "java"}
        calm_s = await_calm(traffics, note)
        for who, each in deliveries.items():
            delivery_ms = each.longest_ms(calm_s - CALM_S, calm_s)
            note(f"before it, the longest delivery of {who} took", delivery_ms / 1000.0)
        reported = harness.reported()
        lives = {each: fleet.ownership(each).incarnation for each in fleet.members}
        since_s = time.monotonic()
        restarted = rolling_restart(fleet, manager)
        harness.await_flow()
        await_flow(others)
        until_s = time.monotonic()

        assert [each["proxy_id"] for each in restarted] == manager.restarted
        assert sorted(manager.restarted) == sorted(fleet.members)
        assert not any(each["was_leader"] for each in restarted[:-1])
        assert all(fleet.ownership(each).incarnation > life for each, life in lives.items())
        assert harness.reported() == reported
        for who, stall_ms in stalls_ms(traffics, since_s):
            note(f"a planned move stalled {who} for", stall_ms / 1000.0)
            assert stall_ms < STALL_LIMIT_MS, who
        for who, each in deliveries.items():
            delivery_ms = each.longest_ms(since_s, until_s)
            note(f"the longest delivery of {who} took", delivery_ms / 1000.0)
            assert delivery_ms < STALL_LIMIT_MS, who


def rolling_restart(
    fleet: LocalFleet, manager: Manager, only: Collection[ProxyId] = ()
) -> list[dict[str, Any]]:
    """The report of `fleet rolling-restart` for some members, or for all."""
    command = [sys.executable, "-m", "fleet", "rolling-restart", "--config", str(fleet.config), "--json"]
    command += [f"--only={each}" for each in only]
    with subprocess.Popen(
        [*command, "--restart-command", manager.command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        manager.serve_while(lambda: process.poll() is None)
        printed, progress = process.communicate()
    assert process.returncode == 0, progress
    members: list[dict[str, Any]] = json.loads(printed)["members"]
    return members


def await_calm(traffics: Mapping[str, Traffic], note: Note) -> float:
    """Wait until no client's partition has stalled for `CALM_MS` within the last `CALM_S`.

    Returns: the time of this moment. Earlier stalls are noted.
    """
    begin_s = time.monotonic()

    def is_calm() -> bool:
        now_s = time.monotonic()
        worst_ms = max(max(each.stalls_ms(now_s - CALM_S, now_s)) for each in traffics.values())
        return now_s - begin_s > CALM_S and worst_ms < CALM_MS

    becomes(is_calm, CALM_LIMIT_S, every_s=0.5)
    calm_s = time.monotonic()
    for who, stall_ms in stalls_ms(traffics, calm_s - CALM_S):
        note(f"before it, what stalled {who} for", stall_ms / 1000.0)
    return calm_s


def stalls_ms(traffics: Mapping[str, Traffic], since_s: float) -> Iterator[tuple[str, float]]:
    """The longest stall of each producer and each group since a moment, by name."""
    until_s = time.monotonic()
    for name, traffic in traffics.items():
        yield from zip((name, f"{name} group"), traffic.stalls_ms(since_s, until_s), strict=True)
