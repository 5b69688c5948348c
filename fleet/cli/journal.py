"""The Raft files of a member on this machine."""

from __future__ import annotations

import importlib
import os

import click

from fleet.cli.options import config_option, json_option, node_option
from fleet.cli.output import FAILURE, OK, print_document
from fleet.config.file import load


@click.group(
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
@config_option
@node_option
@json_option
def journal_check(config: str, node: str, as_json: bool) -> int:
    """Say what is in the files, and what is damaged. Exits with 1 where no member starts with them."""
    return _journal("check", config, node, as_json)


@journal_group.command(name="repair")
@config_option
@node_option
@json_option
def journal_repair(config: str, node: str, as_json: bool) -> int:
    """Trim what an interrupted write has left, as the next start would. Refuses anything that could have been
    acknowledged: only a reset is safe then.
    """
    return _journal("repair", config, node, as_json)


@journal_group.command(name="reset")
@config_option
@node_option
@click.option(
    "--start-over",
    is_flag=True,
    help="Let it vote at once. For a fleet that begins anew: every voter stopped, and reset this way.",
)
@json_option
def journal_reset(config: str, node: str, as_json: bool, start_over: bool) -> int:
    """Set the files aside under new names. The member comes back empty, is caught up by the others, and votes
    once it has heard of all other voters: so reset one at a time.
    """
    return _journal("reset", config, node, as_json, start_over)


def _journal(action: str, config: str, node: str, as_json: bool, *options: bool) -> int:
    settings = load(config, os.environ)
    settings.member(node)
    journal = importlib.import_module("fleet.cli.journal_files")
    result = getattr(journal, action)(settings, node, *options)
    print_document(result, journal.JOURNAL, as_json, journal.print_result)
    return OK if result.survey.verdict != "corrupt" else FAILURE
