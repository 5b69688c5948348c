"""Runs many simulated Raft schedules in several processes: ``python -m tests.raft_long --help``.

The one object on standard output says what the schedules saw; a seed that failed is replayed with
``--first SEED --schedules 1``. Exits with 1 where a promise was broken, or too little of something happened.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.property.raft_simulation import Outcome, simulate

MIN_COUNTS = {
    "acknowledged": 50_000,
    "elections": 5_000,
    "distrusted": 250,
    "emptied": 150,
    "erased": 300,
    "messages lost": 30_000,
    "one-way stalls": 10_000,
    "partitions": 1_000,
    "power cuts": 2_000,
    "reordered": 3_000,
    "refused writes": 100,
    "rejoined": 500,
    "restarts": 5_000,
    "restored": 90,
    "snapshots installed": 2_000,
    "snapshots written": 10_000,
    "torn writes": 300,
    "truncations": 500,
}
"""The minimum counts of 500 schedules, together, to be meaningful: about half of what they usually have."""
_MIN_COUNTS_SCHEDULES = 500
SHARED_MEMORY = Path("/dev/shm")
"""The folder of the simulated disks' files if it exists: it needs no disk."""


def run_schedule(seed: int) -> Outcome:
    folder = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="raft-", dir=folder) as name:
        return simulate(seed, Path(name))


def run_schedules(first: int, schedules: int, processes: int) -> Iterator[Outcome]:
    """The outcomes of a number of schedules, in no order."""
    if processes <= 1:
        yield from map(run_schedule, range(first, first + schedules))
        return
    with multiprocessing.get_context("spawn").Pool(processes, _be_quiet) as pool:
        yield from pool.imap_unordered(run_schedule, range(first, first + schedules), chunksize=5)


def too_few(counts: Mapping[str, int], schedules: int) -> dict[str, int]:
    """The counts that are too low to be meaningful. Fewer than 500 schedules have no minimum."""
    times = schedules // _MIN_COUNTS_SCHEDULES
    return {name: counts[name] for name, least in MIN_COUNTS.items() if counts[name] < times * least}


def _be_quiet() -> None:
    logging.disable(logging.CRITICAL)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.raft_long", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    arguments = parser.parse_args()
    _be_quiet()
    started_s = time.monotonic()
    counts: Counter[str] = Counter()
    broken: dict[int, tuple[str, ...]] = {}
    for number, outcome in enumerate(
        run_schedules(arguments.first, arguments.schedules, arguments.processes), 1
    ):
        counts += outcome.counts
        if outcome.violations:
            broken[outcome.seed] = outcome.violations
            print(f"seed {outcome.seed}: {outcome.violations[0]}", file=sys.stderr, flush=True)
        if not arguments.json and number % 100 == 0:
            print(f"{number} schedules, {len(broken)} with a violation", file=sys.stderr, flush=True)
    few = too_few(counts, arguments.schedules)
    report = {
        "schedules": arguments.schedules,
        "violations": len(broken),
        "seeds": sorted(broken),
        "counts": dict(sorted(counts.items())),
        "too_few": few,
        "seconds": round(time.monotonic() - started_s, 1),
    }
    print(json.dumps(report, indent=None if arguments.json else 2))
    return 1 if broken or few else 0


if __name__ == "__main__":
    sys.exit(main())
