"""``fleet client-config``: recommended settings for clients of the fleet."""

from __future__ import annotations

import os
from typing import Final, get_args

import click
from rich.console import Console

from fleet.admin.client_settings import Client, as_text, basis_of, settings_for
from fleet.admin.documents import CLIENT_CONFIG, ClientConfigDocument
from fleet.cli.options import config_option, json_option
from fleet.cli.output import OK, print_document
from fleet.config import Settings
from fleet.config.file import load
from fleet.core.model import AdvertisedListener

_CLIENTS: Final[tuple[Client, ...]] = get_args(Client)


@click.command(
    "client-config",
    short_help="Print settings for a client library.",
    epilog="\b\nExamples:\n  fleet client-config --client librdkafka > client.conf"
    "\n  fleet client-config --client java --listener external > client.properties"
    "\n  fleet client-config --client aiokafka --json",
)
@click.option("--client", required=True, type=click.Choice(_CLIENTS), help="Client library.")
@click.option(
    "--listener",
    metavar="NAME",
    help="Listener that the client connects to. Required if members have several listeners.",
)
@config_option
@json_option
def client_config(client: Client, listener: str | None, config: str, as_json: bool) -> int:
    """Print the recommended settings for a client: addresses of all members, and values for short takeovers.

    The output is a properties file or a piece of code, ready to use. Comments give the reason for each
    setting and, if measured, its effect. A comment says so if nothing was measured with this client.
    """
    settings = load(config, os.environ)
    name, addresses = _listener(settings, listener)
    document = ClientConfigDocument(
        client,
        name,
        tuple(addresses),
        settings_for(client, secured=name in settings.listener_tls),
        basis_of(client),
    )
    print_document(document, CLIENT_CONFIG, as_json, _print)
    return OK


def _print(document: ClientConfigDocument, console: Console) -> None:
    text = as_text(document.client, document.bootstrap_servers, document.settings)
    console.out(text, end="", highlight=False)


def _listener(settings: Settings, name: str | None) -> tuple[str, list[str]]:
    """The name of the listener, and its bootstrap address at each member.

    Raises: click.UsageError: no member has a listener of that name, or there are several and ``name`` is None
    """
    listeners: dict[str, list[AdvertisedListener]] = {}
    for member in settings.members.values():
        for each in member.listeners:
            listeners.setdefault(each.name, []).append(each.to_advertised())
    names = ", ".join(sorted(listeners))
    if name is None and len(listeners) > 1:
        raise click.UsageError(f"--listener is required: members have the listeners {names}")
    name = next(iter(listeners)) if name is None else name
    if name not in listeners:
        raise click.UsageError(f"--listener {name}: no member has it; choose one of {names}")
    return name, [f"{each.host}:{each.bootstrap_port}" for each in listeners[name]]
