"""`fleet game-day` on a running fleet, as an operator uses it: its effects and its output."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from fleet.core.model import ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.chaos.conftest import PATIENT_TIMING
from tests.chaos.harness import is_fully_linked, wait_for
from tests.chaos.manager import Manager
from tests.chaos.network import surrounded_fleet

pytestmark = pytest.mark.size("test-all")

TAKEOVER_LIMIT_S = 7.5
"""Five times the promise on a quiet machine."""


@dataclass(frozen=True)
class FinishedGameDay:
    """A finished game day: its exit code, its JSON object, and its progress lines."""

    code: int
    printed: dict[str, Any]
    progress: str


ByHand = Callable[[str], None]
Hold = Callable[..., FinishedGameDay]


def game_day(
    fleet: LocalFleet,
    manager: Manager,
    folder: Path,
    scenario: str,
    options: Mapping[str, str],
    by_hand: ByHand = lambda progress: None,
) -> FinishedGameDay:
    """Run a game day. The manager carries out its commands.

    Args:
        by_hand: called repeatedly during the run, with the progress so far.
    """
    fixed = {
        "config": str(fleet.config),
        "scenario": scenario,
        "settle": "1",
        "rate": "10",
        "takeover-timeout": str(TAKEOVER_LIMIT_S),
        "timeout": "120",
    }
    arguments = [part for name, value in {**fixed, **options}.items() for part in (f"--{name}", value)]
    command = [sys.executable, "-m", "fleet", "game-day", "--yes", "--json", *arguments]
    printed, progress = folder / "printed", folder / "progress"
    with (
        manager,
        printed.open("w") as out,
        progress.open("w") as err,
        subprocess.Popen(command, stdout=out, stderr=err, stdin=subprocess.DEVNULL) as process,
    ):

        def is_running() -> bool:
            by_hand(progress.read_text())
            return process.poll() is None

        manager.serve_while(is_running)
    return FinishedGameDay(process.returncode, json.loads(printed.read_text()), progress.read_text())


@pytest.fixture
def manager(fleet: LocalFleet, tmp_path: Path) -> Manager:
    return Manager(fleet, tmp_path)


@pytest.fixture
def hold(fleet: LocalFleet, manager: Manager, tmp_path: Path) -> Hold:
    """Runs a game day on the fleet that tests share."""

    def run(scenario: str, by_hand: ByHand = lambda progress: None, **options: str) -> FinishedGameDay:
        return game_day(fleet, manager, tmp_path, scenario, options, by_hand)

    return run


def signal_command(fleet: LocalFleet, folder: Path, name: str) -> str:
    """A command template that sends a signal to the whole process group of a member."""
    for proxy_id in fleet.members:
        (folder / f"{proxy_id}.pid").write_text(str(fleet.pid(proxy_id)))
    script = f"kill -{name} -$(cat {shlex.quote(str(folder))}/{{proxy_id}}.pid)"
    return shlex.join(["sh", "-c", script])


def check_no_loss(game_day_result: FinishedGameDay) -> None:
    """Check that all promises were kept, and that clients received records."""
    records = game_day_result.printed["records"]
    assert game_day_result.code == 0, game_day_result.progress
    assert (game_day_result.printed["kept"], game_day_result.printed["violations"]) == (True, [])
    assert records["received"] == records["acknowledged"] > 0
    assert (records["lost"], records["duplicated"], records["reordered"], records["refused"]) == (0, 0, 0, 0)


def check_takeover(
    game_day_result: FinishedGameDay, victim: ProxyId, fleet: LocalFleet, picture: Path
) -> None:
    """Check that others took over from a member, in the report and in the picture."""
    fault = game_day_result.printed["fault"]
    survivors = [each for each in fleet.members if each != victim]
    assert fault["victim"] == victim
    assert fault["proof"] == f"{victim} does not answer, and is suspect or down for {', '.join(survivors)}"
    assert 0 < fault["takeover_ms"] < TAKEOVER_LIMIT_S * 1000.0
    marks = mark_ids(picture)
    (owned,) = {mark.split("-")[1] for mark in marks if re.fullmatch(f"advertised-.*-{victim}", mark)}
    assert any(f"advertised-{owned}-{each}" in marks for each in survivors)
    assert any(f"committed-{owned}-{each}" in marks for each in survivors)
    assert {"fault", "whole"} <= marks


def mark_ids(picture: Path) -> set[str]:
    """The ids of all marks in the picture."""
    return set(re.findall(r'id="([^"]+)"', picture.read_text()))


def incarnations(fleet: LocalFleet) -> dict[ProxyId, int]:
    return {each: fleet.ownership(each).incarnation for each in fleet.members}


def check_topics_deleted(kafka: KafkaCluster) -> None:
    """Check that no topic of a game day is left. Brokers learn of a deletion a moment later."""
    wait_for(lambda: game_day_topics(kafka) == [], "the deletion of the topic")


def game_day_topics(kafka: KafkaCluster) -> list[str]:
    listed = AdminClient({"bootstrap.servers": kafka.bootstrap_servers}).list_topics(timeout=10).topics
    return [topic for topic in listed if topic.startswith("fleet-chaos-")]


def test_killed_leader_is_taken_over_and_drawn(
    fleet: LocalFleet, kafka: KafkaCluster, manager: Manager, hold: Hold, tmp_path: Path
) -> None:
    leader = fleet.leader()
    assert leader is not None
    picture = tmp_path / "day.svg"
    game_day_result = hold(
        "leader-kill",
        **{
            "inject-command": signal_command(fleet, tmp_path, "KILL"),
            "heal-command": manager.command_to("start"),
        },
        duration="2",
        picture=str(picture),
    )
    check_no_loss(game_day_result)
    check_takeover(game_day_result, leader, fleet, picture)
    assert game_day_result.printed["fault"]["was_leader"]
    assert manager.restarted == [leader]
    check_topics_deleted(kafka)


def test_frozen_leader_is_taken_over_and_keeps_its_incarnation(
    fleet: LocalFleet, kafka: KafkaCluster, hold: Hold, tmp_path: Path
) -> None:
    leader = fleet.leader()
    assert leader is not None
    lives = incarnations(fleet)
    picture = tmp_path / "day.svg"
    game_day_result = hold(
        "leader-freeze",
        **{
            "inject-command": signal_command(fleet, tmp_path, "STOP"),
            "heal-command": signal_command(fleet, tmp_path, "CONT"),
        },
        duration="2",
        picture=str(picture),
    )
    check_no_loss(game_day_result)
    check_takeover(game_day_result, leader, fleet, picture)
    assert game_day_result.printed["fault"]["was_leader"]
    assert incarnations(fleet) == lives
    check_topics_deleted(kafka)


@pytest.mark.size("test-long")
def test_blackholed_member_keeps_its_incarnation(kafka: KafkaCluster, tmp_path: Path) -> None:
    """Toxiproxy is the black hole. The test proves that it swallows before the healing, too."""
    picture = tmp_path / "day.svg"
    healed: list[ProxyId] = []
    with surrounded_fleet(kafka, tmp_path, PATIENT_TIMING) as (fleet, fleet_network):
        fleet.await_settled(frozenset(kafka.brokers))
        wait_for(lambda: is_fully_linked(fleet), "every link")

        def heal(victim: ProxyId) -> None:
            fleet_network.prove_black(victim)
            fleet_network.heal()
            healed.append(victim)

        manager = Manager(
            fleet, tmp_path, {"swallow": partial(fleet_network.swallow, direction="both"), "heal": heal}
        )
        lives, leader, since_s = incarnations(fleet), fleet.leader(), time.monotonic()
        game_day_result = game_day(
            fleet,
            manager,
            tmp_path,
            "blackhole",
            {
                "inject-command": manager.command_to("swallow"),
                "heal-command": manager.command_to("heal"),
                "duration": "2",
                "picture": str(picture),
            },
        )
        check_no_loss(game_day_result)
        (victim,) = healed
        assert victim != leader
        check_takeover(game_day_result, victim, fleet, picture)
        for survivor in set(fleet.members) - {victim}:
            takeovers = fleet.ownership(survivor).takeovers
            assert [each.proxy_id for each in takeovers if each.detected_mono_s >= since_s] == [victim]
        assert incarnations(fleet) == lives
    check_topics_deleted(kafka)


@pytest.mark.size("test-long")
@pytest.mark.timeout(900)
def test_rolling_restart_is_unnoticed_and_drawn(
    fleet: LocalFleet, kafka: KafkaCluster, manager: Manager, hold: Hold, tmp_path: Path
) -> None:
    lives = incarnations(fleet)
    picture = tmp_path / "day.svg"
    game_day_result = hold("rolling-restart", **{"restart-command": manager.command}, picture=str(picture))
    check_no_loss(game_day_result)
    fault = game_day_result.printed["fault"]
    order = ", ".join(manager.restarted)
    assert fault["proof"] == f"restarted, one after the other: {order}"
    assert sorted(manager.restarted) == sorted(fleet.members)
    assert all(life > lives[each] for each, life in incarnations(fleet).items())
    # The leader restarts last. The former leader may no longer lead at its turn.
    leads = f"{manager.restarted[-1]}: restarting, the Raft leader"
    assert leads in [each["what"] for each in game_day_result.printed["steps"]]
    assert (fault["victim"], fault["takeover_ms"]) == (None, None)
    assert fault["at_s"] < fault["until_s"] <= fault["whole_s"] < game_day_result.printed["lasted_s"]
    assert game_day_result.printed["errors"] == []

    marks = mark_ids(picture)
    for broker_id in kafka.brokers:
        owners = {each for each in fleet.members if f"advertised-{broker_id}-{each}" in marks}
        assert len(owners) > 1
        assert f"advertised-{broker_id}-nobody" not in marks
        assert {each for each in fleet.members if f"committed-{broker_id}-{each}" in marks} == owners
    assert {"fault", "whole"} <= marks
    check_topics_deleted(kafka)


def test_watch_scenario_reports_faults_made_by_hand(
    fleet: LocalFleet, kafka: KafkaCluster, hold: Hold
) -> None:
    victim = next(each for each in fleet.members if each != fleet.leader())
    lives = incarnations(fleet)
    killed: list[ProxyId] = []

    def kill_and_restart(progress: str) -> None:
        if not killed and "watching for 5 s; break something by hand" in progress:
            fleet.kill(victim)
            killed.append(victim)
        if victim not in fleet.running and f"{victim} does not answer" in progress:
            fleet.start(victim)

    game_day_result = hold("watch", by_hand=kill_and_restart, duration="5")
    check_no_loss(game_day_result)
    assert game_day_result.printed["fault"] is None
    assert any(
        each["what"].startswith(f"{victim} does not answer") for each in game_day_result.printed["steps"]
    )
    assert [each for each, life in incarnations(fleet).items() if life > lives[each]] == [victim]
    check_topics_deleted(kafka)


@pytest.mark.size("test-long")
def test_drain_is_unnoticed_by_clients(fleet: LocalFleet, kafka: KafkaCluster, hold: Hold) -> None:
    """Spark confirms the audit."""
    game_day_result = hold("drain", duration="1", audit="spark")
    assert game_day_result.code == 0, game_day_result.progress
    records = game_day_result.printed["records"]
    assert (records["audited_by"], records["received"]) == ("spark", records["acknowledged"])
    assert (records["lost"], records["duplicated"], records["reordered"]) == (0, 0, 0)
    fault = game_day_result.printed["fault"]
    assert fault["proof"] == f"{fault['victim']} is drained and owns nothing: reported by all 3 members"
    assert fault["takeover_limit_ms"] is None
    assert (game_day_result.printed["violations"], game_day_result.printed["records"]["refused"]) == ([], 0)
    assert not any(each.drained for each in fleet.ownership(fault["victim"]).members)
    check_topics_deleted(kafka)


def test_command_that_does_nothing_fails_the_run(
    fleet: LocalFleet, kafka: KafkaCluster, hold: Hold, tmp_path: Path
) -> None:
    lives = incarnations(fleet)
    healed = tmp_path / "healed"
    game_day_result = hold(
        "follower-kill", **{"inject-command": "true", "heal-command": f"touch {healed}-{{proxy_id}}"}
    )
    assert (game_day_result.code, game_day_result.printed["error"]["kind"]) == (1, "game_day")
    assert "--inject-command had no visible effect" in game_day_result.printed["error"]["message"]
    assert "still answers clients, and has not restarted" in game_day_result.printed["error"]["message"]
    assert len(list(tmp_path.glob("healed-*"))) == 1
    assert "the fleet is whole and at rest" in game_day_result.progress
    assert incarnations(fleet) == lives
    check_topics_deleted(kafka)
