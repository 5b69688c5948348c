"""The options that scenarios require from the operator."""

from __future__ import annotations

import shlex

import pytest

from fleet.admin.operator_commands import command_for
from fleet.drills.game_day.scenarios import SCENARIOS, mistakes, page


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario_accepts_its_required_options_and_examples(name: str) -> None:
    scenario = SCENARIOS[name]
    assert mistakes(name, scenario.needs) == ""
    for example in scenario.examples:
        words = [shlex.split(each) for each in example.commands]
        given = frozenset(option.removeprefix("--") for option, _ in words)
        assert mistakes(name, given) == "", example
        for option, template in words:
            assert command_for(template, "p1", "http://10.0.0.1:7201", option)
        assert page(name).count(example.where) == 1


@pytest.mark.parametrize(
    ("name", "given", "wrong"),
    [
        (
            "leader-kill",
            frozenset(),
            "leader-kill needs --inject-command. --inject-command kills every process",
        ),
        ("blackhole", frozenset({"inject-command"}), "blackhole needs --heal-command"),
        ("drain", frozenset({"inject-command"}), "drain takes --inject-command and --heal-command together"),
        ("watch", frozenset({"inject-command"}), "watch does not use --inject-command"),
        (
            "rolling-restart",
            frozenset({"restart-command", "heal-command"}),
            "rolling-restart does not use --heal-command",
        ),
    ],
)
def test_missing_and_useless_options_are_named(name: str, given: frozenset[str], wrong: str) -> None:
    assert mistakes(name, given).startswith(wrong)
