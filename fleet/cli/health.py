"""``fleet ready`` and ``fleet doctor``: checks of a running fleet from this machine."""

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
    short_help="Check whether one member is ready.",
    epilog="\b\nExample:\n  fleet ready --config /etc/fleet.yaml --node p1",
)
@config_option
@node_option
@json_option
def ready(config: str, node: str, as_json: bool) -> int:
    """Check whether one member is ready: its workers listen, it has a directory, and a broker answers.

    Use it as the health check of the member's container. It needs no token. Exits with 1 if the member is not
    ready, and with 3 if it does not answer.
    """
    settings = load(config, os.environ)
    settings.member(node)
    url = client.admin_urls(settings)[node]
    document = asyncio.run(client.ask_ready(url, access=without_token(settings)))
    print_document(document, READY, as_json, tables.print_ready)
    return OK if document.ready else FAILURE


@click.command(
    short_help="Find what is wrong, from where clients are.",
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
    help="Time limit for each answer.",
)
@config_option
@json_option
def doctor(timeout_s: float, config: str, as_json: bool) -> int:
    """Find what is wrong with a running fleet, and print a fix for each fault. Changes nothing.

    Run it where clients run. It checks all members and their clocks, every advertised address, that Metadata
    names only members, the expiry of certificates, and whether clients can bypass the fleet and reach the
    brokers directly. Exits with 1 if a check failed, and with 3 if no member answers.
    """
    settings = load(config, os.environ)
    from fleet.cli.doctor.collect import (
        Collector,
    )  # imports what reads certificates; other commands do not need it
    from fleet.cli.doctor.rules import evaluate

    access = access_to(settings, os.environ)
    collector = Collector(settings, client.admin_urls(settings), access, timeout_s, _print_step)
    findings = evaluate(asyncio.run(collector.collect()))
    document = DoctorDocument(settings.fleet, all(each.verdict != "failed" for each in findings), findings)
    print_document(document, DOCTOR, as_json, tables.print_doctor)
    return OK if document.ok else FAILURE


def _print_step(step: str) -> None:
    if sys.stderr.isatty():
        print_progress(f"doctor: {step}")
