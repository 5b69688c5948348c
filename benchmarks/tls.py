"""The same workloads with TLS: to clients, where the proxy ends it, and also to the brokers."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Final, get_args

from benchmarks import peers, storm, workloads
from benchmarks.cluster import TlsFiles, iterate_rounds, staged
from benchmarks.connections import crowds, raise_file_limit
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
"""Six seconds of the sparse workload, not forty: there are seven targets on the two sides."""
RUNS: Final[Mapping[Name, int]] = MappingProxyType(
    {**dict.fromkeys(WORKLOADS, 2), "sync": 10, "small": 10, "deep": 10, "sparse": 3}
)
"""Fewer runs than without TLS, for the same reason."""
CROWD_RUNS: Final = 2
"""Runs of each crowd of `sync`."""
CROWDS: Final[Mapping[int, int]] = MappingProxyType({100: 2, 1_000: 2})
"""How many clients connect, with a handshake each, and how often in a round."""
STORMS: Final[Mapping[storm.Case, int]] = MappingProxyType({(3, 10): 2, (100, 10_000): 2})
"""Without the third case, in which the clients alone would decrypt four gigabytes for each target."""
CLIENT: Final = "client"
BOTH: Final = "both"
"""The side with TLS to brokers, too. A direct connection has TLS to brokers on either side."""
SIDES: Final = (CLIENT, BOTH)
_ALL: Final = "all"
_DAYS: Final = 7


def samples(rounds: int, names: Collection[str], scale: float, say: Say) -> Iterator[Sample]:
    """Measure each of the two sides; a measure's name begins with the side and the workload.

    Args:   names: of the targets: `direct`, `fleet`, and peers that speak TLS. Other targets are left out.
    Raises: BenchError, DemoError: as `staged` and `race`.
    """
    raise_file_limit()
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
    tls_files = issue_tls_files(folder / "certificates", to_brokers=side == BOTH)
    plan = Plan(WORKLOADS, scale, counts=COUNTS, runs=RUNS, crowd_runs=CROWD_RUNS)
    for number, say_in_round, place in iterate_rounds(rounds, say, folder):
        with staged(place, names, lines, say_in_round, tls_files) as stage:
            yield from crowds(stage, number, say_in_round, CROWDS)  # first, while the proxies are fresh
            yield from race(stage, plan, number, say_in_round)
    tls_files = issue_tls_files(
        folder / "storms", to_brokers=side == BOTH, brokers=max(brokers for brokers, _ in STORMS)
    )
    yield from storm.samples(rounds, names, lines, runs=STORMS, tls_files=tls_files)


def issue_tls_files(folder: Path, *, to_brokers: bool, brokers: int = 0) -> TlsFiles:
    """Issue one certificate for all servers of this machine, and for N scripted brokers."""
    folder.mkdir()
    hosts = ("127.0.0.1", *map(host_of, range(1, 1 + brokers)))
    issuing.make("bench", [_ALL], folder, _DAYS, datetime.now(UTC), {_ALL: hosts})
    files = issuing.member_files(folder, _ALL)
    both = folder / "both.pem"
    both.touch(0o600)
    both.write_bytes(files.key.read_bytes() + files.certificate.read_bytes())
    return TlsFiles(files.ca, both, to_brokers)
