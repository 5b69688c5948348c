"""Selected plans of the seeded chaos runs, checked by the checker; see `tests.chaos.seeded`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from fleet.drills.cluster.kafka import KafkaCluster
from tests.chaos.seeded.run import ENOUGH, SharedServers, perform, toxiproxy
from tests.chaos.seeded.schedule import CHOSEN, chosen

pytestmark = pytest.mark.size("test-all")


@pytest.fixture(scope="module")
def ground(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedServers]:
    with toxiproxy(tmp_path_factory.mktemp("seeded")) as network:
        yield SharedServers(kafka, network, kafka.endpoints)


@pytest.mark.proves("librdkafka", "consumer group", "transactions", "takeover", "silence", "broker fails")
@pytest.mark.proves("Java", "share group", "silence", "broker fails")
@pytest.mark.proves("aiokafka", "silence", "broker fails")
@pytest.mark.parametrize("name", CHOSEN)
async def test_a_chosen_plan_breaks_no_promise(ground: SharedServers, tmp_path: Path, name: str) -> None:
    plan = chosen(name)
    result = await perform(plan, ground, tmp_path, partial(print, file=sys.stderr))
    assert result.violations == ()
    assert sorted(result.faults) == sorted(fault.kind for fault in plan.faults)
    assert set(result.noticed) == set(plan.workloads)
    too_few = {
        name: each.acknowledged for name, each in result.noticed.items() if each.acknowledged <= ENOUGH
    }
    assert too_few == {}
    assert (tmp_path / "history.jsonl").stat().st_size > 0
    outages = [
        fault for fault in plan.faults if fault.kind in ("kill_member", "freeze_member", "blackhole_member")
    ]
    assert len(result.takeovers_ms) == len(outages)
