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
from tests.conformance.kafka_tools import PARTITIONS, Printed, compare, compare_changes, leave_a_group
from tests.conformance.real import Comparison
from tests.conformance.releases import NEWEST, RELEASES, advertised, cluster, site
from tests.conformance.scripted import definitions, ground

TOPIC = "conformance"
GROUP = "conformance-group"
UNKNOWN_FIELDS = 0.5
"""How likely a struct has some."""


@click.command(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
Examples:
  make conformance                         tests, which fail where something differs
  make conformance ARGS="--times 20"       more random messages of each version
  make conformance ARGS=--json             one object, for scripts
""",
)
@click.option("--times", type=click.IntRange(1), default=4, show_default=True, help="Messages of each.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else.")
def command(times: int, as_json: bool) -> None:
    """Have every API and version that Kafka defines pass a fleet, and compare what real brokers of three
    releases answer, and what Kafka's own tools print, straight and through it.

    Exit code 1 where a broker's address gets through, or something else differs.
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
    for name, both in printed.items():
        if both.verdict == "differs":
            say(f"--- {name}, straight\n{both.straight}\n--- {name}, through the fleet\n{both.through}")
    sys.exit(1 if outcome.leaks or outcome.differences or "differs" in verdicts.values() else 0)


def _versions(folder: Path, times: int) -> Outcome:
    say("every API and version, in front of scripted brokers")
    with ground(folder / "scripted", definitions()) as there:
        conformance = there.through_the_fleet()
        outcome = conformance.run(times, say)
        outcome.differences += conformance.refused()
        say("the same with tagged fields that nobody knows")
        unknown = there.through_the_fleet(UNKNOWN_FIELDS).run(times)
        outcome.differences += [f"with unknown fields: {each}" for each in unknown.differences]
        outcome.leaks += [f"with unknown fields: {each}" for each in unknown.leaks]
    return outcome


def _real(folder: Path, release: str, outcome: Outcome) -> dict[str, Printed]:
    """What differs between answers of real brokers is added to the outcome.

    Returns: what the tools of the newest release print.
    """
    say(f"real brokers, {release}")
    with cluster(release, folder / "kafka") as kafka, site(release, kafka, folder / "fleet") as there:
        comparison = Comparison(kafka, advertised(there.fleet), CASES)
        found = comparison.run()
        say(f"{len(found.tried)} versions of {len(comparison.ranges)} APIs")
        outcome.differences += [f"Kafka {release}: {each}" for each in found.differences]
        outcome.leaks += [f"Kafka {release}: {each}" for each in found.leaks]
        if release != NEWEST:
            return {}
        say("Kafka's own tools")
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(60)
        leave_a_group(kafka.bootstrap_servers, TOPIC, GROUP)
        return {
            **compare(kafka, there.fleet, TOPIC, GROUP),
            **compare_changes(kafka, there.fleet, folder),
        }


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    command()
