"""``fleet demo``: needs packages that the other commands do not need."""

from __future__ import annotations

import importlib

import click

from fleet.cli.output import OK
from fleet.core.errors import DemoError


@click.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    short_help="Run Kafka and a fleet here, kill a proxy, audit records.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def demo(arguments: tuple[str, ...]) -> int:
    """Run Kafka and a fleet locally, kill a proxy, and audit every record.

    This command passes all its arguments on, so that ``fleet demo --help`` comes from the demo itself.
    """
    try:
        command: click.Command = importlib.import_module("fleet.drills.demo.command").command
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "fleet":
            raise
        raise DemoError(
            f"the demo needs {error.name}; install it with: pip install 'kafka-proxy-fleet[demo]'"
        ) from error
    code = command.main(list(arguments), prog_name="fleet demo", standalone_mode=False)
    return code if isinstance(code, int) else OK
