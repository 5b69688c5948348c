"""Show, plan and change which member owns which broker. Running members answer and commit."""

from __future__ import annotations

import asyncio
import os

import click

from fleet.admin import client
from fleet.admin import rolling_restart as rolling
from fleet.admin.documents import DRAIN, PIN, PLAN, ROLLING_RESTART, STATUS
from fleet.admin.status import Answers, fleet_status
from fleet.admin.status import plan as status_plan
from fleet.cli.deprecation import RenamedOptions
from fleet.cli.options import config_option, json_option, member_options
from fleet.cli.output import OK, UNREACHABLE, print_document, print_progress
from fleet.cli.render import tables
from fleet.cli.targets import load_settings, target_urls
from fleet.config import Settings
from fleet.config.file import load
from fleet.core.errors import AdminError
from fleet.core.model import BrokerId, ProxyId
from fleet.core.weights import Weights
from fleet.tls.access import Access, access_to

_broker_argument = click.argument("broker_id", metavar="BROKER", type=click.IntRange(0, 2**31 - 1))


def _ask_all(config: str, admin: str | None) -> tuple[Answers, dict[ProxyId, str]]:
    settings = load_settings(config, admin)
    urls = target_urls(settings, admin)
    return asyncio.run(client.ask_all(urls, access=access_to(settings, os.environ))), urls


@click.command(
    short_help="Show members, the leader, and who owns which broker.",
    epilog="\b\nExamples:\n  fleet status\n  fleet status --admin 127.0.0.1:7201 --json",
)
@member_options
def status(config: str, admin: str | None, as_json: bool) -> int:
    """Show the members, the leader, the generation, and which member owns which broker.

    Asks all members at once. Exits with 3 if no member answers, or no member has a quorum.
    """
    document = fleet_status(*_ask_all(config, admin))
    print_document(document, STATUS, as_json, tables.print_status)
    return OK if document.quorum.present else UNREACHABLE


@click.command(
    short_help="Show what would move without a member, or by weight.",
    epilog="\b\nExamples:\n  fleet plan --without p2 --without p3\n  fleet plan --weights",
)
@click.option(
    "--without", multiple=True, metavar="ID", help="Assume that this member is drained; repeatable."
)
@click.option(
    "--weights",
    "by_weight",
    is_flag=True,
    help="Balance by the traffic of each broker, as measured by the pipeline's jobs `load` and `weights`.",
)
@member_options
def plan(config: str, admin: str | None, as_json: bool, without: tuple[str, ...], by_weight: bool) -> int:
    """Show which brokers would move if members were drained, or balanced by weight. Changes nothing."""
    if not without and not by_weight:
        raise click.UsageError("give --without ID, or --weights")
    answers, _ = _ask_all(config, admin)
    weights = _read_weights(load(config, os.environ)) if by_weight else None
    document = status_plan(answers, tuple(dict.fromkeys(without)), weights)
    print_document(document, PLAN, as_json, tables.print_plan)
    return OK


def _read_weights(settings: Settings) -> Weights:
    """The newest weights in the topic. Raises: AdminError: there are none, or they cannot be read."""
    if settings.events is None:
        raise AdminError(
            f"{settings.source}: no section `events`, so there are no weights; add `events: {{}}`"
        )
    # These imports take longer than everything else that a command does.
    from fleet.events.weights import read_weights
    from fleet.tls.broker_credentials import KafkaAccess

    access = KafkaAccess(settings.upstream, settings.source)
    prefix = settings.events.topic_prefix
    reading = read_weights(settings.bootstrap_servers, access, prefix, settings.fleet)
    weights = asyncio.run(reading)
    if not weights:
        raise AdminError("there are no weights yet; run the pipeline's jobs `load` and `weights`")
    return Weights(weights, settings.balance.min_gain)


@click.command(
    short_help="Move all brokers off a member.",
    epilog="\b\nExamples:\n  fleet drain p2\n  fleet drain p2 --admin 127.0.0.1:7201 --json",
)
@click.argument("proxy_id", metavar="MEMBER")
@member_options
def drain(config: str, admin: str | None, as_json: bool, proxy_id: str) -> int:
    """Move all brokers off a member. It owns none until `fleet undrain`.

    Clients reconnect to the new owners without an error. Exits with 2 if there is no such member, and with 3
    if no member answers or there is no quorum.
    """
    return _set_drained(config, admin, as_json, proxy_id, drained=True)


@click.command(
    short_help="Let a drained member own brokers again.",
    epilog="\b\nExamples:\n  fleet undrain p2\n  fleet undrain p2 --admin 127.0.0.1:7201 --json",
)
@click.argument("proxy_id", metavar="MEMBER")
@member_options
def undrain(config: str, admin: str | None, as_json: bool, proxy_id: str) -> int:
    """Let a drained member own brokers again.

    Exits with 2 if there is no such member, and with 3 if no member answers or there is no quorum.
    """
    return _set_drained(config, admin, as_json, proxy_id, drained=False)


def _set_drained(config: str, admin: str | None, as_json: bool, proxy_id: ProxyId, drained: bool) -> int:
    urls, access = _writable_members(config, admin, proxy_id)
    document = asyncio.run(client.drain(urls, proxy_id, drained, access=access))
    print_document(document, DRAIN, as_json, tables.print_drain)
    return OK


@click.command(
    short_help="Pin a broker to a member.",
    epilog="\b\nExamples:\n  fleet pin 2 p1\n  fleet pin 2 p1 --admin 127.0.0.1:7201 --json",
)
@_broker_argument
@click.argument("proxy_id", metavar="MEMBER")
@member_options
def pin(config: str, admin: str | None, as_json: bool, broker_id: BrokerId, proxy_id: str) -> int:
    """Pin a broker to a member. That member owns the broker as long as it can.

    While the member is down, drained or cut off from the broker, another member owns the broker. A broker has
    one pin: a second pin replaces the first. `fleet status` shows the pins. Exits with 2 if there is no such
    broker or member, and with 3 if no member answers or there is no quorum.
    """
    return _set_pinned(config, admin, as_json, broker_id, proxy_id)


@click.command(
    short_help="Let any member own a pinned broker.",
    epilog="\b\nExamples:\n  fleet unpin 2\n  fleet unpin 2 --admin 127.0.0.1:7201 --json",
)
@_broker_argument
@member_options
def unpin(config: str, admin: str | None, as_json: bool, broker_id: BrokerId) -> int:
    """Remove the pin of a broker: any member may own it.

    Exits with 2 if there is no such broker, and with 3 if no member answers or there is no quorum.
    """
    return _set_pinned(config, admin, as_json, broker_id, None)


def _set_pinned(
    config: str, admin: str | None, as_json: bool, broker_id: BrokerId, proxy_id: ProxyId | None
) -> int:
    urls, access = _writable_members(config, admin, proxy_id)
    document = asyncio.run(client.pin(urls, broker_id, proxy_id, access=access))
    print_document(document, PIN, as_json, tables.print_pin)
    return OK


def _writable_members(
    config: str, admin: str | None, proxy_id: ProxyId | None
) -> tuple[tuple[str, ...], Access]:
    """The addresses that accept a change, and the token for it.

    Args: proxy_id: the member that the change is about, if any.

    Raises:
        ConfigError: the file is wrong, or the token to write is not here.
        UnknownMember: the configuration has no such member.
    """
    settings = load_settings(config, admin)
    access = access_to(settings, os.environ, writes=True)
    if settings is None or admin is not None:
        return tuple(target_urls(settings, admin).values()), access
    if proxy_id is not None:
        settings.member(proxy_id)
    return client.writable_urls(settings), access


@click.command(
    name="rolling-restart",
    cls=RenamedOptions,
    renamed={"--command": "--restart-command", "--limit-s": "--timeout"},
    short_help="Restart all members, one by one.",
    epilog="""\b
Examples:
  fleet rolling-restart --restart-command 'ssh {host} systemctl restart fleet@{proxy_id}'
  fleet rolling-restart --only p2 --restart-command 'docker restart {proxy_id}'
""",
)
@click.option(
    "--restart-command",
    "template",
    required=True,
    metavar="COMMAND",
    help="Command that restarts one member: it sends SIGTERM, waits for the end, and starts the member again."
    " It runs without a shell. {proxy_id} and {host} (the host of the member's admin address) are replaced.",
)
@click.option(
    "--only", multiple=True, metavar="ID", help="Restart this member only; repeatable.  [default: all]"
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=1.0),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="Time limit for a member to be back, and for the fleet to be whole and at rest.",
)
@config_option
@json_option
def rolling_restart(
    config: str, as_json: bool, template: str, only: tuple[str, ...], timeout_s: float
) -> int:
    """Restart the members one after the other, the Raft leader last.

    Waits before each restart until the fleet is whole and at rest. The first failure ends the run with exit
    code 1, and no further member is restarted.
    """
    settings = load(config, os.environ)
    for proxy_id in only:
        settings.member(proxy_id)
    urls = client.admin_urls(settings)

    access = access_to(settings, os.environ)
    restarting = rolling.restart_all(
        urls, only or tuple(urls), template, timeout_s, print_progress, access=access
    )
    document = asyncio.run(restarting)
    print_document(document, ROLLING_RESTART, as_json, tables.print_rolling_restart)
    return OK
