"""`fleet chaos` on a fleet that runs, as an operator holds a game day: what it does, and what it says."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from fleet.demo.kafka import KafkaCluster
from fleet.demo.local_fleet import LocalFleet
from tests.chaos.manager import Manager

TAKEOVER_LIMIT_S = 7.5
"""Five times what is promised on a quiet machine."""


@dataclass(frozen=True)
class Held:
    """One that is over: its exit code, the object that it has printed, and its progress."""

    code: int
    printed: dict[str, Any]
    progress: str


Hold = Callable[..., Held]


@pytest.fixture
def manager(fleet: LocalFleet, tmp_path: Path) -> Manager:
    return Manager(fleet, tmp_path)


@pytest.fixture
def hold(fleet: LocalFleet, manager: Manager) -> Hold:
    """Holds a game day, and has the manager do what its commands say."""

    def run(scenario: str, **options: str) -> Held:
        fixed = {
            "config": str(fleet.config),
            "scenario": scenario,
            "calm": "1",
            "takeover-limit": str(TAKEOVER_LIMIT_S),
            "limit-s": "120",
        }
        arguments = [part for name, value in {**fixed, **options}.items() for part in (f"--{name}", value)]
        command = [sys.executable, "-m", "fleet", "chaos", "--yes", "--json", *arguments]
        with (
            manager,
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
            ) as process,
        ):
            manager.serve_while(lambda: process.poll() is None)
            printed, progress = process.communicate()
        return Held(process.returncode, json.loads(printed), progress)

    return run


def kill_command(fleet: LocalFleet, folder: Path) -> str:
    """SIGKILL to the whole process group of a member, by the name that is put in."""
    for proxy_id in fleet.members:
        (folder / f"{proxy_id}.pid").write_text(str(fleet.pid(proxy_id)))
    script = f"kill -KILL -$(cat {shlex.quote(str(folder))}/{{proxy_id}}.pid)"
    return shlex.join(["sh", "-c", script])


def topics(kafka: KafkaCluster) -> list[str]:
    listed = AdminClient({"bootstrap.servers": kafka.bootstrap_servers}).list_topics(timeout=10).topics
    return [topic for topic in listed if topic.startswith("fleet-chaos-")]


def test_a_leader_that_is_killed_is_taken_over_and_drawn(
    fleet: LocalFleet, kafka: KafkaCluster, manager: Manager, hold: Hold, tmp_path: Path
) -> None:
    leader = fleet.leader()
    picture = tmp_path / "day.svg"
    held = hold(
        "leader-kill",
        **{"break": kill_command(fleet, tmp_path), "mend": manager.command_to("start")},
        duration="2",
        picture=str(picture),
    )
    assert held.code == 0, held.progress
    fault, records = held.printed["fault"], held.printed["records"]
    assert (held.printed["kept"], held.printed["violations"]) == (True, [])
    assert (fault["victim"], fault["was_leader"]) == (leader, True)
    assert manager.restarted == [leader]
    assert f"{leader} does not answer, and is given up by " in fault["proof"]
    assert 0 < fault["takeover_ms"] < TAKEOVER_LIMIT_S * 1000.0
    assert records["received"] == records["acknowledged"] > 0
    assert (records["lost"], records["duplicated"], records["reordered"], records["refused"]) == (0, 0, 0, 0)
    assert topics(kafka) == []

    marks = set(re.findall(r'id="([^"]+)"', picture.read_text()))
    survivors = [each for each in fleet.members if each != leader]
    (owned,) = {mark.split("-")[1] for mark in marks if re.fullmatch(f"advertised-.*-{leader}", mark)}
    assert any(f"advertised-{owned}-{each}" in marks for each in survivors)
    assert any(f"committed-{owned}-{each}" in marks for each in survivors)
    assert {"fault", "whole"} <= marks


def test_a_drain_is_not_noticed(fleet: LocalFleet, kafka: KafkaCluster, hold: Hold) -> None:
    """And Spark says so, too."""
    held = hold("drain", duration="1", audit="spark")
    assert held.code == 0, held.progress
    records = held.printed["records"]
    assert (records["audited_by"], records["received"]) == ("spark", records["acknowledged"])
    assert (records["lost"], records["duplicated"], records["reordered"]) == (0, 0, 0)
    fault = held.printed["fault"]
    assert f"{fault['victim']} is drained, and owns nothing any more, as all 3 members say" == fault["proof"]
    assert fault["takeover_limit_ms"] is None
    assert (held.printed["violations"], held.printed["records"]["refused"]) == ([], 0)
    assert not any(each.drained for each in fleet.ownership(fault["victim"]).members)
    assert topics(kafka) == []


def test_a_command_that_does_nothing_fails_the_run(
    fleet: LocalFleet, kafka: KafkaCluster, hold: Hold, tmp_path: Path
) -> None:
    lives = {each: fleet.ownership(each).incarnation for each in fleet.members}
    mended = tmp_path / "mended"
    held = hold("follower-kill", **{"break": "true", "mend": f"touch {mended}-{{proxy_id}}"})
    assert (held.code, held.printed["error"]["kind"]) == (1, "game_day")
    assert "--break has had no effect that can be seen" in held.printed["error"]["message"]
    assert "answers clients as before, in the same life" in held.printed["error"]["message"]
    assert len(list(tmp_path.glob("mended-*"))) == 1
    assert "the fleet is whole and at rest" in held.progress
    assert {each: fleet.ownership(each).incarnation for each in fleet.members} == lives
    assert topics(kafka) == []
