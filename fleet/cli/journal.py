"""``fleet journal``: the Raft files of a member on this machine."""

from __future__ import annotations

import importlib
import os

import click

from fleet.cli.options import config_option, json_option, node_option
from fleet.cli.output import FAILURE, OK, print_document
from fleet.config.file import load


@click.group(
    name="journal",
    short_help="Check, repair or reset the Raft files of a member.",
    epilog="\b\nExamples:\n  fleet journal check --node p1 --json\n  fleet journal reset --node p1",
)
def journal_group() -> None:
    """Check, repair or reset the Raft journal and snapshot of a member on this machine.

    A member with damaged files takes no part in Raft, and reports it. `check` changes nothing and works while
    the member runs. `repair` and `reset` require that the member is stopped.
    """


@journal_group.command(
    name="check",
    short_help="Show what is in the files, and what is damaged.",
    epilog="\b\nExample:\n  fleet journal check --node p1 --json",
)
@config_option
@node_option
@json_option
def journal_check(config: str, node: str, as_json: bool) -> int:
    """Show what is in the files, and what is damaged. Exits with 1 if a member cannot use the files."""
    return _journal("check", config, node, as_json)


@journal_group.command(
    name="repair",
    short_help="Trim an incomplete write at the end.",
    epilog="\b\nExample:\n  fleet journal repair --node p1",
)
@config_option
@node_option
@json_option
def journal_repair(config: str, node: str, as_json: bool) -> int:
    """Trim an incomplete write at the end of the journal, as the next start does.

    Refuses to remove entries that the member may have acknowledged: then only a reset is safe.
    """
    return _journal("repair", config, node, as_json)


@journal_group.command(
    name="reset",
    short_help="Set the files aside; the member starts empty.",
    epilog="\b\nExample:\n  fleet journal reset --node p1",
)
@config_option
@node_option
@click.option(
    "--start-over",
    is_flag=True,
    help="Let the member vote at once. Only for a fleet that starts again from nothing: stop every voter, and"
    " reset each with this option.",
)
@json_option
def journal_reset(config: str, node: str, as_json: bool, start_over: bool) -> int:
    """Rename the files, so that the member starts empty and gets everything from the other members.

    The member votes again after it has contact with all other voters and has caught up. Reset one member at a
    time.
    """
    return _journal("reset", config, node, as_json, start_over)


def _journal(action: str, config: str, node: str, as_json: bool, *options: bool) -> int:
    settings = load(config, os.environ)
    settings.member(node)
    journal = importlib.import_module("fleet.cli.journal_files")
    result = getattr(journal, action)(settings, node, *options)
    print_document(result, journal.JOURNAL, as_json, journal.print_result)
    return OK if result.survey.verdict != "corrupt" else FAILURE
