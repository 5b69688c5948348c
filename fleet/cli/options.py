"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

CommandT = TypeVar("CommandT", bound=Callable[..., object])

config_option = click.option(
    "--config",
    "-c",
    envvar="FLEET_CONFIG",
    default="fleet.yaml",
    show_default=True,
    show_envvar=True,
    metavar="FILE",
    help="Configuration file of the fleet.",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object on standard output."
)
admin_option = click.option(
    "--admin",
    metavar="URL",
    help="Contact this admin address only, not the members in the configuration file. With --config as well,"
    " the token and the certificate authority come from that file.",
)
node_option = click.option(
    "--node",
    envvar="FLEET_NODE",
    required=True,
    show_envvar=True,
    metavar="ID",
    help="Id of the member in the configuration file.",
)


def member_options(command: CommandT) -> CommandT:
    """Add the options of a command that contacts members: --config, --admin and --json."""
    return config_option(admin_option(json_option(command)))
