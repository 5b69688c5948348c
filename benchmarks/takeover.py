"""How long takeovers last, for members, observers and clients: kills the leader and a follower in turn.

    python -m benchmarks.takeover --kills 20 --client recommended --json

The benchmark runs the demo, and adds three measures: the longest time from a record's `produce()` to its
delivery report, the Metadata requests of one client, and how many of the responses still had an address of
the killed member. These are for librdkafka, with its defaults or the recommended settings; for the Java
client and aiokafka there are stalls only (`benchmarks.stalls`). Exit code 1: a takeover or the audit failed.
A missed goal is printed; only `--strict` makes it a failure, because a goal is for a quiet machine.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Final, TypeAlias, get_args

import click
from rich.console import Console
from rich.table import Table

from benchmarks import stalls
from benchmarks.clients import RATE_PER_S as OTHERS_RATE_PER_S
from benchmarks.errors import BenchError
from benchmarks.metadata_requests import MetadataRequestCounter
from benchmarks.results import FLEET, Sample
from benchmarks.stalls import Stall
from fleet.core.errors import FleetError
from fleet.core.model import ProxyId
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.demo.command import parse_brokers, plan_kills
from fleet.drills.demo.result import Round
from fleet.drills.demo.rounds import Rounds
from fleet.drills.demo.run import (
    PARTITIONS,
    Options,
    Stage,
    create_topic,
    delete_topic,
    stage,
    unfinished,
)
from fleet.drills.demo.view import Lines, milliseconds, round_line
from fleet.drills.workload.audit import Audit, audit
from fleet.drills.workload.clients import ClientSettings, Workload, WorkloadSpec, read_log
from fleet.drills.workload.history import Event, Record
from fleet.drills.workload.prober import Prober
from fleet.drills.workload.waiting import background_tasks, in_thread

Key: TypeAlias = tuple[int, Record]
Kills: TypeAlias = "Sequence[Kill | Stall]"
"""Kills under librdkafka, or under another client."""

MEASURES: Final = (
    "detected_ms",
    "advertised_ms",
    "committed_ms",
    "producer_stall_ms",
    "consumer_stall_ms",
    "delivery_ms",
    "metadata_requests",
    "stale_answers",
)
MEDIAN, WORST = "median", "worst"
TAKEOVER: Final = "takeover"
RATE_PER_S: Final = 1200


@dataclass(frozen=True, slots=True)
class Goal:
    """The most that a figure may be on a quiet machine."""

    measure: str
    figure: str
    limit_ms: float


def _goals(delivery_ms: float) -> tuple[Goal, ...]:
    return (
        Goal("advertised_ms", MEDIAN, 100.0),
        Goal("advertised_ms", WORST, 500.0),
        Goal("committed_ms", WORST, 1000.0),
        Goal("delivery_ms", MEDIAN, delivery_ms),
    )


SETTINGS: Final[tuple[ClientSettings, ...]] = get_args(ClientSettings)
"""Names of librdkafka's settings."""
GOALS: Final[dict[str, tuple[Goal, ...]]] = {
    "default": _goals(600.0),
    "recommended": _goals(150.0),
    **dict.fromkeys(stalls.CLIENTS, ()),
}


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill.

    Args:
        delivery_ms: the longest time to delivery of any record that arrived, or was still to arrive, while
            the
            kill was watched.
        metadata_requests: of one client during this time.
        stale_answers: how many of its responses had an address of the killed member.
    """

    round: Round
    delivery_ms: float
    metadata_requests: int
    stale_answers: int

    @property
    def killed(self) -> ProxyId:
        return self.round.killed

    @property
    def was_leader(self) -> bool:
        return self.round.was_leader

    def value(self, measure: str) -> float | None:
        found: float | None = getattr(self if hasattr(self, measure) else self.round, measure)
        return found


@dataclass(frozen=True, slots=True)
class Figures:
    """One measure over all kills; None if a kill has no value."""

    median: float | None
    worst: float | None


class Deliveries:
    """How long records take from `produce()` to their delivery reports."""

    def __init__(self, workload: Workload) -> None:
        self._productions = workload.productions()
        self._acknowledgements = workload.acknowledgements()
        self._under_way: dict[Key, float] = {}
        self._unmatched: list[Event] = []

    def longest_ms(self, since_s: float, until_s: float) -> float:
        """The longest time of records that arrived in a window, or were in flight at its end."""
        acknowledged = [*self._unmatched, *self._acknowledgements.read()]
        # Read productions after acknowledgements, so that a record is mostly known before its
        # acknowledgement.
        for event in self._productions.read():
            self._under_way[event.partition, event.record] = event.at_s
        self._unmatched = []
        longest_s = 0.0
        for event in acknowledged:
            produced_s = self._under_way.pop((event.partition, event.record), None)
            if produced_s is None:
                self._unmatched.append(event)  # its production is not on disk yet
            elif since_s <= event.at_s <= until_s:
                longest_s = max(longest_s, event.at_s - produced_s)
        waiting_s = (until_s - produced_s for produced_s in self._under_way.values())
        return 1000.0 * max([longest_s, *waiting_s])


async def measure(
    running: Stage, options: Options, rate_per_s: int, view: Lines
) -> tuple[Audit, tuple[Kill, ...]]:
    """Run clients through a fleet, kill members one after the other, and audit all records.

    Raises: DemoError: the clients break, or a killed member does not come back.
    """
    fleet = running.fleet
    topic = f"fleet-takeover-{time.time_ns() // 1_000_000}"
    counted = f"{topic}-counted"
    for each in (topic, counted):
        await in_thread(partial(create_topic, fleet.bootstrap(), each, min(3, len(running.broker_ids))))
    workload = Workload(
        WorkloadSpec(
            fleet.bootstrap(),
            topic,
            str(running.folder),
            topic,
            partitions=PARTITIONS,
            rate_per_s=rate_per_s,
            client=options.client,
        )
    )
    refreshes = MetadataRequestCounter(fleet.bootstrap(), counted, PARTITIONS, options.client)
    prober = Prober({each: fleet.bootstrap_endpoint(each) for each in fleet.members}, fleet.owner_of)
    rounds, deliveries = Rounds(fleet, running.broker_ids, workload, prober), Deliveries(workload)
    kills: list[Kill] = []
    async with background_tasks(prober.run()):
        try:
            workload.start()
            await rounds.await_flow()
            with refreshes:
                for number, wish in enumerate(options.kills, 1):
                    kill = await _kill(fleet, rounds, deliveries, refreshes, wish)
                    kills.append(kill)
                    view.say(
                        f"{number} of {len(options.kills)}: {round_line(kill.round)}; delivery "
                        f"{milliseconds(kill.delivery_ms)}; Metadata requests {kill.metadata_requests}, "
                        f"stale {kill.stale_answers}"
                    )
                    await rounds.bring_back(kill.round.killed)
            await in_thread(workload.stop)
            log = await in_thread(lambda: read_log(running.brokers, topic))
            verdict = audit(workload.acknowledged(), workload.received(), log)
        finally:
            workload.kill()
    if options.brokers:
        for each in (topic, counted):
            await in_thread(partial(delete_topic, running.brokers, each))
    return verdict, tuple(kills)


async def _kill(
    fleet: LocalFleet, rounds: Rounds, deliveries: Deliveries, refreshes: MetadataRequestCounter, wish: str
) -> Kill:
    victim, was_leader = await rounds.aim(wish)
    since_s, requests, answers = time.monotonic(), refreshes.requests, len(refreshes.answers)
    measured = await rounds.kill(victim, was_leader)
    longest_ms = deliveries.longest_ms(since_s, time.monotonic())
    stale = sum(
        any(fleet.owner_of(each) == victim for each in answer) for answer in refreshes.answers[answers:]
    )
    return Kill(measured, longest_ms, refreshes.requests - requests, stale)


def measures_of(client: str) -> Sequence[str]:
    return stalls.MEASURES if client in stalls.CLIENTS else MEASURES


def figures(kills: Kills, measures: Sequence[str] = MEASURES) -> dict[str, Figures]:
    """The median and the worst of each measure; None if a kill has no value, or there was no kill."""
    return {each: spread([kill.value(each) for kill in kills]) for each in measures}


def spread(values: Sequence[float | None]) -> Figures:
    """The median and the worst; None if a value is missing, or there is none."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return Figures(median=None, worst=None)
    return Figures(statistics.median(known), max(known))


def missed(found: dict[str, Figures], goals: Sequence[Goal]) -> list[str]:
    """The goals that were missed, in sentences."""
    sentences = []
    for goal in goals:
        value: float | None = getattr(found[goal.measure], goal.figure)
        if value is None or value > goal.limit_ms:
            sentences.append(
                f"{goal.measure}: {goal.figure} {milliseconds(value)}, goal {milliseconds(goal.limit_ms)}"
            )
    return sentences


def document(client: str, verdict: Audit, kills: Kills) -> dict[str, object]:
    """What `--json` prints."""
    measures = measures_of(client)
    found = figures(kills, measures)
    return {
        "client": client,
        "kills": [
            {
                "killed": kill.killed,
                "was_leader": kill.was_leader,
                **{each: kill.value(each) for each in measures},
            }
            for kill in kills
        ],
        "figures": {each: asdict(value) for each, value in found.items()},
        "missed": missed(found, GOALS[client]),
        "audit": asdict(verdict),
    }


def count(value: float | None) -> str:
    return "never" if value is None else f"{value:g}"


def show(client: str, kills: Kills, console: Console) -> None:
    """Print the figures as a table."""
    who = f"librdkafka with its {client} settings" if client in SETTINGS else client
    table = Table(title=f"{len(kills)} kills, {who}")
    for column in ("from the kill", MEDIAN, WORST, "goals"):
        table.add_column(column, justify="left" if column in ("from the kill", "goals") else "right")
    for each, value in figures(kills, measures_of(client)).items():
        goals = [
            f"{goal.figure} {milliseconds(goal.limit_ms)}" for goal in GOALS[client] if goal.measure == each
        ]
        say = milliseconds if each.endswith("_ms") else count
        name = each.removesuffix("_ms").replace("_", " ")
        table.add_row(name, say(value.median), say(value.worst), ", ".join(goals))
    console.print(table)


async def run(options: Options, rate_per_s: int) -> tuple[Audit, tuple[Kill, ...], list[str]]:
    """Start the fleet and measure. Returns: the audit, the kills, and what did not happen in time."""
    view = Lines()
    async with stage(options, view) as running:
        verdict, kills = await measure(running, options, rate_per_s, view)
        return verdict, kills, unfinished(running.fleet, [kill.round for kill in kills])


def samples(rounds: int) -> Iterator[Sample]:
    """Kill the leader and a follower in each round: with both settings of librdkafka, and with other clients.

    Raises: BenchError: a takeover, or an audit, failed. DemoError: as in `benchmarks.stalls`.
    """
    wishes = ("leader", "follower") * rounds
    for settings in SETTINGS:
        verdict, kills, late = asyncio.run(run(Options(kills=wishes, client=settings), RATE_PER_S))
        if late or not verdict.passed:
            raise BenchError(f"{TAKEOVER}: {', '.join(late) or verdict}")
        yield from _samples_of(settings, kills)
    others = asyncio.run(stalls.run(Options(kills=wishes), tuple(stalls.CLIENTS), OTHERS_RATE_PER_S))
    for client, outcome in others.items():
        if not outcome.audit.passed:
            raise BenchError(f"{TAKEOVER}: {client}: {outcome.audit}")
        yield from _samples_of(client, outcome.stalls)


def _samples_of(client: str, kills: Kills) -> Iterator[Sample]:
    for number, kill in enumerate(kills):
        who = "leader" if kill.was_leader else "follower"
        for measure in measures_of(client):
            value = kill.value(measure)
            if value is not None:
                yield Sample(TAKEOVER, f"{measure}_{who}_{client}", FLEET, number // 2, value)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--kills", type=click.IntRange(1), default=20, show_default=True, help="Number of kills.")
@click.option(
    "--client",
    type=click.Choice(list(GOALS)),
    default="default",
    show_default=True,
    help="librdkafka with its default or the recommended settings, or another client, with stalls only.",
)
@click.option(
    "--rate",
    type=click.IntRange(1),
    help=f"Records per second.  [default: {RATE_PER_S}; {OTHERS_RATE_PER_S} for java and aiokafka]",
)
@click.option(
    "--brokers", metavar="HOST:PORT,…", default="", help="Use this cluster instead of starting one."
)
@click.option("--strict", is_flag=True, help="Exit with 1 if a goal was missed.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
def main(kills: int, client: str, rate: int | None, brokers: str, strict: bool, as_json: bool) -> None:
    """Kill the Raft leader and a follower in turn, and measure how long each takeover lasts."""
    options = Options(brokers=parse_brokers(brokers), kills=plan_kills(None, kills, Options().proxies))
    try:
        verdict, measured, late = asyncio.run(_run(client, options, rate))
    except FleetError as error:
        sys.exit(f"takeover: {error}")
    show(client, measured, Console(stderr=True))
    failed = missed(figures(measured, measures_of(client)), GOALS[client])
    for line in (*late, *(f"missed: {each}" for each in failed)):
        print(line, file=sys.stderr)
    if as_json:
        print(json.dumps(document(client, verdict, measured)))
    if not verdict.passed or late or (strict and failed):
        sys.exit(1)


async def _run(client: str, options: Options, rate_per_s: int | None) -> tuple[Audit, Kills, list[str]]:
    for settings in SETTINGS:
        if client == settings:
            return await run(replace(options, client=settings), rate_per_s or RATE_PER_S)
    outcome = (await stalls.run(options, [client], rate_per_s or OTHERS_RATE_PER_S))[client]
    return outcome.audit, outcome.stalls, []


if __name__ == "__main__":
    main()
