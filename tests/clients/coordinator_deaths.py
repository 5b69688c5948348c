"""How long a group of a Node client stands still when its coordinator's proxy dies, or its coordinator.

    python -m tests.clients.coordinator_deaths --kill member --rounds 4
    python -m tests.clients.coordinator_deaths --kill broker

Two programs are at work at the same time, with the defaults and with what `fleet client-config` prints, in
groups that have the same coordinator. `--kill member` kills the member that owns the coordinator. `--kill
broker` kills the coordinator itself while the programs are connected to the brokers. Each round prints one
line of JSON for each program: how long after the kill the group was back, and the longest intervals between
two records received, and between two acknowledged, from one second before the kill on, and then from the
revival on. A consumer that crashes later receives a record now and then before, which cuts such intervals.
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
from tests.chaos.coordinators import coordinator, with_the_coordinator_of
from tests.clients.node_program import NodeProgram
from tests.clients.program import PARTITIONS
from tests.integration.clients import wait_for

TOPIC = "deaths"
NOTED = ("crashed", "repeated", "joined")
AGAIN_LIMIT_S = 180.0
SETTLE_S = 5.0
"""For the next heartbeats after a revival."""
BEFORE_S = 1.0


def stalls(program: NodeProgram, since_s: float) -> dict[str, float]:
    """The longest intervals of a program without a record, since a moment."""
    return {
        what: round(program.longest_wait_s(what, since_s, time.monotonic()), 2)
        for what in ("received", "acknowledged")
    }


@dataclass(frozen=True, slots=True)
class Running:
    """Brokers, perhaps a fleet in front of them, and a program at work."""

    kafka: KafkaCluster
    fleet: LocalFleet | None
    programs: Mapping[str, NodeProgram]
    """By their settings."""

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


def measure(client: Client, kill: str, rounds: int, revive_after_s: float | None, folder: Path) -> None:
    """Kill and revive, round by round, while programs are at work."""
    with ExitStack() as ending:
        kafka = ending.enter_context(KafkaCluster(3, folder / "kafka"))
        groups = {"default": TOPIC, "recommended": with_the_coordinator_of(kafka, TOPIC)}
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        made = admin.create_topics([NewTopic(name, PARTITIONS, 3) for name in groups.values()])
        for each in made.values():
            each.result(30)
        fleet = None
        bootstrap = kafka.bootstrap_servers
        if kill == "member":
            fleet = ending.enter_context(LocalFleet(folder / "fleet", kafka.endpoints))
            fleet.await_settled(frozenset(kafka.brokers))
            bootstrap = fleet.bootstrap()
        file = folder / "settings.js"
        file.write_text(as_text(client, bootstrap.split(","), settings_for(client, secured=False)))
        programs = {}
        for settings, name in groups.items():
            chosen = file if settings == "recommended" else None
            program = NodeProgram(client, "work", bootstrap, name, name, "classic", settings=chosen)
            programs[settings] = ending.enter_context(program)
        for program in programs.values():
            program.await_flow()
        running = Running(kafka, fleet, programs)
        try:
            for number in range(1, rounds + 1):
                for line in one_round(running, number, revive_after_s):
                    print(json.dumps(line), flush=True)
            for settings, program in programs.items():
                code = program.close(AGAIN_LIMIT_S)
                program.judge(kafka.bootstrap_servers, groups[settings], groups[settings])
                records = len(program.said["acknowledged"])
                print(json.dumps({"settings": settings, "exit code": code, "records": records}))
        finally:
            for settings, program in programs.items():
                lines = zip(program.moments_s["log"], program.said["log"], strict=False)
                log = folder / f"log-{settings}"
                log.write_text("\n".join(f"{at_s:.2f} {line}" for at_s, line in lines))


def one_round(running: Running, number: int, revive_after_s: float | None) -> list[dict[str, object]]:
    """One death, and the revival after it."""
    programs = running.programs
    before = {name: {what: len(each.said[what]) for what in NOTED} for name, each in programs.items()}
    killed_s = time.monotonic()
    victim = running.kill_coordinator()
    if revive_after_s is not None:
        time.sleep(revive_after_s)
        running.revive(victim)

    def joined() -> bool:
        return all(len(each.said["joined"]) > before[name]["joined"] for name, each in programs.items())

    def flow() -> None:
        for each in programs.values():
            each.await_flow(AGAIN_LIMIT_S)

    wait_for(joined, "the groups again", AGAIN_LIMIT_S)
    back_s = {name: each.moments_s["joined"][-1] - killed_s for name, each in programs.items()}
    flow()
    first = {name: stalls(each, killed_s - BEFORE_S) for name, each in programs.items()}
    revived_s = time.monotonic()
    if revive_after_s is None:
        running.revive(victim)
    running.await_whole()
    time.sleep(SETTLE_S)
    flow()
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
            "crashed": program.said["crashed"][before[name]["crashed"] :],
            "joined after ms": program.said["joined"][before[name]["joined"] :],
            "repeated": len(program.said["repeated"]) - before[name]["repeated"],
        }
        for name, program in programs.items()
    ]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--client", type=click.Choice(["kafkajs"]), default="kafkajs", show_default=True)
@click.option("--kill", type=click.Choice(["member", "broker"]), default="member", show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=4, show_default=True)
@click.option("--revive-after", type=float, help="Seconds. [default: when records flow again]")
@click.option("--keep", type=click.Path(path_type=Path), help="A folder for logs. [default: a temporary one]")
def main(client: Client, kill: str, rounds: int, revive_after: float | None, keep: Path | None) -> None:
    """Kill the coordinator of groups, or its proxy, and measure how long the groups stand still."""
    with tempfile.TemporaryDirectory() as folder:
        measure(client, kill, rounds, revive_after, keep or Path(folder))


if __name__ == "__main__":
    main()
