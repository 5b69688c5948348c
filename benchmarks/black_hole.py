"""How soon survivors advertise the identities of a member whose packets are lost without a reset.

    python -m benchmarks.black_hole --times 5 --json

The faults are a black hole around a member in each direction, and SIGSTOP, for the leader and for a follower.
The time runs from the moment before the first link is broken until every survivor's Metadata names survivors
only. Exit code 1: a takeover did not happen, or took longer than the goal.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Final, Literal, get_args

import click
from rich.console import Console
from rich.table import Table

from benchmarks.takeover import Figures, spread
from fleet.core.errors import DemoError, FleetError
from fleet.core.model import BrokerId, ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.demo.view import milliseconds
from fleet.drills.workload.prober import Prober
from fleet.drills.workload.waiting import background_tasks, eventually, in_thread
from tests.chaos.seeded.effects import becomes, hears_all
from tests.chaos.seeded.network import Toxiproxy
from tests.chaos.seeded.run import SharedServers, prepare

Fault = Literal["both", "in", "out", "freeze"]
Role = Literal["leader", "follower"]
GOAL_MS: Final = 1500.0
_SETTLE_S = 2.5
"""The pause before each fault: the last fault is over for all members, and probes run at their usual pace."""
_TAKEOVER_LIMIT_S = 20.0
_WHOLE_LIMIT_S = 90.0


@dataclass(frozen=True, slots=True)
class Case:
    """All repetitions of one fault.

    Args:
        breaking_ms: the time to break all links, one after the other; it is a part of `advertised_ms`.
        load: the machine's load average before each repetition.
    """

    fault: Fault
    role: Role
    advertised_ms: Figures
    breaking_ms: Figures
    load: tuple[float, ...]


class FaultRunner:
    """Breaks the links around members, or stops members, and measures the takeover."""

    def __init__(
        self, fleet: LocalFleet, network: Toxiproxy, prober: Prober, ids: frozenset[BrokerId]
    ) -> None:
        self._fleet = fleet
        self._network = network
        self._prober = prober
        self._broker_ids = ids

    async def measure_case(self, fault: Fault, role: Role, times: int) -> Case:
        """Measure one kind of fault. Raises: DemoError: the fleet does not become whole again."""
        load = []
        took_ms: list[float | None] = []
        breaking_ms = []
        for number in range(times):
            if not await becomes(self._is_whole, _WHOLE_LIMIT_S):
                raise DemoError(f"the fleet was not whole; see {self._fleet.logs}")
            await asyncio.sleep(_SETTLE_S)
            load.append(os.getloadavg()[0])
            victim = await in_thread(partial(self._victim, role, number))
            took, breaking = await self._break(fault, victim)
            took_ms.append(took)
            breaking_ms.append(breaking)
        return Case(fault, role, spread(took_ms), spread(breaking_ms), tuple(load))

    async def _break(self, fault: Fault, victim: ProxyId) -> tuple[float | None, float]:
        """Returns: milliseconds to the takeover, None if too long; milliseconds to break all links."""
        survivors = [each for each in self._fleet.members if each != victim]
        links = [*self._network.peer_links(victim), *self._network.client_links(victim)]
        broken_s = time.monotonic()

        def live_s() -> float | None:
            return self._prober.live_since_s(self._broker_ids, survivors, broken_s)

        try:
            if fault == "freeze":
                self._fleet.freeze(victim)
            else:
                swallow = partial(self._network.poison, links, "timeout", {"timeout": 0}, fault)
                await in_thread(swallow)
            breaking_ms = (time.monotonic() - broken_s) * 1000.0
            await eventually(lambda: live_s() is not None, _TAKEOVER_LIMIT_S)
            live_at_s = live_s()
        finally:
            self._fleet.thaw(victim)
            await in_thread(partial(self._network.heal, links))
        return None if live_at_s is None else (live_at_s - broken_s) * 1000.0, breaking_ms

    def _victim(self, role: Role, number: int) -> ProxyId:
        leader = self._fleet.leader()
        if role == "leader" and leader is not None:
            return leader
        # In turn: a member that goes down again soon is taken in again later and later.
        followers = [each for each in self._fleet.members if each != leader]
        return followers[number % len(followers)]

    def _is_whole(self) -> bool:
        fleet = self._fleet
        return (
            fleet.leader() is not None
            and all(fleet.is_ready(each) and hears_all(fleet.ownership(each)) for each in fleet.members)
            and fleet.is_settled(self._broker_ids, fleet.members)
        )


@asynccontextmanager
async def running_faults(ground: SharedServers, folder: Path) -> AsyncIterator[FaultRunner]:
    """Three members with the default timing, and Toxiproxy around each."""
    fleet = LocalFleet(folder, ground.upstream)
    with ExitStack() as ends:
        ends.callback(fleet.remove_data)
        ends.callback(ground.network.forget_members)
        ground.network.put_before_members(fleet)
        ground.network.put_between_members(fleet)
        ends.callback(fleet.close)
        fleet.start()
        targets = {each: fleet.bootstrap_endpoint(each) for each in fleet.members}
        prober = Prober(targets, fleet.owner_of)
        prober.fast = True
        async with background_tasks(prober.run()):
            yield FaultRunner(fleet, ground.network, prober, frozenset(ground.kafka.brokers))


def say(line: str) -> None:
    print(line, file=sys.stderr)


async def run(times: int) -> list[Case]:
    """Measure every fault of every role. Raises: FleetError: the fleet did not start."""
    cases = []
    folder = Path(tempfile.mkdtemp(prefix="running_faults-"))
    async with prepare(folder, say) as ground:
        for fault, role in product(get_args(Fault), get_args(Role)):
            async with running_faults(ground, folder / f"{fault}-{role}") as runner:
                cases.append(await runner.measure_case(fault, role, times))
            say(str(cases[-1]))
    shutil.rmtree(folder)  # after a failure the logs stay, and show the cause
    return cases


def show(cases: list[Case], console: Console) -> None:
    """Print the figures as a table."""
    table = Table(title=f"advertised elsewhere; goal {milliseconds(GOAL_MS)}")
    for column in ("fault", "member", "median", "worst", "time to break", "load average"):
        table.add_column(column)
    for case in cases:
        found, load = case.advertised_ms, f"{min(case.load):.1f} to {max(case.load):.1f}"
        figures = (found.median, found.worst, case.breaking_ms.worst)
        table.add_row(case.fault, case.role, *map(milliseconds, figures), load)
    console.print(table)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--times", type=click.IntRange(1), default=5, show_default=True, help="Repetitions per fault.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
def main(times: int, as_json: bool) -> None:
    """Measure takeovers from members in a black hole, in each direction, and from stopped members."""
    try:
        cases = asyncio.run(run(times))
    except FleetError as error:
        sys.exit(f"black_hole: {error}")
    show(cases, Console(stderr=True))
    if as_json:
        print(json.dumps({"times": times, "cases": [asdict(case) for case in cases]}))
    worst = [case.advertised_ms.worst for case in cases]
    if any(value is None or value > GOAL_MS for value in worst):
        sys.exit(1)


if __name__ == "__main__":
    main()
