"""What a run leaves behind: its history as JSON lines, and the command that repeats it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet.chaos.checker import Outage
from fleet.chaos.command import command
from fleet.chaos.faults import Done
from fleet.chaos.run import replay, write
from fleet.chaos.schedule import CHOSEN, Fault, Kind, Plan, chosen, plan_of
from tests.unit.test_chaos_checker import HISTORY


def test_a_history_is_json_lines_in_the_order_of_time(tmp_path: Path) -> None:
    fault = Fault(1.0, Kind.KILL_MEMBER, "leader")
    outage = Outage("kill_member", ("p1",), ("p2",), 12.0, 14.0, 2.5)
    write(
        tmp_path / "history.jsonl",
        Plan("7", (fault,)),
        [Done(fault, ("p1",), 12.0, 15.0, "gone", outage)],
        HISTORY,
    )
    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert [line["at_s"] for line in lines] == sorted(line["at_s"] for line in lines)
    counts = {what: sum(line["what"] == what for line in lines) for what in {line["what"] for line in lines}}
    assert counts == {
        "plan": 1,
        "fault": 1,
        "ownership": len(HISTORY.sightings),
        "metadata": sum(map(len, HISTORY.views.values())),
        "acknowledged": 14,
        "received": 14,
        "log": 14,
    }
    (told,) = (line for line in lines if line["what"] == "fault")
    assert told["at_s"] == 12.0
    assert told["outage"]["survivors"] == ["p2"]


@pytest.mark.parametrize(
    ("plan", "arguments"),
    [
        (plan_of(7), "--runs 1 --seed 7"),
        (plan_of(7, 40.0), "--runs 1 --seed 7 --length 40"),
        *((chosen(name), f"--plan {name}") for name in CHOSEN),
    ],
    ids=str,
)
def test_the_command_that_is_printed_makes_the_same_plan(plan: Plan, arguments: str) -> None:
    assert replay(plan) == f'make chaos ARGS="{arguments}"'
    parsed = command.make_context("chaos", arguments.split()).params
    again = chosen(parsed["name"]) if parsed["name"] else plan_of(parsed["seed"], parsed["length"])
    assert again == plan
