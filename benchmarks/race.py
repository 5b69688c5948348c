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

from benchmarks.cluster import Stage, Target, in_turns
from benchmarks.cpu import cpu_s
from benchmarks.errors import BenchError
from benchmarks.metadata_client import ROOT, Go, client
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

SIDE_BY_SIDE: Final[Sequence[Name]] = ("sync", "small", "deep", "sparse")
"""Here all targets' clients are ready at the same time, and work in turns; but for crowds of `sync`.

A share is two seconds at most, and the next target begins at once: what else the machine does weighs on both
alike. Found: with runs one after another, 12 seconds apart, those of `sparse` differed by two thirds. Of
`deep` 24 runs, of 3.6 to 16 µs for a request, left 1.26 for a ratio that is 0.97 in 120 turns; a turn without
a client that starts takes a tenth of the time, so there can be many. Of `sync` the p50 of direct clients
was 160 to 359 µs in twelve runs, and left 0.92 to 1.34 for what is added beside HAProxy.
"""
TURNS_OF_CLIENTS: Final = 10
"""So many, and others take their place: where threads and pages have come to be stays so for a client."""
CROWDS: Final = (1, 16, 256)
"""The connections of `sync`."""
REST_S: Final = 3.0
"""For how long it is watched what proxies do at rest."""
CROWD_COUNT: Final = 40_000
"""The usual requests in a round of each crowd of more than one connection."""
CROWD_RUNS: Final = 4
"""Among so many runs they are divided, each with a client of its own."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run.

    Args:
        scale: how many records, as a multiple of `counts`.
        crowds: on how many connections `sync` is run.
        counts: how many records are usual in a round.
        runs: among how many runs of a round they are divided.
        crowd_runs: the same, of each crowd of more than one connection.
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
            return round(max(BATCH_RECORDS, CROWD_COUNT / self.crowd_runs * self.scale))
        usual = self.counts[workload] / self.runs[workload]
        return round(max(min(usual, BATCH_RECORDS), usual * self.scale))


Watch: TypeAlias = Callable[[Sequence[int]], AbstractContextManager[object]]
"""What goes on, around the clients' work, beside a proxy's processes."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a client has done since it was told to, and what it took.

    Args:   s_per_record: how long.
    """

    measures: dict[str, float]
    s_per_record: float

    def beside(self, at_rest: float) -> dict[str, float]:
        """All measures, with what the proxies do at rest, of one CPU, told apart; there may be no proxies."""
        used = self.measures.get("cpu_us_per_record")
        if used is None:
            return self.measures
        over_rest = used - 1e6 * at_rest * self.s_per_record
        told = {"cpu_us_per_record_over_rest": over_rest, "rest_cpu_ms_per_s": 1000 * at_rest}
        return {**self.measures, **told}


def run(target: Target, spec: Spec, watch: Watch = nullcontext) -> dict[str, float]:
    """One workload with one target, in a process of its own. Returns: its measures."""
    with _client(target, spec) as go:
        share = _share(target, spec, go, watch)
        return share.beside(_at_rest((target,))[target.name]) if spec.workload == "sparse" else share.measures


def _client(target: Target, spec: Spec) -> AbstractContextManager[Go]:
    work = SPEC.dump_json(spec).decode()
    return client("benchmarks.workloads", work, what=spec.workload, target=target.name)


def _share(target: Target, spec: Spec, go: Go, watch: Watch = nullcontext) -> Share:
    """A client that is ready does its work once."""
    proxies, member = target.proxies(), target.member()
    with watch(proxies):
        began_s, before_s, member_before_s = time.monotonic(), cpu_s(proxies), cpu_s(member)
        line = go()
        used_s, member_used_s = cpu_s(proxies) - before_s, cpu_s(member) - member_before_s
        took_s = time.monotonic() - began_s
    measured: Measured = MEASURED.validate_json(line)
    used = (used_s, member_used_s) if proxies else (None, None)
    return Share(measures(spec.workload, measured, *used), took_s / measured.requests)


Run: TypeAlias = Callable[[Target, Spec], dict[str, float]]
"""One workload with one target, and its measures."""


def race(stage: Stage, plan: Plan, number: int, say: Say, measured: Run | None = None) -> Iterator[Sample]:
    """Run a round of the plan; in each turn, of which it has as many as runs, another target is the first.

    Args:
        number: of the round.
        measured: in place of `run`, which measures a workload with a target; then none are side by side.
    Raises: BenchError: a client failed, or a proxy ended.
    """
    filled = _fill(stage, plan) if "consume" in plan.workloads else ""
    for workload in plan.workloads:
        for connections in plan.crowds if workload == "sync" else (1,):
            if connections == 1 and workload in SIDE_BY_SIDE and measured is None:
                yield from _side_by_side(stage, plan, workload, number, say)
                continue
            for turn, target in in_turns(stage.targets, plan.turns(workload, connections), number):
                say(f"{workload}, {target.name}")
                topic = filled if workload == "consume" else stage.create_topic(workload, _LEADERS[workload])
                found = (measured or run)(target, _spec(plan, workload, target, topic, connections))
                if workload != "consume":
                    stage.delete_topic(topic)
                for measure, value in found.items():
                    name = measure if connections == 1 else f"{measure}_{connections}"
                    yield Sample(workload, name, target.name, turn, value)


def _side_by_side(stage: Stage, plan: Plan, workload: Name, number: int, say: Say) -> Iterator[Sample]:
    """A round of a workload whose clients are ready together; there are others after `TURNS_OF_CLIENTS`."""
    turns = list(in_turns(stage.targets, plan.turns(workload), number))
    some = TURNS_OF_CLIENTS * len(stage.targets)
    for first in range(0, len(turns), some):
        yield from _take_turns(stage, plan, workload, turns[first : first + some], say)


def _take_turns(
    stage: Stage,
    plan: Plan,
    workload: Name,
    turns: Sequence[tuple[int, Target]],
    say: Say,
) -> Iterator[Sample]:
    """Some turns of a round, of one client for each target: all are ready, and wait for theirs."""
    specs: dict[str, Spec] = {}
    clients: dict[str, Go] = {}
    with ExitStack() as stack:
        for target in stage.targets:
            topic = stage.create_topic(workload, _LEADERS[workload])
            specs[target.name] = _spec(plan, workload, target, topic)
            clients[target.name] = stack.enter_context(_client(target, specs[target.name]))
        shares: list[tuple[int, Target, Share]] = []
        for turn, target in turns:
            say(f"{workload}, {target.name}")
            shares.append((turn, target, _share(target, specs[target.name], clients[target.name])))
        # Found: right after clients have come, a worker has more to do at rest than ten seconds later.
        at_rest = _at_rest(stage.targets) if workload == "sparse" else {}
    for turn, target, share in shares:
        for measure, value in share.beside(at_rest.get(target.name, 0.0)).items():
            yield Sample(workload, measure, target.name, turn, value)
    for spec in specs.values():
        stage.delete_topic(spec.topic)


def _at_rest(targets: Sequence[Target]) -> dict[str, float]:
    """The share of one CPU that the proxies of each take while nothing passes."""
    before_s = {target.name: cpu_s(target.proxies()) for target in targets}
    time.sleep(REST_S)
    return {target.name: (cpu_s(target.proxies()) - before_s[target.name]) / REST_S for target in targets}


def _spec(plan: Plan, workload: Name, target: Target, topic: str, connections: int = 1) -> Spec:
    partitions, count = len(_LEADERS[workload]), plan.count(workload, connections)
    servers = target.bootstrap_servers
    return Spec(workload, servers, topic, partitions, count, connections, security=target.security)


def _fill(stage: Stage, plan: Plan) -> str:
    """A topic with what `consume` reads: as `produce` writes it, by the first target."""
    topic = stage.create_topic("consume", _LEADERS["consume"])
    target = stage.targets[0]
    run(target, replace(_spec(plan, "consume", target, topic), workload="produce"))
    return topic


class MetadataCase(TypedDict):
    """One entry of what `patch_metadata.py` prints."""

    brokers: int
    partitions: int
    bytes: int
    patch_us: float
    session_us: float
    kio_us: float


def metadata(rounds: int) -> Iterator[Sample]:
    """The CPU time of rewriting Metadata responses; no Kafka is needed.

    `fleet` is what a session does with the whole response, `patch` that without passing it on, and `kio`
    decodes and encodes it.
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
