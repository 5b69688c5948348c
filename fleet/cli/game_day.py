"""``fleet game-day``: checks for mistakes of the operator first, then breaks one thing on a running fleet."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import click

from fleet.admin import client
from fleet.admin.operator_commands import check_program, command_for
from fleet.cli.deprecation import HiddenAlias, RenamedOptions
from fleet.cli.options import config_option, json_option
from fleet.cli.output import FAILURE, INTERRUPTED, OK, print_document, print_progress
from fleet.config import Settings, bootstrap_endpoints
from fleet.config.file import load
from fleet.core.errors import GameDayError
from fleet.drills.game_day.plan import Options, Plan, announcement
from fleet.drills.game_day.report import GAME_DAY, print_report
from fleet.drills.game_day.scenarios import SCENARIOS, mistakes, page
from fleet.tls.access import access_to

PACKAGES: Final = ("confluent_kafka", "psutil")
"""Packages that the other commands do not need."""
PICTURE_SUFFIXES: Final = (".svg", ".png")
RENAMED_OPTIONS: Final = {
    "--break": "--inject-command",
    "--mend": "--heal-command",  # words: its name in 0.2.0
    "--command": "--restart-command",
    "--calm": "--settle",
    "--limit-s": "--timeout",
    "--takeover-limit": "--takeover-timeout",
}


@click.command(
    "game-day",
    cls=RenamedOptions,
    renamed=RENAMED_OPTIONS,
    short_help="Break one thing on a running fleet, and check the records.",
    epilog="""\b
Examples:
  fleet game-day --scenario drain
  fleet game-day --scenario leader-kill --inject-command 'ssh {host} systemctl kill -s KILL fleet@{proxy_id}'
  fleet game-day --scenario drain --audit spark
  fleet game-day --scenario watch --duration 300 --picture day.svg --json

\b
Commands run without a shell. {proxy_id} and {host} (the host of the member's admin address) are replaced.

Scenarios, and what their commands must do:

"""
    + "\n\n".join(f"\b\n{page(name)}" for name in SCENARIOS),
)
@click.option(
    "--scenario",
    required=True,
    type=click.Choice(list(SCENARIOS)),
    help="Which fault to inject; the scenarios are described below.",
)
@click.option(
    "--inject-command", "inject", metavar="COMMAND", help="Command that breaks one member; see below."
)
@click.option(
    "--heal-command",
    "heal",
    metavar="COMMAND",
    help="Command that repairs the member. It runs whatever happens, also after Ctrl-C.",
)
@click.option(
    "--restart-command",
    "restart",
    metavar="COMMAND",
    help="Command that restarts one member, for the scenario rolling-restart.",
)
@click.option("--member", metavar="ID", help="Member to break.  [default: the scenario chooses]")
@click.option(
    "--duration",
    "duration_s",
    type=click.FloatRange(1.0),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the fault lasts. It lasts longer, up to --takeover-timeout, until the other members are"
    " advertised.",
)
@click.option(
    "--settle",
    "calm_s",
    type=click.FloatRange(0.5),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to observe clients before the fault, and again after the fleet is whole.",
)
@click.option(
    "--timeout",
    "limit_s",
    type=click.FloatRange(1.0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Time limit for each command, and for the fleet to become whole again.",
)
@click.option(
    "--takeover-timeout",
    "takeover_limit_s",
    type=click.FloatRange(0.1),
    metavar="SECONDS",
    help="Time limit for the other members to be advertised in place of the broken member."
    "  [default: timing.suspect_after_s + 2]",
)
@click.option(
    "--rate",
    "rate_per_s",
    type=click.IntRange(5, 10_000),
    default=30,
    show_default=True,
    metavar="RECORDS",
    help="Records per second to produce to each partition.",
)
@click.option(
    "--topic-prefix",
    default="fleet-chaos",
    show_default=True,
    metavar="PREFIX",
    help="Start of the name of the topic that the run creates.",
)
@click.option("--keep-topic", is_flag=True, help="Keep the topic after the run.")
@click.option(
    "--listener",
    metavar="NAME",
    help="Listener that the clients connect to.  [default: the first listener of each member]",
)
@click.option(
    "--client-config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="librdkafka settings as key=value lines, for example those of your applications.",
)
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Draw the timeline into this .svg or .png file.",
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Keep the histories and logs of the clients in a new folder below DIR.",
)
@click.option(
    "--audit",
    type=click.Choice(["checker", "spark"]),
    default="checker",
    show_default=True,
    help="What audits the records: this program alone, or the data pipeline as well.",
)
@click.option("--yes", is_flag=True, help="Begin without a question.")
@config_option
@json_option
def game_day(
    config: str,
    as_json: bool,
    yes: bool,
    inject: str | None,
    heal: str | None,
    restart: str | None,
    **chosen: Any,
) -> int:
    """Run a game day: break one thing on a running fleet, heal it, and check what clients saw.

    Clients produce to a topic of their own and consume it meanwhile. The run checks that no acknowledged
    record is lost or duplicated, that records stay in order, and that other members are advertised in time.

    The run observes from outside that the fault is there: a command without an effect fails the run. The
    member is healed whatever happens, also after Ctrl-C. Exits with 1 if a promise is broken.
    """
    given = {"inject-command": inject, "heal-command": heal, "restart-command": restart}
    templates = {option: template for option, template in given.items() if template is not None}
    options = Options(templates=templates, **chosen)
    settings = load(config, os.environ)
    _check(settings, options)
    if not yes and not sys.stdin.isatty():
        raise click.UsageError("cannot ask whether to begin: standard input is not a terminal; add --yes")
    run = importlib.import_module("fleet.drills.game_day.run")
    plan = asyncio.run(run.plan(settings, options))
    _announce(plan, options)
    if not yes:
        click.confirm("Begin?", abort=True, err=True)
    try:
        seen = asyncio.run(run.perform(settings, options, print_progress))
    except asyncio.CancelledError:
        return INTERRUPTED
    if options.audit == "spark":
        print_progress("Spark audits the records")
        audited = importlib.import_module("fleet.drills.spark_audit").audit_alone(seen.stream)
        seen = replace(seen, audited=audited)
    verdict = importlib.import_module("fleet.drills.game_day.verdict")
    if options.picture is not None:
        importlib.import_module("fleet.drills.game_day.picture").draw(verdict.timeline(seen), options.picture)
    document = verdict.document(seen)
    print_document(document, GAME_DAY, as_json, print_report)
    return OK if document.kept else FAILURE


chaos: Final = HiddenAlias(game_day, "fleet chaos", "fleet game-day")


def _check(settings: Settings, options: Options) -> None:
    """Find every mistake that can be found without asking the fleet.

    Raises:
        UsageError, CommandTemplateError, UnknownMember, ConfigError: a mistake of the operator.
        GameDayError: a package is missing.
    """
    wrong = mistakes(options.scenario, frozenset(options.templates))
    if wrong:
        raise click.UsageError(wrong)
    if options.member is not None:
        if options.definition.role == "nobody":
            raise click.UsageError(f"--member: {options.scenario} breaks no single member; leave it out")
        settings.member(options.member)
    if options.picture is not None:
        if options.picture.suffix not in PICTURE_SUFFIXES:
            suffixes = " or ".join(PICTURE_SUFFIXES)
            raise click.UsageError(f"--picture {options.picture}: the name must end with {suffixes}")
        if not options.picture.resolve().parent.is_dir():
            raise click.UsageError(f"--picture {options.picture}: the folder does not exist; create it first")
    urls = client.admin_urls(settings)
    for option, template in options.templates.items():
        for proxy_id, url in urls.items():
            check_program(command_for(template, proxy_id, url, f"--{option}"), f"--{option}")
    if options.definition.effect == "drained" and not options.templates:
        access_to(settings, os.environ, writes=True)
    bootstrap_endpoints(settings, options.listener)
    needed = {"game-day": [*PACKAGES, *(["matplotlib"] if options.picture is not None else [])]}
    if options.audit == "spark":
        needed["pipeline"] = ["pyspark"]
    for extra, packages in needed.items():
        missing = [each for each in packages if find_spec(each) is None]
        if missing:
            install = f"pip install 'kafka-proxy-fleet[{extra}]'"
            raise GameDayError(f"a game day needs {', '.join(missing)}; install it with: {install}")


def _announce(plan: Plan, options: Options) -> None:
    for line in announcement(plan, options):
        print_progress(line)
