"""How long a Node client's group stalls when its coordinator's proxy dies, or its coordinator.

    python -m tests.clients.coordinator_deaths --kill member --rounds 4
    python -m tests.clients.coordinator_deaths --kill broker

Two programs run at the same time, with the defaults and with the settings that `fleet client-config` prints,
in
groups with the same coordinator. `--kill member` kills the member that owns the coordinator. `--kill broker`
kills the coordinator itself while the programs are connected to the brokers. Each round prints one line of
JSON for each program: the time after the kill until the group was back, and the longest intervals between two
records received, and between two acknowledged, from one second before the kill, and then from the revival. A
consumer that crashes later receives a few records before its crash, which splits such intervals.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import click
from confluent_kafka.admin import AdminClient, NewTopic

from fleet.admin.client_settings import Client, as_text, settings_for
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from tests.chaos.coordinators import coordinator, group_with_coordinator_of
from tests.clients.node_program import NodeProgram
from tests.clients.program import PARTITIONS
from tests.integration.clients import wait_for

TOPIC = "deaths"
COUNTED_EVENTS = ("crashed", "repeated", "joined")
REJOIN_LIMIT_S = 180.0
SETTLE_S = 5.0
"""Time for the next heartbeats after a revival."""
WINDOW_BEFORE_KILL_S = 1.0


def stalls(program: NodeProgram, since_s: float) -> dict[str, float]:
    """The longest intervals without a record of a program, since a moment."""
    return {
        event: round(program.longest_wait_s(event, since_s, time.monotonic()), 2)
        for event in ("received", "acknowledged")
    }


@dataclass(frozen=True, slots=True)
class Deployment:
    """Brokers, a fleet in front of them or none, and running programs."""

    kafka: KafkaCluster
    fleet: LocalFleet | None
    programs: Mapping[str, NodeProgram]
    """The programs by their settings."""

    def kill_coordinator(self) -> str:
        """Kill the coordinator's proxy, or the coordinator if there is no fleet. Returns: what was killed."""
        broker_id = coordinator(self.kafka, TOPIC)
        if self.fleet is None:
            self.kafka.kill(broker_id)
            return str(broker_id)
        owner = self.fleet.owners()[broker_id]
        self.fleet.kill(owner)
        return owner

    def revive(self, victim: str) -> None:
        if self.fleet is None:
            self.kafka.start_broker(int(victim))
        else:
            self.fleet.start(victim)

    def await_recovered(self) -> None:
        if self.fleet is None:
            self.kafka.await_ready()
        else:
            self.fleet.await_ready()
            self.fleet.await_settled(frozenset(self.kafka.brokers))


def measure(client: Client, kill: str, rounds: int, revive_after_s: float | None, folder: Path) -> None:
    """Kill and revive, round by round, while programs run."""
    with ExitStack() as stack:
        kafka = stack.enter_context(KafkaCluster(3, folder / "kafka"))
        groups = {"default": TOPIC, "recommended": group_with_coordinator_of(kafka, TOPIC)}
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        creations = admin.create_topics([NewTopic(name, PARTITIONS, 3) for name in groups.values()])
        for each in creations.values():
            each.result(30)
        fleet = None
        bootstrap = kafka.bootstrap_servers
        if kill == "member":
            fleet = stack.enter_context(LocalFleet(folder / "fleet", kafka.endpoints))
            fleet.await_settled(frozenset(kafka.brokers))
            bootstrap = fleet.bootstrap()
        file = folder / "settings.js"
        file.write_text(as_text(client, bootstrap.split(","), settings_for(client, secured=False)))
        programs = {}
        for settings, name in groups.items():
            settings_file = file if settings == "recommended" else None
            program = NodeProgram(client, "work", bootstrap, name, name, "classic", settings=settings_file)
            programs[settings] = stack.enter_context(program)
        for program in programs.values():
            program.await_flow()
        deployment = Deployment(kafka, fleet, programs)
        try:
            for number in range(1, rounds + 1):
                for line in run_round(deployment, number, revive_after_s):
                    print(json.dumps(line), flush=True)
            for settings, program in programs.items():
                code = program.close(REJOIN_LIMIT_S)
                program.check_records(kafka.bootstrap_servers, groups[settings], groups[settings])
                records = len(program.events["acknowledged"])
                print(json.dumps({"settings": settings, "exit code": code, "records": records}))
        finally:
            for settings, program in programs.items():
                lines = zip(program.moments_s["log"], program.events["log"], strict=False)
                log = folder / f"log-{settings}"
                log.write_text("\n".join(f"{at_s:.2f} {line}" for at_s, line in lines))


def run_round(deployment: Deployment, number: int, revive_after_s: float | None) -> list[dict[str, object]]:
    """Run one death and the revival after it."""
    programs = deployment.programs
    before = {
        name: {event: len(each.events[event]) for event in COUNTED_EVENTS} for name, each in programs.items()
    }
    killed_s = time.monotonic()
    victim = deployment.kill_coordinator()
    if revive_after_s is not None:
        time.sleep(revive_after_s)
        deployment.revive(victim)

    def has_rejoined() -> bool:
        return all(len(each.events["joined"]) > before[name]["joined"] for name, each in programs.items())

    def await_all_flow() -> None:
        for each in programs.values():
            each.await_flow(REJOIN_LIMIT_S)

    wait_for(has_rejoined, "the groups again", REJOIN_LIMIT_S)
    back_s = {name: each.moments_s["joined"][-1] - killed_s for name, each in programs.items()}
    await_all_flow()
    first = {name: stalls(each, killed_s - WINDOW_BEFORE_KILL_S) for name, each in programs.items()}
    revived_s = time.monotonic()
    if revive_after_s is None:
        deployment.revive(victim)
    deployment.await_recovered()
    time.sleep(SETTLE_S)
    await_all_flow()
    return [
        {
            "round": number,
            "settings": name,
            "killed_s": round(killed_s, 2),
            "victim": victim,
            "back_s": round(back_s[name], 2),
            "crashed_s": [
                round(each - killed_s, 2) for each in program.moments_s["crashed"][before[name]["crashed"] :]
            ],
            "stalls_s": first[name],
            "stalls_s at the revival": stalls(program, revived_s),
            "crashed": program.events["crashed"][before[name]["crashed"] :],
            "joined after ms": program.events["joined"][before[name]["joined"] :],
            "repeated": len(program.events["repeated"]) - before[name]["repeated"],
        }
        for name, program in programs.items()
    ]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--client", type=click.Choice(["kafkajs"]), default="kafkajs", show_default=True)
@click.option("--kill", type=click.Choice(["member", "broker"]), default="member", show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=4, show_default=True)
@click.option("--revive-after", type=float, help="Seconds until the revival. [default: when records flow]")
@click.option(
    "--keep", type=click.Path(path_type=Path), help="Folder for logs. [default: a temporary folder]"
)
def main(client: Client, kill: str, rounds: int, revive_after: float | None, keep: Path | None) -> None:
    """Kill the coordinator of groups, or its proxy, and measure how long the groups stall."""
    with tempfile.TemporaryDirectory() as folder:
        measure(client, kill, rounds, revive_after, keep or Path(folder))


if __name__ == "__main__":
    main()
