"""What a death or a drain costs clients in Go: how long their partitions pause, by their settings.

    python -m tests.clients.pauses --client kafka-go --settings recommended --how kill --rounds 10 --json

Each round takes the member that owns the group's coordinator, and with that a third of the leaders. The
member is killed, or drained, and comes back before the next round. The figures are for the ten seconds after
that: the longest interval, on any one partition, without an acknowledgement, and without a record for the
group. For kafka-go there is also the longest interval without a commit. Before each round the same is
measured while nothing moves. Exit code 1 where a record was lost.

The machine should have nothing else to do. `load_average` is what it had to do before the start.
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
from tests.clients.program import PARTITIONS, judge_group
from tests.conftest import await_known, fleets, make_cluster, whole_again
from tools.bootstrap import KAFKA_GO, SARAMA

How: TypeAlias = Literal["kill", "drain"]
PROGRAMS: Final[Mapping[Client, Path]] = MappingProxyType({"kafka-go": KAFKA_GO, "sarama": SARAMA})
CALM_S: Final = 3.0
WATCH_S: Final = 10.0
"""How long after a death or a drain a pause still belongs to it."""
TIMING: Final = MappingProxyType({"steady_after_s": 0.1, "rest_after_move_s": 0.2})
"""A member that is back is given its identities again at once."""
EXPRESSIONS: Final = MappingProxyType({"kafka.RequireAll": "-1", "sarama.WaitForAll": "-1"})
"""Of the library's constants, the programs know only their values."""


def options_of(settings: list[ClientSetting]) -> list[str]:
    """The options of a program that has settings as `fleet client-config` prints them."""
    options = []
    for each in settings:
        options += ["-set", f"{each.name}={EXPRESSIONS.get(each.value, each.value)}"]
    return options


def chosen(client: Client, settings: str) -> list[ClientSetting]:
    """The settings by a word: "default", "recommended", or the names of some of them."""
    if settings == "default":
        return []
    known = CLIENT_SETTINGS[client]
    if settings == "recommended":
        return list(known)
    names = settings.split(",")
    found = [each for each in known if each.name in names]
    if len(found) != len(names):
        raise click.UsageError(f"--settings {settings}: {client} has {[each.name for each in known]}")
    return found


def pauses(client: GoProgram, since_s: float, until_s: float) -> dict[str, float]:
    """The longest of each kind in a window, in seconds."""
    found = {what: client.longest_pause_s(what, since_s, until_s) for what in ("acknowledged", "received")}
    if client.said["committed"]:
        found["committed"] = client.longest_wait_s("committed", since_s, until_s)
    return found


def move(fleet: LocalFleet, kafka: KafkaCluster, group: str, how: How, client: GoProgram) -> dict[str, float]:
    """Kill or drain the owner of the group's coordinator, and watch the client. It is back in the end."""
    victim = owner_of_coordinator(fleet, kafka, group)
    others = [each for each in fleet.members if each != victim]
    urls = [admin_urls(fleet.settings)[each] for each in others]
    since_s = time.monotonic()
    if how == "kill":
        since_s = fleet.kill(victim)
    else:
        asyncio.run(drain(urls, victim, True))
    time.sleep(max(0.0, since_s + WATCH_S - time.monotonic()))
    client.await_partitions()
    found = pauses(client, since_s, time.monotonic())
    if how == "drain":
        asyncio.run(drain(urls, victim, False))
    whole_again(fleet, kafka)
    client.await_partitions()
    return found


def measure(client: Client, settings: list[ClientSetting], how: How, rounds: int) -> dict[str, object]:
    """Brokers, a fleet and the client, and a number of rounds. Raises: AssertionError: a record was lost."""
    load, calm, moved = os.getloadavg()[0], [], []
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
                time.sleep(CALM_S)
                calm.append(pauses(program, since_s, time.monotonic()))
                moved.append(move(fleet, kafka, topic, how, program))
                said = f"{number + 1} of {rounds}: {_line(moved[-1])}; calm {_line(calm[-1])}"
                print(said, file=sys.stderr, flush=True)
            code = program.close()
        assert code == 0, program.said["failed"]
        repeated = program.judge_loss(bootstrap, topic)
        judge_group(bootstrap, topic, topic)
    return {
        "client": client,
        "settings": {each.name: each.value for each in settings},
        "how": how,
        "load_average": load,
        "rounds": moved,
        "calm": calm,
        "figures": {"moved": _figures(moved), "calm": _figures(calm)},
        "records": len(program.said["acknowledged"]),
        "twice_in_the_log": repeated,
        "twice_received": len(program.said["received"]) - len(set(program.said["received"])),
        **{what: program.said[what] for what in ("refused", "uncommitted", "interrupted", "reported")},
    }


def _figures(found: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    return {
        what: {
            "median": statistics.median(each[what] for each in found),
            "worst": max(each[what] for each in found),
        }
        for what in found[0]
    }


def _line(found: Mapping[str, float]) -> str:
    return ", ".join(f"{what} {seconds:.2f} s" for what, seconds in found.items())


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--client", type=click.Choice(list(PROGRAMS)), required=True, help="Library.")
@click.option(
    "--settings",
    default="default",
    show_default=True,
    help="`default`, `recommended`, or names that `fleet client-config` prints, with commas.",
)
@click.option("--how", type=click.Choice(["kill", "drain"]), default="kill", show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=10, show_default=True, help="Deaths or drains.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
def main(client: Client, settings: str, how: How, rounds: int, as_json: bool) -> None:
    """Kill or drain the proxy of a group's coordinator, and measure how long a client in Go pauses."""
    measured = measure(client, chosen(client, settings), how, rounds)
    print(json.dumps(measured["figures"]), file=sys.stderr)
    if as_json:
        print(json.dumps(measured))


if __name__ == "__main__":
    main()
