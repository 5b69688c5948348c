"""The ``fleet`` command: puts the parts together, prints what they say, and is the only one that exits."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final, NoReturn, TypeVar

import click
from rich.console import Console

from fleet import __version__
from fleet.admin import client, rolling, tables
from fleet.admin.documents import (
    CERTS,
    CHECK,
    DRAIN,
    ERROR,
    NODE,
    PLAN,
    ROLLING_RESTART,
    STATUS,
    CertificateDocument,
    CertsDocument,
    CheckedMember,
    Codec,
    ConfigDocument,
    ErrorDetail,
    ErrorDocument,
    ErrorKind,
    NodeDocument,
)
from fleet.admin.status import Answers, fleet_status, plan_without
from fleet.config import PeerTlsFiles, Settings, advice, load, survives
from fleet.errors import (
    AdminError,
    CertificateError,
    CommandTimeout,
    ConfigError,
    DemoError,
    FleetError,
    JournalError,
    NoQuorum,
    RestartFailed,
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
    (CertificateError, "certificates", FAILURE),
    (StartError, "start", FAILURE),
    (NoQuorum, "no_quorum", UNREACHABLE),
    (CommandTimeout, "timeout", UNREACHABLE),
    (AdminError, "unreachable", UNREACHABLE),
    (StaleGeneration, "conflict", FAILURE),
    (RestartFailed, "restart", FAILURE),
    (DemoError, "demo", FAILURE),
    (JournalError, "journal", FAILURE),
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
  fleet certs init --config fleet.yaml         certificates for the links between members
  fleet node --config fleet.yaml --node p1     run one member
  fleet status --config fleet.yaml             who lives, who leads, who stands for which broker
  fleet plan --without p2                      what would move if p2 were drained
  fleet journal check --node p1                what is in a member's Raft files, and is it sound
  fleet drain p2; fleet undrain p2             take p2 out before maintenance, and in again
  fleet rolling-restart --command '...'        restart all members, one after the other
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
    if settings.peer_tls is not None:
        from fleet import certs  # 15 MB that a supervisor without certificates does not need

        certs.check_member(settings, node)
    importlib.import_module("fleet.process").log_to_stderr(node)
    code: int = importlib.import_module("fleet.supervisor").run(settings, node)
    if as_json:
        click.echo(NODE.encode(NodeDocument(node, code)))
    return code


@cli.command(
    short_help="Check the configuration file.",
    epilog="\b\nExamples:\n  fleet check --config fleet.yaml\n  fleet check --config fleet.yaml --node p1",
)
@_config
@click.option(
    "--node", envvar="FLEET_NODE", show_envvar=True, metavar="ID", help="The member of this machine, if any."
)
@_json
def check(config: str, node: str | None, as_json: bool) -> int:
    """Say every mistake in the configuration file, or what a fleet of that shape survives.

    Certificates of member links are verified as far as they are on this machine; with --node, those of that
    member alone, and they must be.
    """
    settings = load(config, os.environ)
    unverified: tuple[ProxyId, ...] = ()
    if node is not None:
        settings.member(node)
    if settings.peer_tls is not None:
        from fleet import certs

        if node is not None:
            certs.check_member(settings, node)
        else:
            unverified = certs.check_present(settings)
    _print(_config_document(settings, unverified), CHECK, as_json, tables.print_config)
    return OK


def _config_document(settings: Settings, unverified: tuple[ProxyId, ...] = ()) -> ConfigDocument:
    warnings = advice(settings)
    if unverified:
        names = ", ".join(unverified)
        warnings += (f"peer_tls: the files of {names} are not all on this machine, and were not verified",)
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
        warnings=warnings,
    )


_out = click.option(
    "--out",
    "-o",
    default="certs",
    show_default=True,
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the authority and the certificates are.",
)
_days = click.option(
    "--days",
    default=365,
    show_default=True,
    type=click.IntRange(1, 3650),
    help="For how long members' certificates are valid.",
)


@cli.group(
    name="certs",
    short_help="Make certificates for member links.",
    epilog="""\b
Examples:
  fleet certs init --config fleet.yaml --out certs
  fleet certs renew --config fleet.yaml --out certs --days 90 p1
  fleet certs show --config fleet.yaml --json
""",
)
def certs_group() -> None:
    """Make, renew and show the certificates that the links between members use (peer_tls)."""


@certs_group.command(
    name="init",
    short_help="An authority, and a certificate for each member.",
    epilog="\b\nExample:\n  fleet certs init --config fleet.yaml --out certs",
)
@_config
@_out
@_days
@_json
def certs_init(config: str, out: Path, days: int, as_json: bool) -> int:
    """Make an authority for this fleet, and a certificate and a key for each member. Overwrites nothing."""
    from fleet import certs

    settings = load(config, os.environ)
    certs.make(settings.fleet, tuple(settings.members), out, days, datetime.now(UTC))
    _print_certs(settings, {each: certs.files_in(out, each) for each in settings.members}, out, as_json)
    return OK


@certs_group.command(
    name="renew",
    short_help="New certificates from the same authority.",
    epilog="\b\nExamples:\n  fleet certs renew\n  fleet certs renew p4          for a member that is new",
)
@click.argument("members", nargs=-1, metavar="[ID]...")
@_config
@_out
@_days
@_json
def certs_renew(config: str, out: Path, days: int, as_json: bool, members: tuple[ProxyId, ...]) -> int:
    """Replace the certificates and keys in DIR (of all members, or of those named) by new ones.

    Members take them up while they run, as soon as the files are replaced on their machines.
    """
    from fleet import certs

    settings = load(config, os.environ)
    wanted = [settings.member(each).proxy_id for each in members or settings.members]
    certs.renew(settings.fleet, wanted, out, days, datetime.now(UTC))
    _print_certs(settings, {each: certs.files_in(out, each) for each in wanted}, out, as_json)
    return OK


@certs_group.command(
    name="show",
    short_help="When certificates expire.",
    epilog="\b\nExample:\n  fleet certs show --config fleet.yaml",
)
@_config
@_json
def certs_show(config: str, as_json: bool) -> int:
    """Show when the certificates expire that the configuration names, as far as they are on this machine."""
    settings = load(config, os.environ)
    if settings.peer_tls is None:
        raise CertificateError(f"{settings.source}: has no peer_tls, so no member has a certificate")
    _print_certs(settings, {each: settings.peer_tls.files(each) for each in settings.members}, None, as_json)
    return OK


def _print_certs(
    settings: Settings, files: Mapping[ProxyId, PeerTlsFiles], made_in: Path | None, as_json: bool
) -> None:
    from fleet import certs

    def document(proxy_id: ProxyId, mine: PeerTlsFiles) -> CertificateDocument:
        expires = certs.expiry(mine.certificate)
        shown = None if expires is None else f"{expires:%Y-%m-%dT%H:%M:%SZ}"
        return CertificateDocument(proxy_id, str(mine.ca), str(mine.certificate), str(mine.key), shown)

    steps = () if made_in is None else certs.next_steps(settings, tuple(files), made_in)
    members = tuple(document(proxy_id, mine) for proxy_id, mine in files.items())
    _print(CertsDocument(settings.fleet, members, steps), CERTS, as_json, tables.print_certs)


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
@_config
@_json
def rolling_restart(config: str, as_json: bool, template: str, only: tuple[str, ...], limit_s: float) -> int:
    """Restart members one after the other, the Raft leader last, each when the fleet is whole and at rest.

    The first thing that goes wrong ends it: no further member is touched, and the exit code is 1.
    """
    settings = load(config, os.environ)
    for proxy_id in only:
        settings.member(proxy_id)
    urls = _urls(config, None)

    def say(line: str) -> None:
        click.echo(line, err=True)

    document = asyncio.run(rolling.restart_all(urls, only or tuple(urls), template, limit_s, say))
    _print(document, ROLLING_RESTART, as_json, tables.print_rolling_restart)
    return OK


_node = click.option(
    "--node", envvar="FLEET_NODE", required=True, show_envvar=True, metavar="ID", help="Which member."
)


@cli.group(
    name="journal",
    short_help="Look at a member's Raft files; set them aside.",
    epilog="\b\nExamples:\n  fleet journal check --node p1 --json\n  fleet journal reset --node p1",
)
def journal_group() -> None:
    """Look at the Raft journal and snapshot of a member on this machine, and put them right.

    A member whose files are damaged takes no part in Raft, and says so. `check` says what is in them and what
    is wrong, and changes nothing. The others refuse while the member runs.
    """


@journal_group.command(name="check")
@_config
@_node
@_json
def journal_check(config: str, node: str, as_json: bool) -> int:
    """Say what is in the files, and what is damaged. Exits with 1 where no member starts with them."""
    return _journal("check", config, node, as_json)


@journal_group.command(name="repair")
@_config
@_node
@_json
def journal_repair(config: str, node: str, as_json: bool) -> int:
    """Trim what an interrupted write has left, as the next start would. Refuses anything that could have been
    acknowledged: only a reset is safe then.
    """
    return _journal("repair", config, node, as_json)


@journal_group.command(name="reset")
@_config
@_node
@click.option(
    "--start-over",
    is_flag=True,
    help="Let it vote at once. For a fleet that begins anew: every voter stopped, and reset this way.",
)
@_json
def journal_reset(config: str, node: str, as_json: bool, start_over: bool) -> int:
    """Set the files aside under new names. The member comes back empty, is caught up by the others, and votes
    once it has heard of all other voters: so reset one at a time.
    """
    return _journal("reset", config, node, as_json, start_over)


def _journal(action: str, config: str, node: str, as_json: bool, *options: bool) -> int:
    settings = load(config, os.environ)
    settings.member(node)
    journal = importlib.import_module("fleet.journal")
    result = getattr(journal, action)(settings, node, *options)
    _print(result, journal.JOURNAL, as_json, journal.print_result)
    return OK if result.survey.verdict != "corrupt" else FAILURE


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
