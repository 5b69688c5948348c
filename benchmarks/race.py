"""Every workload with every target, interleaved, round after round."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final, TypedDict, cast

from benchmarks.asking import ROOT, client
from benchmarks.cpu import cpu_s
from benchmarks.errors import BenchError
from benchmarks.results import FLEET, Sample, Say, measures
from benchmarks.stage import Stage, Target, in_turn
from benchmarks.workloads import BATCH_RECORDS, COUNTS, MEASURED, SPEC, Measured, Name, Spec

METADATA: Final = "metadata"
_LEADERS: Final[Mapping[Name, tuple[int, ...]]] = {
    "sync": (1,),
    "small": (1, 2, 3),
    "deep": (1, 2, 3),
    "produce": (1, 2, 3),
    "consume": (1, 2, 3),
    "sparse": (1,),
}

CROWDS: Final = (1, 16, 256)
"""The connections of `sync`."""
MORE: Final = 5
"""So many times the requests, where there are more than one."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run.

    Args:
        scale: how many records, as a multiple of what is usual.
    """

    workloads: Sequence[Name]
    rounds: int
    scale: float = 1.0

    def count(self, workload: Name) -> int:
        usual = COUNTS[workload]
        return max(min(usual, BATCH_RECORDS), round(usual * self.scale))


def race(stage: Stage, plan: Plan, say: Say) -> Iterator[Sample]:
    """Run the plan; in each round another target is the first.

    Raises: BenchError: a client failed, or a proxy ended.
    """
    filled = _fill(stage, plan) if "consume" in plan.workloads else ""
    for number in range(plan.rounds):
        for workload in plan.workloads:
            crowds = CROWDS if workload == "sync" else (1,)
            for connections, target in product(crowds, in_turn(stage.targets, number)):
                say(f"round {number + 1} of {plan.rounds}: {workload}, {target.name}")
                topic = filled if workload == "consume" else stage.create_topic(workload, _LEADERS[workload])
                spec = _spec(plan, workload, target, topic)
                if connections > 1:
                    spec = replace(spec, connections=connections, count=spec.count * MORE)
                found = run(target, spec)
                if workload != "consume":
                    stage.delete_topic(topic)
                for measure, value in found.items():
                    name = measure if connections == 1 else f"{measure}_{connections}"
                    yield Sample(workload, name, target.name, number, value)


def run(target: Target, spec: Spec) -> dict[str, float]:
    """One workload with one target, in a process of its own. Returns: its measures."""
    work = SPEC.dump_json(spec).decode()
    with client("benchmarks.workloads", work, what=spec.workload, target=target.name) as go:
        proxies, member = target.proxies(), target.member()
        before_s, member_before_s = cpu_s(proxies), cpu_s(member)
        line = go()
        used_s, member_used_s = cpu_s(proxies) - before_s, cpu_s(member) - member_before_s
    measured: Measured = MEASURED.validate_json(line)
    return measures(spec.workload, measured, used_s if proxies else None, member_used_s if proxies else None)


def _spec(plan: Plan, workload: Name, target: Target, topic: str) -> Spec:
    partitions, count = len(_LEADERS[workload]), plan.count(workload)
    servers = target.bootstrap_servers
    return Spec(workload, servers, topic, partitions, count, security=target.security)


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
