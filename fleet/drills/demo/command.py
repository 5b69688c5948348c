"""The command line of the demo."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import click

from fleet.core.model import Endpoint
from fleet.drills.demo.result import Result
from fleet.drills.demo.run import Options, perform, stage
from fleet.drills.demo.view import Lines, Terminal, View, audit_lines
from fleet.drills.workload.clients import ClientSettings

INTERRUPTED = 130


def parse_brokers(text: str) -> tuple[Endpoint, ...]:
    """`HOST:PORT,…` as endpoints. Raises: BadParameter: it is something else."""
    endpoints = []
    for each in filter(None, (part.strip() for part in text.split(","))):
        host, colon, port = each.rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise click.BadParameter(f"{each!r} is not HOST:PORT", param_hint="--brokers")
        endpoints.append(Endpoint(host.strip("[]"), int(port)))
    return tuple(endpoints)


def plan_kills(kill: str | None, rounds: int, proxies: int) -> tuple[str, ...]:
    """Whom to kill in each round.

    Args:    kill: "none", "leader", a member's id, or None for the leader and a follower in turn.
    Raises:  BadParameter: no such member, or nobody would survive.
    """
    if kill == "none":
        return ()
    if proxies < 2:
        raise click.BadParameter("with one proxy nobody takes over; say --kill none", param_hint="--proxies")
    if kill is None:
        return tuple("follower" if number % 2 else "leader" for number in range(rounds))
    members = [f"p{number + 1}" for number in range(proxies)]
    if kill != "leader" and kill not in members:
        names = ", ".join(members)
        raise click.BadParameter(f"{kill!r} is none of: none, leader, {names}", param_hint="--kill")
    return (kill,) * rounds


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  fleet demo                                    watch two takeovers
  fleet demo --json --rounds 20 --kill leader   measure twenty
  fleet demo --kill none --keep                 a fleet to play with
""",
)
@click.option("--proxies", type=click.IntRange(1, 9), default=3, show_default=True, help="How many members.")
@click.option(
    "--brokers-count", type=click.IntRange(1, 9), default=3, show_default=True, help="How many Kafka brokers."
)
@click.option(
    "--brokers", metavar="HOST:PORT,…", default="", help="Use this cluster instead of starting one."
)
@click.option(
    "--kill",
    metavar="none|leader|ID",
    help="Whom to kill in every round.  [default: the leader and a follower in turn]",
)
@click.option("--rounds", type=click.IntRange(1), default=2, show_default=True, help="How many kills.")
@click.option(
    "--client",
    type=click.Choice(["default", "recommended"]),
    default="default",
    show_default=True,
    help="librdkafka as it comes, or with the settings that the fleet recommends.",
)
@click.option(
    "--duration",
    type=click.FloatRange(0),
    default=10.0,
    show_default=True,
    help="Seconds that clients run at least.",
)
@click.option("--data-dir", type=click.Path(file_okay=False, path_type=Path), help="Keep Kafka's data here.")
@click.option("--keep", is_flag=True, help="Leave everything running until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else.")
def command(
    proxies: int,
    brokers_count: int,
    brokers: str,
    kill: str | None,
    rounds: int,
    client: ClientSettings,
    duration: float,
    data_dir: Path | None,
    keep: bool,
    as_json: bool,
) -> int:
    """Run Kafka and a fleet here, kill a proxy under load, and audit what came through.

    Exit code 1 where a record was lost, duplicated or out of order, or a takeover did not come about.
    """
    options = Options(
        proxies=proxies,
        brokers_count=brokers_count,
        brokers=parse_brokers(brokers),
        kills=plan_kills(kill, rounds, proxies),
        client=client,
        duration_s=duration,
        data_dir=data_dir.resolve() if data_dir else None,
    )
    try:
        return asyncio.run(main(options, as_json=as_json, keep=keep))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return INTERRUPTED


async def main(options: Options, *, as_json: bool, keep: bool) -> int:
    """Show the demo in the way that suits where its output goes. Returns: the exit code."""
    task = asyncio.current_task()
    if task is not None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    view: View = Terminal() if sys.stdout.isatty() and not as_json else Lines()
    try:
        async with stage(options, view) as running:
            result = await perform(running, options, view)
            tell(result, view, as_json=as_json)
            if keep:
                view.say(f"bootstrap.servers={running.fleet.bootstrap()}")
                view.say(f"fleet status --config {running.fleet.config}")
                view.say("Ctrl-C ends it")
                await asyncio.Event().wait()
    finally:
        view.close()
    return 0 if result.passed else 1


def tell(result: Result, view: View, *, as_json: bool) -> None:
    """Say how it came out."""
    for line in audit_lines(result):
        view.say(line)
    if as_json:
        click.echo(result.to_json())
        sys.stdout.flush()
