"""The verdict, the report and the picture of a game day's observations."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fleet.core.errors import GameDayError
from fleet.drills.game_day.picture import draw
from fleet.drills.game_day.plan import Options
from fleet.drills.game_day.report import print_report
from fleet.drills.game_day.verdict import InjectedFault, Observations, document, timeline
from fleet.drills.workload.checker import View
from tests.drills.sample_game_day import BACK_S, BEFORE, BROKEN_S, seen, without


def rules(what: Observations) -> list[str]:
    return [each.rule for each in what.violations]


def test_game_day_without_violations_keeps_all_promises() -> None:
    told = document(seen())
    assert (told.kept, told.violations) == (True, ())
    assert told.fault is not None
    assert (told.fault.takeover_ms, told.fault.takeover_limit_ms) == (250.0, 3000.0)
    assert (told.fault.at_s, told.fault.until_s, told.fault.whole_s) == (5.0, 15.0, 20.0)
    assert told.records.acknowledged == told.records.received == 1806
    assert (told.producer_stall.before_ms, told.producer_stall.since_ms) == (100.0, 800.0)
    assert told.consumer_stall.since_ms == 1000.0
    assert [each.at_s for each in told.errors] == [5.1]
    assert [(each.at_s, each.what) for each in told.steps][1] == (15.0, "healing p1")


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"stream": without(40)}, ["lost"]),
        ({"refused": {"Local: Message timed out": 3}}, ["broke"]),
        ({"problems": ("cannot heal p1",)}, ["broke"]),
        ({"views": {each: [View(0.0, BEFORE)] for each in BEFORE.values()}}, ["advertised_dead"]),
        ({"fault": InjectedFault(BROKEN_S, BACK_S, "silent", incarnation=7)}, ["no_effect"]),
        ({"fault": InjectedFault(BROKEN_S, BACK_S, "silent", incarnation=None)}, []),
        ({"options": Options("leader-freeze")}, ["no_effect"]),
        (
            {
                "options": Options("leader-freeze"),
                "fault": InjectedFault(BROKEN_S, BACK_S, "silent", incarnation=7),
            },
            [],
        ),
        ({"options": Options("drain"), "views": {}}, []),
    ],
)
def test_each_violation_is_found(changes: dict[str, Any], broken: list[str]) -> None:
    what = seen(**changes)
    assert rules(what) == broken
    assert document(what).kept == (not broken)


def test_watch_scenario_needs_no_takeover() -> None:
    plan = replace(seen().plan, victim=None)
    told = document(seen(options=Options("watch"), plan=plan, fault=None))
    assert told.fault is None
    assert told.kept


def printed(what: Observations) -> str:
    console = Console(width=10_000, no_color=True)
    with console.capture() as captured:
        print_report(document(what), console)
    return captured.get()


def test_report_has_the_numbers_that_an_operator_needs() -> None:
    said = printed(seen(folder="[red]here"))
    for part in (
        "leader-kill on fleet demo, 2026-01-02T03:04:05Z: all promises kept",
        "only other members advertised: after 250 ms (limit 3000 ms)",
        "whole and at rest again: 15.0 s after the fault",
        "lost 0, duplicated 0, reordered 0",
        "longest stall: producer 800 ms (before: 100 ms), consumer 1000 ms (before: 100 ms)",
        "errors reported to applications: 1",
        "histories and logs: [red]here",
    ):
        assert part in said
    assert "lost: clients: 6 of 1806 acknowledged records are lost" in printed(seen(stream=without(40)))


def test_picture_has_a_mark_for_each_event(tmp_path: Path) -> None:
    path = tmp_path / "day.svg"
    draw(timeline(seen()), path)
    text = path.read_text()
    marks = set(re.findall(r'id="([^"]+)"', text))
    assert {f"{what}-1-{owner}" for what in ("advertised", "committed") for owner in ("p1", "p2")} <= marks
    assert {"advertised-2-p2", "advertised-3-p3", "fault", "whole", "error"} <= marks
    assert {"stall-acknowledged-0", "stall-delivered-0"} <= marks
    assert not {"stall-acknowledged-1", "advertised-2-p1", "advertised-1-nobody"} & marks
    assert all(part in text for part in ("leader-kill on fleet demo, p1", "broker 3", "nothing delivered"))


def test_a_picture_is_drawn_as_png_too(tmp_path: Path) -> None:
    path = tmp_path / "day.png"
    draw(timeline(seen(fault=None)), path)
    assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(GameDayError, match="cannot write the picture: No such file"):
        draw(timeline(seen()), tmp_path / "none" / "day.svg")
