"""The command line: ``python -m tests.fuzz``, which ``make test-long`` starts."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import click

from tests.fuzz.corpus import write_minimal_corpus
from tests.fuzz.run import corpora, fuzz


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--inputs", type=click.IntRange(1), default=10_000_000, show_default=True, help="Input count.")
@click.option(
    "--processes",
    type=click.IntRange(1),
    default=os.cpu_count(),
    show_default=True,
    help="Number of processes.",
)
@click.option("--seed", type=click.IntRange(1), default=1, show_default=True, help="Random seed.")
@click.option("--minutes", type=float, default=0.0, help="Time limit in minutes; 0 for none.")
@click.option("--folder", type=click.Path(path_type=Path), help="Folder of inputs, to continue later.")
@click.option("--keep", "replaces", is_flag=True, help="Replace the committed corpus by this run's inputs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object only.")
def command(
    inputs: int, processes: int, seed: int, minutes: float, folder: Path | None, replaces: bool, as_json: bool
) -> None:
    """Fuzz the wire core, guided by coverage, from valid frames of every API and version, in both directions.

    Exit code 1: an input failed, fewer inputs were checked, or too few branches were reached.
    """
    with ExitStack() as cleanup:
        if folder is None:
            folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="fleet-fuzz-")))
        result = fuzz(inputs, processes, seed, folder.resolve(), log_line, minutes * 60)
        for each in result.finds:
            file = Path(each)
            log_line(f"{each}: {file.read_bytes()[:200]!r}" if file.is_file() else each)
        if replaces and result.passed:
            log_line(f"corpus replaced: inputs={write_minimal_corpus(corpora(folder.resolve(), processes))}")
    if as_json:
        click.echo(json.dumps(asdict(result)))
    else:
        reached = "{covered} of {total} branches ({percent} %)".format(**result.branches)
        summary = f"{result.inputs} inputs, {result.inputs_per_s:.0f} a second, {len(result.finds)} failures"
        click.echo(f"{summary}; {reached}")
    sys.exit(0 if result.passed else 1)


def log_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    command()
