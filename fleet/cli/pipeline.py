"""The jobs of the data pipeline; Spark is looked for, and loaded, only here."""

from __future__ import annotations

import importlib
import os
from importlib.util import find_spec
from typing import Any, Final

import click

from fleet.cli.options import config_option, json_option
from fleet.cli.output import OK, print_document
from fleet.config import load
from fleet.errors import PipelineError
from fleet.pipeline.report import PIPELINE, print_report

PACKAGES: Final = ("pyspark", "pandas", "pyarrow", "confluent_kafka")
JOBS: Final = ("timeline", "load", "weights", "dead-letters")


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
@click.option("--master", metavar="URL", help="Where Spark runs.  [default: spark-submit's; else local[*]]")
def run_jobs(
    config: str,
    as_json: bool,
    out: str,
    once: bool,
    jobs: tuple[str, ...],
    kafka_source: str,
    records_per_batch: int,
    master: str | None,
) -> int:
    """Run jobs: without --once for ever, batch after batch."""
    settings = load(config, os.environ)
    if settings.events is None:
        raise PipelineError(
            f"{config} has no section `events`, so the fleet tells nothing; add `events: {{}}`"
        )
    missing = ", ".join(each for each in PACKAGES if find_spec(each) is None)
    if missing:
        raise PipelineError(f"this needs {missing}; install with: pip install 'kafka-proxy-fleet[pipeline]'")
    streams: Any = importlib.import_module("fleet.pipeline.streams")
    site_of: Any = importlib.import_module("fleet.pipeline.jobs").Site
    run: Any = importlib.import_module("fleet.pipeline.run").run
    servers = ",".join(map(str, settings.bootstrap_servers))
    kafka = streams.Kafka(servers, kafka_source, records_per_batch=records_per_batch)
    spark = streams.session(master, kafka_source)
    try:
        site = site_of(kafka, settings.events.topic_prefix, out)
        document = run(spark, site, list(dict.fromkeys(jobs)), once=once, say=_say)
    finally:
        spark.stop()
    print_document(document, PIPELINE, as_json, print_report)
    return OK


def _say(line: str) -> None:
    click.echo(line, err=True)
