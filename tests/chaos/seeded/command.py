"""The command line of the seeded runs: ``python -m tests.chaos.seeded``, or ``make chaos ARGS=…``."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import click

from fleet.core.errors import FleetError
from tests.chaos.seeded.report import CHAOS, ChaosDocument, RunResult, page, summarize
from tests.chaos.seeded.results import Results
from tests.chaos.seeded.run import perform, prepare, remove
from tests.chaos.seeded.schedule import CHOSEN, LENGTH_S, Plan, chosen, plan_of

INTERRUPTED = 130
HANDWRITTEN_HEADING = "## What was found and fixed"
"""The part of the page after this line is written by hand."""


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  make chaos ARGS="--runs 10 --seed 1 --json"      ten runs, seeds 1 to 10
  make chaos ARGS="--runs 1 --seed 7 --keep"       one of them again; its logs and history stay
  make chaos ARGS="--plan leader-kill"             a plan with a name
  make chaos ARGS="--runs 200 --seed 1 --results runs.jsonl"    what is in the file is not run again
""",
)
@click.option("--runs", type=click.IntRange(1), default=1, show_default=True, help="How many.")
@click.option(
    "--seed", type=click.IntRange(0), help="Of the first run; the next has the next.  [default: chance]"
)
@click.option("--plan", "name", type=click.Choice(list(CHOSEN)), help="A plan with a name instead of a seed.")
@click.option(
    "--length",
    type=click.FloatRange(10.0),
    default=LENGTH_S,
    show_default=True,
    help="Seconds of a seeded plan.",
)
@click.option("--keep", is_flag=True, help="Keep the histories and logs of runs without a violation, too.")
@click.option(
    "--results",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep the result of each run here; those that it has without a violation are not run again.",
)
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="Write a page about it here.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else.")
def command(
    runs: int,
    seed: int | None,
    name: str | None,
    length: float,
    keep: bool,
    results: Path | None,
    report: Path | None,
    as_json: bool,
) -> int:
    """Break a fleet on this machine in ways that a seed decides, and check that it keeps its promises.

    Exit code 1: a promise was broken. Prints the command that repeats such a run, and keeps its logs.
    """
    first = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    plans = [chosen(name) if name else plan_of(first + number, length) for number in range(runs)]
    try:
        known = Results(results) if results else None
        document = asyncio.run(_main(plans, known, keep=keep))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return INTERRUPTED
    except FleetError as error:
        raise click.ClickException(str(error)) from error
    if report is not None:
        write_report(report, document, first)
    if as_json:
        click.echo(CHAOS.encode(document))
    else:
        click.echo(page(document, first))
    return 1 if document.violations else 0


def write_report(path: Path, document: ChaosDocument, first_seed: int) -> None:
    """The new page, followed by the part of the old page that was written by hand."""
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    _, heading, handwritten = old.partition(HANDWRITTEN_HEADING)
    path.write_text(
        page(document, first_seed) + (f"\n{heading}{handwritten}" if heading else ""), encoding="utf-8"
    )


async def _main(plans: Sequence[Plan], known: Results | None, *, keep: bool) -> ChaosDocument:
    task = asyncio.current_task()
    if task is not None:
        for each in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(each, task.cancel)
    results: list[RunResult] = []
    remaining: list[Plan] = []
    for plan in plans:
        result = known.clean(plan) if known else None
        if result is None:
            remaining.append(plan)
        else:
            results.append(result)
    if results:
        say(f"{len(results)} of {len(plans)} runs are known to have no violation, {len(remaining)} remain")
    if not remaining:
        return summarize(results)
    folder = Path(tempfile.mkdtemp(prefix="fleet-chaos-"))
    async with prepare(folder, say) as ground:
        for number, plan in enumerate(remaining, 1):
            started_s = time.monotonic()
            result = await perform(plan, ground, folder / f"run-{number}", say)
            results.append(result)
            if known:
                known.add(result)
            _print_result(result, number, len(remaining), time.monotonic() - started_s)
            if not result.violations and not keep:
                remove(result)
    return summarize(results)


def _print_result(result: RunResult, number: int, runs: int, took_s: float) -> None:
    verdict = "no violation" if not result.violations else f"{len(result.violations)} VIOLATIONS"
    say(f"run {number} of {runs}, plan {result.plan}: {verdict} ({took_s:.0f} s)")
    stalls = (f"{client} {stall_ms:.0f} ms" for client, stall_ms in result.stalls_ms.items())
    say(f"  longest stalls: {', '.join(stalls)}")
    for violation in result.violations:
        say(f"  {violation.rule}: {violation.detail}")
    if result.violations:
        say(f"  again: {result.replay}")
        say(f"  history and logs: {result.folder}")


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def run_alone(command: click.Command, name: str) -> None:
    """Run a command as a program. The command returns the exit code."""
    try:
        code = command.main(prog_name=name, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    sys.exit(code if isinstance(code, int) else 0)


def main() -> None:
    run_alone(command, "python -m tests.chaos.seeded")
