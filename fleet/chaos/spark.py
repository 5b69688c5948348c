"""A chaos run judged a second time, by the data pipeline: Spark has to find what the checker has found.

    python -m fleet.chaos.spark --seed 3 --json        what `make pipeline ARGS=…` starts

The fleet tells its events; what its clients and its observer saw is written to a topic, as `outside` events.
The jobs run over both.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from pyspark.sql import SparkSession

from fleet.admin.documents import Codec
from fleet.chaos.checker import History, Outage, Stream, View, audit_of, takeover_s
from fleet.chaos.command import run_alone, say
from fleet.chaos.run import prepare, remove, witness
from fleet.chaos.schedule import CHOSEN, Plan, chosen, plan_of
from fleet.demo.audit import Audit
from fleet.demo.background import in_thread
from fleet.demo.history import NO_OFFSET, Event
from fleet.errors import FleetError
from fleet.events.schema import OUTSIDE
from fleet.pipeline.audit import audit, by_record
from fleet.pipeline.judge import judge as run_jobs
from fleet.pipeline.kafka_source import produce
from fleet.pipeline.outside import EVENTS, KINDS, LedgerEntry, OutageEvent, Outside, ViewEvent
from fleet.pipeline.parse import events, parse
from fleet.pipeline.streams import session


@dataclass(frozen=True, slots=True)
class AuditTotals:
    """Of all clients together."""

    lost: int
    duplicated: int
    reordered: int


@dataclass(frozen=True, slots=True)
class JudgedDocument:
    """What ``make pipeline ARGS=--json`` prints.

    Args:
        events: how many records the jobs have read.
        gaps, overlaps: in the timelines of the identities.
        windows: outages of which Spark says how long it took until all was advertised elsewhere.
        differs_from_checker: verdicts on clients, windows and owners in which Spark and the checker differ.
    """

    events: int
    gaps: int
    overlaps: int
    windows: int
    audit: AuditTotals
    differs_from_checker: int


JUDGED: Final = Codec(JudgedDocument)


def outside(history: History, wall_us: int = 0) -> Iterator[Outside]:
    """What was seen from outside, as events.

    Args:
        wall_us: how far the wall clock is before the machine's monotonic one.
    """
    for stream in history.streams:
        yield from ledger(stream, wall_us)
    for proxy_id, views in history.views.items():
        for number, view in enumerate(views):
            for broker_id in sorted(history.broker_ids):
                yield ViewEvent(
                    proxy_id, number, broker_id, view.owners.get(broker_id), wall_us + _us(view.at_s)
                )
    for number, outage in enumerate(history.outages):
        times = (wall_us + _us(outage.at_s), wall_us + _us(outage.until_s))
        yield OutageEvent(str(number), outage.victims, outage.survivors, *times)


def ledger(stream: Stream, wall_us: int = 0) -> Iterator[LedgerEntry]:
    """What one client was told and given, and what its topic holds."""
    yield from _ledger(stream, "acknowledged", stream.acknowledged, wall_us)
    received: Iterable[Event] = stream.received
    if not stream.promise.in_turn:
        received = sorted(received, key=lambda event: (event.partition, event.offset))
    yield from _ledger(stream, "received", received, wall_us)
    yield from _ledger(stream, "log", stream.log, wall_us)


def _ledger(stream: Stream, what: Any, events: Iterable[Event], wall_us: int) -> Iterator[LedgerEntry]:
    for number, event in enumerate(events):
        offset = None if event.offset == NO_OFFSET else event.offset
        record = event.record
        yield LedgerEntry(
            stream.name,
            what,
            event.partition,
            record.producer_id,
            record.sequence,
            offset,
            number,
            wall_us + _us(event.at_s),
        )


def judge(spark: SparkSession, servers: str, prefix: str, history: History, out: Path) -> JudgedDocument:
    """Run the jobs on what is in the topics, and compare.

    Args:
        out: a folder for Parquet and checkpoints.
    Raises: FleetError: a job failed.
    """
    found = run_jobs(spark, servers, prefix, str(out), keys_of(history))
    audits = {name: Audit(**verdict) for name, verdict in found.audits.items()}
    differences = [
        *differing(audits, {each.name: audit_of(each) for each in history.streams}),
        *differing(found.took_us, took_us(history)),
        *_other_owners(found.owners, history),
    ]
    for difference in differences:
        say(f"  Spark and the checker differ: {difference}")
    totals = AuditTotals(
        sum(each.lost for each in audits.values()),
        sum(each.duplicated for each in audits.values()),
        sum(each.out_of_order for each in audits.values()),
    )
    windows = sum(each is not None for each in found.took_us.values())
    return JudgedDocument(found.events, found.gaps, found.overlaps, windows, totals, len(differences))


def audit_alone(stream: Stream) -> Audit:
    """What the data pipeline says of one client, without Kafka: its ledger goes through a file.

    Raises: PipelineError: it cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="fleet-ledger-") as folder:
        path = Path(folder, "ledger.jsonl")
        with path.open("wb") as file:
            file.writelines(EVENTS.encode(entry) + b"\n" for entry in ledger(stream))
        spark = session()
        try:
            entries = events(parse(spark.read.text(str(path)), KINDS), "ledger")
            keys = {stream.name: stream.keys} if stream.keys else {}
            (row,) = audit(by_record(entries).persist(), keys).collect()
        finally:
            spark.stop()
    return Audit(**{name: count for name, count in row.asDict().items() if name != "client"})


def keys_of(history: History) -> dict[str, int]:
    """Of clients with a compacted topic, how many keys each partition has."""
    return {stream.name: stream.keys for stream in history.streams if stream.keys}


def took_us(history: History) -> dict[str, int | None]:
    """The checker's verdict on each outage, from times in whole microseconds, as Spark has them."""
    views = {
        proxy_id: [View(_us(view.at_s), view.owners) for view in seen]
        for proxy_id, seen in history.views.items()
    }
    found = {}
    for number, outage in enumerate(history.outages):
        rounded: Outage = replace(outage, at_s=_us(outage.at_s), until_s=_us(outage.until_s))
        took = takeover_s(rounded, history.broker_ids, views)
        found[str(number)] = None if took is None else int(took)
    return found


def differing(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[str]:
    """What two verdicts on the same things do not share."""
    for name in sorted(found.keys() | wanted.keys()):
        if found.get(name) != wanted.get(name) or (name in found) != (name in wanted):
            yield f"{name}: {found.get(name)} and {wanted.get(name)}"


def _other_owners(found: Mapping[tuple[int, int], tuple[str, ...]], history: History) -> Iterator[str]:
    """Where a member has said something else about a generation than the timeline does.

    Args:
        found: by broker id and the generation from which on they are.
    """
    changes: dict[int, list[int]] = {}
    for broker_id, generation in sorted(found):
        changes.setdefault(broker_id, []).append(generation)
    told = {
        (sighting.generation, broker_id): owners
        for sighting in history.sightings
        for broker_id, owners in sighting.owners.items()
    }
    for (generation, broker_id), owners in sorted(told.items()):
        before = [each for each in changes.get(broker_id, ()) if each <= generation]
        says = found[broker_id, before[-1]] if before else None
        if says != owners:
            yield f"identity {broker_id} in generation {generation}: {says} and {owners}"


def _us(at_s: float) -> int:
    return round(at_s * 1_000_000)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--seed", type=click.IntRange(0), help="Of the run.  [default: the plan leader-kill]")
@click.option("--runs", type=click.IntRange(1), default=1, show_default=True, help="How many seeds.")
@click.option("--plan", "name", type=click.Choice(list(CHOSEN)), default="leader-kill", show_default=True)
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="Write a page about it here.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else.")
def command(seed: int | None, runs: int, name: str, report: Path | None, as_json: bool) -> int:
    """Break a fleet, and have both the checker and Spark judge it.

    Exit code 1 where they differ, or where a promise was broken.
    """
    plans = [chosen(name)] if seed is None else [plan_of(seed + number) for number in range(runs)]
    try:
        documents, violations = asyncio.run(_main(plans))
    except FleetError as error:
        raise click.ClickException(str(error)) from error
    document = _sum(list(documents.values()))
    if report is not None:
        report.write_text(_page(documents, document), encoding="utf-8")
    click.echo(JUDGED.encode(document) if as_json else _text(document))
    return 1 if violations or document.differs_from_checker else 0


async def _main(plans: Sequence[Plan]) -> tuple[dict[str, JudgedDocument], int]:
    """Returns: by plan, what came out; and how many promises were broken."""
    spark = await in_thread(partial(session, "local[2]"))
    folder = Path(tempfile.mkdtemp(prefix="fleet-pipeline-"))
    documents: dict[str, JudgedDocument] = {}
    violations = 0
    try:
        async with prepare(folder, say) as ground:
            servers = ground.kafka.bootstrap_servers
            for number, plan in enumerate(plans, 1):
                prefix = f"pipeline-{number}."
                result, history = await witness(
                    plan, ground, folder / f"run-{number}", say, {"topic_prefix": prefix}
                )
                for violation in result.violations:
                    say(f"  {violation.rule}: {violation.detail}")
                violations += len(result.violations)
                if history is None:
                    continue
                say("  Spark judges it")
                wall_us = _us(time.time() - time.monotonic())
                told = ((prefix + OUTSIDE, None, EVENTS.encode(each)) for each in outside(history, wall_us))
                count = await in_thread(partial(produce, {"bootstrap.servers": servers}, told))
                say(f"  {count} events of what was seen from outside")
                out = folder / f"out-{number}"
                documents[plan.name] = await in_thread(partial(judge, spark, servers, prefix, history, out))
                if not result.violations:
                    remove(result)
    finally:
        await in_thread(spark.stop)
    return documents, violations


def _sum(documents: Sequence[JudgedDocument]) -> JudgedDocument:
    def total(name: str) -> int:
        return sum(getattr(each, name) for each in documents)

    audits = [each.audit for each in documents]
    return JudgedDocument(
        total("events"),
        total("gaps"),
        total("overlaps"),
        total("windows"),
        AuditTotals(
            sum(each.lost for each in audits),
            sum(each.duplicated for each in audits),
            sum(each.reordered for each in audits),
        ),
        total("differs_from_checker"),
    )


def _page(documents: Mapping[str, JudgedDocument], total: JudgedDocument) -> str:
    """The report, in Markdown."""
    heads = ("seed", "events", "gaps", "overlaps", "outages timed", "lost", "repeated", "out of order")
    lines = [
        "# Judged twice",
        "",
        f"{len(documents)} chaos runs of a real fleet, each judged by the checker and by Spark "
        "(`python -m fleet.chaos.spark`); they differ in",
        f"{total.differs_from_checker} verdicts. What is lost, repeated or out of order is of clients that "
        "are promised nothing: `acks=0`, or no idempotence.",
        "",
        "| " + " | ".join((*heads, "differences")) + " |",
        "|---" * (len(heads) + 1) + "|",
    ]
    for name, each in {**documents, "**all**": total}.items():
        audit = each.audit
        figures = (each.events, each.gaps, each.overlaps, each.windows)
        verdict = (audit.lost, audit.duplicated, audit.reordered, each.differs_from_checker)
        lines.append("| " + " | ".join((name, *map(str, (*figures, *verdict)))) + " |")
    return "\n".join(lines) + "\n"


def _text(document: JudgedDocument) -> str:
    audit = document.audit
    return (
        f"{document.events} events; {document.gaps} gaps and {document.overlaps} overlaps in the timelines; "
        f"{document.windows} outages timed; {audit.lost} lost, {audit.duplicated} duplicated, "
        f"{audit.reordered} reordered; {document.differs_from_checker} differences from the checker"
    )


def main() -> None:
    run_alone(command, "python -m fleet.chaos.spark")


if __name__ == "__main__":
    main()
