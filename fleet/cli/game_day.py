"""A game day on the operator's own fleet; what can be wrong is looked for before anything is broken."""

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
from fleet.cli.options import config_option, json_option
from fleet.cli.output import FAILURE, INTERRUPTED, OK, print_document, print_progress
from fleet.config import Settings, bootstrap_endpoints
from fleet.config.file import load
from fleet.core.errors import GameDayError
from fleet.drills.game_day.plan import Options, Plan, lines
from fleet.drills.game_day.report import GAME_DAY, print_report
from fleet.drills.game_day.scenarios import SCENARIOS, mistakes, page
from fleet.tls.access import access_to

PACKAGES: Final = ("confluent_kafka", "psutil")
"""What it needs beyond the other commands."""
PICTURES: Final = (".svg", ".png")


@click.command(
    short_help="Break one thing, and see who notices.",
    epilog="""\b
Examples:
  fleet chaos --scenario drain
  fleet chaos --scenario leader-kill --break 'ssh {host} systemctl kill -s KILL fleet@{proxy_id}'
  fleet chaos --scenario drain --audit spark
  fleet chaos --scenario watch --duration 300 --picture day.svg --json

\b
In commands, {proxy_id} and {host} (of its admin address) are put in. No shell.

Scenarios, and what their commands must do:

"""
    + "\n\n".join(f"\b\n{page(name)}" for name in SCENARIOS),
)
@click.option(
    "--scenario", required=True, type=click.Choice(list(SCENARIOS)), help="What happens; see below."
)
@click.option("--break", "break_", metavar="COMMAND", help="What breaks one member.")
@click.option("--mend", metavar="COMMAND", help="What puts it right again, whatever has happened.")
@click.option("--command", metavar="COMMAND", help="What restarts one member, for rolling-restart.")
@click.option("--member", metavar="ID", help="To whom it happens.  [default: as the scenario says]")
@click.option(
    "--duration",
    "duration_s",
    type=click.FloatRange(1.0),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long it lasts; longer where others have not taken over yet, up to --takeover-limit.",
)
@click.option(
    "--calm",
    "calm_s",
    type=click.FloatRange(0.5),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to look on before, and after the fleet is at rest again.",
)
@click.option(
    "--limit-s",
    type=click.FloatRange(1.0),
    default=60.0,
    show_default=True,
    help="How long a command may take, and the fleet until it is at rest again.",
)
@click.option(
    "--takeover-limit",
    "takeover_limit_s",
    type=click.FloatRange(0.1),
    metavar="SECONDS",
    help="By when others must be advertised in the place of one that is gone."
    "  [default: timing.suspect_after_s and 2 s]",
)
@click.option(
    "--rate",
    "rate_per_s",
    type=click.IntRange(5, 10_000),
    default=30,
    show_default=True,
    help="Records a second, on each partition.",
)
@click.option("--topic-prefix", default="fleet-chaos", show_default=True, help="Of the topic that is made.")
@click.option("--keep-topic", is_flag=True, help="Do not delete it in the end.")
@click.option("--listener", metavar="NAME", help="By which way in.  [default: each member's first]")
@click.option(
    "--client-config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Settings of librdkafka as key=value lines, such as those of your applications.",
)
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Draw the timeline here: .svg or .png.",
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Keep the clients' histories and logs below it.",
)
@click.option(
    "--audit",
    type=click.Choice(["checker", "spark"]),
    default="checker",
    show_default=True,
    help="Who says what became of records: this program, or the data pipeline beside it.",
)
@click.option("--yes", is_flag=True, help="Do not ask before it begins.")
@config_option
@json_option
def chaos(
    config: str,
    as_json: bool,
    yes: bool,
    break_: str | None,
    mend: str | None,
    command: str | None,
    **chosen: Any,
) -> int:
    """Hold a game day on a fleet that runs. Clients produce to a topic of their own and consume it, one thing
    is broken and mended, and what came of it is judged: no acknowledged record lost, none there twice, all in
    order, and others advertised in time.

    That something broke is proved from outside: a command without an effect fails the run. What is broken is
    mended whatever happens, also after Ctrl-C. Exits with 1 where a promise was broken.
    """
    given = {"break": break_, "mend": mend, "command": command}
    templates = {option: template for option, template in given.items() if template is not None}
    options = Options(templates=templates, **chosen)
    settings = load(config, os.environ)
    _check(settings, options)
    if not yes and not sys.stdin.isatty():
        raise click.UsageError("there is nobody to ask whether to begin; say --yes")
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


def _check(settings: Settings, options: Options) -> None:
    """Everything that can be wrong before the fleet is asked.

    Raises:
        UsageError, TemplateError, UnknownMember, ConfigError: the operator's mistakes.
        GameDayError: a package is missing.
    """
    wrong = mistakes(options.scenario, frozenset(options.templates))
    if wrong:
        raise click.UsageError(wrong)
    if options.member is not None:
        if options.what.role == "nobody":
            raise click.UsageError(f"{options.scenario} happens to nobody in particular; leave out --member")
        settings.member(options.member)
    if options.picture is not None:
        if options.picture.suffix not in PICTURES:
            raise click.UsageError(f"--picture {options.picture}: is neither {' nor '.join(PICTURES)}")
        if not options.picture.resolve().parent.is_dir():
            raise click.UsageError(f"--picture {options.picture}: there is no such folder")
    urls = client.admin_urls(settings)
    for option, template in options.templates.items():
        for proxy_id, url in urls.items():
            check_program(command_for(template, proxy_id, url, f"--{option}"), f"--{option}")
    if options.what.effect == "drained" and not options.templates:
        access_to(settings, os.environ, writes=True)
    bootstrap_endpoints(settings, options.listener)
    needed = {"chaos": [*PACKAGES, *(["matplotlib"] if options.picture is not None else [])]}
    if options.audit == "spark":
        needed["pipeline"] = ["pyspark"]
    for extra, packages in needed.items():
        missing = [each for each in packages if find_spec(each) is None]
        if missing:
            install = f"pip install 'kafka-proxy-fleet[{extra}]'"
            raise GameDayError(f"a game day needs {', '.join(missing)}; install it with: {install}")


def _announce(plan: Plan, options: Options) -> None:
    for line in lines(plan, options):
        print_progress(line)
