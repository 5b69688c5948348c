"""Who stands for which broker: shown, planned and changed, by members that run."""

from __future__ import annotations

import asyncio
import os

import click

from fleet.admin import client
from fleet.admin import rolling_restart as rolling
from fleet.admin.documents import DRAIN, PLAN, ROLLING_RESTART, STATUS
from fleet.admin.status import Answers, fleet_status
from fleet.admin.status import plan as status_plan
from fleet.cli.options import config_option, json_option, member_options
from fleet.cli.output import OK, UNREACHABLE, print_document, print_progress
from fleet.cli.render import tables
from fleet.cli.targets import load_settings, target_urls
from fleet.config import Settings
from fleet.config.file import load
from fleet.core.errors import AdminError
from fleet.core.model import ProxyId
from fleet.core.weights import Weights
from fleet.tls.access import access_to


def _ask(config: str, admin: str | None) -> tuple[Answers, dict[ProxyId, str]]:
    settings = load_settings(config, admin)
    urls = target_urls(settings, admin)
    return asyncio.run(client.ask_all(urls, access=access_to(settings, os.environ))), urls


@click.command(
    short_help="Show who lives, leads, and owns what.",
    epilog="\b\nExamples:\n  fleet status\n  fleet status --admin 127.0.0.1:7201 --json",
)
@member_options
def status(config: str, admin: str | None, as_json: bool) -> int:
    """Show members, leader, generation, and who stands for which broker.

    All members are asked at once. Exits with 3 where none answers, or none has a quorum.
    """
    document = fleet_status(*_ask(config, admin))
    print_document(document, STATUS, as_json, tables.print_status)
    return OK if document.quorum.present else UNREACHABLE


@click.command(
    short_help="Show what would move without a member, or by weight.",
    epilog="\b\nExamples:\n  fleet plan --without p2 --without p3\n  fleet plan --weights",
)
@click.option("--without", multiple=True, metavar="ID", help="A member to do without; repeatable.")
@click.option(
    "--weights", "weighed", is_flag=True, help="Balance by what passes identities, as the pipeline found it."
)
@member_options
def plan(config: str, admin: str | None, as_json: bool, without: tuple[str, ...], weighed: bool) -> int:
    """Show which identities would move if members were drained, or balanced by weight. Changes nothing."""
    if not without and not weighed:
        raise click.UsageError("give --without ID, or --weights")
    answers, _ = _ask(config, admin)
    weighing = _weighing(load(config, os.environ)) if weighed else None
    document = status_plan(answers, tuple(dict.fromkeys(without)), weighing)
    print_document(document, PLAN, as_json, tables.print_plan)
    return OK


def _weighing(settings: Settings) -> Weights:
    """The weights that are in the topic now. Raises: AdminError: they cannot be read."""
    if settings.events is None:
        raise AdminError(
            f"{settings.source} has no section `events`, so there are no weights; add `events: {{}}`"
        )
    # Imported here: it takes longer than all the rest.
    from fleet.events.weights import read_weights
    from fleet.tls.broker_credentials import KafkaAccess

    access = KafkaAccess(settings.upstream, settings.source)
    prefix = settings.events.topic_prefix
    reading = read_weights(settings.bootstrap_servers, access, prefix, settings.fleet)
    weights = asyncio.run(reading)
    if not weights:
        raise AdminError("there are no weights yet; run the pipeline's jobs `load` and `weights`")
    return Weights(weights, settings.balance.min_gain)


@click.command(short_help="Have a member own nothing.", epilog="\b\nExample:\n  fleet drain p2")
@click.argument("proxy_id", metavar="ID")
@member_options
def drain(config: str, admin: str | None, as_json: bool, proxy_id: str) -> int:
    """Have a member own nothing, until it is undrained; its clients move without an error."""
    return _set_drained(config, admin, as_json, proxy_id, drained=True)


@click.command(epilog="\b\nExample:\n  fleet undrain p2")
@click.argument("proxy_id", metavar="ID")
@member_options
def undrain(config: str, admin: str | None, as_json: bool, proxy_id: str) -> int:
    """Let a drained member own identities again."""
    return _set_drained(config, admin, as_json, proxy_id, drained=False)


def _set_drained(config: str, admin: str | None, as_json: bool, proxy_id: str, drained: bool) -> int:
    settings = load_settings(config, admin)
    access = access_to(settings, os.environ, writes=True)
    urls = tuple(target_urls(settings, admin).values())
    if settings is not None and admin is None:
        settings.member(proxy_id)
        urls = client.writable_urls(settings)
    document = asyncio.run(client.drain(urls, proxy_id, drained, access=access))
    print_document(document, DRAIN, as_json, tables.print_drain)
    return OK


@click.command(
    name="rolling-restart",
    short_help="Restart all members, one by one.",
    epilog="""\b
Examples:
  fleet rolling-restart --command 'ssh {host} systemctl restart fleet@{proxy_id}'
  fleet rolling-restart --only p2 --command 'docker restart {proxy_id}'
""",
)
@click.option(
    "--command",
    "template",
    required=True,
    metavar="COMMAND",
    help="What restarts one member: it sends SIGTERM, waits for the end, and starts it again. {proxy_id} and"
    " {host} (of its admin address) are put in. No shell.",
)
@click.option("--only", multiple=True, metavar="ID", help="Restart this member; repeatable. Default: all.")
@click.option(
    "--limit-s",
    type=click.FloatRange(min=1.0),
    default=120.0,
    show_default=True,
    help="How long to wait for the fleet to be at rest, and for a member to be back.",
)
@config_option
@json_option
def rolling_restart(config: str, as_json: bool, template: str, only: tuple[str, ...], limit_s: float) -> int:
    """Restart members one after the other, the Raft leader last, each when the fleet is whole and at rest.

    The first thing that goes wrong ends it: no further member is touched, and the exit code is 1.
    """
    settings = load(config, os.environ)
    for proxy_id in only:
        settings.member(proxy_id)
    urls = client.admin_urls(settings)

    access = access_to(settings, os.environ)
    restarting = rolling.restart_all(
        urls, only or tuple(urls), template, limit_s, print_progress, access=access
    )
    document = asyncio.run(restarting)
    print_document(document, ROLLING_RESTART, as_json, tables.print_rolling_restart)
    return OK
