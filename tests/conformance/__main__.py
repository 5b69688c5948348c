"""The command line: ``python -m tests.conformance``, which ``make conformance ARGS=…`` starts."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import click
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conformance.catalogue import CASES
from tests.conformance.exchange import Outcome
from tests.conformance.kafka_tools import PARTITIONS, Printed, compare, compare_changes, create_idle_group
from tests.conformance.real import Comparison
from tests.conformance.releases import NEWEST, RELEASES, advertised, cluster, release_setup
from tests.conformance.scripted import definitions, scripted_setup

TOPIC = "conformance"
GROUP = "conformance-group"
UNKNOWN_FIELDS_PROBABILITY = 0.5
"""The probability that a struct has unknown fields."""


@click.command(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
Examples:
  make conformance                         tests, which fail where something differs
  make conformance                         tests, which fail on a difference
  make conformance ARGS=--json             one object, for scripts
""",
)
@click.option("--times", type=click.IntRange(1), default=4, show_default=True, help="Messages per version.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object only.")
def command(times: int, as_json: bool) -> None:
    """Send every API and version that Kafka defines through a fleet, and compare direct and proxied results.

    Direct and proxied results are the responses of real brokers of three releases, and the output of Kafka's
    tools.

    Exit code 1: a response leaks a broker's address, or another difference was found.
    """
    with tempfile.TemporaryDirectory(prefix="fleet-conformance-") as folder:
        outcome = _versions(Path(folder), times)
        for release in RELEASES:
            printed = _real(Path(folder) / release, release, outcome)
    verdicts = {name: each.verdict for name, each in printed.items()}
    found = {
        "keys": len({key for key, _ in outcome.tried}),
        "versions": len(outcome.tried),
        "leaks": len(outcome.leaks),
        "differences": len(outcome.differences),
        "tools": verdicts,
    }
    if as_json:
        click.echo(json.dumps(found))
    else:
        click.echo(
            "{versions} versions of {keys} APIs: {leaks} leaks, {differences} differences".format(**found)
        )
        for name, verdict in verdicts.items():
            click.echo(f"{name}: {verdict}")
    for each in (*outcome.leaks, *outcome.differences):
        say(each)
    for name, outputs in printed.items():
        if outputs.verdict == "differs":
            say(f"--- {name}, direct\n{outputs.direct}\n--- {name}, through the fleet\n{outputs.proxied}")
    sys.exit(1 if outcome.leaks or outcome.differences or "differs" in verdicts.values() else 0)


def _versions(folder: Path, times: int) -> Outcome:
    say("every API and version, with scripted brokers")
    with scripted_setup(folder / "scripted", definitions()) as setup:
        conformance = setup.through_fleet()
        outcome = conformance.run(times, say)
        outcome.differences += conformance.refused()
        say("every API and version, with unknown tagged fields")
        unknown = setup.through_fleet(UNKNOWN_FIELDS_PROBABILITY).run(times)
        outcome.differences += [f"with unknown fields: {each}" for each in unknown.differences]
        outcome.leaks += [f"with unknown fields: {each}" for each in unknown.leaks]
    return outcome


def _real(folder: Path, release: str, outcome: Outcome) -> dict[str, Printed]:
    """Add the differences between responses of real brokers to the outcome.

    Returns: the output of the tools of the newest release.
    """
    say(f"real brokers, {release}")
    with (
        cluster(release, folder / "kafka") as kafka,
        release_setup(release, kafka, folder / "fleet") as setup,
    ):
        comparison = Comparison(kafka, advertised(setup.fleet), CASES)
        found = comparison.run()
        say(f"{len(found.tried)} versions of {len(comparison.ranges)} APIs")
        outcome.differences += [f"Kafka {release}: {each}" for each in found.differences]
        outcome.leaks += [f"Kafka {release}: {each}" for each in found.leaks]
        if release != NEWEST:
            return {}
        say("Kafka's own tools")
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(60)
        create_idle_group(kafka.bootstrap_servers, TOPIC, GROUP)
        return {
            **compare(kafka, setup.fleet, TOPIC, GROUP),
            **compare_changes(kafka, setup.fleet, folder),
        }


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    command()
