"""The command line of the demo."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import click

from fleet.core.model import Endpoint
from fleet.drills.cluster.kafka_jars import CHECKOUT_LIBS, check_java, find_libs
from fleet.drills.demo.result import Result
from fleet.drills.demo.run import Options, perform, stage
from fleet.drills.demo.view import Lines, Terminal, View, audit_lines
from fleet.drills.workload.clients import ClientSettings

INTERRUPTED = 130


def parse_brokers(text: str) -> tuple[Endpoint, ...]:
    """Parse `HOST:PORT,…` as endpoints. Raises: BadParameter: an entry is not HOST:PORT."""
    endpoints = []
    for each in filter(None, (part.strip() for part in text.split(","))):
        host, colon, port = each.rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise click.BadParameter(f"{each!r} is not HOST:PORT", param_hint="--brokers")
        endpoints.append(Endpoint(host.strip("[]"), int(port)))
    return tuple(endpoints)


def plan_kills(kill: str | None, rounds: int, proxies: int) -> tuple[str, ...]:
    """Choose the victim of each round.

    Args:    kill: "none", "leader", a member's id, or None to alternate between the leader and a follower.
    Returns: "leader", "follower" or a member's id for each round.
    Raises:  BadParameter: there is no such member, or no member would survive.
    """
    if kill == "none":
        return ()
    if proxies < 2:
        raise click.BadParameter("one proxy has no survivor; add --kill none", param_hint="--proxies")
    if kill is None:
        return tuple("follower" if number % 2 else "leader" for number in range(rounds))
    members = [f"p{number + 1}" for number in range(proxies)]
    if kill != "leader" and kill not in members:
        names = ", ".join(members)
        raise click.BadParameter(f"{kill!r} is not one of none, leader, {names}", param_hint="--kill")
    return (kill,) * rounds


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  fleet demo                                    watch two takeovers
  fleet demo --fetch                            the same, and fetch Kafka first if it is not here
  fleet demo --json --rounds 20 --kill leader   measure twenty takeovers
  fleet demo --kill none --keep                 start a fleet to try things on
""",
)
@click.option("--proxies", type=click.IntRange(1, 9), default=3, show_default=True, help="Number of members.")
@click.option(
    "--brokers-count",
    type=click.IntRange(1, 9),
    default=3,
    show_default=True,
    help="Number of Kafka brokers.",
)
@click.option(
    "--brokers", metavar="HOST:PORT,…", default="", help="Use this cluster instead of starting one."
)
@click.option(
    "--kafka-home",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Run this unpacked Kafka, or the jars in this folder.  [default: checkout, $KAFKA_HOME, cache]",
)
@click.option(
    "--fetch",
    is_flag=True,
    help="Fetch Kafka's jars with Maven into the cache (~/.cache) if no Kafka is found.",
)
@click.option(
    "--kill",
    metavar="none|leader|ID",
    help="Member to kill in every round.  [default: alternate between the leader and a follower]",
)
@click.option("--rounds", type=click.IntRange(1), default=2, show_default=True, help="Number of kills.")
@click.option(
    "--client",
    type=click.Choice(["default", "recommended"]),
    default="default",
    show_default=True,
    help="Use librdkafka's default settings, or the settings that the fleet recommends.",
)
@click.option(
    "--duration",
    type=click.FloatRange(0),
    default=10.0,
    show_default=True,
    help="Seconds that the clients run at least.",
)
@click.option("--data-dir", type=click.Path(file_okay=False, path_type=Path), help="Keep Kafka's data here.")
@click.option("--keep", is_flag=True, help="Leave everything running until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else.")
def command(
    proxies: int,
    brokers_count: int,
    brokers: str,
    kafka_home: Path | None,
    fetch: bool,
    kill: str | None,
    rounds: int,
    client: ClientSettings,
    duration: float,
    data_dir: Path | None,
    keep: bool,
    as_json: bool,
) -> int:
    """Run Kafka and a fleet locally, kill a proxy under load, and audit every record.

    Exits with 1 if a record was lost, duplicated or out of order, or a takeover did not happen.
    """
    endpoints = parse_brokers(brokers)
    if endpoints and (kafka_home or fetch):
        raise click.UsageError("--brokers uses a running cluster; leave out --kafka-home and --fetch")
    kills = plan_kills(kill, rounds, proxies)
    try:
        libs = CHECKOUT_LIBS
        if not endpoints:
            check_java()
            libs = find_libs(kafka_home, fetch=fetch)
        options = Options(
            proxies=proxies,
            brokers_count=brokers_count,
            brokers=endpoints,
            kills=kills,
            client=client,
            duration_s=duration,
            data_dir=data_dir.resolve() if data_dir else None,
            kafka_libs=libs,
        )
        return asyncio.run(main(options, as_json=as_json, keep=keep))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return INTERRUPTED


async def main(options: Options, *, as_json: bool, keep: bool) -> int:
    """Run the demo, with the view that suits standard output. Returns: the exit code."""
    task = asyncio.current_task()
    if task is not None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    view: View = Terminal() if sys.stdout.isatty() and not as_json else Lines()
    try:
        async with stage(options, view) as running:
            result = await perform(running, options, view)
            report(result, view, as_json=as_json)
            if keep:
                view.say(f"bootstrap.servers={running.fleet.bootstrap()}")
                view.say(f"fleet status --config {running.fleet.config}")
                view.say("press Ctrl-C to stop everything")
                await asyncio.Event().wait()
    finally:
        view.close()
    return 0 if result.passed else 1


def report(result: Result, view: View, *, as_json: bool) -> None:
    """Report the result of the audit."""
    for line in audit_lines(result):
        view.say(line)
    if as_json:
        click.echo(result.to_json())
        sys.stdout.flush()
