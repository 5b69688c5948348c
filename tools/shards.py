"""The shards of `make test-all`: each test file belongs to exactly one shard.

    python -m tools.shards                           list the shards and how long each takes
    python -m tools.shards --json                    the same as one JSON object
    python -m tools.shards run                       run all shards, one after the other
    python -m tools.shards run 2/4                   run the second of four shards
    python -m tools.shards run auto --end-by 1796000000      let the commit choose a shard; stop in time
    python -m tools.shards run 2/4 --from tests/integration/test_sasl.py     begin with another file
    python -m tools.shards keep                      copy build/durations.json to tests/durations.json

A shard runs its unit tests first. Then its property tests and fuzzing run in the time that its tests with
servers leave idle. Exit code: 0 all tests passed, 1 a test failed, 2 a wrong argument, 130 interrupted.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tools.bootstrap import BUILD, ROOT

DURATIONS_FILE: Final = ROOT / "tests" / "durations.json"
"""File → seconds on a quiet machine; committed, so that every clone cuts the same shards."""
MEASURED_FILE: Final = BUILD / "durations.json"
"""The same, as the last runs of `make test-all` here measured it."""
LEFT_OUT_FILE: Final = BUILD / "left-out.txt"
"""The files that a run with a limit has left out, one a line."""

IN_PROCESS: Final = "tests/integration/in_process"
"""Tests that open sockets, but start neither Kafka nor a fleet: they run on all cores, as unit tests do."""
UNIT_FOLDERS: Final = ("tests/unit", "tests/drills", "tests/tools", "tests/benchmarks", IN_PROCESS)
IDLE_TIME_FOLDERS: Final = ("tests/property", "tests/fuzz", "tests/compiled")
"""Tests that compute for minutes and that no timer waits for."""
SERVER_FOLDERS: Final = (
    "tests/integration",
    "tests/conformance",
    "tests/hostile",
    "tests/pipeline",
    "tests/spark_crosscheck",
    "tests/chaos",
)
"""In the order in which a run visits them: neighbours share Kafka, a fleet and Spark."""

SHARD_GOAL_S: Final = 15 * 60.0
UNKNOWN_FILE_S: Final = 20.0
"""The assumed duration of a file with servers that was never timed."""
UNKNOWN_UNIT_FILE_S: Final = 1.0
INTERRUPTED: Final = 130


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

    def starting_with(self, file: str) -> Shard:
        """The same files, with those before a file with servers moved to the end. Raises: WrongShard"""
        if file not in self.server:
            raise WrongShard(f"--from {file}: this shard has no such file; python -m tools.shards lists them")
        return Shard(self.unit, self.idle_time, _rotated(self.server, self.server.index(file)))


class WrongShard(ValueError):
    """The text does not name a shard."""


def _rotated(files: tuple[str, ...], number: int) -> tuple[str, ...]:
    at = number % len(files) if files else 0
    return files[at:] + files[:at]


def files_in(folders: Sequence[str]) -> list[str]:
    """The test files of some folders, as paths from the root, folder by folder.

    The files of `IN_PROCESS` belong to that folder alone, not to the folder around it.
    """
    return [
        file
        for folder in folders
        for path in sorted((ROOT / folder).rglob("test_*.py"))
        if (file := path.relative_to(ROOT).as_posix()).startswith(f"{IN_PROCESS}/") == (folder == IN_PROCESS)
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


def select_shards(text: str, durations: Mapping[str, float], commit: str) -> list[tuple[str, Shard]]:
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
    shard = shards(int(named[2]), durations)[int(named[1]) - 1]
    if not shard.server:
        raise WrongShard(f"SHARD={text!r}: has no file with servers; use a smaller N, for example {count}")
    return [(text, shard)]


def read_durations(path: Path = DURATIONS_FILE) -> dict[str, float]:
    """File → seconds; empty if the file does not exist yet."""
    return dict(json.loads(path.read_text())) if path.exists() else {}


def minutes_of(shard: Shard, durations: Mapping[str, float]) -> int:
    """How long a shard takes on a quiet machine: its tests with servers, after its unit tests."""
    return math.ceil(server_tests_s(shard, durations) / 60) + 2


def call(command: Sequence[str]) -> int:
    """Run a command to its end. Ctrl-C reaches the command by itself, and it has to clean up first."""
    interrupted = False
    with subprocess.Popen(command, cwd=ROOT) as process:
        while True:
            try:
                code = process.wait()
            except KeyboardInterrupt:
                interrupted = True
            else:
                return INTERRUPTED if interrupted else code


def note_left_out(files: Iterable[str]) -> None:
    """Note files that this run leaves out; the end of the run names them."""
    with LEFT_OUT_FILE.open("a") as noted:
        noted.writelines(f"{file}\n" for file in files)


def run(name: str, shard: Shard, options: Sequence[str], end_by_s: float | None) -> int:
    """Run one shard. Returns: 0 all tests passed, 1 a test failed, 130 interrupted."""
    if end_by_s is not None and time.time() > end_by_s:
        note_left_out(shard.files())
        return 0
    python = (sys.executable, "-m")
    limit = () if end_by_s is None else (f"--end-by={end_by_s:.0f}",)
    pytest = (*python, "pytest", "--size=test-all", *limit, *options)
    on_all_cores = (*pytest, "--numprocesses=auto", "--dist=worksteal", "--durations=10")
    run_idle = (*python, "tools.run_idle")
    # mypyc compiles while the unit tests run; the tests that need the result come later.
    compile_it = (*run_idle, "build/compiled.txt", *python, "tools.compiled", "--")
    idle = (*on_all_cores, "--timeout=3600", *shard.idle_time) if shard.idle_time else ()
    server = (*pytest, "--durations=20", *shard.server) if shard.server else ()
    both = (*run_idle, "build/computed.txt", *idle, "--", *server)
    steps = [
        (*compile_it, *on_all_cores, *shard.unit) if shard.unit else (),
        both if idle and server else idle or server,
    ]
    print(f"shard {name}", file=sys.stderr, flush=True)
    failed = False
    for step in filter(None, steps):
        code = call(step)
        if code == INTERRUPTED:
            return code
        failed = failed or code != 0
    return int(failed)


def run_all(
    named: Sequence[tuple[str, Shard]], options: Sequence[str] = (), end_by_s: float | None = None
) -> int:
    """Run shards one after the other, and print a summary at the end. Returns: the exit code."""
    LEFT_OUT_FILE.parent.mkdir(exist_ok=True)
    LEFT_OUT_FILE.unlink(missing_ok=True)
    failed = []
    for name, shard in named:
        code = run(name, shard, options, end_by_s)
        if code == INTERRUPTED:
            return code
        if code:
            failed.append(name)
    names = ", ".join(name for name, _ in named)
    lines = [f"a test failed in shard {', '.join(failed)}" if failed else f"no test failed in shard {names}"]
    if LEFT_OUT_FILE.exists():
        left_out = LEFT_OUT_FILE.read_text().splitlines()
        lines += [f"left out for lack of time, {len(left_out)} files:", *left_out]
    print("make test-all:", "\n  ".join(lines), file=sys.stderr, flush=True)
    return int(bool(failed))


def announce(named: Sequence[tuple[str, Shard]], durations: Mapping[str, float]) -> None:
    """Print what will run, and for how long."""
    minutes = sum(minutes_of(shard, durations) for _, shard in named)
    files = sum(len(shard.files()) for _, shard in named)
    names = ", ".join(name for name, _ in named)
    text = f"make test-all: shard {names}: {files} test files, about {minutes} minutes on a quiet machine"
    print(f"{text} with two cores, twice as long on a slow one", file=sys.stderr, flush=True)


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
    """Copy what was measured here to the committed file. Returns: the exit code."""
    if not MEASURED_FILE.exists():
        print(f"no {MEASURED_FILE.relative_to(ROOT)}: run make test-all first", file=sys.stderr)
        return 1
    shutil.copy(MEASURED_FILE, DURATIONS_FILE)
    return 0


def head() -> str:
    """The id of the commit that is checked out. Raises: WrongShard: the folder is not a clone"""
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise WrongShard(f"SHARD=auto needs a git clone; use K/N ({done.stderr.strip()})")
    return done.stdout.strip()


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m tools.shards",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument("--json", action="store_true", help="print the list as one JSON object")
    commands = found.add_subparsers(dest="command")
    running = commands.add_parser("run", help="run shards")
    running.add_argument("shard", nargs="?", default="all", help="K/N, all (the default) or auto")
    running.add_argument("--end-by", type=float, metavar="UNIX_S", help="stop in time; name what is left out")
    running.add_argument("--from", dest="first", metavar="FILE", help="the file with servers to begin with")
    running.add_argument("--announce", action="store_true", help="only print what would run, and how long")
    running.add_argument("--pytest", default="", metavar="OPTIONS", help="more options for pytest")
    commands.add_parser("keep", help="copy the measured durations to tests/durations.json")
    return found


def main(arguments: Sequence[str]) -> int:
    given = parser().parse_args(arguments)
    if given.command == "keep":
        return keep()
    if given.command is None:
        show(given.json)
        return 0
    durations = read_durations()
    try:
        named = select_shards(given.shard, durations, head() if given.shard == "auto" else "")
        if given.first is not None:
            named = [(name, shard.starting_with(given.first)) for name, shard in named]
    except WrongShard as error:
        print(f"make test-all: {error}", file=sys.stderr)
        return 2
    if given.announce:
        announce(named, durations)
        return 0
    return run_all(named, shlex.split(given.pytest), given.end_by)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
