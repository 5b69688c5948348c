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
from benchmarks.assign_scale import ASSIGN, scaled
from benchmarks.cluster import WORKERS, in_rounds, staged
from benchmarks.connections import CONNECTIONS, allow_files, crowds
from benchmarks.control import CONTROL
from benchmarks.cpu import pace_ms
from benchmarks.goals import verdicts
from benchmarks.race import METADATA, Plan, metadata, race
from benchmarks.results import DIRECT, HAPROXY, Sample, document, figures
from benchmarks.sample_store import Kept
from benchmarks.takeover import TAKEOVER
from benchmarks.tls import TLS
from benchmarks.workloads import Name
from fleet.core.errors import FleetError

WORKLOADS: tuple[Name, ...] = get_args(Name)
ALONE: Mapping[str, Callable[[int], Iterator[Sample]]] = {
    METADATA: metadata,
    TAKEOVER: takeover.samples,
    CONTROL: control.samples,
    ASSIGN: scaled,
}
"""What nobody races in; but for storms, which are part of METADATA."""
KNOWN = (*WORKLOADS, CONNECTIONS, TLS, *ALONE)


def chosen(text: str, known: Sequence[str], option: str) -> tuple[str, ...]:
    """`A,B,…` as names. Raises: BadParameter: one is not known."""
    names = tuple(dict.fromkeys(filter(None, (part.strip() for part in text.split(",")))))
    for name in names:
        if name not in known:
            raise click.BadParameter(f"{name!r} is none of: {', '.join(known)}", param_hint=option)
    if not names:
        raise click.BadParameter(f"name at least one of: {', '.join(known)}", param_hint=option)
    return names


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--only", metavar="NAME,…", default=",".join(KNOWN), show_default=True)
@click.option("--targets", metavar="NAME,…", help="Whom to race.  [default: all]")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--scale", type=click.FloatRange(0.001), default=1.0, help="More or fewer records than usual.")
@click.option(
    "--peers",
    "peers_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=peers.PEERS,
    help="Other proxies than those of benchmarks/peers.yaml.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON list, and nothing else, on standard output."
)
@click.option(
    "--samples",
    "samples_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep each value there, and take along what it holds of other workloads: after a failure, "
    "measure with --only what is missing.",
)
@click.option("--write-docs", is_flag=True, help="Put the table into docs/performance.md.")
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
    """Measure what the fleet costs beside a direct connection, HAProxy and a bare forwarder."""
    terminal = Console(stderr=True, width=None if sys.stderr.isatty() else 120)
    load_before = os.getloadavg()[0]
    failed: list[str] = []
    paces_ms: list[float] = []

    def add(more: Iterable[Sample]) -> None:
        """What was measured before it fails is kept: a part takes minutes."""
        paces_ms.append(pace_ms())
        try:
            for sample in more:
                kept.add(sample)
        except FleetError as error:
            failed.append(str(error))
            terminal.print(f"bench: {error}", markup=False)  # it may quote a log, with brackets

    try:
        lines = peers.load(peers_file)
        names = (DIRECT, *lines, *WORKERS)
        raced = chosen(targets, names, "--targets") if targets is not None else names
        wanted = chosen(only, KNOWN, "--only")
        kept = Kept(samples_file, wanted)
        plan = Plan(tuple(each for each in WORKLOADS if each in wanted), scale)
        add(measure(plan, rounds, raced, lines, terminal, with_crowds=CONNECTIONS in wanted))
        if TLS in wanted:
            with report.progress(terminal) as say:
                add(tls.samples(rounds, raced, scale, say))
        if METADATA in wanted:
            add(storm.samples(rounds, raced, lines))
        for name, run in ALONE.items():
            if name in wanted:
                add(run(rounds))
        found = figures(kept.samples)
        report.show(found, terminal)
        if write_docs and not failed:
            version = haproxy.version(haproxy.find()) if HAPROXY in raced else None
            about = report.about(version, rounds, load_before, [*paces_ms, pace_ms()], kept.before)
            report.write_docs(found, verdicts(kept.samples), about)
    except FleetError as error:
        sys.exit(f"bench: {error}")
    if as_json:
        print(json.dumps(document(found), indent=1))
    if failed:
        sys.exit(f"bench: {len(failed)} of the parts failed, and nothing was written: {'; '.join(failed)}")


def measure(
    plan: Plan,
    rounds: int,
    targets: Sequence[str],
    lines: dict[str, peers.PeerLine],
    terminal: Console,
    *,
    with_crowds: bool,
) -> Iterator[Sample]:
    """Set the stage for each round, and race; the folder of logs stays where that fails."""
    if not plan.workloads and not with_crowds:
        return
    if with_crowds:
        allow_files()
    folder = Path(tempfile.mkdtemp(prefix="fleet-bench-"))
    keep = False
    try:
        with report.progress(terminal) as say:
            for number, told, place in in_rounds(rounds, say, folder):
                with staged(place, targets, lines, told) as stage:
                    # First, while the proxies have had nobody: memory that they have had they keep.
                    if with_crowds:
                        yield from crowds(stage, number, told)
                    yield from race(stage, plan, number, told)
    except FleetError:
        terminal.print(f"logs: {folder}")
        keep = True
        raise
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _stop(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)  # so that everything that was started is stopped
    main()
