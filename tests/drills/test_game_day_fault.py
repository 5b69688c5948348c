"""Injecting and healing: a fault is healed whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet.admin import client, rolling_restart
from fleet.admin.documents import OwnershipDocument
from fleet.config.file import load
from fleet.core.errors import CommandFailed, FaultNotObserved, RestartFailed
from fleet.core.model import MemberStatus
from fleet.drills.game_day import fault
from fleet.drills.game_day.fault import FaultInjector
from fleet.drills.game_day.plan import Options
from fleet.drills.workload.checker import View
from fleet.drills.workload.observer import Answer
from fleet.drills.workload.waiting import eventually
from fleet.tls.access import Access
from tests.drills.sample_game_day import PLAN
from tests.drills.test_game_day_evidence import GIVEN_UP, HEARD, saying
from tests.unit.admin.test_rolling_restart import told
from tests.unit.config.test_file import tree


class Outside:
    """Observations of a fleet whose member p1 is broken while a file exists."""

    def __init__(self, folder: Path) -> None:
        self.broken = folder / "broken-p1"
        self.stopping = folder / "stopping-p1"
        self.healed = folder / "healed-p1"
        self.while_stopping: Mapping[str, OwnershipDocument] = {}

    @property
    def answers(self) -> Mapping[str, Answer]:
        said: Mapping[str, OwnershipDocument] = GIVEN_UP if self.broken.exists() else HEARD
        if self.stopping.exists():
            said = self.while_stopping
        return {each: Answer(time.monotonic(), document) for each, document in said.items()}

    def heard_s(self, proxy_id: str) -> float:
        return time.monotonic() - (9.0 if self.broken.exists() else 0.0)

    def views(self) -> dict[str, list[View]]:
        return {}

    def taken_over(self, survivors: list[str], since_s: float) -> bool:
        return self.broken.exists()


@pytest.fixture
def outside(tmp_path: Path) -> Outside:
    return Outside(tmp_path)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The progress lines of the injector. The fleet always reports that it is whole."""

    async def ask_all(urls: Mapping[str, str], access: Access) -> dict[str, OwnershipDocument]:
        return {each: told(each) for each in urls}

    monkeypatch.setattr(client, "ask_all", ask_all)
    monkeypatch.setattr(rolling_restart, "SETTLE_TIME_S", 0.01)
    monkeypatch.setattr(rolling_restart, "POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(fault, "PROOF_LIMIT_S", 0.3)
    return []


def breaker(
    outside: Outside, said: list[str], scenario: str = "leader-freeze", **options: Any
) -> FaultInjector:
    folder = outside.broken.parent
    path = folder / "fleet.yaml"
    path.write_text(yaml.safe_dump(tree(), sort_keys=False))
    here = shlex.quote(str(folder))
    templates = {
        "inject-command": f"touch {here}/broken-{{proxy_id}}",
        "heal-command": f"sh -c 'rm -f {here}/broken-{{proxy_id}}; touch {here}/healed-{{proxy_id}}'",
        **options.pop("templates", {}),
    }
    chosen = Options(scenario, templates, **{"duration_s": 0.2, "limit_s": 5.0, **options})
    return FaultInjector(load(path, {}), PLAN, chosen, outside, said.append)  # type: ignore[arg-type]


async def test_fault_is_observed_held_and_healed(outside: Outside, said: list[str]) -> None:
    asked_s = time.monotonic()
    done = await breaker(outside, said).perform()
    assert done is not None
    assert done.proof == "p1 does not answer, and is suspect or down for p2, p3"
    assert done.at_s < asked_s < done.until_s
    assert said == ["breaking p1, the Raft leader", done.proof, "healing p1"]
    assert outside.healed.exists()


@pytest.mark.parametrize(
    ("template", "error", "why"),
    [
        ("true", FaultNotObserved, "--inject-command had no visible effect .* p1 still answers clients"),
        ("false", CommandFailed, "p1: false exited with 1"),
        ("sleep 60", CommandFailed, "sleep 60 did not end within 0.5 s"),
    ],
)
async def test_command_without_effect_ends_the_run_after_healing(
    outside: Outside, said: list[str], template: str, error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        await breaker(outside, said, templates={"inject-command": template}, limit_s=0.5).perform()
    assert outside.healed.exists()
    assert said[-1] == "the fleet is whole and at rest"


async def test_drain_during_the_command_is_detected(outside: Outside, said: list[str]) -> None:
    outside.while_stopping = saying(status=MemberStatus.DRAINING)
    stops = f"sh -c 'touch {outside.stopping}; sleep 0.4; rm {outside.stopping}; touch {outside.broken}'"
    with pytest.raises(FaultNotObserved, match="p1 drains and hands"):
        await breaker(outside, said, "leader-kill", templates={"inject-command": stops}).perform()
    assert outside.healed.exists()


async def test_interrupted_run_heals_the_member(outside: Outside, said: list[str]) -> None:
    held = asyncio.create_task(breaker(outside, said, duration_s=60.0).perform())
    assert await eventually(lambda: len(said) == 2, 10.0)
    held.cancel()
    with pytest.raises(asyncio.CancelledError):
        await held
    assert outside.healed.exists()


async def test_member_that_answers_before_healing_was_not_silent(outside: Outside, said: list[str]) -> None:
    held = asyncio.create_task(breaker(outside, said, duration_s=60.0).perform())
    assert await eventually(lambda: len(said) == 2, 10.0)
    outside.broken.unlink()
    with pytest.raises(FaultNotObserved, match=r"p1 answers again .* before it was healed"):
        await held


async def test_killed_member_may_be_restarted_by_a_service_manager(outside: Outside, said: list[str]) -> None:
    one = breaker(outside, said, "leader-kill", duration_s=60.0)
    del one.options.templates["heal-command"]
    held = asyncio.create_task(one.perform())
    assert await eventually(lambda: len(said) == 2, 10.0)
    outside.broken.unlink()
    assert await held is not None
    assert said[2:] == ["p1 is already back", "waiting for a service manager to restart p1"]


async def test_failed_healing_is_recorded_and_reported(outside: Outside, said: list[str]) -> None:
    one = breaker(outside, said, templates={"heal-command": "false"})
    assert await one.perform() is not None
    (trouble,) = one.problems
    assert trouble == "cannot heal p1, which may still be broken: p1: false exited with 1: "
    assert said[-1] == trouble


async def test_fault_lasts_until_others_have_taken_over(outside: Outside, said: list[str]) -> None:
    slow = breaker(outside, said)
    outside.taken_over = lambda survivors, since_s: time.monotonic() - since_s > 9.7  # type: ignore[method-assign]
    done = await slow.perform()
    assert done is not None
    # The last sign of life was 9 s before the fault; the plan allows 3 s.
    assert done.until_s - done.at_s < 9.7


async def test_restart_has_a_time_limit(outside: Outside, said: list[str]) -> None:
    """Found: --timeout limited only the fleet, and a hanging command could not be interrupted."""
    with pytest.raises(RestartFailed, match=r"p2: sleep 60 did not end within 0\.5 s"):
        await breaker(
            outside, said, "rolling-restart", templates={"restart-command": "sleep 60"}, limit_s=0.5
        ).perform()


async def test_watching_reports_each_change_of_unrest(
    outside: Outside, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fault, "_UNREST_INTERVAL_S", 0.01)
    assert await breaker(outside, said, "watch", templates={}).perform() is None
    assert said == ["watching for 0.2 s; break something by hand"]
