"""`fleet game-day`: mistakes that are refused before anything breaks, the output, and the exit codes."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from fleet import cli
from fleet.core.errors import AdminError, FaultNotObserved, GameDayError
from fleet.drills.game_day import run
from fleet.drills.game_day.verdict import Observations
from tests.drills.sample_game_day import PLAN, seen, without
from tests.unit.cli.test_commands import Out, config, run_json

KILL = ("game-day", "--scenario", "leader-kill", "--inject-command", "true {proxy_id}", "--yes")

__all__ = ["config"]


class Stage:
    """A stub of the fleet: records each game day, and returns a prepared result."""

    def __init__(self) -> None:
        self.plan: Any = PLAN
        self.comes: Observations | BaseException = seen()
        self.held: list[Any] = []

    async def plan_(self, settings: Any, options: Any) -> Any:
        if isinstance(self.plan, Exception):
            raise self.plan
        return self.plan

    async def perform(self, settings: Any, options: Any, say: Any) -> Observations:
        self.held.append(options)
        say("records flow")
        if isinstance(self.comes, BaseException):
            raise self.comes
        return self.comes


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage = Stage()
    monkeypatch.setattr(run, "plan", stage.plan_)
    monkeypatch.setattr(run, "perform", stage.perform)
    return stage


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--scenario", "leader-kill"), "leader-kill needs --inject-command"),
        (("--scenario", "watch", "--heal-command", "true"), "watch does not use --heal-command"),
        (("--scenario", "watch", "--member", "p1"), "leave it out"),
        (("--scenario", "explode"), "'explode' is not one of"),
        (
            ("--scenario", "leader-kill", "--inject-command", "kill {proxy}"),
            "unknown {proxy}; use {proxy_id} and {host}",
        ),
        (
            ("--scenario", "leader-kill", "--inject-command", "no-such-program"),
            "--inject-command: no program no-such-program",
        ),
        (("--scenario", "drain", "--picture", "day.jpeg"), "must end with .svg or .png"),
        (("--scenario", "drain", "--picture", "/none/day.svg"), "the folder does not exist"),
        (("--scenario", "drain"), "add --yes"),
    ],
)
def test_usage_errors_exit_with_2_before_the_fleet_is_asked(
    config: Path, capsys: Out, stage: Stage, arguments: tuple[str, ...], why: str
) -> None:
    code, printed = run_json(capsys, "game-day", "-c", str(config), *arguments)
    assert (code, printed["error"]["kind"]) == (2, "usage")
    assert why in printed["error"]["message"]
    assert stage.held == []


@pytest.mark.parametrize(
    ("arguments", "kind"), [(("--member", "p9"), "unknown_member"), (("--listener", "inside"), "config")]
)
def test_unknown_member_or_listener_exits_with_2(
    config: Path, capsys: Out, stage: Stage, arguments: tuple[str, ...], kind: str
) -> None:
    code, printed = run_json(capsys, *KILL, "-c", str(config), *arguments)
    assert (code, printed["error"]["kind"]) == (2, kind)


@pytest.mark.parametrize(
    ("package", "extra", "arguments"),
    [
        ("psutil", "game-day", ()),
        ("matplotlib", "game-day", ("--picture", "day.svg")),
        ("pyspark", "pipeline", ("--audit", "spark")),
    ],
)
def test_missing_package_is_named_before_the_fault(
    config: Path,
    capsys: Out,
    stage: Stage,
    monkeypatch: pytest.MonkeyPatch,
    package: str,
    extra: str,
    arguments: tuple[str, ...],
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    code, printed = run_json(capsys, *KILL, "-c", str(config), *arguments)
    assert (code, printed["error"]["kind"]) == (1, "game_day")
    assert (
        f"needs {package}; install it with: pip install 'kafka-proxy-fleet[{extra}]'"
        in printed["error"]["message"]
    )
    assert stage.held == []


def test_game_day_is_announced_run_printed_and_drawn(
    config: Path, capsys: Out, stage: Stage, tmp_path: Path
) -> None:
    picture = tmp_path / "day.svg"
    assert cli.run([*KILL, "-c", str(config), "--duration", "3", "--picture", str(picture)]) == 0
    out = capsys.readouterr()
    assert "victim: p1, the Raft leader, for 3 s" in out.err
    assert out.err.endswith("records flow\n")
    assert "all promises kept" in out.out
    assert "advertised-1-p2" in picture.read_text()
    (options,) = stage.held
    assert (options.templates, options.duration_s, options.rate_per_s) == (
        {"inject-command": "true {proxy_id}"},
        3.0,
        30,
    )


def test_broken_promise_exits_with_1(config: Path, capsys: Out, stage: Stage) -> None:
    stage.comes = seen(stream=without(40))
    assert cli.run([*KILL, "-c", str(config), "--json"]) == 1
    assert '"rule":"lost"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (GameDayError("a game day begins with a fleet that is whole"), 1, "game_day"),
        (AdminError("no member answered"), 3, "unreachable"),
    ],
)
def test_unfit_fleet_is_left_alone(
    config: Path, capsys: Out, stage: Stage, error: Exception, code: int, kind: str
) -> None:
    stage.plan = error
    assert cli.run([*KILL, "-c", str(config), "--json"]) == code
    assert f'"kind":"{kind}"' in capsys.readouterr().out
    assert stage.held == []


def test_exit_codes_without_effect_and_after_ctrl_c(config: Path, capsys: Out, stage: Stage) -> None:
    stage.comes = FaultNotObserved("--inject-command has had no effect")
    assert cli.run([*KILL, "-c", str(config)]) == 1
    assert "fleet: --inject-command has had no effect" in capsys.readouterr().err
    stage.comes = asyncio.CancelledError()
    assert cli.run([*KILL, "-c", str(config)]) == 130


def test_operator_is_asked_before_the_fault(
    config: Path, capsys: Out, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    answers = iter(["n", "y"])
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda prompt: next(answers))
    assert cli.run([*KILL[:-1], "-c", str(config)]) == 130
    assert stage.held == []
    assert cli.run([*KILL[:-1], "-c", str(config)]) == 0
    assert len(stage.held) == 1
