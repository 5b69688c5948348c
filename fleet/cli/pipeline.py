"""The jobs of the data pipeline; Spark is looked for, and loaded, only here."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeAlias

import click

from fleet.cli.options import config_option, json_option
from fleet.cli.output import FAILURE, OK, print_document, print_progress
from fleet.config.file import load
from fleet.core.errors import PipelineError
from fleet.pipeline.documents import (
    ANOMALIES,
    AUDIT,
    AVAILABILITY,
    PIPELINE,
    REPORT,
    is_faulty,
    print_anomalies,
    print_audit,
    print_availability,
    print_pipeline,
)

Command: TypeAlias = Callable[..., int]

MOMENT: Final = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"])
PACKAGES: Final = ("pyspark", "pandas", "pyarrow", "confluent_kafka", "jinja2", "matplotlib")
JOBS: Final = ("timeline", "load", "weights", "liveness", "connections", "ledger", "dead-letters")
EVERY_S: Final = 10
"""Two files from each job every ten seconds, and not every second; weights go by the minute anyway."""


@click.group(
    short_help="What the fleet did, by Spark, from its events.",
    epilog="\b\nExamples:\n  fleet pipeline run --out pipeline --once --json",
)
def pipeline() -> None:
    """Jobs of Spark on the topics that the fleet tells its events in (`events:` in the configuration)."""


@pipeline.command(
    "run",
    short_help="Run jobs on the fleet's topics.",
    epilog="""\b
Examples:
  fleet pipeline run --out /var/lib/fleet/pipeline            until Ctrl-C or SIGTERM
  fleet pipeline run --out s3a://bucket/fleet --once --json   what there is now, and end
  fleet pipeline run --out out --job timeline --master 'local[2]'

\b
Jobs:
  timeline      who owned which identity when, as Parquet in OUT/timeline
  load          what passed each identity, by the minute, as Parquet in OUT/load
  liveness      what members hold of one another, as Parquet in OUT/liveness
  connections   clients' connections, as Parquet in OUT/connections
  ledger        what producers were told, groups were given and logs hold, as Parquet in OUT/ledger
  weights       what each identity weighs, from OUT/load, in the topic `weights`
  dead-letters  what is no event, with the reason, in the topic `dead_letters`

A run goes on where the last one with the same --out stopped, however it ended.
""",
)
@config_option
@json_option
@click.option("--out", required=True, metavar="PLACE", help="A folder, or a URI that Spark can write to.")
@click.option("--once", is_flag=True, help="End when all that is there now has been read.")
@click.option(
    "--job",
    "jobs",
    type=click.Choice(JOBS),
    multiple=True,
    default=JOBS,
    help="Which; repeatable.  [default: all]",
)
@click.option(
    "--kafka-source",
    type=click.Choice(["python", "jvm"]),
    default="python",
    show_default=True,
    help="Who reads Kafka: librdkafka in Python, or Spark's own connector, which Maven brings.",
)
@click.option(
    "--records-per-batch",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="About how many a batch takes at most; 0 for all there are.",
)
@click.option(
    "--every",
    "every_s",
    type=click.IntRange(0),
    default=EVERY_S,
    show_default=True,
    metavar="SECONDS",
    help="From one batch to the next without --once, at least. Each batch writes files of its own.",
)
@click.option("--master", metavar="URL", help="Where Spark runs.  [default: spark-submit's; else local[*]]")
def run_jobs(
    config: str,
    as_json: bool,
    out: str,
    once: bool,
    jobs: tuple[str, ...],
    kafka_source: str,
    records_per_batch: int,
    every_s: int,
    master: str | None,
) -> int:
    """Run jobs: without --once for ever, batch after batch."""
    settings = load(config, os.environ)
    if settings.events is None:
        raise PipelineError(
            f"{config} has no section `events`, so the fleet tells nothing; add `events: {{}}`"
        )
    servers, prefix = ",".join(map(str, settings.bootstrap_servers)), settings.events.topic_prefix
    with _spark(master, kafka_source) as spark:
        site = _site(out, prefix, servers, kafka_source, records_per_batch, every_s)
        run: Any = importlib.import_module("fleet.pipeline.run").run
        document = run(spark, site, list(dict.fromkeys(jobs)), once=once, say=print_progress)
    print_document(document, PIPELINE, as_json, print_pipeline)
    return OK


def _from_to(command: Command) -> Command:
    """For which time a command answers, and where it computes."""
    for option in (
        click.option("--master", metavar="URL", help="Where Spark runs.  [default: local[*]]"),
        click.option("--to", "until", type=MOMENT, metavar="TIME", help="Up to when.  [default: now]"),
        click.option(
            "--from",
            "since",
            type=MOMENT,
            metavar="TIME",
            help="Since when, such as 2026-11-01 or 2026-11-01T03:00:00, in UTC.  [default: a week before]",
        ),
    ):
        command = option(command)
    return command


def _objective(command: Command) -> Command:
    """What is promised, and for which periods that is asked."""
    for option in (
        click.option("--period", type=click.Choice(["day", "week"]), default="day", show_default=True),
        click.option(
            "--objective",
            type=click.FloatRange(0.0, 1.0, max_open=True),
            default=0.9999,
            show_default=True,
            help="The part of the time in which each broker is to be had.",
        ),
    ):
        command = option(command)
    return command


_out = click.option("--out", required=True, metavar="PLACE", help="Where the jobs have written.")


@pipeline.command(
    short_help="How long brokers were not to be had.",
    epilog="""\b
Examples:
  fleet pipeline availability --out /var/lib/fleet/pipeline
  fleet pipeline availability --out out --from 2026-11-01 --to 2026-12-01 --period week --json
  fleet pipeline availability --out s3a://bucket/fleet --objective 0.99999
""",
)
@json_option
@_out
@_from_to
@_objective
def availability(
    as_json: bool,
    out: str,
    since: datetime | None,
    until: datetime | None,
    master: str | None,
    objective: float,
    period: str,
) -> int:
    """Takeovers, and what is left of an objective, from what the jobs timeline and connections wrote."""
    from_ms, to_ms = _moments(since, until)
    with _spark(master) as spark:
        answers: Any = importlib.import_module("fleet.pipeline.queries")
        document = answers.availability(spark, _site(out), from_ms, to_ms, objective, period)
    print_document(document, AVAILABILITY, as_json, print_availability)
    return OK


@pipeline.command(
    short_help="Flapping members, one-sided links, clients with old addresses.",
    epilog="\b\nExample:\n  fleet pipeline anomalies --out out --from 2026-11-01T03:00:00",
)
@json_option
@_out
@_from_to
def anomalies(
    as_json: bool, out: str, since: datetime | None, until: datetime | None, master: str | None
) -> int:
    """What was odd though nothing was lost, from what the jobs liveness and connections have written."""
    from_ms, to_ms = _moments(since, until)
    with _spark(master) as spark:
        answers: Any = importlib.import_module("fleet.pipeline.queries")
        document = answers.anomalies(spark, _site(out), from_ms, to_ms)
    print_document(document, ANOMALIES, as_json, print_anomalies)
    return OK


@pipeline.command(
    short_help="Whether every acknowledged record is there, once and in order.",
    epilog="""\b
Examples:
  fleet pipeline audit --out out
  fleet pipeline audit --out out --compacted prices=40 --from 2026-11-01T03:00:00 --json
""",
)
@json_option
@_out
@_from_to
@click.option(
    "--compacted",
    "compacted",
    metavar="CLIENT=KEYS",
    multiple=True,
    help="Of a client with a compacted topic: how many keys each partition has; repeatable.",
)
def audit(
    as_json: bool,
    out: str,
    since: datetime | None,
    until: datetime | None,
    master: str | None,
    compacted: tuple[str, ...],
) -> int:
    """What became of the records of each client, and after which takeover, from what the jobs ledger,
    timeline and connections have written. Exits with 1 where a record was lost, repeated or out of order."""
    from_ms, to_ms = _moments(since, until)
    keys = _keys(compacted)
    with _spark(master) as spark:
        answers: Any = importlib.import_module("fleet.pipeline.queries")
        document = answers.audit(spark, _site(out), from_ms, to_ms, keys)
    print_document(document, AUDIT, as_json, print_audit)
    return FAILURE if any(map(is_faulty, document.clients)) else OK


def _keys(compacted: tuple[str, ...]) -> dict[str, int]:
    """Raises: UsageError: one is not CLIENT=KEYS."""
    found = {}
    for each in compacted:
        client, _, keys = each.rpartition("=")
        if not client or not keys.isdigit() or not int(keys):
            raise click.UsageError(f"--compacted {each!r}: must be CLIENT=KEYS, such as prices=40")
        found[client] = int(keys)
    return found


@click.command(
    short_help="A page about a stretch of time: owners, takeovers, objective, hot brokers.",
    epilog="""\b
Examples:
  fleet report --tables /var/lib/fleet/pipeline --out report.html
  fleet report --tables out --from 2026-11-01 --to 2026-12-01 --period week --out november.html
""",
)
@json_option
@click.option(
    "--tables", required=True, metavar="PLACE", help="Where the jobs of `fleet pipeline run` have written."
)
@click.option(
    "--out",
    "page",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The page; its pictures go beside it.",
)
@_from_to
@_objective
def report(
    as_json: bool,
    tables: str,
    page: Path,
    since: datetime | None,
    until: datetime | None,
    master: str | None,
    objective: float,
    period: str,
) -> int:
    """Write a page that tells who stood for which broker, takeovers, what is left of an objective, which
    brokers were hottest, and what was odd. It needs nothing but itself; its pictures are PNG files, too."""
    from_ms, to_ms = _moments(since, until)
    if not page.parent.is_dir():
        raise PipelineError(f"{page}: there is no folder {page.parent}; make it first")
    with _spark(master) as spark:
        answers: Any = importlib.import_module("fleet.pipeline.queries")
        document = answers.report(spark, _site(tables), from_ms, to_ms, objective, period)
    for path in importlib.import_module("fleet.pipeline.report_page").write(document, page):
        print_progress(f"wrote {path}")
    if as_json:
        print_document(document, REPORT, as_json, lambda *_: None)
    return OK


@contextmanager
def _spark(master: str | None, kafka_source: str = "python") -> Iterator[Any]:
    """A session. Raises: PipelineError: a package is missing."""
    missing = ", ".join(each for each in PACKAGES if find_spec(each) is None)
    if missing:
        raise PipelineError(f"this needs {missing}; install with: pip install 'kafka-proxy-fleet[pipeline]'")
    streams: Any = importlib.import_module("fleet.pipeline.streams")
    spark = streams.session(master, kafka_source)
    try:
        yield spark
    finally:
        spark.stop()


def _site(
    out: str,
    prefix: str = "",
    servers: str = "",
    kafka_source: str = "python",
    records_per_batch: int = 0,
    every_s: int = 0,
) -> Any:
    """Where jobs read and write; whoever only reads what they have written needs no Kafka."""
    streams: Any = importlib.import_module("fleet.pipeline.streams")
    kafka = streams.Kafka(servers, kafka_source, records_per_batch=records_per_batch)
    return importlib.import_module("fleet.pipeline.jobs").Site(kafka, prefix, out, every_s)


def _moments(since: datetime | None, until: datetime | None) -> tuple[int, int]:
    """In Unix milliseconds. Raises: UsageError: the first is not the earlier one."""
    end = datetime.now(UTC) if until is None else until.replace(tzinfo=UTC)
    begin = end - timedelta(days=7) if since is None else since.replace(tzinfo=UTC)
    if begin >= end:
        raise click.UsageError(f"--from {begin:%Y-%m-%dT%H:%M:%S} is not before --to {end:%Y-%m-%dT%H:%M:%S}")
    return round(begin.timestamp() * 1000), round(end.timestamp() * 1000)
