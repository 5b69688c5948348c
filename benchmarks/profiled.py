"""Where the CPU time of proxies goes, by workload.

    python -m benchmarks.profiled --only sync --connections 256 --targets fleet,fleet-2
    python -m benchmarks.profiled --only sparse --tls client

In each round a target runs a workload three times: by itself; under `perf record`, which shows the share of
the CPU time of each library and of the kernel; and under `strace -c`, which counts system calls. Times are
those of the first run, because perf and strace slow a proxy down. Each proxy process has one thread here.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import click
import psutil
from rich.console import Console

from benchmarks import peers, report
from benchmarks.__main__ import parse_names
from benchmarks.cluster import WORKERS, Target, iterate_rounds, staged
from benchmarks.debian import find_or_unpack
from benchmarks.errors import BenchError
from benchmarks.peers import PeerLine
from benchmarks.race import Plan, race, run
from benchmarks.results import FLEET, HAPROXY, Sample, document, figures
from benchmarks.tls import BOTH, SIDES, issue_tls_files
from benchmarks.workloads import Name, Spec
from fleet.core.errors import FleetError
from fleet.drills.cluster.spawn import spawn
from tools.bootstrap import BUILD

PROFILED: Final[tuple[Name, ...]] = ("sync", "small", "deep", "produce", "consume", "sparse")
SAMPLES_PER_S: Final = 4_999
MIN_SHARE: Final = 0.01
"""The least share of the CPU time that is listed by itself; smaller shares are summed as others."""
KERNEL: Final = "kernel"
OTHERS: Final = "others"
WIDTH: Final = 160
"""The width of the table in characters, if there is no terminal: names of libraries are long."""
_LIMIT_S: Final = 60.0
_PAUSE_S: Final = 0.02
_PACKAGES: Final = {"perf": "linux-perf", "strace": "strace"}


@dataclass(frozen=True, slots=True)
class Switches:
    """How often processes gave up the CPU to wait for work, and how often the kernel gave it to others."""

    waits: int
    preemptions: int


def switches(pids: Sequence[int]) -> Switches:
    """The switches of each process's first thread, since its start. Raises: BenchError: one has ended."""
    try:
        each = [psutil.Process(pid).num_ctx_switches() for pid in pids]
    except psutil.Error as error:
        raise BenchError(f"a proxy has ended: {error}") from error
    return Switches(sum(one.voluntary for one in each), sum(one.involuntary for one in each))


def profile(folder: Path, target: Target, spec: Spec) -> dict[str, float]:
    """Run the workload three times.

    Returns: measures: the CPU time, and that of each library, in the workload's own unit; waits, preemptions
        and system calls, each for a record.
    Raises: BenchError: a client failed, a proxy ended, or perf or strace cannot watch it.
    """
    seen: list[Switches] = []

    @contextmanager
    def counted(pids: Sequence[int]) -> Iterator[None]:
        seen.append(switches(pids))
        yield
        seen.append(switches(pids))

    by_itself = run(target, spec, counted)
    measure = next(name for name in by_itself if name.startswith("cpu_"))
    before, after = seen
    found = {
        measure: by_itself[measure],
        "waits_per_record": (after.waits - before.waits) / spec.count,
        "preemptions_per_record": (after.preemptions - before.preemptions) / spec.count,
    }
    samples, calls = folder / "perf.data", folder / "strace.txt"
    run(target, spec, partial(sampled, samples))
    run(target, spec, partial(traced, calls))
    for library, share in shares(report_of(samples)).items():
        found[f"{measure}_{library}"] = by_itself[measure] * share
    for name, count in counts(calls.read_text()).items():
        found[f"{name}_calls_per_record"] = count / spec.count
    return found


@contextmanager
def sampled(out: Path, pids: Sequence[int]) -> Iterator[None]:
    """Run perf, which records these processes into a file. Raises: BenchError: perf cannot."""

    def opened(watcher: int) -> bool:
        return any("perf_event" in os.readlink(fd) for fd in Path(f"/proc/{watcher}/fd").iterdir())

    # Found while fuzzing: 500 requests were over after perf had opened its events, and before it recorded.
    orders, answers = out.with_suffix(".orders"), out.with_suffix(".answers")
    for fifo in (orders, answers):
        fifo.unlink(missing_ok=True)
        os.mkfifo(fifo)
    watched = ",".join(map(str, pids))
    options = ["record", "-e", "cpu-clock", "-F", str(SAMPLES_PER_S), "-p", watched]
    options += ["--delay=-1", f"--control=fifo:{orders},{answers}"]
    with _watching("perf", options, out, opened):
        # Source: perf-record(1), --control
        with orders.open("w") as order, answers.open() as answer:
            print("enable", file=order, flush=True)
            if not answer.readline().startswith("ack"):
                raise BenchError("perf cannot watch: it does not begin")
        yield


@contextmanager
def traced(out: Path, pids: Sequence[int]) -> Iterator[None]:
    """Run strace, which counts the system calls of these processes. Raises: BenchError: strace cannot."""

    def attached(_: int) -> bool:
        # Source: proc_pid_status(5)
        return not any("TracerPid:\t0\n" in Path(f"/proc/{pid}/status").read_text() for pid in pids)

    watched = [option for pid in pids for option in ("-p", str(pid))]
    with _watching("strace", ["-c", "-U", "calls,name", "-f", *watched], out, attached):
        yield


@contextmanager
def _watching(name: str, options: Sequence[str], out: Path, ready: Callable[[int], bool]) -> Iterator[None]:
    """Run a program that watches until it is interrupted. Raises: BenchError, DemoError: it cannot."""
    log = out.with_suffix(".log")
    log.unlink(missing_ok=True)
    with spawn([program(name), *options, "-o", str(out)], log) as process:

        def failed() -> BenchError:
            return BenchError(f"{name} cannot watch: {log.read_text().strip()[-400:]}")

        try:
            deadline_s = time.monotonic() + _LIMIT_S
            while not _is_ready(ready, process.pid):
                if process.poll() is not None or time.monotonic() > deadline_s:
                    raise failed()
                time.sleep(_PAUSE_S)
            yield
            process.send_signal(signal.SIGINT)
            if process.wait(_LIMIT_S) not in (0, -signal.SIGINT):
                raise failed()
        finally:
            process.kill()


def _is_ready(ready: Callable[[int], bool], pid: int) -> bool:
    try:
        return ready(pid)
    except OSError:
        return False  # the process or file has just disappeared


def program(name: str) -> str:
    """perf or strace: the machine's, or Debian's package, unpacked below `build` without being root.

    Raises: BenchError: the program is missing, and no package is available; the message says what to do.
    """
    package = _PACKAGES[name]
    advice = f"install it (apt-get install {package})"
    return shutil.which(name) or str(find_or_unpack(package, f"usr/bin/{name}", BUILD / name, advice))


def report_of(samples: Path) -> str:
    """perf's report as text: a line for each library, its share in percent and its name."""
    command = (program("perf"), "report", "-i", str(samples), "--stdio", "-q", "--sort", "dso", "-t", ",")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def shares(report: str) -> dict[str, float]:
    """Shares of the CPU time, by library, the largest first; small shares are summed."""
    found: dict[str, float] = {}
    for line in report.splitlines():
        percent, _, name = line.partition(",")
        if name:
            share = float(percent.strip().rstrip("%")) / 100
            name = KERNEL if name.startswith("[kernel") else name.strip()
            name = name if share >= MIN_SHARE else OTHERS
            found[name] = found.get(name, 0.0) + share
    return found


def counts(summary: str) -> dict[str, int]:
    """How often each system call was made, from strace's summary of calls and names."""
    lines = (line.split() for line in summary.splitlines())
    return {
        line[1]: int(line[0]) for line in lines if len(line) == 2 and line[0].isdigit() and line[1] != "total"
    }


def proxies(path: Path | None, side: str | None) -> dict[str, PeerLine]:
    """The peers of the file, or of the project's file; of one side, if they speak TLS.

    Raises: BenchError: as `peers.load`, or the file has no such side.
    """
    if side is None:
        return peers.load(path or peers.PEERS)
    path = path or peers.TLS_PEERS
    sides = peers.load_sides(path)
    if side not in sides:
        raise BenchError(f"{path}: no peers below {side!r}, which --tls requires")
    return sides[side]


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--only", metavar="NAME,…", default="sync", show_default=True, help=f"Workloads of {', '.join(PROFILED)}."
)
@click.option("--connections", type=click.IntRange(1), default=1, show_default=True, help="For sync.")
@click.option("--targets", metavar="NAME,…", default=f"{HAPROXY},forwarder,{FLEET}", show_default=True)
@click.option("--tls", "side", type=click.Choice(SIDES), help="Use TLS to clients, or also to the brokers.")
@click.option(
    "--peers",
    "peers_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File of other proxies; the default is benchmarks/peers.yaml, with --tls benchmarks/peers_tls.yaml.",
)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--scale", type=click.FloatRange(0.001), default=1.0, help="Factor of the number of records.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON list, and nothing else, on standard output."
)
def main(
    only: str,
    connections: int,
    targets: str,
    side: str | None,
    peers_file: Path | None,
    rounds: int,
    scale: float,
    as_json: bool,
) -> None:
    """Show where the CPU time of proxies goes, for each record: libraries, waits and system calls.

    The command requires perf and strace, and the right to use them on one's own processes.
    """
    terminal = Console(stderr=True, width=None if sys.stderr.isatty() else WIDTH)
    selected = parse_names(only, PROFILED, "--only")
    workloads = tuple(each for each in PROFILED if each in selected)
    plan = Plan(workloads, scale, (connections,), runs=dict.fromkeys(workloads, 1), crowd_runs=1)
    samples: list[Sample] = []
    try:
        lines = proxies(peers_file, side)
        raced = parse_names(targets, (*lines, *WORKERS), "--targets")
        with tempfile.TemporaryDirectory(prefix="fleet-profiled-") as made, report.progress(terminal) as say:
            folder = Path(made)
            tls_files = issue_tls_files(folder / "certificates", to_brokers=side == BOTH) if side else None
            for number, say_in_round, place in iterate_rounds(rounds, say, folder):
                with staged(place, raced, lines, say_in_round, tls_files) as stage:
                    samples += race(stage, plan, number, say_in_round, partial(profile, folder))
    except FleetError as error:
        sys.exit(f"profiled: {error}")
    found = figures(samples)
    report.show(found, terminal)
    if as_json:
        print(json.dumps(document(found), indent=1))


if __name__ == "__main__":
    main()
