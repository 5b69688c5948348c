"""The command line: ``python -m tests.conformance``, which ``make conformance ARGS=…`` starts."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import click
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.demo.kafka import KafkaCluster
from fleet.demo.local_fleet import LocalFleet
from tests.conformance.exchange import Outcome
from tests.conformance.kafka_tools import PARTITIONS, Printed, compare, leave_a_group
from tests.conformance.scripted import definitions, ground
from tests.conftest import broker_host

TOPIC = "conformance"
GROUP = "conformance-group"


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
    """Have every API and version that Kafka defines pass a fleet, and compare what Kafka's own tools print.

    Exit code 1 where a broker's address gets through, or something else differs.
    """
    with tempfile.TemporaryDirectory(prefix="fleet-conformance-") as folder:
        outcome = _versions(Path(folder), times)
        printed = _tools(Path(folder))
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
    return outcome


def _tools(folder: Path) -> dict[str, Printed]:
    say("Kafka's own tools, in front of real brokers")
    with KafkaCluster(3, folder / "kafka", host_of=broker_host) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(60)
        with LocalFleet(folder / "fleet", kafka.endpoints, 3) as fleet:
            fleet.await_settled(frozenset(kafka.brokers))
            leave_a_group(kafka.bootstrap_servers, TOPIC, GROUP)
            return compare(kafka, fleet, TOPIC, GROUP)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    command()
