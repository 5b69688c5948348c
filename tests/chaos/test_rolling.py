"""A whole fleet restarted under load, member by member: applications do not notice."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.demo.kafka import KafkaCluster
from fleet.demo.local_fleet import LocalFleet
from tests.chaos.conftest import PATIENT, Note, Stage
from tests.chaos.manager import Manager
from tests.conftest import fleets

STALL_LIMIT_MS = 5000.0
"""Five times what is promised on a quiet machine."""


@pytest.fixture(params=[3, 5])
def roomy(
    request: pytest.FixtureRequest, fleet: LocalFleet, kafka: KafkaCluster, tmp_path: Path
) -> Iterator[LocalFleet]:
    """A whole fleet of three members, or of five."""
    if request.param == 3:
        yield fleet
        return
    with fleets(kafka, tmp_path / "five") as make:
        yield make(proxies=5, timing=PATIENT)


def test_a_rolling_restart_is_not_noticed_by_applications(
    roomy: LocalFleet, stage: Stage, note: Note
) -> None:
    fleet = roomy
    with stage(fleet) as scene, Manager(fleet, fleet.data) as manager:
        leader, reported = scene.member("leader"), scene.reported()
        lives = {each: fleet.ownership(each).incarnation for each in fleet.members}
        since_s = time.monotonic()
        command = [sys.executable, "-m", "fleet", "rolling-restart", "--config", str(fleet.config), "--json"]
        with subprocess.Popen(
            [*command, "--command", manager.command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            manager.serve_while(lambda: process.poll() is None)
            printed, progress = process.communicate()
        assert process.returncode == 0, progress
        scene.await_flow()

        restarted = json.loads(printed)["members"]
        assert [each["proxy_id"] for each in restarted] == manager.restarted
        assert sorted(manager.restarted) == sorted(fleet.members)
        assert leader == manager.restarted[-1] or restarted[-1]["was_leader"]
        assert all(fleet.ownership(each).incarnation > life for each, life in lives.items())
        assert scene.reported() == reported
        stall_ms, _ = scene.traffic.stalls_ms(since_s, time.monotonic())
        note("a planned move stalled for", stall_ms / 1000.0)
        assert stall_ms < STALL_LIMIT_MS
