"""The ``fleet`` command: puts the parts together, prints what they say, and is the only one that exits."""

from __future__ import annotations

import os
import sys
from collections import UserDict
from collections.abc import Sequence
from importlib import import_module
from typing import IO, Any, Final, NoReturn

import click

from fleet import __version__
from fleet.admin.documents import ERROR, ErrorDetail, ErrorDocument, ErrorKind
from fleet.cli.output import EXIT_CODES, FAILURE, INTERRUPTED, OK, UNREACHABLE, USAGE
from fleet.core.errors import (
    AdminError,
    CertificateError,
    CommandFailed,
    CommandTemplateError,
    CommandTimeout,
    ConfigError,
    DemoError,
    FleetError,
    GameDayError,
    JournalError,
    NoQuorum,
    PipelineError,
    RestartFailed,
    StaleGeneration,
    StartError,
    UnknownMember,
)
from fleet.core.text import make_printable

_KINDS: Final[tuple[tuple[type[FleetError], ErrorKind, int], ...]] = (
    (ConfigError, "config", USAGE),
    (UnknownMember, "unknown_member", USAGE),
    (CertificateError, "certificates", FAILURE),
    (StartError, "start", FAILURE),
    (NoQuorum, "no_quorum", UNREACHABLE),
    (CommandTimeout, "timeout", UNREACHABLE),
    (AdminError, "unreachable", UNREACHABLE),
    (StaleGeneration, "conflict", FAILURE),
    (CommandTemplateError, "usage", USAGE),
    (CommandFailed, "command", FAILURE),
    (RestartFailed, "restart", FAILURE),
    (GameDayError, "game_day", FAILURE),
    (DemoError, "demo", FAILURE),
    (PipelineError, "pipeline", FAILURE),
    (JournalError, "journal", FAILURE),
    (FleetError, "internal", FAILURE),
)


class _Commands(UserDict[str, Any]):
    """Commands by name, each imported when it is asked for: a member starts without what the others need.

    Made of the module of `fleet.cli` that has a command, and its name there.
    """

    def __getitem__(self, name: str) -> click.Command:
        module, attribute = self.data[name]
        found: click.Command = getattr(import_module(f"{__name__}.{module}"), attribute)
        return found


_COMMANDS: Final = _Commands(
    {
        "node": ("node", "node"),
        "check": ("node", "check"),
        "certs": ("certs", "certs_group"),
        "client-config": ("client_config", "client_config"),
        "status": ("ownership", "status"),
        "top": ("top", "top"),
        "plan": ("ownership", "plan"),
        "drain": ("ownership", "drain"),
        "undrain": ("ownership", "undrain"),
        "rolling-restart": ("ownership", "rolling_restart"),
        "ready": ("health", "ready"),
        "doctor": ("health", "doctor"),
        "journal": ("journal", "journal_group"),
        "chaos": ("game_day", "chaos"),
        "pipeline": ("pipeline", "pipeline"),
        "report": ("pipeline", "report"),
        "demo": ("demo", "demo"),
    }
)


@click.group(
    commands=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  fleet check --config fleet.yaml              is the file right, and what does the fleet survive
  fleet certs init --config fleet.yaml         certificates for the links between members
  fleet node --config fleet.yaml --node p1     run one member
  fleet client-config --client librdkafka      what clients are best told, and why
  fleet status --config fleet.yaml             who lives, who leads, who stands for which broker
  fleet top --config fleet.yaml                the same as it changes, and what passes
  fleet ready --node p1                        is this member ready, for a health check
  fleet doctor --config fleet.yaml             what is wrong, seen from where clients are
  fleet plan --without p2                      what would move if p2 were drained
  fleet journal check --node p1                what is in a member's Raft files, and is it sound
  fleet drain p2; fleet undrain p2             take p2 out before maintenance, and in again
  fleet rolling-restart --command '...'        restart all members, one after the other
  fleet chaos --scenario drain                 a game day: break one thing, and see who notices
  fleet pipeline run --out DIR --once          who owned what when, from the events of the fleet
  fleet demo --json                            Kafka, a fleet, a kill and an audit, on this machine

\b
FLEET_CONFIG and FLEET_NODE stand in for --config and --node.

"""
    + EXIT_CODES,
)
@click.version_option(__version__, prog_name="fleet")
def cli() -> None:
    """A fleet of Kafka proxies that agree on who stands for which broker, and take over when one dies."""


def _fail(kind: ErrorKind, message: str, as_json: bool, stderr: IO[str]) -> None:
    if as_json:
        click.echo(ERROR.encode(ErrorDocument(ErrorDetail(kind, message))))
    else:
        lines = [make_printable(line) for line in message.split("\n")]
        stderr.write(f"fleet: {lines[0]}\n" if len(lines) == 1 else "\n".join([*lines, ""]))


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
