"""The ``fleet`` command: it connects the packages, prints documents and errors, and chooses the exit code.

Only this module ends the process. All other modules raise a ``FleetError``.
"""

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
    UnknownBroker,
    UnknownMember,
)
from fleet.core.text import make_printable

_KINDS: Final[tuple[tuple[type[FleetError], ErrorKind, int], ...]] = (
    (ConfigError, "config", USAGE),
    (UnknownMember, "unknown_member", USAGE),
    (UnknownBroker, "not_found", USAGE),
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
    """Commands by name. Each is imported when it is used: a member does not load what it does not need.

    Args: name -> the module of `fleet.cli` that has the command, and its name there.
    """

    def __getitem__(self, name: str) -> click.Command:
        module, attribute = self.data[name]
        command: click.Command = getattr(import_module(f"{__name__}.{module}"), attribute)
        return command


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
        "pin": ("ownership", "pin"),
        "unpin": ("ownership", "unpin"),
        "rolling-restart": ("ownership", "rolling_restart"),
        "ready": ("health", "ready"),
        "doctor": ("health", "doctor"),
        "journal": ("journal", "journal_group"),
        "game-day": ("game_day", "game_day"),
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
  fleet check --config fleet.yaml              check the configuration file
  fleet certs init --config fleet.yaml         make certificates for the links between members
  fleet node --config fleet.yaml --node p1     run one member
  fleet client-config --client librdkafka      print settings for a client library
  fleet status --config fleet.yaml             show members, the leader, and who owns which broker
  fleet top --config fleet.yaml                watch the same live, with traffic
  fleet ready --node p1                        check whether this member is ready, for a health check
  fleet doctor --config fleet.yaml             find what is wrong, from where clients are
  fleet plan --without p2                      show what would move if p2 were drained
  fleet drain p2; fleet undrain p2             take p2 out for maintenance, and back in
  fleet pin 2 p1; fleet unpin 2                tie broker 2 to p1, and release it
  fleet rolling-restart --restart-command ...  restart all members, one by one
  fleet journal check --node p1                check the Raft files of a member
  fleet game-day --scenario drain              break one thing, and check what clients see
  fleet pipeline run --out DIR --once          build tables of the fleet's history from its events
  fleet report --tables DIR --out report.html  write a report from these tables
  fleet demo --json                            run Kafka and a fleet here, kill a proxy, audit

\b
The environment variables FLEET_CONFIG and FLEET_NODE replace --config and --node.

"""
    + EXIT_CODES,
)
@click.version_option(__version__, prog_name="fleet")
def cli() -> None:
    """Run and operate a fleet of Kafka proxies that agree on who owns which broker.

    When a proxy dies, the others take over its brokers.
    """


def _fail(kind: ErrorKind, message: str, as_json: bool, stderr: IO[str]) -> None:
    if as_json:
        click.echo(ERROR.encode(ErrorDocument(ErrorDetail(kind, message))))
    else:
        lines = [make_printable(line) for line in message.split("\n")]
        stderr.write(f"fleet: {lines[0]}\n" if len(lines) == 1 else "\n".join([*lines, ""]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line.

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
        # The reader closed the pipe. The interpreter must not report the rest of the output as an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE


def main() -> NoReturn:
    """Run the ``fleet`` command and exit."""
    sys.exit(run(sys.argv[1:]))
