"""`fleet game-day` on a fleet that runs, as an operator holds a game day: what it does, and what it says."""

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
from tests.chaos.conftest import PATIENT
from tests.chaos.harness import is_whole, wait_for
from tests.chaos.manager import Manager
from tests.chaos.network import surrounded_fleet

pytestmark = pytest.mark.size("test-all")

TAKEOVER_LIMIT_S = 7.5
"""Five times what is promised on a quiet machine."""


@dataclass(frozen=True)
class Held:
    """One that is over: its exit code, the object that it has printed, and its progress."""

    code: int
    printed: dict[str, Any]
    progress: str


ByHand = Callable[[str], None]
Hold = Callable[..., Held]


def game_day(
    fleet: LocalFleet,
    manager: Manager,
    folder: Path,
    scenario: str,
    options: Mapping[str, str],
    by_hand: ByHand = lambda said: None,
) -> Held:
    """Hold one, and have the manager do what its commands say.

    Args:
        by_hand: called again and again meanwhile, with the progress so far.
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

        def lasts() -> bool:
            by_hand(progress.read_text())
            return process.poll() is None

        manager.serve_while(lasts)
    return Held(process.returncode, json.loads(printed.read_text()), progress.read_text())


@pytest.fixture
def manager(fleet: LocalFleet, tmp_path: Path) -> Manager:
    return Manager(fleet, tmp_path)


@pytest.fixture
def hold(fleet: LocalFleet, manager: Manager, tmp_path: Path) -> Hold:
    """Holds a game day on the fleet of all tests."""

    def run(scenario: str, by_hand: ByHand = lambda said: None, **options: str) -> Held:
        return game_day(fleet, manager, tmp_path, scenario, options, by_hand)

    return run


def signal_command(fleet: LocalFleet, folder: Path, name: str) -> str:
    """A signal to the whole process group of a member, by the name that is put in."""
    for proxy_id in fleet.members:
        (folder / f"{proxy_id}.pid").write_text(str(fleet.pid(proxy_id)))
    script = f"kill -{name} -$(cat {shlex.quote(str(folder))}/{{proxy_id}}.pid)"
    return shlex.join(["sh", "-c", script])


def nothing_was_lost(held: Held) -> None:
    """All promises were kept, and there were records to keep them of."""
    records = held.printed["records"]
    assert held.code == 0, held.progress
    assert (held.printed["kept"], held.printed["violations"]) == (True, [])
    assert records["received"] == records["acknowledged"] > 0
    assert (records["lost"], records["duplicated"], records["reordered"], records["refused"]) == (0, 0, 0, 0)


def others_took_over(held: Held, victim: ProxyId, fleet: LocalFleet, picture: Path) -> None:
    """A member was given up, and others advertised and committed in its place; it is drawn, too."""
    fault = held.printed["fault"]
    survivors = [each for each in fleet.members if each != victim]
    assert fault["victim"] == victim
    assert fault["proof"] == f"{victim} does not answer, and is given up by {', '.join(survivors)}"
    assert 0 < fault["takeover_ms"] < TAKEOVER_LIMIT_S * 1000.0
    marks = marks_of(picture)
    (owned,) = {mark.split("-")[1] for mark in marks if re.fullmatch(f"advertised-.*-{victim}", mark)}
    assert any(f"advertised-{owned}-{each}" in marks for each in survivors)
    assert any(f"committed-{owned}-{each}" in marks for each in survivors)
    assert {"fault", "whole"} <= marks


def marks_of(picture: Path) -> set[str]:
    """What is drawn, as the picture names it."""
    return set(re.findall(r'id="([^"]+)"', picture.read_text()))


def lives_of(fleet: LocalFleet) -> dict[ProxyId, int]:
    return {each: fleet.ownership(each).incarnation for each in fleet.members}


def nothing_is_left(kafka: KafkaCluster) -> None:
    """No topic of a game day is, as every broker has heard a moment after the one that deleted it."""
    wait_for(lambda: topics(kafka) == [], "the topic is gone")


def topics(kafka: KafkaCluster) -> list[str]:
    listed = AdminClient({"bootstrap.servers": kafka.bootstrap_servers}).list_topics(timeout=10).topics
    return [topic for topic in listed if topic.startswith("fleet-chaos-")]


def test_killed_leader_is_taken_over_and_drawn(
    fleet: LocalFleet, kafka: KafkaCluster, manager: Manager, hold: Hold, tmp_path: Path
) -> None:
    leader = fleet.leader()
    assert leader is not None
    picture = tmp_path / "day.svg"
    held = hold(
        "leader-kill",
        **{
            "inject-command": signal_command(fleet, tmp_path, "KILL"),
            "heal-command": manager.command_to("start"),
        },
        duration="2",
        picture=str(picture),
    )
    nothing_was_lost(held)
    others_took_over(held, leader, fleet, picture)
    assert held.printed["fault"]["was_leader"]
    assert manager.restarted == [leader]
    nothing_is_left(kafka)


def test_frozen_leader_is_taken_over_and_keeps_its_life(
    fleet: LocalFleet, kafka: KafkaCluster, hold: Hold, tmp_path: Path
) -> None:
    leader = fleet.leader()
    assert leader is not None
    lives = lives_of(fleet)
    picture = tmp_path / "day.svg"
    held = hold(
        "leader-freeze",
        **{
            "inject-command": signal_command(fleet, tmp_path, "STOP"),
            "heal-command": signal_command(fleet, tmp_path, "CONT"),
        },
        duration="2",
        picture=str(picture),
    )
    nothing_was_lost(held)
    others_took_over(held, leader, fleet, picture)
    assert held.printed["fault"]["was_leader"]
    assert lives_of(fleet) == lives
    nothing_is_left(kafka)


@pytest.mark.size("test-long")
def test_blackholed_member_is_taken_over_and_keeps_its_life(kafka: KafkaCluster, tmp_path: Path) -> None:
    """The black hole is Toxiproxy's; that it swallows is seen before it is mended, too."""
    picture = tmp_path / "day.svg"
    mended: list[ProxyId] = []
    with surrounded_fleet(kafka, tmp_path, PATIENT) as (fleet, around):
        fleet.await_settled(frozenset(kafka.brokers))
        wait_for(lambda: is_whole(fleet), "every link")

        def mend(victim: ProxyId) -> None:
            around.prove_black(victim)
            around.mend()
            mended.append(victim)

        manager = Manager(
            fleet, tmp_path, {"swallow": partial(around.swallow, direction="both"), "mend": mend}
        )
        lives, leader, since_s = lives_of(fleet), fleet.leader(), time.monotonic()
        held = game_day(
            fleet,
            manager,
            tmp_path,
            "blackhole",
            {
                "inject-command": manager.command_to("swallow"),
                "heal-command": manager.command_to("mend"),
                "duration": "2",
                "picture": str(picture),
            },
        )
        nothing_was_lost(held)
        (victim,) = mended
        assert victim != leader
        others_took_over(held, victim, fleet, picture)
        for survivor in set(fleet.members) - {victim}:
            told = fleet.ownership(survivor).takeovers
            assert [each.proxy_id for each in told if each.detected_mono_s >= since_s] == [victim]
        assert lives_of(fleet) == lives
    nothing_is_left(kafka)


@pytest.mark.size("test-long")
@pytest.mark.timeout(900)
def test_rolling_restart_is_unnoticed_and_drawn(
    fleet: LocalFleet, kafka: KafkaCluster, manager: Manager, hold: Hold, tmp_path: Path
) -> None:
    lives = lives_of(fleet)
    picture = tmp_path / "day.svg"
    held = hold("rolling-restart", command=manager.command, picture=str(picture))
    nothing_was_lost(held)
    fault = held.printed["fault"]
    order = ", ".join(manager.restarted)
    assert fault["proof"] == f"in another life, one after the other: {order}"
    assert sorted(manager.restarted) == sorted(fleet.members)
    assert all(life > lives[each] for each, life in lives_of(fleet).items())
    # The last one; who led before may lead no more when its turn comes.
    leads = f"{manager.restarted[-1]}: restarting, the Raft leader"
    assert leads in [each["what"] for each in held.printed["steps"]]
    assert (fault["victim"], fault["takeover_ms"]) == (None, None)
    assert fault["at_s"] < fault["until_s"] <= fault["whole_s"] < held.printed["lasted_s"]
    assert held.printed["errors"] == []

    marks = marks_of(picture)
    for broker_id in kafka.brokers:
        owners = {each for each in fleet.members if f"advertised-{broker_id}-{each}" in marks}
        assert len(owners) > 1
        assert f"advertised-{broker_id}-nobody" not in marks
        assert {each for each in fleet.members if f"committed-{broker_id}-{each}" in marks} == owners
    assert {"fault", "whole"} <= marks
    nothing_is_left(kafka)


def test_watch_scenario_reports_faults_made_by_hand(
    fleet: LocalFleet, kafka: KafkaCluster, hold: Hold
) -> None:
    victim = next(each for each in fleet.members if each != fleet.leader())
    lives = lives_of(fleet)
    killed: list[ProxyId] = []

    def pull_and_put_in_again(said: str) -> None:
        if not killed and "break what you like" in said:
            fleet.kill(victim)
            killed.append(victim)
        if victim not in fleet.running and f"{victim} does not answer" in said:
            fleet.start(victim)

    held = hold("watch", by_hand=pull_and_put_in_again, duration="5")
    nothing_was_lost(held)
    assert held.printed["fault"] is None
    assert any(each["what"].startswith(f"{victim} does not answer") for each in held.printed["steps"])
    assert [each for each, life in lives_of(fleet).items() if life > lives[each]] == [victim]
    nothing_is_left(kafka)


@pytest.mark.size("test-long")
def test_drain_is_unnoticed_by_clients(fleet: LocalFleet, kafka: KafkaCluster, hold: Hold) -> None:
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
    nothing_is_left(kafka)


def test_command_that_does_nothing_fails_the_run(
    fleet: LocalFleet, kafka: KafkaCluster, hold: Hold, tmp_path: Path
) -> None:
    lives = lives_of(fleet)
    mended = tmp_path / "mended"
    held = hold("follower-kill", **{"inject-command": "true", "heal-command": f"touch {mended}-{{proxy_id}}"})
    assert (held.code, held.printed["error"]["kind"]) == (1, "game_day")
    assert "--inject-command has had no effect that can be seen" in held.printed["error"]["message"]
    assert "answers clients as before, in the same life" in held.printed["error"]["message"]
    assert len(list(tmp_path.glob("mended-*"))) == 1
    assert "the fleet is whole and at rest" in held.progress
    assert lives_of(fleet) == lives
    nothing_is_left(kafka)
