"""The same with TLS: at the clients' side, where a proxy ends it, and towards the brokers, too."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Final, get_args

from benchmarks import peers, storm, workloads
from benchmarks.cluster import Seal, in_rounds, staged
from benchmarks.connections import allow_files, crowds
from benchmarks.errors import BenchError
from benchmarks.peers import PeerLine
from benchmarks.race import Plan, race
from benchmarks.results import DIRECT, FLEET, Sample, Say
from benchmarks.scripted import host_of
from benchmarks.workloads import Name
from fleet.tls import issuing

TLS: Final = "tls"
WORKLOADS: Final[tuple[Name, ...]] = get_args(Name)
COUNTS: Final[Mapping[Name, int]] = MappingProxyType({**workloads.COUNTS, "sparse": 60})
"""Six seconds of the sparse one, and not forty: there are seven targets on the two sides."""
RUNS: Final[Mapping[Name, int]] = MappingProxyType(
    {**dict.fromkeys(WORKLOADS, 2), "sync": 10, "small": 10, "deep": 10, "sparse": 3}
)
"""Fewer than without TLS: there are seven targets here, too."""
CROWD_RUNS: Final = 2
"""Of each crowd of `sync`."""
CROWDS: Final[Mapping[int, int]] = MappingProxyType({100: 2, 1_000: 2})
"""How many clients connect, with a handshake each, and how many times in a round."""
STORMS: Final[Mapping[storm.Case, int]] = MappingProxyType({(3, 10): 2, (100, 10_000): 2})
"""Of the third case the clients alone would decrypt four gigabytes for each target."""
CLIENT: Final = "client"
BOTH: Final = "both"
"""The side where proxies speak TLS to brokers, too; a direct connection is to brokers that do, either way."""
SIDES: Final = (CLIENT, BOTH)
_ALL: Final = "all"
_DAYS: Final = 7


def samples(rounds: int, names: Collection[str], scale: float, say: Say) -> Iterator[Sample]:
    """Race, with each of the two; measures are called as without TLS, behind the side and the workload.

    Args:   names: of the targets: `direct`, `fleet`, and peers that speak TLS. Others are left out.
    Raises: BenchError, DemoError: as `staged` and `race`.
    """
    allow_files()
    for side, lines in peers.load_sides().items():
        raced = [name for name in (DIRECT, *lines, FLEET) if name in names]
        if not raced:
            raise BenchError(
                f"{TLS}: none of {', '.join(names)} is among {DIRECT}, {', '.join(lines)}, {FLEET}"
            )
        with tempfile.TemporaryDirectory(prefix="fleet-bench-") as made:
            for each in _of_side(side, raced, lines, Path(made), rounds, scale, say):
                yield replace(each, workload=TLS, measure=f"{side}_{each.workload}_{each.measure}")


def _of_side(
    side: str,
    names: Sequence[str],
    lines: dict[str, PeerLine],
    folder: Path,
    rounds: int,
    scale: float,
    say: Say,
) -> Iterator[Sample]:
    sealed = seal(folder / "certificates", to_brokers=side == BOTH)
    plan = Plan(WORKLOADS, scale, counts=COUNTS, runs=RUNS, crowd_runs=CROWD_RUNS)
    for number, told, place in in_rounds(rounds, say, folder):
        with staged(place, names, lines, told, sealed) as stage:
            yield from crowds(stage, number, told, CROWDS)  # first, while the proxies have had nobody
            yield from race(stage, plan, number, told)
    sealed = seal(folder / "storms", to_brokers=side == BOTH, brokers=max(brokers for brokers, _ in STORMS))
    yield from storm.samples(rounds, names, lines, runs=STORMS, seal=sealed)


def seal(folder: Path, *, to_brokers: bool, brokers: int = 0) -> Seal:
    """One certificate for all servers of this machine, and for so many scripted brokers."""
    folder.mkdir()
    hosts = ("127.0.0.1", *map(host_of, range(1, 1 + brokers)))
    issuing.make("bench", [_ALL], folder, _DAYS, datetime.now(UTC), {_ALL: hosts})
    files = issuing.member_files(folder, _ALL)
    both = folder / "both.pem"
    both.touch(0o600)
    both.write_bytes(files.key.read_bytes() + files.certificate.read_bytes())
    return Seal(files.ca, both, to_brokers)
