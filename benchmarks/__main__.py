"""The command line: `python -m benchmarks`, or `make bench ARGS="…"`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, get_args

import click
from rich.console import Console

from benchmarks import control, haproxy, peers, report, storm, takeover, tls
from benchmarks.assign_scale import ASSIGN, measure_sizes
from benchmarks.cluster import WORKERS, iterate_rounds, staged
from benchmarks.connections import CONNECTIONS, crowds, raise_file_limit
from benchmarks.control import CONTROL
from benchmarks.cpu import pace_ms
from benchmarks.goals import verdicts
from benchmarks.race import METADATA, Plan, metadata, race
from benchmarks.results import DIRECT, HAPROXY, Sample, document, figures
from benchmarks.sample_store import SampleStore
from benchmarks.takeover import TAKEOVER
from benchmarks.tls import TLS
from benchmarks.workloads import Name
from fleet.core.errors import FleetError

WORKLOADS: tuple[Name, ...] = get_args(Name)
SEPARATE_BENCHMARKS: Mapping[str, Callable[[int], Iterator[Sample]]] = {
    METADATA: metadata,
    TAKEOVER: takeover.samples,
    CONTROL: control.samples,
    ASSIGN: measure_sizes,
}
"""Benchmarks that compare the fleet with no other target. Storms are part of METADATA and have targets."""
SELECTABLE = (*WORKLOADS, CONNECTIONS, TLS, *SEPARATE_BENCHMARKS)


def parse_names(text: str, known: Sequence[str], option: str) -> tuple[str, ...]:
    """Parse `A,B,…` into names. Raises: BadParameter: a name is not known."""
    names = tuple(dict.fromkeys(filter(None, (part.strip() for part in text.split(",")))))
    for name in names:
        if name not in known:
            raise click.BadParameter(f"{name!r} is none of: {', '.join(known)}", param_hint=option)
    if not names:
        raise click.BadParameter(f"name at least one of: {', '.join(known)}", param_hint=option)
    return names


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--only", metavar="NAME,…", default=",".join(SELECTABLE), show_default=True)
@click.option("--targets", metavar="NAME,…", help="Targets to compare.  [default: all]")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--scale", type=click.FloatRange(0.001), default=1.0, help="Factor of the number of records.")
@click.option(
    "--peers",
    "peers_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=peers.PEERS,
    help="File of other proxies to compare with; the default is benchmarks/peers.yaml.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON list, and nothing else, on standard output."
)
@click.option(
    "--samples",
    "samples_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep each value in this file, and take over its values of other workloads. After a failure, "
    "measure what is missing with --only.",
)
@click.option("--write-docs", is_flag=True, help="Write the table into docs/performance.md.")
def main(
    only: str,
    targets: str | None,
    rounds: int,
    scale: float,
    peers_file: Path,
    as_json: bool,
    samples_file: Path | None,
    write_docs: bool,
) -> None:
    """Measure what the fleet costs, compared with a direct connection, HAProxy and a bare forwarder."""
    terminal = Console(stderr=True, width=None if sys.stderr.isatty() else 120)
    load_before = os.getloadavg()[0]
    failed: list[str] = []
    paces_ms: list[float] = []

    def add(more: Iterable[Sample]) -> None:
        """Keep the samples that a part yields before it fails: a part takes minutes."""
        paces_ms.append(pace_ms())
        try:
            for sample in more:
                store.add(sample)
        except FleetError as error:
            failed.append(str(error))
            terminal.print(f"bench: {error}", markup=False)  # an error may quote a log, with brackets

    try:
        lines = peers.load(peers_file)
        names = (DIRECT, *lines, *WORKERS)
        raced = parse_names(targets, names, "--targets") if targets is not None else names
        selected = parse_names(only, SELECTABLE, "--only")
        store = SampleStore(samples_file, selected)
        plan = Plan(tuple(each for each in WORKLOADS if each in selected), scale)
        add(measure(plan, rounds, raced, lines, terminal, with_crowds=CONNECTIONS in selected))
        if TLS in selected:
            with report.progress(terminal) as say:
                add(tls.samples(rounds, raced, scale, say))
        if METADATA in selected:
            add(storm.samples(rounds, raced, lines))
        for name, run in SEPARATE_BENCHMARKS.items():
            if name in selected:
                add(run(rounds))
        found = figures(store.samples)
        report.show(found, terminal)
        if write_docs and not failed:
            version = haproxy.version(haproxy.find()) if HAPROXY in raced else None
            about = report.about(version, rounds, load_before, [*paces_ms, pace_ms()], store.before)
            report.write_docs(found, verdicts(store.samples), about)
    except FleetError as error:
        sys.exit(f"bench: {error}")
    if as_json:
        print(json.dumps(document(found), indent=1))
    if failed:
        sys.exit(f"bench: {len(failed)} part(s) failed, and nothing was written: {'; '.join(failed)}")


def measure(
    plan: Plan,
    rounds: int,
    targets: Sequence[str],
    lines: dict[str, peers.PeerLine],
    terminal: Console,
    *,
    with_crowds: bool,
) -> Iterator[Sample]:
    """Set up the targets for each round, and measure them. A failure keeps the folder of logs."""
    if not plan.workloads and not with_crowds:
        return
    if with_crowds:
        raise_file_limit()
    folder = Path(tempfile.mkdtemp(prefix="fleet-bench-"))
    is_kept = False
    try:
        with report.progress(terminal) as say:
            for number, say_in_round, place in iterate_rounds(rounds, say, folder):
                with staged(place, targets, lines, say_in_round) as stage:
                    # Crowds come first, while the proxies are fresh: a proxy keeps memory that it once used.
                    if with_crowds:
                        yield from crowds(stage, number, say_in_round)
                    yield from race(stage, plan, number, say_in_round)
    except FleetError:
        terminal.print(f"logs: {folder}")
        is_kept = True
        raise
    finally:
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)


def _stop(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)  # so that all processes that the benchmark started are stopped
    main()
