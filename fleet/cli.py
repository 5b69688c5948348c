"""The ``fleet`` command: puts the parts together, prints what they say, and is the only one that exits."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import IO, Final, NoReturn, TypeVar

import click
from rich.console import Console

from fleet import __version__
from fleet.admin import client, tables
from fleet.admin.documents import (
    CHECK,
    DRAIN,
    ERROR,
    NODE,
    PLAN,
    STATUS,
    CheckedMember,
    Codec,
    ConfigDocument,
    ErrorDetail,
    ErrorDocument,
    ErrorKind,
    NodeDocument,
)
from fleet.admin.status import Answers, fleet_status, plan_without
from fleet.config import Settings, advice, load, survives
from fleet.errors import (
    AdminError,
    CommandTimeout,
    ConfigError,
    DemoError,
    FleetError,
    NoQuorum,
    StaleGeneration,
    StartError,
    UnknownMember,
)
from fleet.model import ProxyId

OK: Final = 0
FAILURE: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
INTERRUPTED: Final = 130

EXIT_CODES: Final = """\b
Exit codes:
  0  done
  1  it failed
  2  the command line or the configuration file is wrong
  3  no member answered, or there is no quorum
"""

_KINDS: Final[tuple[tuple[type[FleetError], ErrorKind, int], ...]] = (
    (ConfigError, "config", USAGE),
    (UnknownMember, "unknown_member", USAGE),
    (StartError, "start", FAILURE),
    (NoQuorum, "no_quorum", UNREACHABLE),
    (CommandTimeout, "timeout", UNREACHABLE),
    (AdminError, "unreachable", UNREACHABLE),
    (StaleGeneration, "conflict", FAILURE),
    (DemoError, "demo", FAILURE),
    (FleetError, "internal", FAILURE),
)

T = TypeVar("T")
CommandT = TypeVar("CommandT", bound=Callable[..., object])

_config = click.option(
    "--config",
    "-c",
    envvar="FLEET_CONFIG",
    default="fleet.yaml",
    show_default=True,
    show_envvar=True,
    metavar="FILE",
    help="The fleet's configuration file.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else.")
_admin = click.option(
    "--admin",
    metavar="URL",
    help="Ask this admin address alone, instead of those in the configuration file.",
)


def _member_options(command: CommandT) -> CommandT:
    return _config(_admin(_json(command)))


def _print(document: T, codec: Codec[T], as_json: bool, render: Callable[[T, Console], None]) -> None:
    if as_json:
        click.echo(codec.encode(document))
    else:
        # A pipe has no width: lines are then as long as they need to be, and grep finds them whole.
        render(document, Console(width=None if sys.stdout.isatty() else 10_000, highlight=False))


def _urls(config: str, admin: str | None) -> dict[ProxyId, str]:
    """Whom to ask: every member of the file, or the one address that was named."""
    if admin is not None:
        return {admin: client.normal_url(admin)}
    settings = load(config, os.environ)
    return {proxy_id: client.admin_url(member.admin) for proxy_id, member in settings.members.items()}


def _ask(config: str, admin: str | None) -> tuple[Answers, dict[ProxyId, str]]:
    urls = _urls(config, admin)
    return asyncio.run(client.ask_all(urls)), urls


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  fleet check --config fleet.yaml              is the file right, and what does the fleet survive
  fleet node --config fleet.yaml --node p1     run one member
  fleet status --config fleet.yaml             who lives, who leads, who stands for which broker
  fleet plan --without p2                      what would move if p2 were drained
  fleet drain p2; fleet undrain p2             take p2 out before maintenance, and in again
  fleet demo --json                            Kafka, a fleet, a kill and an audit, on this machine

\b
FLEET_CONFIG and FLEET_NODE stand in for --config and --node.

"""
    + EXIT_CODES,
)
@click.version_option(__version__, prog_name="fleet")
def cli() -> None:
    """A fleet of Kafka proxies that agree on who stands for which broker, and take over when one dies."""


@cli.command(
    short_help="Run one member.", epilog="\b\nExample:\n  fleet node --config /etc/fleet.yaml --node p1"
)
@_config
@click.option(
    "--node", envvar="FLEET_NODE", required=True, show_envvar=True, metavar="ID", help="Which member."
)
@_json
def node(config: str, node: str, as_json: bool) -> int:
    """Run one member until SIGTERM, which drains it; a second one stops it at once.

    With --json the one object says how it ended; log lines go to standard error either way.
    """
    settings = load(config, os.environ)
    settings.member(node)
    importlib.import_module("fleet.process").log_to_stderr(node)
    code: int = importlib.import_module("fleet.supervisor").run(settings, node)
    if as_json:
        click.echo(NODE.encode(NodeDocument(node, code)))
    return code


@cli.command(
    short_help="Check the configuration file.",
    epilog="\b\nExample:\n  fleet check --config fleet.yaml",
)
@_config
@_json
def check(config: str, as_json: bool) -> int:
    """Say every mistake in the configuration file, or what a fleet of that shape survives."""
    settings = load(config, os.environ)
    _print(_config_document(settings), CHECK, as_json, tables.print_config)
    return OK


def _config_document(settings: Settings) -> ConfigDocument:
    return ConfigDocument(
        source=settings.source,
        fleet=settings.fleet,
        members=tuple(
            CheckedMember(
                member.proxy_id,
                member.rack,
                member.voter,
                member.witness,
                member.advertised(settings).listeners,
            )
            for member in settings.members.values()
        ),
        voters=settings.voters,
        survives=survives(settings),
        warnings=advice(settings),
    )


@cli.command(
    short_help="Show who lives, leads, and owns what.",
    epilog="\b\nExamples:\n  fleet status\n  fleet status --admin 127.0.0.1:7201 --json",
)
@_member_options
def status(config: str, admin: str | None, as_json: bool) -> int:
    """Show members, leader, generation, and who stands for which broker.

    All members are asked at once. Exits with 3 where none answers, or none has a quorum.
    """
    document = fleet_status(*_ask(config, admin))
    _print(document, STATUS, as_json, tables.print_status)
    return OK if document.quorum.present else UNREACHABLE


@cli.command(
    short_help="Show what would move without a member.",
    epilog="\b\nExample:\n  fleet plan --without p2 --without p3",
)
@click.option(
    "--without",
    "without",
    multiple=True,
    required=True,
    metavar="ID",
    help="A member to do without; repeatable.",
)
@_member_options
def plan(config: str, admin: str | None, as_json: bool, without: tuple[str, ...]) -> int:
    """Show which identities would move if members were drained. Changes nothing."""
    answers, _ = _ask(config, admin)
    _print(plan_without(answers, tuple(dict.fromkeys(without))), PLAN, as_json, tables.print_plan)
    return OK


@cli.command(short_help="Have a member own nothing.", epilog="\b\nExample:\n  fleet drain p2")
@click.argument("proxy_id", metavar="ID")
@_member_options
def drain(config: str, admin: str | None, as_json: bool, proxy_id: str) -> int:
    """Have a member own nothing, until it is undrained; its clients move without an error."""
    return _set_drained(config, admin, as_json, proxy_id, drained=True)


@cli.command(epilog="\b\nExample:\n  fleet undrain p2")
@click.argument("proxy_id", metavar="ID")
@_member_options
def undrain(config: str, admin: str | None, as_json: bool, proxy_id: str) -> int:
    """Let a drained member own identities again."""
    return _set_drained(config, admin, as_json, proxy_id, drained=False)


def _set_drained(config: str, admin: str | None, as_json: bool, proxy_id: str, drained: bool) -> int:
    if admin is not None:
        urls: tuple[str, ...] = (client.normal_url(admin),)
    else:
        settings = load(config, os.environ)
        settings.member(proxy_id)
        urls = client.writable_urls(settings.members.values())
    document = asyncio.run(client.drain(urls, proxy_id, drained))
    _print(document, DRAIN, as_json, tables.print_drain)
    return OK


@cli.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    short_help="Kafka, a fleet, a kill and an audit, here.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def demo(arguments: tuple[str, ...]) -> int:
    """Everything else about it is said by ``fleet demo --help``."""
    try:
        command: click.Command = importlib.import_module("fleet.demo.command").command
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "fleet":
            raise
        raise DemoError(
            f"the demo needs {error.name}; install it with: pip install 'kafka-proxy-fleet[demo]'"
        ) from error
    code = command.main(list(arguments), prog_name="fleet demo", standalone_mode=False)
    return code if isinstance(code, int) else OK


def _fail(kind: ErrorKind, message: str, as_json: bool, stderr: IO[str]) -> None:
    if as_json:
        click.echo(ERROR.encode(ErrorDocument(ErrorDetail(kind, message))))
    else:
        stderr.write(f"fleet: {message}\n" if "\n" not in message else f"{message}\n")


def run(arguments: Sequence[str]) -> int:
    """Does what a command line says.

    Returns: the exit code; see ``EXIT_CODES``
    """
    as_json = "--json" in arguments
    try:
        code = cli.main(list(arguments), prog_name="fleet", standalone_mode=False)
        return code if isinstance(code, int) else OK
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return USAGE
    except click.UsageError as error:
        hint = "" if error.ctx is None else f" (see {error.ctx.command_path} --help)"
        _fail("usage", f"{error.format_message()}{hint}", as_json, sys.stderr)
        return USAGE
    except click.Abort:
        return INTERRUPTED
    except KeyboardInterrupt:
        return INTERRUPTED
    except click.ClickException as error:
        _fail("internal", error.format_message(), as_json, sys.stderr)
        return FAILURE
    except FleetError as error:
        kind, code = next((kind, code) for base, kind, code in _KINDS if isinstance(error, base))
        _fail(kind, str(error), as_json, sys.stderr)
        return code
    except BrokenPipeError:
        # Whoever read our output has had enough; the interpreter must not complain about the rest of it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE


def main() -> NoReturn:
    """The ``fleet`` command."""
    sys.exit(run(sys.argv[1:]))
