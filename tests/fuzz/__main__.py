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

from tests.fuzz.corpus import keep
from tests.fuzz.run import corpora, fuzz


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--inputs", type=click.IntRange(1), default=10_000_000, show_default=True, help="How many.")
@click.option(
    "--processes",
    type=click.IntRange(1),
    default=os.cpu_count(),
    show_default=True,
    help="How many.",
)
@click.option("--seed", type=click.IntRange(1), default=1, show_default=True, help="Of seeds and mutations.")
@click.option("--minutes", type=float, default=0.0, help="End by then; 0 for never.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where inputs are kept, and taken up again.")
@click.option("--keep", "keeps", is_flag=True, help="Replace the corpus of later runs by what this one has.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else.")
def command(
    inputs: int, processes: int, seed: int, minutes: float, folder: Path | None, keeps: bool, as_json: bool
) -> None:
    """Fuzz the wire core: coverage guided, from valid frames of every API and version, in both directions.

    Exit code 1 where anything is found, fewer inputs were checked, or they reach too little of it.
    """
    with ExitStack() as until_the_end:
        if folder is None:
            folder = Path(until_the_end.enter_context(tempfile.TemporaryDirectory(prefix="fleet-fuzz-")))
        result = fuzz(inputs, processes, seed, folder.resolve(), say, minutes * 60)
        for each in result.finds:
            file = Path(each)
            say(f"{each}: {file.read_bytes()[:200]!r}" if file.is_file() else each)
        if keeps and result.passed:
            say(f"{keep(corpora(folder.resolve(), processes))} inputs are kept")
    if as_json:
        click.echo(json.dumps(asdict(result)))
    else:
        reached = "{covered} of {total} branches ({percent} %)".format(**result.branches)
        done = f"{result.inputs} inputs, {result.inputs_per_s:.0f} a second, {len(result.finds)} finds"
        click.echo(f"{done}; {reached}")
    sys.exit(0 if result.passed else 1)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    command()
