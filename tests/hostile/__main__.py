"""The command line: ``python -m tests.hostile``, which ``make test-long`` starts."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import click
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.drills.cluster.kafka import KafkaCluster
from tests.chaos.seeded.workloads import PARTITIONS
from tests.conftest import broker_host
from tests.hostile.run import Result, brokers, clients

TOPIC = "hostile"
CONNECTIONS_PER_HOSTILE_BROKER = 10
"""One connection in N goes to a hostile broker instead of a hostile client."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--connections", type=click.IntRange(5_000), default=100_000, show_default=True, help="How many."
)
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of what is sent.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object only.")
def command(connections: int, seed: int, as_json: bool) -> None:
    """Attack a running fleet next to a checked workload, and a second fleet from its brokers.

    Exit code 1: a check failed.
    """
    result = Result(seed=seed)
    broker_connections = connections // CONNECTIONS_PER_HOSTILE_BROKER
    with tempfile.TemporaryDirectory(prefix="fleet-hostile-") as name:
        folder = Path(name)
        with KafkaCluster(3, folder / "kafka", host_of=broker_host) as kafka:
            admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(60)
            clients(result, kafka, TOPIC, folder / "clients", connections - broker_connections, seed, say)
        brokers(result, folder / "brokers", broker_connections, seed, say)
    if as_json:
        click.echo(json.dumps(asdict(result)))
    else:
        click.echo(
            f"{result.connections} hostile connections, {sum(result.closed.values())} closed by the fleet, "
            f"{len(result.problems)} problems; the workload stalled for "
            f"{result.workload['stall_ms']:.0f} ms at most"
        )
    for each in result.problems[:100]:
        say(each)
    sys.exit(1 if result.problems else 0)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    command()
