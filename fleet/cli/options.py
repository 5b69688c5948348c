"""What several commands are told in the same way."""

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
    help="The fleet's configuration file.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else.")
admin_option = click.option(
    "--admin",
    metavar="URL",
    help="Ask this admin address alone, not those in the configuration file. With --config, too, that file"
    " says where token and authority are.",
)
node_option = click.option(
    "--node", envvar="FLEET_NODE", required=True, show_envvar=True, metavar="ID", help="Which member."
)


def member_options(command: CommandT) -> CommandT:
    """Of a command that asks members."""
    return config_option(admin_option(json_option(command)))
