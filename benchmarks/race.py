"""Every workload with every target, interleaved."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias, TypedDict, cast

from benchmarks.cluster import Stage, Target, rotate_targets
from benchmarks.cpu import cpu_s
from benchmarks.errors import BenchError
from benchmarks.metadata_client import ROOT, StartWork, client
from benchmarks.results import FLEET, Sample, Say, measures
from benchmarks.workloads import BATCH_RECORDS, COUNTS, MEASURED, RUNS, SPEC, Measured, Name, Spec

METADATA: Final = "metadata"
_LEADERS: Final[Mapping[Name, tuple[int, ...]]] = {
    "sync": (1,),
    "small": (1, 2, 3),
    "deep": (1, 2, 3),
    "produce": (1, 2, 3),
    "consume": (1, 2, 3),
    "sparse": (1,),
}

INTERLEAVED_WORKLOADS: Final[Sequence[Name]] = ("sync", "small", "deep", "sparse")
"""Workloads whose clients, for all targets, are ready together and work in turns; not crowds of `sync`.

A share takes two seconds at most, and the next target begins at once: other work of the machine affects both
alike. Found: with runs one after another, 12 seconds apart, those of `sparse` differed by two thirds. Of
`deep`, 24 runs of 3.6 to 16 µs for a request gave 1.26 for a ratio that is 0.97 in 120 turns. A turn that
starts no client takes a tenth of the time, so there can be many. Of `sync`, the p50 of direct clients was 160
to 359 µs in twelve runs, and the ratio of the time that fleet and HAProxy add varied from 0.92 to 1.34.
"""
TURNS_PER_CLIENT: Final = 10
"""Turns of a client before another replaces it: a client keeps its placement of threads and pages."""
CROWDS: Final = (1, 16, 256)
"""Numbers of connections of `sync`."""
REST_S: Final = 3.0
"""How long the proxies at rest are watched."""
CROWD_REQUESTS: Final = 40_000
"""The usual number of requests in a round, for each crowd of more than one connection."""
CROWD_RUNS: Final = 4
"""The number of runs among which these requests are divided, each with a client of its own."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run.

    Args:
        scale: how many records, as a multiple of `counts`.
        crowds: on how many connections `sync` is run.
        counts: the usual records of a round.
        runs: the number of runs in a round among which these records are divided.
        crowd_runs: the same for each crowd of more than one connection.
    """

    workloads: Sequence[Name]
    scale: float = 1.0
    crowds: Sequence[int] = CROWDS
    counts: Mapping[Name, int] = field(default_factory=lambda: COUNTS)
    runs: Mapping[Name, int] = field(default_factory=lambda: RUNS)
    crowd_runs: int = CROWD_RUNS

    def turns(self, workload: Name, connections: int = 1) -> int:
        """How many runs a round has."""
        return self.runs[workload] if connections == 1 else self.crowd_runs

    def count(self, workload: Name, connections: int = 1) -> int:
        """Records of one run."""
        if connections > 1:
            return round(max(BATCH_RECORDS, CROWD_REQUESTS / self.crowd_runs * self.scale))
        usual = self.counts[workload] / self.runs[workload]
        return round(max(min(usual, BATCH_RECORDS), usual * self.scale))


Watch: TypeAlias = Callable[[Sequence[int]], AbstractContextManager[object]]
"""A context that watches a proxy's processes while the client works."""


@dataclass(frozen=True, slots=True)
class Share:
    """The measures of one piece of a client's work.

    Args:   s_per_record: how long it took.
    """

    measures: dict[str, float]
    s_per_record: float

    def with_rest(self, at_rest: float) -> dict[str, float]:
        """All measures, and separately the CPU time at rest, from the proxies' share of one CPU at rest.

        A direct connection has no proxies, and no such measures.
        """
        used = self.measures.get("cpu_us_per_record")
        if used is None:
            return self.measures
        over_rest = used - 1e6 * at_rest * self.s_per_record
        rest_measures = {"cpu_us_per_record_over_rest": over_rest, "rest_cpu_ms_per_s": 1000 * at_rest}
        return {**self.measures, **rest_measures}


def run(target: Target, spec: Spec, watch: Watch = nullcontext) -> dict[str, float]:
    """Run one workload with one target, in a process of its own. Returns: its measures."""
    with _client(target, spec) as start_work:
        share = _share(target, spec, start_work, watch)
        return (
            share.with_rest(_at_rest((target,))[target.name]) if spec.workload == "sparse" else share.measures
        )


def _client(target: Target, spec: Spec) -> AbstractContextManager[StartWork]:
    work = SPEC.dump_json(spec).decode()
    return client("benchmarks.workloads", work, what=spec.workload, target=target.name)


def _share(target: Target, spec: Spec, start_work: StartWork, watch: Watch = nullcontext) -> Share:
    """Have a ready client do its work once."""
    proxies, member = target.proxies(), target.member()
    with watch(proxies):
        began_s, before_s, member_before_s = time.monotonic(), cpu_s(proxies), cpu_s(member)
        line = start_work()
        used_s, member_used_s = cpu_s(proxies) - before_s, cpu_s(member) - member_before_s
        took_s = time.monotonic() - began_s
    measured: Measured = MEASURED.validate_json(line)
    used = (used_s, member_used_s) if proxies else (None, None)
    return Share(measures(spec.workload, measured, *used), took_s / measured.requests)


Run: TypeAlias = Callable[[Target, Spec], dict[str, float]]
"""Runs one workload with one target, and returns its measures."""


def race(stage: Stage, plan: Plan, number: int, say: Say, measured: Run | None = None) -> Iterator[Sample]:
    """Run a round of the plan. A round has as many turns as runs; each turn begins with another target.

    Args:
        number: the round's number.
        measured: replaces `run`, which measures a workload with a target; then clients do not take turns.
    Raises: BenchError: a client failed, or a proxy ended.
    """
    filled = _fill(stage, plan) if "consume" in plan.workloads else ""
    for workload in plan.workloads:
        for connections in plan.crowds if workload == "sync" else (1,):
            if connections == 1 and workload in INTERLEAVED_WORKLOADS and measured is None:
                yield from _side_by_side(stage, plan, workload, number, say)
                continue
            for turn, target in rotate_targets(stage.targets, plan.turns(workload, connections), number):
                say(f"{workload}, {target.name}")
                topic = filled if workload == "consume" else stage.create_topic(workload, _LEADERS[workload])
                found = (measured or run)(target, _spec(plan, workload, target, topic, connections))
                if workload != "consume":
                    stage.delete_topic(topic)
                for measure, value in found.items():
                    name = measure if connections == 1 else f"{measure}_{connections}"
                    yield Sample(workload, name, target.name, turn, value)


def _side_by_side(stage: Stage, plan: Plan, workload: Name, number: int, say: Say) -> Iterator[Sample]:
    """A round of a workload whose clients are ready together; new clients come after `TURNS_PER_CLIENT`."""
    turns = list(rotate_targets(stage.targets, plan.turns(workload), number))
    some = TURNS_PER_CLIENT * len(stage.targets)
    for first in range(0, len(turns), some):
        yield from _take_turns(stage, plan, workload, turns[first : first + some], say)


def _take_turns(
    stage: Stage,
    plan: Plan,
    workload: Name,
    turns: Sequence[tuple[int, Target]],
    say: Say,
) -> Iterator[Sample]:
    """Some turns of a round, with one client for each target: all are ready, and wait for their turns."""
    specs: dict[str, Spec] = {}
    clients: dict[str, StartWork] = {}
    with ExitStack() as stack:
        for target in stage.targets:
            topic = stage.create_topic(workload, _LEADERS[workload])
            specs[target.name] = _spec(plan, workload, target, topic)
            clients[target.name] = stack.enter_context(_client(target, specs[target.name]))
        shares: list[tuple[int, Target, Share]] = []
        for turn, target in turns:
            say(f"{workload}, {target.name}")
            shares.append((turn, target, _share(target, specs[target.name], clients[target.name])))
        # Found: right after clients have connected, a worker at rest does more than ten seconds later.
        at_rest = _at_rest(stage.targets) if workload == "sparse" else {}
    for turn, target, share in shares:
        for measure, value in share.with_rest(at_rest.get(target.name, 0.0)).items():
            yield Sample(workload, measure, target.name, turn, value)
    for spec in specs.values():
        stage.delete_topic(spec.topic)


def _at_rest(targets: Sequence[Target]) -> dict[str, float]:
    """The share of one CPU that the proxies of each target take while nothing passes."""
    before_s = {target.name: cpu_s(target.proxies()) for target in targets}
    time.sleep(REST_S)
    return {target.name: (cpu_s(target.proxies()) - before_s[target.name]) / REST_S for target in targets}


def _spec(plan: Plan, workload: Name, target: Target, topic: str, connections: int = 1) -> Spec:
    partitions, count = len(_LEADERS[workload]), plan.count(workload, connections)
    servers = target.bootstrap_servers
    return Spec(workload, servers, topic, partitions, count, connections, security=target.security)


def _fill(stage: Stage, plan: Plan) -> str:
    """Fill a topic for `consume`: the first target writes it, as in `produce`."""
    topic = stage.create_topic("consume", _LEADERS["consume"])
    target = stage.targets[0]
    run(target, replace(_spec(plan, "consume", target, topic), workload="produce"))
    return topic


class MetadataCase(TypedDict):
    """One entry of the output of `patch_metadata.py`."""

    brokers: int
    partitions: int
    bytes: int
    patch_us: float
    session_us: float
    kio_us: float


def metadata(rounds: int) -> Iterator[Sample]:
    """The CPU time of rewriting Metadata responses; no Kafka is needed.

    `fleet` is all the work of a session for the response, `patch` the patching without the rest, and `kio`
    decoding and encoding.
    """
    command = [sys.executable, str(ROOT / "benchmarks" / "patch_metadata.py"), "--rounds", str(rounds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, cwd=ROOT)
    if done.returncode != 0:
        raise BenchError("the Metadata benchmark failed")
    for case in cast(list[MetadataCase], json.loads(done.stdout)["metadata_v12"]):
        measure = f"cpu_us_{case['brokers']}x{case['partitions']}"
        yield Sample(METADATA, measure, FLEET, 0, case["session_us"])
        yield Sample(METADATA, measure, "patch", 0, case["patch_us"])
        yield Sample(METADATA, measure, "kio", 0, case["kio_us"])
