"""``fleet pipeline`` and ``fleet report``. Only this module of `fleet.cli` looks for Spark, and loads it."""

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

from fleet.cli.deprecation import RenamedOptions
from fleet.cli.options import config_option, json_option
from fleet.cli.output import FAILURE, OK, print_document, print_progress
from fleet.cli.render.pipeline import print_anomalies, print_audit, print_availability, print_pipeline
from fleet.config.file import load
from fleet.core.errors import PipelineError
from fleet.pipeline.documents import (
    ANOMALIES,
    AUDIT,
    AVAILABILITY,
    PIPELINE,
    REPORT,
    is_faulty,
)

Command: TypeAlias = Callable[..., int]

MOMENT: Final = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"])
PACKAGES: Final = ("pyspark", "pandas", "pyarrow", "confluent_kafka", "jinja2", "matplotlib")
JOBS: Final = ("timeline", "load", "weights", "liveness", "connections", "ledger", "dead-letters")
EVERY_S: Final = 10
"""Each batch writes two files per job, so shorter batches write more files. Weights change by the minute."""


@click.group(
    short_help="Build and query tables of the fleet's history, with Spark.",
    epilog="""\b
Examples:
  fleet pipeline run --out pipeline --once --json
  fleet pipeline availability --tables pipeline
""",
)
def pipeline() -> None:
    """Run Spark jobs on the events of the fleet, and query the tables that they write.

    The fleet writes events to topics if the configuration has a section `events`.
    """


@pipeline.command(
    "run",
    short_help="Run jobs on the fleet's topics.",
    epilog="""\b
Examples:
  fleet pipeline run --out /var/lib/fleet/pipeline            until Ctrl-C or SIGTERM
  fleet pipeline run --out s3a://bucket/fleet --once --json   all events until now, then exit
  fleet pipeline run --out out --job timeline --master 'local[2]'

\b
Jobs:
  timeline      which member owned which broker when, as Parquet in OUT/timeline
  load          the traffic of each broker by the minute, as Parquet in OUT/load
  liveness      which members suspected each other, as Parquet in OUT/liveness
  connections   the connections of clients, as Parquet in OUT/connections
  ledger        acknowledged, consumed and stored records, as Parquet in OUT/ledger
  weights       the weight of each broker, from OUT/load, to the topic `weights`
  dead-letters  malformed events, with the reason, to the topic `dead_letters`

A run continues where the last run with the same --out stopped, also after a crash.
""",
)
@config_option
@json_option
@click.option(
    "--out",
    required=True,
    metavar="LOCATION",
    help="Where to write the tables: a folder, or a URI that Spark can write to.",
)
@click.option("--once", is_flag=True, help="Exit when all events until now have been read.")
@click.option(
    "--job",
    "jobs",
    type=click.Choice(JOBS),
    multiple=True,
    default=JOBS,
    help="Run this job; repeatable.  [default: all]",
)
@click.option(
    "--kafka-source",
    type=click.Choice(["python", "jvm"]),
    default="python",
    show_default=True,
    help="How to read Kafka: librdkafka in Python, or Spark's own connector, which Maven downloads.",
)
@click.option(
    "--records-per-batch",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="RECORDS",
    help="Approximate maximum of records in a batch; 0 for no limit.",
)
@click.option(
    "--every",
    "every_s",
    type=click.IntRange(0),
    default=EVERY_S,
    show_default=True,
    metavar="SECONDS",
    help="Minimum time from one batch to the next, without --once. Each batch writes new files.",
)
@click.option(
    "--master",
    metavar="URL",
    help="Spark master.  [default: the master of spark-submit, or local[*] without spark-submit]",
)
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
    """Run jobs that turn the events of the fleet into tables.

    Runs batch after batch until Ctrl-C or SIGTERM; with --once, until all events until now have been read.
    """
    settings = load(config, os.environ)
    if settings.events is None:
        raise PipelineError(
            f"{config}: no section `events`, so the fleet writes no events; add `events: {{}}`"
        )
    servers, prefix = ",".join(map(str, settings.bootstrap_servers)), settings.events.topic_prefix
    with _spark(master, kafka_source) as spark:
        site = _site(out, prefix, servers, kafka_source, records_per_batch, every_s)
        run: Any = importlib.import_module("fleet.pipeline.run").run
        document = run(spark, site, list(dict.fromkeys(jobs)), once=once, say=print_progress)
    print_document(document, PIPELINE, as_json, print_pipeline)
    return OK


def _interval_options(command: Command) -> Command:
    """Add --from, --to and --master."""
    for option in (
        click.option("--master", metavar="URL", help="Spark master.  [default: local[*]]"),
        click.option(
            "--to", "until", type=MOMENT, metavar="TIME", help="End of the interval, in UTC.  [default: now]"
        ),
        click.option(
            "--from",
            "since",
            type=MOMENT,
            metavar="TIME",
            help="Start of the interval, in UTC, such as 2026-11-01 or 2026-11-01T03:00:00."
            "  [default: a week before now]",
        ),
    ):
        command = option(command)
    return command


def _objective_options(command: Command) -> Command:
    """Add --objective and --period."""
    for option in (
        click.option(
            "--period",
            type=click.Choice(["day", "week"]),
            default="day",
            show_default=True,
            help="Length of each period for which the error budget is computed.",
        ),
        click.option(
            "--objective",
            type=click.FloatRange(0.0, 1.0, max_open=True),
            default=0.999,
            show_default=True,
            metavar="FRACTION",
            help="Availability target for each broker, as a fraction of the time, such as 0.999.",
        ),
    ):
        command = option(command)
    return command


_tables_option = click.option(
    "--tables",
    required=True,
    metavar="LOCATION",
    help="Where the tables are: the --out of `fleet pipeline run`.",
)
_OUT_IS_TABLES: Final = {"--out": "--tables"}
"""Up to 0.2.0, the commands that read tables called this input ``--out``."""


@pipeline.command(
    cls=RenamedOptions,
    renamed=_OUT_IS_TABLES,
    short_help="Show broker availability and the remaining error budget.",
    epilog="""\b
Examples:
  fleet pipeline availability --tables /var/lib/fleet/pipeline
  fleet pipeline availability --tables out --from 2026-11-01 --to 2026-12-01 --period week --json
  fleet pipeline availability --tables s3a://bucket/fleet --objective 0.9999
""",
)
@json_option
@_tables_option
@_interval_options
@_objective_options
def availability(
    as_json: bool,
    tables: str,
    since: datetime | None,
    until: datetime | None,
    master: str | None,
    objective: float,
    period: str,
) -> int:
    """Show broker availability, takeovers, and the remaining error budget.

    Reads the tables of the jobs timeline and connections.
    """
    from_ms, to_ms = _moments(since, until)
    with _spark(master) as spark:
        queries: Any = importlib.import_module("fleet.pipeline.queries")
        document = queries.availability(spark, _site(tables), from_ms, to_ms, objective, period)
    print_document(document, AVAILABILITY, as_json, print_availability)
    return OK


@pipeline.command(
    cls=RenamedOptions,
    renamed=_OUT_IS_TABLES,
    short_help="Show flapping members, one-way links, clients with old addresses.",
    epilog="\b\nExample:\n  fleet pipeline anomalies --tables out --from 2026-11-01T03:00:00",
)
@json_option
@_tables_option
@_interval_options
def anomalies(
    as_json: bool, tables: str, since: datetime | None, until: datetime | None, master: str | None
) -> int:
    """Show what was unusual although no record was lost: flapping members, one-way links, old addresses.

    Reads the tables of the jobs liveness and connections.
    """
    from_ms, to_ms = _moments(since, until)
    with _spark(master) as spark:
        queries: Any = importlib.import_module("fleet.pipeline.queries")
        document = queries.anomalies(spark, _site(tables), from_ms, to_ms)
    print_document(document, ANOMALIES, as_json, print_anomalies)
    return OK


@pipeline.command(
    cls=RenamedOptions,
    renamed=_OUT_IS_TABLES,
    short_help="Check that every acknowledged record is stored once and in order.",
    epilog="""\b
Examples:
  fleet pipeline audit --tables out
  fleet pipeline audit --tables out --compacted prices=40 --from 2026-11-01T03:00:00 --json
""",
)
@json_option
@_tables_option
@_interval_options
@click.option(
    "--compacted",
    "compacted",
    metavar="CLIENT=KEYS",
    multiple=True,
    help="Number of keys in each partition of a client's compacted topic, such as prices=40; repeatable.",
)
def audit(
    as_json: bool,
    tables: str,
    since: datetime | None,
    until: datetime | None,
    master: str | None,
    compacted: tuple[str, ...],
) -> int:
    """Show lost, repeated and reordered records of each client, and the takeover before each.

    Reads the tables of the jobs ledger, timeline and connections. Exits with 1 if a record was lost, repeated
    or reordered.
    """
    from_ms, to_ms = _moments(since, until)
    keys = _keys(compacted)
    with _spark(master) as spark:
        queries: Any = importlib.import_module("fleet.pipeline.queries")
        document = queries.audit(spark, _site(tables), from_ms, to_ms, keys)
    print_document(document, AUDIT, as_json, print_audit)
    return FAILURE if any(map(is_faulty, document.clients)) else OK


def _keys(compacted: tuple[str, ...]) -> dict[str, int]:
    """The number of keys by client. Raises: UsageError: a value is not CLIENT=KEYS."""
    keys_by_client = {}
    for each in compacted:
        client, _, keys = each.rpartition("=")
        if not client or not keys.isdigit() or not int(keys):
            raise click.UsageError(f"--compacted {each!r}: must be CLIENT=KEYS, such as prices=40")
        keys_by_client[client] = int(keys)
    return keys_by_client


@click.command(
    short_help="Write a report page: owners, takeovers, availability, traffic.",
    epilog="""\b
Examples:
  fleet report --tables /var/lib/fleet/pipeline --out report.html
  fleet report --tables out --from 2026-11-01 --to 2026-12-01 --period week --out november.html
""",
)
@json_option
@_tables_option
@click.option(
    "--out",
    "page",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="HTML file to write. Its pictures are written next to it.",
)
@_interval_options
@_objective_options
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
    """Write an HTML report about an interval of time.

    The report shows who owned which broker, takeovers, the remaining error budget, the brokers with most
    traffic, and anomalies. The page is self-contained; its pictures are also written as PNG files.
    """
    from_ms, to_ms = _moments(since, until)
    if not page.parent.is_dir():
        raise PipelineError(f"{page}: there is no folder {page.parent}; create it first")
    with _spark(master) as spark:
        queries: Any = importlib.import_module("fleet.pipeline.queries")
        document = queries.report(spark, _site(tables), from_ms, to_ms, objective, period)
    for path in importlib.import_module("fleet.pipeline.report_page").write(document, page):
        print_progress(f"wrote {path}")
    if as_json:
        print_document(document, REPORT, as_json, lambda *_: None)
    return OK


@contextmanager
def _spark(master: str | None, kafka_source: str = "python") -> Iterator[Any]:
    """A Spark session, stopped at the end. Raises: PipelineError: a package is missing."""
    missing = ", ".join(each for each in PACKAGES if find_spec(each) is None)
    if missing:
        raise PipelineError(
            f"this command needs {missing}; install with: pip install 'kafka-proxy-fleet[pipeline]'"
        )
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
    """Where jobs read and write. Commands that only read tables need no Kafka."""
    streams: Any = importlib.import_module("fleet.pipeline.streams")
    kafka = streams.Kafka(servers, kafka_source, records_per_batch=records_per_batch)
    return importlib.import_module("fleet.pipeline.jobs").Site(kafka, prefix, out, every_s)


def _moments(since: datetime | None, until: datetime | None) -> tuple[int, int]:
    """The interval in Unix milliseconds: start and end.

    Raises: UsageError: the start is not before the end
    """
    end = datetime.now(UTC) if until is None else until.replace(tzinfo=UTC)
    begin = end - timedelta(days=7) if since is None else since.replace(tzinfo=UTC)
    if begin >= end:
        raise click.UsageError(f"--from {begin:%Y-%m-%dT%H:%M:%S} is not before --to {end:%Y-%m-%dT%H:%M:%S}")
    return round(begin.timestamp() * 1000), round(end.timestamp() * 1000)
