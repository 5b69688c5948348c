"""A sample game day: three members, three brokers, p1 was killed, and p2 took over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fleet.drills.game_day.clients import PROMISE
from fleet.drills.game_day.plan import Options, Plan
from fleet.drills.game_day.timeline import Span
from fleet.drills.game_day.verdict import ClientReport, InjectedFault, Observations
from fleet.drills.workload.checker import Sighting, Stream, View
from fleet.drills.workload.history import Event, Record

PLAN = Plan("demo", "p1", True, incarnation=7, broker_ids=(1, 2, 3), takeover_limit_s=3.0)
BEFORE = {1: "p1", 2: "p2", 3: "p3"}
BYPASSED = {1: "p2", 2: "p2", 3: "p3"}
BEGAN_S, BROKEN_S, BACK_S, ENDED_S = 1000.0, 1005.0, 1015.0, 1030.0


def events(stalled_s: float = 0.0) -> list[Event]:
    """A record every 100 ms on every partition, with a stall of the first partition after the death of p1."""
    ticks = [BEGAN_S + tick / 10.0 for tick in range(int((ENDED_S - BEGAN_S) * 10.0) + 1)]
    return [
        Event(
            at_s if partition or not BROKEN_S < at_s < BROKEN_S + stalled_s else BROKEN_S + stalled_s,
            partition,
            Record(1, number),
            number,
        )
        for number, at_s in enumerate(ticks)
        for partition in range(PLAN.partitions)
    ]


def seen(**changes: Any) -> Observations:
    owners = {broker_id: (owner,) for broker_id, owner in BEFORE.items()}
    moved = {broker_id: (owner,) for broker_id, owner in BYPASSED.items()}
    around = [
        View(BEGAN_S - 1.0, BEFORE),
        View(BROKEN_S + 0.25, BYPASSED),
        View(BACK_S + 3.0, BEFORE),
    ]
    stream = Stream(
        "clients",
        PROMISE,
        PLAN.partitions,
        events(0.8),
        events(1.0),
        sorted(events(), key=lambda e: e.offset),
    )
    values: dict[str, Any] = {
        "options": Options("leader-kill", {"inject-command": "kill {proxy_id}"}),
        "plan": PLAN,
        "began": "2026-01-02T03:04:05Z",
        "window": Span(BEGAN_S, ENDED_S),
        "injected_s": BROKEN_S,
        "fault": InjectedFault(
            BROKEN_S, BACK_S, "p1 does not answer, and is suspect or down for p2, p3", incarnation=8
        ),
        "whole_s": BACK_S + 5.0,
        "carriers": ("p1", "p2", "p3"),
        "topic": "fleet-chaos-1",
        "stream": stream,
        "sightings": [
            Sighting(BEGAN_S - 1.0, "p1", 4, owners),
            Sighting(BROKEN_S + 0.5, "p2", 5, moved),
            Sighting(BACK_S + 3.0, "p1", 6, owners),
        ],
        "views": {"p1": [around[0], around[2]], "p2": around, "p3": around},
        "reports": [ClientReport(BROKEN_S + 0.1, "p1:9101/1: Connection refused (_TRANSPORT)")],
        "refused": {},
        "problems": (),
        "steps": [(BROKEN_S, "breaking p1, the Raft leader"), (BACK_S, "healing p1")],
        **changes,
    }
    return Observations(**values)


def without(sequence: int) -> Stream:
    """The clients' stream, with one acknowledged record of each partition missing in the log."""
    stream = seen().stream
    return replace(stream, log=[each for each in stream.log if each.record.sequence != sequence])
