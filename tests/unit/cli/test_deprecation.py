"""fleet/cli/deprecation.py: old names of commands and options work, and warn on standard error."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from fleet import cli
from fleet.admin import rolling_restart
from fleet.admin.documents import RollingRestartDocument
from fleet.cli import pipeline
from fleet.cli.deprecation import RenamedOptions
from fleet.core.errors import PipelineError
from fleet.drills.game_day import run
from tests.drills.sample_game_day import PLAN, seen
from tests.unit.cli.test_commands import Out, config

__all__ = ["config"]


def warning(old: str, new: str) -> str:
    return f"`{old}` is deprecated; use `{new}`\n"


# ---------------------------------------------------------------------------------------------- the mechanism


@click.command(cls=RenamedOptions, renamed={"--limit-s": "--timeout", "--loud": "--verbose"})
@click.option("--timeout", type=click.FloatRange(min=1.0), default=5.0)
@click.option("--command", "-c")
@click.option("--verbose", is_flag=True)
@click.argument("words", nargs=-1)
def sample(timeout: float, command: str | None, verbose: bool, words: Sequence[str]) -> None:
    click.echo(json.dumps([timeout, command, verbose, list(words)]))


def run_sample(*arguments: str) -> tuple[list[Any], str]:
    result = CliRunner().invoke(sample, arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout), result.stderr


@pytest.mark.parametrize("arguments", [("--limit-s", "7"), ("--limit-s=7",)])
def test_old_option_sets_the_new_one_and_warns(arguments: tuple[str, ...]) -> None:
    assert run_sample(*arguments) == ([7.0, None, False, []], warning("--limit-s", "--timeout"))


def test_completion_of_a_line_with_old_names_prints_no_warning(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--scenario", "drain", "--limit-s", "5"]
    completion = ShellComplete(cli.cli, {}, "fleet", "_FLEET_COMPLETE")
    found = [each.value for each in completion.get_completions(["chaos", *arguments], "--pict")]
    assert (found, capsys.readouterr().err) == (["--picture"], "")


def test_old_flag_warns() -> None:
    assert run_sample("--loud", "x") == ([5.0, None, True, ["x"]], warning("--loud", "--verbose"))


def test_each_use_of_an_old_option_warns_once() -> None:
    values, printed = run_sample("--limit-s", "7", "--limit-s=8")
    assert values[0] == 8.0
    assert printed == warning("--limit-s", "--timeout") * 2


@pytest.mark.parametrize("arguments", [("--timeout", "7"), ("--timeout=7",)])
def test_new_option_does_not_warn(arguments: tuple[str, ...]) -> None:
    assert run_sample(*arguments) == ([7.0, None, False, []], "")


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        (("--command", "--limit-s", "x"), [5.0, "--limit-s", False, ["x"]]),
        (("-c", "--limit-s", "x"), [5.0, "--limit-s", False, ["x"]]),
        (("--command=--limit-s", "x"), [5.0, "--limit-s", False, ["x"]]),
        (("--", "--limit-s", "7"), [5.0, None, False, ["--limit-s", "7"]]),
        (("x", "--", "--loud"), [5.0, None, False, ["x", "--loud"]]),
    ],
)
def test_values_and_words_after_two_dashes_stay(arguments: tuple[str, ...], values: list[Any]) -> None:
    assert run_sample(*arguments) == (values, "")


def test_value_of_an_old_option_stays() -> None:
    result = CliRunner().invoke(sample, ["--limit-s", "--loud"])
    assert result.exit_code == 2
    assert "'--timeout': '--loud' is not a valid float" in result.stderr
    assert warning("--loud", "--verbose") not in result.stderr


def test_error_and_help_name_the_new_option() -> None:
    assert "'--timeout'" in CliRunner().invoke(sample, ["--limit-s", "0"]).stderr
    assert "--limit-s" not in CliRunner().invoke(sample, ["--help"]).stdout


# ------------------------------------------------------------------------------------------- the commands

GAME_DAY = ("--scenario", "leader-kill", "--yes", "--json")
KILL = ("--inject-command", "true {proxy_id}")
GAME_DAY_RENAMES = [
    ("--break", "--inject-command", "true {proxy_id}", lambda options: options.templates["inject-command"]),
    ("--mend", "--heal-command", "true {proxy_id}", lambda options: options.templates["heal-command"]),
    ("--calm", "--settle", 2.0, lambda options: options.calm_s),
    ("--limit-s", "--timeout", 42.0, lambda options: options.limit_s),
    ("--takeover-limit", "--takeover-timeout", 3.0, lambda options: options.takeover_limit_s),
]


@pytest.fixture
def game_days(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The options of each game day that was held."""
    held: list[Any] = []

    async def plan(settings: Any, options: Any) -> Any:
        return PLAN

    async def perform(settings: Any, options: Any, say: Any) -> Any:
        held.append(options)
        return seen()

    monkeypatch.setattr(run, "plan", plan)
    monkeypatch.setattr(run, "perform", perform)
    monkeypatch.setattr("fleet.cli.game_day.print_progress", lambda line: None)
    return held


@pytest.mark.parametrize(("old", "new", "value", "read"), GAME_DAY_RENAMES)
def test_old_options_of_game_day(
    config: Path, capsys: Out, game_days: list[Any], old: str, new: str, value: Any, read: Any
) -> None:
    for name, printed in ((old, warning(old, new)), (new, "")):
        arguments = ["game-day", "-c", str(config), *GAME_DAY, *KILL, name, str(value)]
        if new == KILL[0]:
            arguments = ["game-day", "-c", str(config), *GAME_DAY, name, str(value)]
        assert cli.run(arguments) == 0
        out = capsys.readouterr()
        assert (out.err, json.loads(out.out)["kept"]) == (printed, True)
        assert read(game_days[-1]) == value


def test_old_restart_option_of_game_day(config: Path, capsys: Out, game_days: list[Any]) -> None:
    for name, printed in (
        ("--command", warning("--command", "--restart-command")),
        ("--restart-command", ""),
    ):
        arguments = ("--scenario", "rolling-restart", "--yes", "--json", name, "true {proxy_id}")
        assert cli.run(["game-day", "-c", str(config), *arguments]) == 0
        assert capsys.readouterr().err == printed
        assert game_days[-1].templates == {"restart-command": "true {proxy_id}"}


def test_chaos_is_a_hidden_alias_of_game_day(config: Path, capsys: Out, game_days: list[Any]) -> None:
    assert cli.run(["chaos", "-c", str(config), *GAME_DAY, "--break", "true", "--duration", "3"]) == 0
    out = capsys.readouterr()
    assert out.err == warning("fleet chaos", "fleet game-day") + warning("--break", "--inject-command")
    assert json.loads(out.out)["kept"]
    assert (game_days[0].templates, game_days[0].duration_s) == ({"inject-command": "true"}, 3.0)
    assert cli.run(["--help"]) == 0
    assert "chaos" not in capsys.readouterr().out


def test_chaos_without_a_package_names_the_new_extra(
    config: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleet.cli.game_day.find_spec", lambda package: None)
    assert cli.run(["chaos", "-c", str(config), *GAME_DAY, *KILL]) == 1
    out = capsys.readouterr()
    assert "pip install 'kafka-proxy-fleet[game-day]'" in json.loads(out.out)["error"]["message"]
    assert out.err == warning("fleet chaos", "fleet game-day")


@pytest.mark.parametrize(
    ("old", "new", "value"), [("--command", "--restart-command", "true"), ("--limit-s", "--timeout", "42")]
)
def test_old_options_of_rolling_restart(
    config: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch, old: str, new: str, value: str
) -> None:
    calls: list[tuple[str, float]] = []

    async def restart_all(
        urls: Any, only: Any, template: str, timeout_s: float, say: Any, *, access: Any
    ) -> RollingRestartDocument:
        calls.append((template, timeout_s))
        return RollingRestartDocument(())

    monkeypatch.setattr(rolling_restart, "restart_all", restart_all)
    fixed = [] if new == "--restart-command" else ["--restart-command", "true"]
    for name, printed in ((old, warning(old, new)), (new, "")):
        assert cli.run(["rolling-restart", "-c", str(config), "--json", *fixed, name, value]) == 0
        out = capsys.readouterr()
        assert (out.err, json.loads(out.out)) == (printed, {"members": []})
    assert calls == [("true", 42.0 if new == "--timeout" else 120.0)] * 2


@pytest.mark.parametrize("query", ["availability", "anomalies", "audit"])
def test_old_out_option_of_pipeline_queries(query: str, capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables are read before anything else, so an error that names them shows where they were sought."""

    def site(tables: str) -> SimpleNamespace:
        raise PipelineError(f"no tables in {tables}")

    monkeypatch.setattr(pipeline, "_spark", lambda master: nullcontext())
    monkeypatch.setattr(pipeline, "_site", site)
    for arguments, printed in (
        (("--out", "place"), warning("--out", "--tables")),
        (("--out=place",), warning("--out", "--tables")),
        (("--tables", "place"), ""),
    ):
        assert cli.run(["pipeline", query, "--json", *arguments]) == 1
        out = capsys.readouterr()
        assert (out.err, json.loads(out.out)["error"]["message"]) == (printed, "no tables in place")


def test_report_keeps_its_out_option(tmp_path: Path, capsys: Out) -> None:
    page = tmp_path / "none" / "report.html"
    assert cli.run(["report", "--tables", str(tmp_path), "--out", str(page)]) == 1
    assert "deprecated" not in capsys.readouterr().err
