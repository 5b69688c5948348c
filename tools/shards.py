"""The shards of `make test-all`: each test file belongs to exactly one shard.

    python -m tools.shards                           list the shards and how long each takes
    python -m tools.shards --json                    the same as one JSON object
    python -m tools.shards run                       run all shards, one after the other
    python -m tools.shards run 2/4                   run the second of four shards
    python -m tools.shards run auto --limit-s 2400   let the commit choose a shard; stop after 40 minutes
    python -m tools.shards keep                      copy build/durations.json to tests/durations.json

A shard runs its unit tests first. Then its property tests and fuzzing run in the time that its tests with
servers leave idle. Exit code: 0 all tests passed, 1 a test failed, 2 a wrong argument.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tools.bootstrap import BUILD, ROOT

KEPT: Final = ROOT / "tests" / "durations.json"
"""File → seconds on a quiet machine; committed, so that every clone cuts the same shards."""
MEASURED: Final = BUILD / "durations.json"
"""The same, as the last runs of `make test-all` here measured it."""

UNIT_FOLDERS: Final = ("tests/unit",)
IDLE_TIME_FOLDERS: Final = ("tests/property", "tests/fuzz", "tests/compiled")
"""Tests that compute for minutes and that no timer waits for."""
SERVER_FOLDERS: Final = (
    "tests/integration",
    "tests/conformance",
    "tests/hostile",
    "tests/pipeline",
    "tests/judged",
    "tests/chaos",
)
"""In the order in which a run visits them: neighbours share Kafka, a fleet and Spark."""

SHARD_GOAL_S: Final = 15 * 60.0
UNKNOWN_FILE_S: Final = 20.0
"""What a file with servers counts that nobody has timed yet."""
UNKNOWN_UNIT_FILE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Shard:
    """One part of all test files, in the order in which it runs them."""

    unit: tuple[str, ...]
    idle_time: tuple[str, ...]
    server: tuple[str, ...]

    def files(self) -> tuple[str, ...]:
        return (*self.unit, *self.idle_time, *self.server)

    def starting_at(self, number: int) -> Shard:
        """The same files, rotated: a run that stops early then leaves out other files each time."""
        return Shard(*(_rotated(files, number) for files in (self.unit, self.idle_time, self.server)))


class WrongShard(ValueError):
    """The text does not name a shard."""


def _rotated(files: tuple[str, ...], number: int) -> tuple[str, ...]:
    at = number % len(files) if files else 0
    return files[at:] + files[:at]


def files_in(folders: Sequence[str]) -> list[str]:
    """The test files of some folders, as paths from the root, folder by folder."""
    return [
        file.relative_to(ROOT).as_posix()
        for folder in folders
        for file in sorted((ROOT / folder).rglob("test_*.py"))
    ]


def cut(files: Sequence[str], seconds: Sequence[float], count: int) -> list[tuple[str, ...]]:
    """Cut files into consecutive parts of about equal length.

    A file goes to the part that its middle falls into: a part is off by its two outermost files at most.

    Args:    files: in the order in which they run; seconds: how long each takes; count: parts, at least one
    Returns: `count` parts, of which some may be empty; together they are `files`
    """
    total_s, begun_s = sum(seconds), 0.0
    parts: list[list[str]] = [[] for _ in range(count)]
    for file, lasts_s in zip(files, seconds, strict=True):
        middle = (begun_s + lasts_s / 2) / total_s if total_s else 0.0
        parts[min(int(middle * count), count - 1)].append(file)
        begun_s += lasts_s
    return [tuple(part) for part in parts]


def shard_count(durations: Mapping[str, float]) -> int:
    """How many shards take about a quarter of an hour each."""
    total_s = sum(durations.get(file, UNKNOWN_FILE_S) for file in files_in(SERVER_FOLDERS))
    return max(1, math.ceil(total_s / SHARD_GOAL_S))


def shards(count: int, durations: Mapping[str, float]) -> list[Shard]:
    """All shards. Each test file of `make test-all` is in exactly one of them."""
    columns = [
        cut(files, [durations.get(file, unknown_s) for file in files], count)
        for files, unknown_s in (
            (files_in(UNIT_FOLDERS), UNKNOWN_UNIT_FILE_S),
            (files_in(IDLE_TIME_FOLDERS), UNKNOWN_FILE_S),
            (files_in(SERVER_FOLDERS), UNKNOWN_FILE_S),
        )
    ]
    return [Shard(unit, idle_time, server) for unit, idle_time, server in zip(*columns, strict=True)]


def server_tests_s(shard: Shard, durations: Mapping[str, float]) -> float:
    """How long the tests with servers of a shard take on a quiet machine; they decide how long it takes."""
    return sum(durations.get(file, UNKNOWN_FILE_S) for file in shard.server)


def chosen(text: str, durations: Mapping[str, float], commit: str) -> list[tuple[str, Shard]]:
    """The shards that a text names, each with its name.

    Args:    text: `all`, `K/N`, or `auto` for the shard and the first file that the commit's hash chooses
    Raises:  WrongShard
    """
    count = shard_count(durations)
    if text == "all":
        return [(f"{number}/{count}", each) for number, each in enumerate(shards(count, durations), 1)]
    if text == "auto":
        number = int.from_bytes(hashlib.sha256(commit.encode()).digest())
        shard = shards(count, durations)[number % count].starting_at(number // count)
        return [(f"{number % count + 1}/{count}", shard)]
    named = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
    if named is None or int(named[1]) > int(named[2]):
        raise WrongShard(f"SHARD={text!r}: use K/N with 1 <= K <= N, for example 2/{count}")
    return [(text, shards(int(named[2]), durations)[int(named[1]) - 1])]


def read_durations(path: Path = KEPT) -> dict[str, float]:
    """File → seconds; empty where there is no such file yet."""
    return dict(json.loads(path.read_text())) if path.exists() else {}


def run(name: str, shard: Shard, durations: Mapping[str, float], end_by_s: float | None) -> int:
    """Run one shard. Returns: 0 if all of its tests passed, else 1."""
    minutes = math.ceil(server_tests_s(shard, durations) / 60) + 2
    files = f"{len(shard.server)} test files with servers, {len(shard.unit) + len(shard.idle_time)} without"
    print(f"shard {name}: about {minutes} minutes on a quiet machine: {files}", file=sys.stderr, flush=True)
    python = (sys.executable, "-m")
    limit = () if end_by_s is None else (f"--end-by={end_by_s:.0f}",)
    pytest = (*python, "pytest", "--size=test-all", *limit)
    on_all_cores = (*pytest, "--numprocesses=auto", "--dist=worksteal", "--durations=10")
    run_idle = (*python, "tools.beside")
    # mypyc compiles while the unit tests run; the tests that need the result come later.
    compile_it = (*run_idle, "build/compiled.txt", *python, "tools.compiled", "--")
    idle = (*on_all_cores, "--timeout=3600", *shard.idle_time) if shard.idle_time else ()
    server = (*pytest, "--durations=20", *shard.server) if shard.server else ()
    both = (*run_idle, "build/computed.txt", *idle, "--", *server)
    steps = [
        (*compile_it, *on_all_cores, *shard.unit) if shard.unit else (),
        both if idle and server else idle or server,
    ]
    codes = [subprocess.call(step, cwd=ROOT) for step in steps if step]
    return int(any(codes))


def run_all(text: str, limit_s: float | None) -> int:
    """Run the shards that a text names. Returns: 0 if all tests passed, else 1. Raises: WrongShard"""
    durations = read_durations()
    named = chosen(text, durations, head() if text == "auto" else "")
    end_by_s = None if limit_s is None else time.time() + limit_s
    codes = {name: run(name, shard, durations, end_by_s) for name, shard in named}
    failed = [name for name, code in codes.items() if code]
    said = f"failed in shard {', '.join(failed)}" if failed else f"shard {', '.join(codes)} passed"
    print(f"make test-all: {said}", file=sys.stderr, flush=True)
    return int(bool(failed))


def show(as_json: bool) -> None:
    """Print what is in each shard."""
    durations = read_durations()
    all_of_them = shards(count := shard_count(durations), durations)
    if as_json:
        rows = [{"seconds": server_tests_s(each, durations), **asdict(each)} for each in all_of_them]
        print(json.dumps({"shards": rows}, indent=1))
        return
    for number, each in enumerate(all_of_them, 1):
        print(f"shard {number}/{count}: {server_tests_s(each, durations) / 60:.1f} minutes with servers")
        for file in each.server:
            print(f"  {durations.get(file, UNKNOWN_FILE_S):6.1f} s  {file}")


def keep() -> int:
    """Commit to what was measured here: the next shards are cut by it. Returns: the exit code."""
    if not MEASURED.exists():
        print(f"no {MEASURED.relative_to(ROOT)}: run make test-all first", file=sys.stderr)
        return 1
    shutil.copy(MEASURED, KEPT)
    return 0


def head() -> str:
    """The id of the commit that is checked out."""
    return subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.shards",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print the list as one JSON object")
    commands = parser.add_subparsers(dest="command")
    running = commands.add_parser("run", help="run shards")
    running.add_argument("shard", nargs="?", default="all", help="K/N, all (the default) or auto")
    running.add_argument("--limit-s", type=float, help="stop in time; the run names what it left out")
    commands.add_parser("keep", help="copy the measured durations to tests/durations.json")
    given = parser.parse_args(arguments)
    if given.command == "keep":
        return keep()
    if given.command is None:
        show(given.json)
        return 0
    try:
        return run_all(given.shard, given.limit_s)
    except WrongShard as error:
        print(f"make test-all: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
