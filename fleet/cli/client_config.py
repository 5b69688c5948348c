"""What clients of the fleet are to be told."""

from __future__ import annotations

import os
from collections.abc import Mapping
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
@click.option("--client", required=True, type=click.Choice(_CLIENTS), help="Which one.")
@click.option(
    "--listener", metavar="NAME", help="The one that it comes to; needed where members have several."
)
@config_option
@json_option
def client_config(client: Client, listener: str | None, config: str, as_json: bool) -> int:
    """Print what a client is best told: addresses of all members, and what makes takeovers short.

    Each setting is there with its reason, and with what it changed where that was measured; of a client of
    which nothing was, that is said. It is a file of properties, or a piece of code, to be used as it is.
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


def _listener(settings: Settings, wanted: str | None) -> tuple[str, list[str]]:
    """The listener's name, and where each member has it.

    Raises: click.UsageError: there is none of that name, or there are several and none was named.
    """
    found: dict[str, list[AdvertisedListener]] = {}
    for member in settings.members.values():
        for each in member.listeners:
            found.setdefault(each.name, []).append(each.advertised())
    if wanted is None and len(found) > 1:
        raise click.UsageError(f"--listener is needed: members have {_names(found)}")
    name = next(iter(found)) if wanted is None else wanted
    if name not in found:
        raise click.UsageError(f"--listener {name}: no member has it; there are {_names(found)}")
    return name, [f"{each.host}:{each.bootstrap_port}" for each in found[name]]


def _names(found: Mapping[str, object]) -> str:
    return ", ".join(sorted(found))
