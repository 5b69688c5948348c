"""The result of a seeded run, its history, and the command that repeats it."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from fleet.core.errors import DemoError, FaultNotObserved
from fleet.drills.workload.checker import Outage, Rule, Violation
from fleet.drills.workload.history import Event, HistoryWriter, Record
from tests.chaos.seeded import command as program
from tests.chaos.seeded import run
from tests.chaos.seeded.command import command, main
from tests.chaos.seeded.faults import Done
from tests.chaos.seeded.run import ENOUGH, perform, replay, write
from tests.chaos.seeded.schedule import CHOSEN, Fault, Kind, Plan, chosen, plan_of
from tests.chaos.seeded.workloads import PARTITIONS
from tests.drills.sample_run import LATER_S, PROOF, Stage, set_up
from tests.drills.test_checker import HISTORY

FAULTS = (Fault(0.0, Kind.RESET_BROKER, "1"), Fault(0.0, Kind.KILL_MEMBER, "leader"))
PLAN = Plan("7", FAULTS, ("idempotent", "kip848"), length_s=0.0)
SEEN = {"ownership": 1, "metadata": 1}
"""Observations of a running fleet."""


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return set_up(monkeypatch)


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def test_history_is_json_lines_in_order_of_time(tmp_path: Path) -> None:
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
    (fault_line,) = (line for line in lines if line["what"] == "fault")
    assert fault_line["at_s"] == 12.0
    assert fault_line["outage"]["survivors"] == ["p2"]


@pytest.mark.parametrize(
    ("plan", "arguments"),
    [
        (plan_of(7), "--runs 1 --seed 7"),
        (plan_of(7, 40.0), "--runs 1 --seed 7 --length 40"),
        *((chosen(name), f"--plan {name}") for name in CHOSEN),
    ],
    ids=str,
)
def test_printed_command_makes_the_same_plan(plan: Plan, arguments: str) -> None:
    assert replay(plan) == f'make chaos ARGS="{arguments}"'
    parsed = command.make_context("chaos", arguments.split()).params
    again = chosen(parsed["name"]) if parsed["name"] else plan_of(parsed["seed"], parsed["length"])
    assert again == plan


async def test_run_without_violation_keeps_its_history(stage: Stage, tmp_path: Path) -> None:
    result = await perform(PLAN, stage.ground, tmp_path, stage.said.append)
    assert result.violations == ()
    assert sorted(result.faults) == ["kill_member", "reset_broker"]
    counts = Counter(line["what"] for line in lines_of(tmp_path))
    of_clients = dict.fromkeys(("acknowledged", "received", "log"), 2 * PARTITIONS)
    assert counts == {"plan": 1, "fault": 2, **SEEN, **of_clients}


async def test_run_continues_until_it_can_be_judged(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found: a broker came back late, and clients were judged by their records before the fault."""
    looked = []

    async def more_in_between(condition: Callable[[], bool], limit_s: float, every_s: float) -> bool:
        looked.append(condition())
        for name in PLAN.workloads:
            writer = HistoryWriter(tmp_path / name / "acknowledged.history")
            for number in range(1, 1 + ENOUGH):
                writer.append(
                    Event(time.monotonic() + LATER_S, number % PARTITIONS, Record(7, number), number)
                )
            writer.close()
        looked.append(condition())
        return looked[-1]

    monkeypatch.setattr(run, "eventually", more_in_between)
    result = await perform(PLAN, stage.ground, tmp_path, stage.said.append)
    assert looked == [False, True]
    assert {each.acknowledged for each in result.noticed.values()} == {ENOUGH + PARTITIONS}


@pytest.mark.parametrize(
    ("breaks", "why", "seen"),
    [
        ({"starts": False}, "p1 ended with code 1", {}),
        (
            {"flowing": range(PARTITIONS - 1)},
            "records of every client: not within 0 s",
            {**SEEN, "acknowledged": 2 * (PARTITIONS - 1), "received": 2 * (PARTITIONS - 1)},
        ),
        (
            {"readable": 1},
            "the brokers do not answer",
            {
                **SEEN,
                "fault": 2,
                "acknowledged": 2 * PARTITIONS,
                "received": 2 * PARTITIONS,
                "log": PARTITIONS,
            },
        ),
    ],
    ids=["no-fleet", "no-flow", "no-log"],
)
async def test_broken_run_keeps_what_is_known(
    stage: Stage, tmp_path: Path, breaks: dict[str, Any], why: str, seen: dict[str, int]
) -> None:
    for name, value in breaks.items():
        setattr(stage, name, value)
    result = await perform(PLAN, stage.ground, tmp_path, stage.said.append)
    assert result.violations == (Violation("broke", f"DemoError: {why}"),)
    lines = lines_of(tmp_path)
    assert Counter(line["what"] for line in lines) == {"plan": 1, "broke": 1, **seen}
    assert [line["at_s"] for line in lines] == sorted(line["at_s"] for line in lines)
    (broke,) = (line for line in lines if line["what"] == "broke")
    assert broke["detail"] == f"DemoError: {why}"


async def test_unforeseen_error_is_raised_and_keeps_what_is_known(stage: Stage, tmp_path: Path) -> None:
    stage.outcomes["1"] = ZeroDivisionError("a mistake")
    with pytest.raises(ZeroDivisionError, match="a mistake"):
        await perform(PLAN, stage.ground, tmp_path, stage.said.append)
    lines = lines_of(tmp_path)
    assert [line["fault"]["kind"] for line in lines if line["what"] == "fault"] == ["kill_member"]
    assert [line["detail"] for line in lines if line["what"] == "broke"] == ["ZeroDivisionError: a mistake"]


async def test_complete_history_survives_a_later_error(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(history: object) -> None:
        raise DemoError("no verdict")

    monkeypatch.setattr(run, "check", fail)
    result = await perform(PLAN, stage.ground, tmp_path, stage.said.append)
    assert result.violations == (Violation("broke", "DemoError: no verdict"),)
    counts = Counter(line["what"] for line in lines_of(tmp_path))
    assert (counts["log"], counts["broke"]) == (2 * PARTITIONS, 1)


async def test_reason_is_reported_where_the_history_cannot_be_written(stage: Stage, tmp_path: Path) -> None:
    stage.starts = False
    (tmp_path / "history.jsonl").mkdir()
    result = await perform(PLAN, stage.ground, tmp_path, stage.said.append)
    assert result.violations == (Violation("broke", "DemoError: p1 ended with code 1"),)
    assert "cannot write the history: IsADirectoryError" in stage.said[-1]


@pytest.mark.parametrize(
    ("outcome", "rule"),
    [
        (FaultNotObserved("nothing was reset"), "no_effect"),
        (DemoError("the fleet was not whole"), "broke"),
        (psutil.NoSuchProcess(7), "broke"),
        (OSError("no route"), "broke"),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Exception) else each,
)
async def test_unobserved_fault_is_a_violation_and_stops_no_other(
    stage: Stage, tmp_path: Path, outcome: Exception, rule: Rule
) -> None:
    stage.outcomes["1"] = outcome
    result = await perform(PLAN, stage.ground, tmp_path, stage.said.append)
    (violation,) = result.violations
    assert violation == Violation(rule, f"{FAULTS[0]}: {outcome}")
    assert "reset_broker 1" in violation.detail
    assert result.faults == ("kill_member",)
    assert [line for line in stage.said if PROOF in line and "kill_member" in line]


@pytest.mark.parametrize(("outcomes", "code"), [({}, 0), ({"1": FaultNotObserved("nothing was reset")}, 1)])
def test_exit_code_is_1_if_a_fault_had_no_effect(
    stage: Stage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    outcomes: dict[str, Exception],
    code: int,
) -> None:
    stage.outcomes = outcomes
    monkeypatch.setattr(program, "plan_of", lambda seed, length_s: PLAN)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["chaos", "--seed", "7"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == code
    printed = capsys.readouterr()
    assert f"**{code} violations**" in printed.out
    assert (f"no_effect: {FAULTS[0]}: nothing was reset" in printed.err) is bool(code)
    kept = [path.parent for path in tmp_path.rglob("history.jsonl")]
    assert len(kept) == code
    assert all(f"history and logs: {folder}" in printed.err for folder in kept)
