"""Measures how long the partitions of Go clients pause after a death or a drain, by settings.

    python -m tests.clients.pauses --client kafka-go --settings recommended --how kill --rounds 10 --json

Each round takes the member that owns the group's coordinator, and with it a third of the leaders. The member
is
killed or drained, and returns before the next round. The figures cover the ten seconds after that: the
longest
interval, on any one partition, without an acknowledgement, and without a record for the group. For kafka-go
there is also the longest interval without a commit. Before each round the same is measured at rest. Exit code
1: a record was lost.

Run it on an idle machine. `load_average` is the machine's load before the start.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

import click

from fleet.admin.client import admin_urls, drain
from fleet.admin.client_settings import CLIENT_SETTINGS, Client, ClientSetting
from fleet.drills.cluster.fleet import LocalFleet
from fleet.drills.cluster.kafka import KafkaCluster
from fleet.drills.demo.run import create_topic
from tests.chaos.coordinators import owner_of_coordinator
from tests.clients.go_program import GoProgram
from tests.clients.program import PARTITIONS, check_group_committed
from tests.conftest import await_known, fleets, make_cluster, restore_fleet
from tools.bootstrap import KAFKA_GO, SARAMA

How: TypeAlias = Literal["kill", "drain"]
PROGRAMS: Final[Mapping[Client, Path]] = MappingProxyType({"kafka-go": KAFKA_GO, "sarama": SARAMA})
REST_S: Final = 3.0
WATCH_S: Final = 10.0
"""The time after a death or a drain in which pauses count."""
TIMING: Final = MappingProxyType({"steady_after_s": 0.1, "rest_after_move_s": 0.2})
"""A returned member gets its identities again at once."""
EXPRESSIONS: Final = MappingProxyType({"kafka.RequireAll": "-1", "sarama.WaitForAll": "-1"})
"""The values of the library's constants, because the programs know no names."""


def options_of(settings: list[ClientSetting]) -> list[str]:
    """Make the options of a program from settings that `fleet client-config` prints."""
    options = []
    for each in settings:
        options += ["-set", f"{each.name}={EXPRESSIONS.get(each.value, each.value)}"]
    return options


def select_settings(client: Client, settings: str) -> list[ClientSetting]:
    """Select the settings: "default", "recommended", or names of settings."""
    if settings == "default":
        return []
    available = CLIENT_SETTINGS[client]
    if settings == "recommended":
        return list(available)
    names = settings.split(",")
    pauses_found = [each for each in available if each.name in names]
    if len(pauses_found) != len(names):
        raise click.UsageError(f"--settings {settings}: {client} has {[each.name for each in available]}")
    return pauses_found


def pauses(client: GoProgram, since_s: float, until_s: float) -> dict[str, float]:
    """The longest pause of each kind in a window, in seconds."""
    pauses_found = {
        event: client.longest_pause_s(event, since_s, until_s) for event in ("acknowledged", "received")
    }
    if client.events["committed"]:
        pauses_found["committed"] = client.longest_wait_s("committed", since_s, until_s)
    return pauses_found


def disturb(
    fleet: LocalFleet, kafka: KafkaCluster, group: str, disturbance: How, client: GoProgram
) -> dict[str, float]:
    """Kill or drain the owner of the group's coordinator, observe the client, and restore the owner."""
    victim = owner_of_coordinator(fleet, kafka, group)
    others = [each for each in fleet.members if each != victim]
    urls = [admin_urls(fleet.settings)[each] for each in others]
    since_s = time.monotonic()
    if disturbance == "kill":
        since_s = fleet.kill(victim)
    else:
        asyncio.run(drain(urls, victim, True))
    time.sleep(max(0.0, since_s + WATCH_S - time.monotonic()))
    client.await_partitions()
    pauses_found = pauses(client, since_s, time.monotonic())
    if disturbance == "drain":
        asyncio.run(drain(urls, victim, False))
    restore_fleet(fleet, kafka)
    client.await_partitions()
    return pauses_found


def measure(
    client: Client, settings: list[ClientSetting], disturbance: How, rounds: int
) -> dict[str, object]:
    """Run brokers, a fleet and the client for a number of rounds.

    Raises: AssertionError: a record was lost.
    """
    load_average, pauses_at_rest, pauses_after = os.getloadavg()[0], [], []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fleet-pauses-")))
        kafka = stack.enter_context(make_cluster(folder / "kafka"))
        fleet = stack.enter_context(fleets(kafka, folder))(timing=TIMING)
        topic, bootstrap = "pauses", kafka.bootstrap_servers
        create_topic(bootstrap, topic, 3, PARTITIONS)
        await_known(kafka, topic, PARTITIONS)
        arguments = (*options_of(settings), "work", fleet.bootstrap(), topic, topic)
        with GoProgram(PROGRAMS[client], *arguments) as program:
            program.await_partitions()
            for number in range(rounds):
                since_s = time.monotonic()
                time.sleep(REST_S)
                pauses_at_rest.append(pauses(program, since_s, time.monotonic()))
                pauses_after.append(disturb(fleet, kafka, topic, disturbance, program))
                progress = (
                    f"{number + 1} of {rounds}: {_line(pauses_after[-1])}; calm {_line(pauses_at_rest[-1])}"
                )
                print(progress, file=sys.stderr, flush=True)
            code = program.close()
        assert code == 0, program.events["failed"]
        repeated = program.check_loss(bootstrap, topic)
        check_group_committed(bootstrap, topic, topic)
    return {
        "client": client,
        "settings": {each.name: each.value for each in settings},
        "how": disturbance,
        "load_average": load_average,
        "rounds": pauses_after,
        "calm": pauses_at_rest,
        "figures": {"moved": _figures(pauses_after), "calm": _figures(pauses_at_rest)},
        "records": len(program.events["acknowledged"]),
        "twice_in_the_log": repeated,
        "twice_received": len(program.events["received"]) - len(set(program.events["received"])),
        **{event: program.events[event] for event in ("refused", "uncommitted", "interrupted", "reported")},
    }


def _figures(pauses_found: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    return {
        event: {
            "median": statistics.median(each[event] for each in pauses_found),
            "worst": max(each[event] for each in pauses_found),
        }
        for event in pauses_found[0]
    }


def _line(pauses_found: Mapping[str, float]) -> str:
    return ", ".join(f"{event} {seconds:.2f} s" for event, seconds in pauses_found.items())


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--client", type=click.Choice(list(PROGRAMS)), required=True, help="Library.")
@click.option(
    "--settings",
    default="default",
    show_default=True,
    help="`default`, `recommended`, or names that `fleet client-config` prints, with commas.",
)
@click.option("--how", "disturbance", type=click.Choice(["kill", "drain"]), default="kill", show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=10, show_default=True, help="Deaths or drains.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
def main(client: Client, settings: str, disturbance: How, rounds: int, as_json: bool) -> None:
    """Kill or drain the proxy of a group's coordinator, and measure how long a client in Go pauses."""
    result = measure(client, select_settings(client, settings), disturbance, rounds)
    print(json.dumps(result["figures"]), file=sys.stderr)
    if as_json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
