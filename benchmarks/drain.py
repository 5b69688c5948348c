"""What planned moves cost clients: drains members in turn, and undrains them, while clients work.

    python -m benchmarks.drain --drains 20 --json

For each client: the longest interval without an acknowledgement on any partition, and without a record for
its group, during each drain, during each undrain, and for as long after each, when nothing moves. The
intervals without a move are what the machine itself costs. Exit code 1: a request was cut, or the audit
failed. A missed goal is printed; only `--strict` makes it a failure, because a goal is for a quiet machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Final, Literal, get_args

import click
from rich.console import Console
from rich.table import Table

from benchmarks.clients import Kind, await_flow, client_option, finish_and_audit, running_clients, stalls_ms
from benchmarks.takeover import MEDIAN, Figures, Goal, missed, spread
from fleet.admin.client import admin_url
from fleet.admin.client import drain as commit_drain
from fleet.core.errors import FleetError
from fleet.core.model import ProxyId
from fleet.drills.demo.command import parse_brokers
from fleet.drills.demo.run import Options, Stage, stage
from fleet.drills.demo.view import Lines, milliseconds
from fleet.drills.workload.audit import Audit
from fleet.drills.workload.waiting import in_thread
from tests.chaos.seeded.workloads import Client

When = Literal["calm", "drain", "undrain"]

CLIENTS: Final = MappingProxyType[str, Kind](
    {
        "librdkafka": Kind("idempotent", "default"),
        "librdkafka-recommended": Kind("idempotent", "recommended"),
        "java": Kind("java", "default"),
        "aiokafka": Kind("aiokafka", "default"),
    }
)
GOAL_MS: Final = 150.0
CUT_LOG_TEXT: Final = "requests unanswered"
"""What a member logs when it closes a client's connection before all answers are sent."""
_WATCH_S = 6.0
"""Longer than a connection may take to move (`move_timeout_s`)."""


@dataclass(frozen=True, slots=True)
class Move:
    """A period that was watched.

    Args:
        proxy_id: the member that was drained or undrained; None if nothing moved.
        stalls_ms: by client, and by its group.
    """

    when: When
    proxy_id: ProxyId | None
    stalls_ms: dict[str, float]


class DrainRunner:
    """DrainRunner and undrains members while clients work."""

    def __init__(self, running: Stage, clients: Mapping[str, Client]) -> None:
        self._fleet = running.fleet
        self._broker_ids = running.broker_ids
        self._clients = clients

    async def drain_and_return(self, victim: ProxyId) -> list[Move]:
        """Drain a member, and undrain it; after each, watch while nothing moves.

        More than ten seconds pass between two moves, and librdkafka has forgotten the move before.

        Raises: DemoError: the clients, or the fleet, break.
        """
        others = [each for each in self._fleet.members if each != victim]
        drain = await self._watch("drain", victim, others)
        drained = await self._watch("calm", None, others)
        undrain = await self._watch("undrain", victim, self._fleet.members)
        return [drain, drained, undrain, await self._watch("calm", None, self._fleet.members)]

    async def _watch(self, when: When, victim: ProxyId | None, owners: Sequence[ProxyId]) -> Move:
        since_s = time.monotonic()
        if victim is not None:
            urls = [admin_url(self._fleet.settings.member(each).admin) for each in owners]
            await commit_drain(urls, victim, when == "drain")
        await in_thread(lambda: self._fleet.await_settled(self._broker_ids, owners))
        await asyncio.sleep(max(0.0, since_s + _WATCH_S - time.monotonic()))
        await await_flow(self._clients)
        return Move(when, victim, stalls_ms(self._clients, since_s, time.monotonic()))


@dataclass(frozen=True, slots=True)
class DrainResult:
    """The result of all drains.

    Args:
        load: the machine's load average over the last minute, before anything was started.
        cut: connections that members closed with answers due, according to their logs.
    """

    load: float
    moves: tuple[Move, ...]
    audits: dict[str, Audit]
    cut: int

    def figures(self) -> dict[str, Figures]:
        """The stalls of each client, in each kind of period."""
        return {
            f"{name}, {when}": spread([move.stalls_ms[name] for move in self.moves if move.when == when])
            for name in self.moves[0].stalls_ms
            for when in get_args(When)
        }

    def missed(self) -> list[str]:
        """The goals that were missed, in sentences."""
        goals = [Goal(each, MEDIAN, GOAL_MS) for each in self.figures() if not each.endswith(", calm")]
        return missed(self.figures(), goals)

    @property
    def failed(self) -> bool:
        return self.cut > 0 or not all(each.passed for each in self.audits.values())

    def document(self) -> dict[str, object]:
        """What `--json` prints."""
        return {
            "load_average": self.load,
            "moves": [asdict(move) for move in self.moves],
            "figures": {each: asdict(value) for each, value in self.figures().items()},
            "missed": self.missed(),
            "audits": {name: asdict(each) for name, each in self.audits.items()},
            "cut": self.cut,
        }


async def measure(running: Stage, drains: int, names: Sequence[str], load: float, view: Lines) -> DrainResult:
    """Drain members in turn while clients work through the fleet, and audit all records.

    Raises: DemoError: the clients, or the fleet, break.
    """
    fleet = running.fleet
    moves: list[Move] = []
    async with running_clients(running, "drain", {name: CLIENTS[name] for name in names}) as clients:
        runner = DrainRunner(running, clients)
        for number in range(drains):
            victim = fleet.members[number % len(fleet.members)]
            moves += await runner.drain_and_return(victim)
            moved = [move for move in moves[-4:] if move.proxy_id]
            view.say(f"{number + 1} of {drains}: {victim}; {describe_moves(moved)}")
        audits = await finish_and_audit(running, clients)
    cut = sum(fleet.log(each).read_text(errors="replace").count(CUT_LOG_TEXT) for each in fleet.members)
    return DrainResult(load, tuple(moves), audits, cut)


def describe_moves(moves: Sequence[Move]) -> str:
    """The longest stall of each move, in a sentence."""
    worst = (max(move.stalls_ms, key=lambda name: move.stalls_ms[name]) for move in moves)
    return ", ".join(
        f"{move.when} {milliseconds(move.stalls_ms[name])} ({name})"
        for move, name in zip(moves, worst, strict=True)
    )


def show(measured: DrainResult, console: Console) -> None:
    """Print the figures as a table."""
    console.print(
        f"load average {measured.load:.1f} before the start; {measured.cut} connections cut with answers due"
    )
    table = Table(title=f"longest stall of a partition in {_WATCH_S:.0f} s, median / worst")
    table.add_column("client")
    for when in get_args(When):
        table.add_column(when, justify="right")
    found = measured.figures()
    for name in measured.moves[0].stalls_ms:
        cells = (found[f"{name}, {when}"] for when in get_args(When))
        table.add_row(name, *(f"{milliseconds(each.median)} / {milliseconds(each.worst)}" for each in cells))
    console.print(table)


async def run(options: Options, drains: int, names: Sequence[str]) -> DrainResult:
    """Start the fleet and measure."""
    load, view = os.getloadavg()[0], Lines()
    async with stage(options, view) as running:
        return await measure(running, drains, names, load, view)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--drains", type=click.IntRange(1), default=20, show_default=True, help="Number of drains.")
@client_option(CLIENTS)
@click.option(
    "--brokers", metavar="HOST:PORT,…", default="", help="Use this cluster instead of starting one."
)
@click.option("--strict", is_flag=True, help="Exit with 1 if a goal was missed.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
def main(drains: int, names: tuple[str, ...], brokers: str, strict: bool, as_json: bool) -> None:
    """Drain members in turn, undrain them, and measure how long clients wait."""
    try:
        measured = asyncio.run(run(Options(brokers=parse_brokers(brokers)), drains, names))
    except FleetError as error:
        sys.exit(f"drain: {error}")
    show(measured, Console(stderr=True))
    for each in measured.missed():
        print(f"missed: {each}", file=sys.stderr)
    if as_json:
        print(json.dumps(measured.document()))
    if measured.failed or (strict and measured.missed()):
        sys.exit(1)


if __name__ == "__main__":
    main()
