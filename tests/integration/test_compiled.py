"""The data plane that mypyc has compiled does what the source says.

Found so, before it was shipped: mypyc takes the bound of `for _ in range(count)` anew in each turn, so that a
`count` which is set within the loop ends it at the wrong place. DescribeConfigs responses were cut short.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil
import pytest

from fleet.demo.kafka import KafkaCluster
from fleet.demo.local_fleet import LocalFleet
from fleet.process import MODULES
from tests.conftest import IMPATIENT
from tests.integration.clients import Load, count
from tools import compiled
from tools.bootstrap import ROOT

UNIT: Final = (
    *(
        "addresses",
        "admission",
        "guard",
        "patience",
        "quota",
        "server_names",
        "session",
        "tcp",
        "ticks",
        "traffic",
        "upstream",
    ),
    *(f"wire_{each}" for each in ("api_versions", "configs", "coordinators", "heartbeats", "primitives")),
    *("wire_requests", "worker"),
)
PROPERTY: Final = ("fetch_shapes", "patch", "produce_shapes", "session", "stream", "tail")
"""The tests of what is compiled, and of what it is called by."""
MakeTopic = Callable[..., str]

pytestmark = pytest.mark.timeout(600)


def test_it_passes_the_tests_of_its_modules() -> None:
    tests = [
        f"tests/{folder}/test_{name}.py"
        for folder, names in (("unit", UNIT), ("property", PROPERTY))
        for name in names
    ]
    options = ("-q", "-p", "no:cacheprovider", "-o", f"pythonpath={compiled.build()} {ROOT}")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]


def test_a_fleet_takes_over_with_it(kafka: KafkaCluster, tmp_path: Path, make_topic: MakeTopic) -> None:
    fleet, topic = LocalFleet(tmp_path, kafka.endpoints, 3, timing=IMPATIENT), make_topic()
    fleet.through = dict.fromkeys(fleet.members, compiled.through())
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
    """Whether a process has loaded the library that all of it is in."""
    return any(Path(each.path).match("*__mypyc.*.so") for each in process.memory_maps())
