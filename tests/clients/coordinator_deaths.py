"""How long a group of a Node client stands still when its coordinator's proxy dies, or its coordinator.

    python -m tests.clients.coordinator_deaths --kill member --settings recommended --rounds 4
    python -m tests.clients.coordinator_deaths --kill broker

`--kill member` kills the member that owns the coordinator of the group. `--kill broker` kills the
coordinator itself while the client is connected to the brokers. Each round prints one line of JSON: the
longest intervals between two records received, and between two acknowledged, from one second before the
kill on, and then from the revival on.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import click
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.client_settings import Client, as_text, settings_for
from fleet.demo.kafka import KafkaCluster
from fleet.demo.local_fleet import LocalFleet
from tests.chaos.coordinators import coordinator
from tests.clients.node_program import PARTITIONS, NodeProgram
from tests.integration.clients import wait_for

TOPIC = "deaths"
AGAIN_LIMIT_S = 180.0
SETTLE_S = 5.0
"""For the next heartbeats after a revival."""
BEFORE_S = 1.0


def longest_s(moments_s: Sequence[float], since_s: float, until_s: float) -> float:
    """The longest interval without any moment, of a span of time."""
    inside = [since_s, *(each for each in moments_s if since_s < each < until_s), until_s]
    return max(after - before for before, after in pairwise(inside))


def stalls(program: NodeProgram, since_s: float) -> dict[str, float]:
    """The longest intervals of a program without a record, since a moment."""
    return {
        what: round(longest_s(program.moments_s[what], since_s, time.monotonic()), 2)
        for what in ("received", "acknowledged")
    }


@dataclass(frozen=True, slots=True)
class Running:
    """Brokers, perhaps a fleet in front of them, and a program at work."""

    kafka: KafkaCluster
    fleet: LocalFleet | None
    program: NodeProgram

    def kill_coordinator(self) -> str:
        """Kill the coordinator's proxy, or the coordinator where there is no fleet. Returns: which one."""
        broker_id = coordinator(self.kafka, TOPIC)
        if self.fleet is None:
            self.kafka.kill(broker_id)
            return str(broker_id)
        owners = {each.broker_id: each.committed[0] for each in self.fleet.ownership("p1").identities}
        self.fleet.kill(owners[broker_id])
        return owners[broker_id]

    def revive(self, victim: str) -> None:
        if self.fleet is None:
            self.kafka.start_broker(int(victim))
        else:
            self.fleet.start(victim)

    def await_whole(self) -> None:
        if self.fleet is None:
            self.kafka.await_ready()
        else:
            self.fleet.await_ready()
            self.fleet.await_settled(frozenset(self.kafka.brokers))


def measure(
    client: Client, kill: str, settings: str, rounds: int, revive_after_s: float | None, folder: Path
) -> None:
    """Kill and revive, round by round, while one client is at work."""
    with ExitStack() as ending:
        kafka = ending.enter_context(KafkaCluster(3, folder / "kafka"))
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(30)
        fleet = None
        bootstrap = kafka.bootstrap_servers
        if kill == "member":
            fleet = ending.enter_context(LocalFleet(folder / "fleet", kafka.endpoints))
            fleet.await_settled(frozenset(kafka.brokers))
            bootstrap = fleet.bootstrap()
        file = None
        if settings == "recommended":
            file = folder / "settings.js"
            file.write_text(as_text(client, bootstrap.split(","), settings_for(client, secured=False)))
        program = ending.enter_context(
            NodeProgram(client, "work", bootstrap, TOPIC, TOPIC, "classic", settings=file)
        )
        program.await_flow()
        running = Running(kafka, fleet, program)
        try:
            for number in range(1, rounds + 1):
                print(json.dumps(one_round(running, number, revive_after_s)), flush=True)
            code = program.close(AGAIN_LIMIT_S)
            program.judge(kafka.bootstrap_servers, TOPIC, TOPIC)
            print(json.dumps({"exit code": code, "records": len(program.said["acknowledged"])}))
        finally:
            lines = zip(program.moments_s["log"], program.said["log"], strict=False)
            (folder / "log").write_text("\n".join(f"{at_s:.2f} {line}" for at_s, line in lines))


def one_round(running: Running, number: int, revive_after_s: float | None) -> dict[str, object]:
    """One death, and the revival after it."""
    program = running.program
    before = {what: len(program.said[what]) for what in ("crashed", "repeated", "joined")}
    since_s = time.monotonic() - BEFORE_S
    victim = running.kill_coordinator()

    def joined() -> bool:
        return len(program.said["joined"]) > before["joined"]

    if revive_after_s is not None:
        time.sleep(revive_after_s)
        running.revive(victim)
    wait_for(joined, "the group again", AGAIN_LIMIT_S)
    program.await_flow(AGAIN_LIMIT_S)
    stalls_s = stalls(program, since_s)
    since_s = time.monotonic()
    if revive_after_s is None:
        running.revive(victim)
    running.await_whole()
    time.sleep(SETTLE_S)
    program.await_flow(AGAIN_LIMIT_S)
    after = {what: program.said[what][count:] for what, count in before.items()}
    return {
        "round": number,
        "at_s": round(since_s, 2),
        "victim": victim,
        "stalls_s": stalls_s,
        "stalls_s at the revival": stalls(program, since_s),
        "crashed": after["crashed"],
        "joined after ms": after["joined"],
        "repeated": len(after["repeated"]),
    }


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--client", type=click.Choice(["kafkajs"]), default="kafkajs", show_default=True)
@click.option("--kill", type=click.Choice(["member", "broker"]), default="member", show_default=True)
@click.option(
    "--settings", type=click.Choice(["default", "recommended"]), default="default", show_default=True
)
@click.option("--rounds", type=click.IntRange(1), default=4, show_default=True)
@click.option("--revive-after", type=float, help="Seconds. [default: when records flow again]")
@click.option("--keep", type=click.Path(path_type=Path), help="A folder for logs. [default: a temporary one]")
def main(
    client: Client, kill: str, settings: str, rounds: int, revive_after: float | None, keep: Path | None
) -> None:
    """Kill the coordinator of a group, or its proxy, and measure how long the group stands still."""
    with tempfile.TemporaryDirectory() as folder:
        measure(client, kill, settings, rounds, revive_after, keep or Path(folder))


if __name__ == "__main__":
    main()
