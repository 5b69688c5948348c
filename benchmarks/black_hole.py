"""How soon a member is advertised elsewhere that nothing gets through to, or from, and nothing is reset.

    python -m benchmarks.black_hole --times 5 --json

For a black hole around a member in each direction, and for SIGSTOP, of the leader and of a follower: from the
moment before the first link is broken until every survivor's Metadata has none but survivors. Exit code 1
where that never came, or took longer than the goal.
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
_STEADY_S = 2.5
"""Before each fault: the last one is over for everybody, and the members are probed at their usual pace."""
_LIMIT_S = 20.0
_WHOLE_LIMIT_S = 90.0


@dataclass(frozen=True, slots=True)
class Case:
    """One fault, as often as it was asked for.

    Args:
        breaking_ms: what it took to break all links, one after the other; it is a part of the time.
        load: the machine's load averages at the beginning of each.
    """

    fault: Fault
    role: Role
    advertised_ms: Figures
    breaking_ms: Figures
    load: tuple[float, ...]


class Holes:
    """Breaks what is around members, and looks on."""

    def __init__(
        self, fleet: LocalFleet, network: Toxiproxy, prober: Prober, ids: frozenset[BrokerId]
    ) -> None:
        self._fleet = fleet
        self._network = network
        self._prober = prober
        self._broker_ids = ids

    async def case(self, fault: Fault, role: Role, times: int) -> Case:
        """Measure one kind of fault. Raises: DemoError: the fleet does not become whole again."""
        load = []
        took_ms: list[float | None] = []
        breaking_ms = []
        for number in range(times):
            if not await becomes(self._is_whole, _WHOLE_LIMIT_S):
                raise DemoError(f"the fleet was not whole; see {self._fleet.logs}")
            await asyncio.sleep(_STEADY_S)
            load.append(os.getloadavg()[0])
            victim = await in_thread(partial(self._victim, role, number))
            took, breaking = await self._once(fault, victim)
            took_ms.append(took)
            breaking_ms.append(breaking)
        return Case(fault, role, spread(took_ms), spread(breaking_ms), tuple(load))

    async def _once(self, fault: Fault, victim: ProxyId) -> tuple[float | None, float]:
        """Returns: milliseconds, None where it took too long; and those for breaking everything."""
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
            await eventually(lambda: live_s() is not None, _LIMIT_S)
            found_s = live_s()
        finally:
            self._fleet.thaw(victim)
            await in_thread(partial(self._network.heal, links))
        return None if found_s is None else (found_s - broken_s) * 1000.0, breaking_ms

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
async def holes(ground: SharedServers, folder: Path) -> AsyncIterator[Holes]:
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
            yield Holes(fleet, ground.network, prober, frozenset(ground.kafka.brokers))


def say(line: str) -> None:
    print(line, file=sys.stderr)


async def run(times: int) -> list[Case]:
    """Every fault of every role. Raises: FleetError: the stage did not stand."""
    cases = []
    folder = Path(tempfile.mkdtemp(prefix="holes-"))
    async with prepare(folder, say) as ground:
        for fault, role in product(get_args(Fault), get_args(Role)):
            async with holes(ground, folder / f"{fault}-{role}") as made:
                cases.append(await made.case(fault, role, times))
            say(str(cases[-1]))
    shutil.rmtree(folder)  # where something went wrong, its logs tell what
    return cases


def show(cases: list[Case], console: Console) -> None:
    """The figures for people."""
    table = Table(title=f"advertised elsewhere; goal {milliseconds(GOAL_MS)}")
    for column in ("fault", "of the", "median", "worst", "breaking it took", "load average"):
        table.add_column(column)
    for case in cases:
        found, load = case.advertised_ms, f"{min(case.load):.1f} to {max(case.load):.1f}"
        figures = (found.median, found.worst, case.breaking_ms.worst)
        table.add_row(case.fault, case.role, *map(milliseconds, figures), load)
    console.print(table)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--times", type=click.IntRange(1), default=5, show_default=True, help="How often each fault.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
def main(times: int, as_json: bool) -> None:
    """Black holes around the leader and around a follower, in each direction, and SIGSTOP of either."""
    try:
        cases = asyncio.run(run(times))
    except FleetError as error:
        sys.exit(f"holes: {error}")
    show(cases, Console(stderr=True))
    if as_json:
        print(json.dumps({"times": times, "cases": [asdict(case) for case in cases]}))
    worst = [case.advertised_ms.worst for case in cases]
    if any(value is None or value > GOAL_MS for value in worst):
        sys.exit(1)


if __name__ == "__main__":
    main()
