"""The Spark cross-check: the data pipeline judges a chaos run again, and must agree with the checker.

    python -m tests.chaos.seeded.spark_check --seed 3 --json        what `make pipeline ARGS=…` starts

The fleet writes its events. The run writes what its clients and its observer saw to the topic of
observations. The jobs read both. The availability that operators would see is compared with the events
themselves, and with what the observer saw (`tests.chaos.seeded.availability_windows`).
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any, Final

import click
from pyspark.sql import SparkSession

from fleet.core.errors import FleetError
from fleet.core.event_schema import OBSERVATIONS, TOPICS
from fleet.drills.spark_audit import Clocks, keys_of, ledger, to_us
from fleet.drills.workload.audit import Audit
from fleet.drills.workload.checker import History, Outage, View, audit_of, takeover_s
from fleet.drills.workload.waiting import in_thread
from fleet.pipeline.batch_audit import run_batch_audit
from fleet.pipeline.kafka_source import produce
from fleet.pipeline.observations import EVENTS, Observation, OutageEvent, ViewEvent
from fleet.pipeline.streams import session
from tests.chaos.seeded import availability_windows
from tests.chaos.seeded.availability_windows import ReportedAvailability
from tests.chaos.seeded.command import run_alone, say
from tests.chaos.seeded.run import prepare, remove, witness
from tests.chaos.seeded.schedule import CHOSEN, OUTAGES, Plan, chosen, plan_of
from tests.chaos.seeded.spark_crosscheck import (
    CROSSCHECK,
    AuditTotals,
    CrossCheckDocument,
    CrossCheckedRun,
    page,
    text,
    total,
)

_WINDOWS_OF: Final = ("ownership", "connection")
"""The kinds of events that determine the availability of an identity."""


def observations(history: History, wall_us: int = 0) -> Iterator[Observation]:
    """Yield what clients and the observer of a run have seen.

    Args:
        wall_us: how many microseconds the wall clock is ahead of the machine's monotonic clock.
    """
    for stream in history.streams:
        yield from ledger(stream, wall_us)
    for proxy_id, views in history.views.items():
        for number, view in enumerate(views):
            for broker_id in sorted(history.broker_ids):
                yield ViewEvent(
                    proxy_id, number, broker_id, view.owners.get(broker_id), wall_us + to_us(view.at_s)
                )
    for number, outage in enumerate(history.outages):
        times = (wall_us + to_us(outage.at_s), wall_us + to_us(outage.until_s))
        yield OutageEvent(str(number), outage.victims, outage.survivors, *times)


def cross_check(
    spark: SparkSession, servers: str, prefix: str, history: History, out: Path, clocks: Clocks
) -> CrossCheckedRun:
    """Run the jobs on the topics of a run, and compare their results with the checker's.

    Args:
        out: folder for Parquet files and checkpoints.
    Raises: FleetError: a job failed.
    """
    until_ms = time.time_ns() // 1_000_000
    found = run_batch_audit(spark, servers, prefix, str(out), keys_of(history), until_ms)
    reported = availability_windows.from_events(
        availability_windows.read_events(servers, [prefix + TOPICS[kind] for kind in _WINDOWS_OF]), until_ms
    )
    missed = availability_windows.seen_missing(history)
    spans = reported.windows(until_ms)
    margins = [
        availability_windows.margin(each, spans, clocks.wall_us / 1000, clocks.drift_us / 1000)
        for each in missed
    ]
    audits = {name: Audit(**verdict) for name, verdict in found.audits.items()}
    differences = [
        *differing(audits, {each.name: audit_of(each) for each in history.streams}),
        *differing(found.took_us, took_us(history)),
        *_other_owners(found.owners, history),
        *_other_windows(availability_windows.from_document(found.available), reported),
        *(
            f"identity {each.broker_id} was missing from {each.there_s:.3f} to {each.asked_s:.3f} s on a "
            f"clock that is {clocks.wall_us / 1e6:.3f} s behind; reported: {spans.get(each.broker_id)}"
            for each, margin in zip(missed, margins, strict=True)
            if margin is None
        ),
    ]
    for difference in differences:
        say(f"  Spark and the checker differ: {difference}")
    totals = AuditTotals(
        sum(each.lost for each in audits.values()),
        sum(each.duplicated for each in audits.values()),
        sum(each.out_of_order for each in audits.values()),
    )
    within = [each for each in margins if each is not None]
    return CrossCheckedRun(
        CrossCheckDocument(
            events=found.events,
            gaps=found.gaps,
            overlaps=found.overlaps,
            windows=sum(each is not None for each in found.took_us.values()),
            audit=totals,
            differs_from_checker=len(differences),
        ),
        takeovers=len(reported.takeovers),
        outages=len(reported.outages),
        seen_missing=len(missed),
        before_ms=tuple(each.before_ms for each in within),
        after_ms=tuple(each.after_ms for each in within if each.after_ms is not None),
    )


def _other_windows(found: ReportedAvailability, expected: ReportedAvailability) -> Iterator[str]:
    """Yield differences between the availability that operators see and the fleet's events."""
    yield from (f"takeover {each}" for each in differing(_named(found.takeovers), _named(expected.takeovers)))
    yield from (f"outage {each}" for each in sorted(found.outages ^ expected.outages, key=str))
    yield from (
        f"missing {each}" for each in differing(_named(found.missing_ms), _named(expected.missing_ms))
    )


def _named(figures: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(name): figure for name, figure in figures.items()}


def took_us(history: History) -> dict[str, int | None]:
    """Return the checker's verdict on each outage, from times in whole microseconds, as in Spark."""
    views = {
        proxy_id: [View(to_us(view.at_s), view.owners) for view in seen]
        for proxy_id, seen in history.views.items()
    }
    found = {}
    for number, outage in enumerate(history.outages):
        rounded: Outage = replace(outage, at_s=to_us(outage.at_s), until_s=to_us(outage.until_s))
        took = takeover_s(rounded, history.broker_ids, views)
        found[str(number)] = None if took is None else int(took)
    return found


def differing(found: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences between two verdicts on the same subjects."""
    for name in sorted(found.keys() | expected.keys()):
        if found.get(name) != expected.get(name) or (name in found) != (name in expected):
            yield f"{name}: {found.get(name)} and {expected.get(name)}"


def _other_owners(found: Mapping[tuple[int, int], tuple[str, ...]], history: History) -> Iterator[str]:
    """Yield differences between a member's owners of a generation and those of the timeline.

    Args:
        found: broker id and first generation of an interval → owners.
    """
    changes: dict[int, list[int]] = {}
    for broker_id, generation in sorted(found):
        changes.setdefault(broker_id, []).append(generation)
    seen = {
        (sighting.generation, broker_id): owners
        for sighting in history.sightings
        for broker_id, owners in sighting.owners.items()
    }
    for (generation, broker_id), owners in sorted(seen.items()):
        before = [each for each in changes.get(broker_id, ()) if each <= generation]
        says = found[broker_id, before[-1]] if before else None
        if says != owners:
            yield f"identity {broker_id} in generation {generation}: {says} and {owners}"


def _wall_us() -> int:
    """Return how many microseconds the wall clock is ahead of the machine's monotonic clock."""
    return to_us(time.time() - time.monotonic())


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--seed", type=click.IntRange(0), help="Seed of the first run.  [default: the plan leader-kill]"
)
@click.option("--runs", type=click.IntRange(1), default=1, show_default=True, help="Number of seeds.")
@click.option("--outages", is_flag=True, help="Use only seeds in which members are unreachable.")
@click.option("--plan", "name", type=click.Choice(list(CHOSEN)), default="leader-kill", show_default=True)
@click.option(
    "--report", type=click.Path(dir_okay=False, path_type=Path), help="Write a page of results to this path."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def command(seed: int | None, runs: int, outages: bool, name: str, report: Path | None, as_json: bool) -> int:
    """Break a fleet, and judge the run with both the checker and Spark.

    Exit with 1 if the verdicts differ, or if a guarantee was broken.
    """
    drawn = (plan_of(each) for each in count(seed or 0))
    matching = (plan for plan in drawn if not outages or any(each.kind in OUTAGES for each in plan.faults))
    plans = [chosen(name)] if seed is None else list(islice(matching, runs))
    try:
        checked, violations = asyncio.run(_main(plans, report))
    except FleetError as error:
        raise click.ClickException(str(error)) from error
    together = total(list(checked.values()))
    click.echo(CROSSCHECK.encode(together.document) if as_json else text(together))
    return 1 if violations or together.document.differs_from_checker else 0


async def _main(plans: Sequence[Plan], report: Path | None) -> tuple[dict[str, CrossCheckedRun], int]:
    """Run the plans. Returns: the results by plan, and the number of broken guarantees.

    Args:
        report: path of the page, which is written again after each run.
    """
    spark = await in_thread(partial(session, "local[2]"))
    folder = Path(tempfile.mkdtemp(prefix="fleet-pipeline-"))
    checked: dict[str, CrossCheckedRun] = {}
    violations = 0
    try:
        async with prepare(folder, say) as ground:
            servers = ground.kafka.bootstrap_servers
            for number, plan in enumerate(plans, 1):
                prefix, began_us = f"pipeline-{number}.", _wall_us()
                result, history = await witness(
                    plan, ground, folder / f"run-{number}", say, {"topic_prefix": prefix}
                )
                for violation in result.violations:
                    say(f"  {violation.rule}: {violation.detail}")
                violations += len(result.violations)
                if history is None:
                    continue
                say("  Spark checks the run")
                wall_us = _wall_us()
                clocks = Clocks(wall_us, abs(wall_us - began_us))
                written = (
                    (prefix + OBSERVATIONS, None, EVENTS.encode(each))
                    for each in observations(history, wall_us)
                )
                sent = await in_thread(partial(produce, {"bootstrap.servers": servers}, written))
                say(f"  {sent} observations written")
                out = folder / f"out-{number}"
                checking = partial(cross_check, spark, servers, prefix, history, out, clocks)
                checked[plan.name] = await in_thread(checking)
                if report is not None:
                    await in_thread(partial(report.write_text, page(checked), encoding="utf-8"))
                if not result.violations:
                    remove(result)
    finally:
        await in_thread(spark.stop)
    return checked, violations


def main() -> None:
    run_alone(command, "python -m tests.chaos.seeded.spark_check")


if __name__ == "__main__":
    main()
