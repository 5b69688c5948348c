"""A fleet whose data plane is compiled by mypyc; see also `tests/compiled`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from fleet.core.model import Addressing
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.runtime.child import MODULES
from tests.conftest import IMPATIENT
from tests.integration.clients import Load, count
from tools import compiled

MakeTopic = Callable[..., str]

pytestmark = [pytest.mark.size("test-all"), pytest.mark.timeout(600)]


@pytest.mark.parametrize("addressing", ["identity_ports", "shared"])
def test_compiled_fleet_takes_over(
    kafka: KafkaCluster, tmp_path: Path, make_topic: MakeTopic, addressing: Addressing
) -> None:
    fleet = LocalFleet(tmp_path, kafka.endpoints, 3, timing=IMPATIENT, addressing=addressing)
    topic = make_topic()
    fleet.through = dict.fromkeys(fleet.members, compiled.launcher())
    with fleet:
        fleet.await_settled(frozenset(kafka.brokers))
        assert all(is_compiled(worker) for each in fleet.members for worker in workers(fleet, each))
        with Load(fleet.bootstrap(), topic) as load:
            fleet.kill(fleet.members[0])
            load.await_flow()
    assert load.failures == []
    assert load.acknowledged == count(kafka.bootstrap_servers, topic)


def workers(fleet: LocalFleet, proxy_id: str) -> list[psutil.Process]:
    children = psutil.Process(fleet.pid(proxy_id)).children(recursive=True)
    found = [each for each in children if MODULES["worker"] in each.cmdline()]
    assert found
    return found


def is_compiled(process: psutil.Process) -> bool:
    """Whether a process has loaded the library of the compiled modules."""
    return any(Path(each.path).match("*__mypyc.*.so") for each in process.memory_maps())
