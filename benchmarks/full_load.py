"""Whether members suspect each other while the machine passes as much traffic through them as it can.

    python -m benchmarks.full_load --minutes 10 --json

Three members run in front of three brokers, all on this machine. One client writes batches and then reads
them. A second client writes small requests. Each works as fast as it can. Exit code 1: a member was
suspected, or an identity has moved.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from benchmarks import report
from benchmarks.cluster import Stage, Target, compiled_launcher
from benchmarks.race import run
from benchmarks.results import FLEET
from benchmarks.workloads import COUNTS, Name, Spec
from fleet.core.errors import FleetError
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster

MEMBERS: Final = 3
_BROKERS: Final = (1, 2, 3)
_COUNT_FACTOR: Final = 8
"""Records of a run, as a multiple of a benchmark's, so that little time passes between two runs."""


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The result of a run.

    Args:
        load: the machine's load average over a minute, at the end.
        suspicions: how often a member suspected another member.
        elections, moves: by how much the Raft term, and the generation of ownership, have grown.
    """

    minutes: float
    load: float
    produced_gb: float
    consumed_gb: float
    small_requests: int
    suspicions: int
    elections: int
    moves: int

    @property
    def is_stable(self) -> bool:
        """Whether no member was suspected and no identity moved. Elections alone move nothing."""
        return not (self.suspicions or self.moves)


class Clients:
    """The clients, each in a thread of its own.

    Args: until_s: when clients begin no further run, on the monotonic clock.
    """

    def __init__(self, stage: Stage, until_s: float) -> None:
        self._stage, self._until_s = stage, until_s
        self._failure: FleetError | None = None
        self.produced_bytes = self.consumed_bytes = self.small_requests = 0
        works = (self._run_batches, self._run_small_requests)
        self._threads = [threading.Thread(target=self._repeat, args=(work,)) for work in works]

    def work(self) -> None:
        """Run all clients until the time is over. Raises: FleetError: a client has failed."""
        for each in self._threads:
            each.start()
        for each in self._threads:
            each.join()
        if self._failure is not None:
            raise self._failure

    def _repeat(self, work: Callable[[], None]) -> None:
        try:
            while time.monotonic() < self._until_s and self._failure is None:
                work()
        except FleetError as error:
            self._failure = error

    def _run(self, workload: Name, topic: str, count: int) -> int:
        (target,) = self._stage.targets
        run(target, Spec(workload, target.bootstrap_servers, topic, len(_BROKERS), count))
        return count

    def _run_batches(self) -> None:
        topic = self._stage.create_topic("batches", _BROKERS)
        count = _COUNT_FACTOR * COUNTS["produce"]  # the consumer can read no more than that
        self.produced_bytes += 1_000 * self._run("produce", topic, count)
        self.consumed_bytes += 1_000 * self._run("consume", topic, count)
        self._stage.delete_topic(topic)

    def _run_small_requests(self) -> None:
        topic = self._stage.create_topic("small", _BROKERS)
        self.small_requests += self._run("small", topic, _COUNT_FACTOR * COUNTS["small"])
        self._stage.delete_topic(topic)


def measure(minutes: float) -> LoadResult:
    """Start the fleet, and run all clients. Raises: FleetError: a process does not come up, or fails."""
    with tempfile.TemporaryDirectory(prefix="fleet-loaded-") as made:
        folder = Path(made)
        with ExitStack() as running:
            kafka = running.enter_context(KafkaCluster(len(_BROKERS), folder / "kafka"))
            fleet = LocalFleet(folder / FLEET, kafka.endpoints, MEMBERS)
            fleet.through = dict.fromkeys(fleet.members, compiled_launcher())
            running.enter_context(fleet)
            fleet.await_settled(frozenset(_BROKERS))
            before, suspected = fleet.ownership("p1"), suspicions(fleet)
            stage = Stage(kafka, [Target(FLEET, fleet.bootstrap())])
            clients = Clients(stage, time.monotonic() + 60 * minutes)
            clients.work()
            load, after = os.getloadavg()[0], fleet.ownership("p1")
            suspected = suspicions(fleet) - suspected
    return LoadResult(
        minutes,
        load,
        clients.produced_bytes / 1e9,
        clients.consumed_bytes / 1e9,
        clients.small_requests,
        suspected,
        after.term - before.term,
        after.generation - before.generation,
    )


def suspicions(fleet: LocalFleet) -> int:
    """How many suspicions all members have logged."""
    return sum(
        len(re.findall(r"-> suspect \(", fleet.log(each).read_text(errors="replace")))
        for each in fleet.members
    )


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--minutes", type=click.FloatRange(0.1), default=10.0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
def main(minutes: float, as_json: bool) -> None:
    """Load three members as much as this machine can, and check that they do not suspect each other."""
    try:
        with report.progress(Console(stderr=True)) as say:
            say(f"running three members under full load for {minutes:g} minutes")
            found = measure(minutes)
    except FleetError as error:
        sys.exit(f"loaded: {error}")
    print(json.dumps(asdict(found), indent=1) if as_json else found)
    if not found.is_stable:
        sys.exit(1)


if __name__ == "__main__":
    main()
