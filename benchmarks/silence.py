"""What clients do on a connection to a silent member: stops a member while clients work.

    python -m benchmarks.silence --rounds 3 --json

The survivors advertise its identities within a second or two, but a client does not learn that its connection
is dead: it stays with the connection until a time-out of its own. For each client, with its defaults and with
shorter time-outs: the longest interval without an acknowledgement on any partition, and the longest interval
in which no record of its group arrives. Exit code 1: the audit failed, or a client did not come back in time.
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
from typing import Final

import click
from rich.console import Console
from rich.table import Table

from benchmarks.clients import Kind, await_flow, client_option, finish_and_audit, running_clients, stalls_ms
from benchmarks.takeover import Figures, spread
from fleet.core.errors import FleetError
from fleet.drills.demo.run import Options, Stage, stage
from fleet.drills.demo.view import Lines, milliseconds
from fleet.drills.workload.audit import Audit
from fleet.drills.workload.waiting import in_thread
from tests.chaos.seeded.workloads import Client

CLIENTS: Final = MappingProxyType[str, Kind](
    {
        "librdkafka": Kind("idempotent", "default"),
        "librdkafka, socket.timeout.ms=5000": Kind("idempotent", "default", {"socket.timeout.ms": "5000"}),
        "java": Kind("java", "default"),
        "java, request.timeout.ms=5000": Kind("java", "default", {"request.timeout.ms": "5000"}),
        "aiokafka": Kind("aiokafka", "default"),
        "aiokafka, request_timeout_ms=5000": Kind("aiokafka", "default", {"request.timeout.ms": "5000"}),
    }
)
RETURN_LIMIT_S: Final = 180.0
"""The time in which a client has to leave a silent member, with the defaults of every client."""
_SETTLE_S = 1.0
"""A record that arrives this long after the stop was not in flight at the stop."""


@dataclass(frozen=True, slots=True)
class Silence:
    """One stopped member; milliseconds by client and group, until all were served again."""

    proxy_id: str
    stalls_ms: dict[str, float]


@dataclass(frozen=True, slots=True)
class SilenceResult:
    """The result of all rounds; `load` is the machine's average over a minute, before the start."""

    load: float
    silences: tuple[Silence, ...]
    audits: dict[str, Audit]

    def figures(self) -> dict[str, Figures]:
        names = self.silences[0].stalls_ms
        return {name: spread([each.stalls_ms[name] for each in self.silences]) for name in names}

    def document(self) -> dict[str, object]:
        """What `--json` prints."""
        return {
            "load_average": self.load,
            "silences": [asdict(each) for each in self.silences],
            "figures": {name: asdict(each) for name, each in self.figures().items()},
            "audits": {name: asdict(each) for name, each in self.audits.items()},
        }


async def measure(
    running: Stage, rounds: int, names: Sequence[str], load: float, view: Lines
) -> SilenceResult:
    """Stop members in turn while clients work, and audit all records.

    Raises: DemoError: a client, or the fleet, does not come back.
    """
    silences = []
    async with running_clients(running, "silence", {name: CLIENTS[name] for name in names}) as clients:
        for number in range(rounds):
            victim = running.fleet.members[number % len(running.fleet.members)]
            silences.append(await _silence(running, victim, clients))
            found = silences[-1].stalls_ms
            view.say(f"{number + 1} of {rounds}: {victim}; " + ", ".join(map(_line, found.items())))
        audits = await finish_and_audit(running, clients)
    return SilenceResult(load, tuple(silences), audits)


async def _silence(running: Stage, victim: str, clients: Mapping[str, Client]) -> Silence:
    fleet = running.fleet
    since_s = await in_thread(lambda: fleet.freeze(victim))
    try:
        await asyncio.sleep(_SETTLE_S)
        await await_flow(clients, RETURN_LIMIT_S)
        until_s = time.monotonic()
    finally:
        fleet.thaw(victim)
    stalled_ms = stalls_ms(clients, since_s, until_s)
    await in_thread(lambda: fleet.await_settled(running.broker_ids))
    await await_flow(clients)
    return Silence(victim, stalled_ms)


def _line(stall: tuple[str, float]) -> str:
    name, stall_ms = stall
    return f"{name} {milliseconds(stall_ms)}"


def show(measured: SilenceResult, console: Console) -> None:
    """Print the figures as a table."""
    console.print(f"load average {measured.load:.1f} before the start")
    table = Table(title=f"{len(measured.silences)} members stopped: longest stall of a partition")
    for column in ("client", "median", "worst"):
        table.add_column(column, justify="left" if column == "client" else "right")
    for name, each in measured.figures().items():
        table.add_row(name, milliseconds(each.median), milliseconds(each.worst))
    console.print(table)


async def run(rounds: int, names: Sequence[str]) -> SilenceResult:
    """Start the fleet and measure."""
    load, view = os.getloadavg()[0], Lines()
    async with stage(Options(), view) as running:
        return await measure(running, rounds, names, load, view)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Number of stops.")
@client_option(CLIENTS)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
def main(rounds: int, names: tuple[str, ...], as_json: bool) -> None:
    """Stop members in turn, and measure how long clients stay with them."""
    try:
        measured = asyncio.run(run(rounds, names))
    except FleetError as error:
        sys.exit(f"silence: {error}")
    show(measured, Console(stderr=True))
    if as_json:
        print(json.dumps(measured.document()))
    if not all(each.passed for each in measured.audits.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
