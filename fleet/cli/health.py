"""Whether a fleet is well, as it is seen from here."""

from __future__ import annotations

import asyncio
import os
import sys

import click

from fleet.admin import client
from fleet.admin.documents import DOCTOR, READY, DoctorDocument
from fleet.cli.options import config_option, json_option, node_option
from fleet.cli.output import FAILURE, OK, print_document, print_progress
from fleet.cli.render import tables
from fleet.config.file import load
from fleet.tls.access import access_to, without_token


@click.command(
    short_help="Ask one member whether it is ready.",
    epilog="\b\nExample:\n  fleet ready --config /etc/fleet.yaml --node p1",
)
@config_option
@node_option
@json_option
def ready(config: str, node: str, as_json: bool) -> int:
    """Ask one member whether it is ready: workers listen, the directory is known, a broker answers.

    For the health check of its container. It needs no token. Exits with 1 where the member is not ready, and
    with 3 where it does not answer.
    """
    settings = load(config, os.environ)
    settings.member(node)
    url = client.admin_urls(settings)[node]
    document = asyncio.run(client.ask_ready(url, access=without_token(settings)))
    print_document(document, READY, as_json, tables.print_ready)
    return OK if document.ready else FAILURE


@click.command(
    short_help="Look for what is wrong, from outside.",
    epilog="\b\nExamples:\n  fleet doctor --config fleet.yaml"
    "\n  fleet doctor --json | jq '.findings[] | select(.verdict == \"failed\")'",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0.1, 60.0),
    default=3.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for each answer.",
)
@config_option
@json_option
def doctor(timeout_s: float, config: str, as_json: bool) -> int:
    """Look at a running fleet from where clients are, and say what is wrong and how to fix it.

    Asked are all members, every address that clients are or may be sent to, Metadata (does it name members
    alone?), the clocks, the certificates that are shown and those that members have for one another and for
    brokers, and the real brokers: can they be reached around the fleet? Nothing is changed. Exits with 1
    where anything has failed, and with 3 where no member answers.
    """
    settings = load(config, os.environ)
    from fleet.cli.doctor.collect import Collector  # with what reads certificates: other commands do without
    from fleet.cli.doctor.rules import judge

    access = access_to(settings, os.environ)
    looker = Collector(settings, client.admin_urls(settings), access, timeout_s, _say)
    findings = judge(asyncio.run(looker.look()))
    document = DoctorDocument(settings.fleet, all(each.verdict != "failed" for each in findings), findings)
    print_document(document, DOCTOR, as_json, tables.print_doctor)
    return OK if document.ok else FAILURE


def _say(what: str) -> None:
    if sys.stderr.isatty():
        print_progress(f"doctor: {what}")
