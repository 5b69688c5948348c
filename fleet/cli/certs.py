"""``fleet certs``: the certificates of members."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import click

from fleet.admin.documents import CERTS, CertificateDocument, CertsDocument
from fleet.cli.options import config_option, json_option
from fleet.cli.output import OK, print_document
from fleet.cli.render import tables
from fleet.config import PeerTlsFiles, Settings
from fleet.config.file import load
from fleet.core.errors import CertificateError
from fleet.core.model import ProxyId

_out = click.option(
    "--out",
    "-o",
    default="certs",
    show_default=True,
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the certificate authority and the certificates.",
)
_days = click.option(
    "--days",
    default=365,
    show_default=True,
    type=click.IntRange(1, 3650),
    metavar="DAYS",
    help="Validity of the members' certificates in days.",
)


@click.group(
    name="certs",
    short_help="Make, renew and show certificates of members.",
    epilog="""\b
Examples:
  fleet certs init --config fleet.yaml --out certs
  fleet certs renew --config fleet.yaml --out certs --days 90 p1
  fleet certs show --config fleet.yaml --json
""",
)
def certs_group() -> None:
    """Make, renew and show the certificates of members, for links between members and admin addresses."""


@certs_group.command(
    name="init",
    short_help="Make an authority, and a certificate for each member.",
    epilog="\b\nExample:\n  fleet certs init --config fleet.yaml --out certs",
)
@config_option
@_out
@_days
@json_option
def certs_init(config: str, out: Path, days: int, as_json: bool) -> int:
    """Make a certificate authority for this fleet, and a certificate and a key for each member.

    Never overwrites a file.
    """
    from fleet.tls import issuing

    settings = load(config, os.environ)
    hosts = issuing.member_hosts(settings)
    issuing.make(settings.fleet, tuple(settings.members), out, days, datetime.now(UTC), hosts)
    _print_certs(settings, {each: issuing.member_files(out, each) for each in settings.members}, out, as_json)
    return OK


@certs_group.command(
    name="renew",
    short_help="Replace certificates, with the same authority.",
    epilog="\b\nExamples:\n  fleet certs renew\n  fleet certs renew p4          for a new member",
)
@click.argument("members", nargs=-1, metavar="[MEMBER]...")
@config_option
@_out
@_days
@json_option
def certs_renew(config: str, out: Path, days: int, as_json: bool, members: tuple[ProxyId, ...]) -> int:
    """Replace the certificates and keys in DIR: of all members, or of the members named.

    Running members load the new files as soon as they are replaced on their machines.
    """
    from fleet.tls import issuing

    settings = load(config, os.environ)
    selected = [settings.member(each).proxy_id for each in members or settings.members]
    issuing.renew(settings.fleet, selected, out, days, datetime.now(UTC), issuing.member_hosts(settings))
    _print_certs(settings, {each: issuing.member_files(out, each) for each in selected}, out, as_json)
    return OK


@certs_group.command(
    name="show",
    short_help="Show when certificates expire.",
    epilog="\b\nExample:\n  fleet certs show --config fleet.yaml",
)
@config_option
@json_option
def certs_show(config: str, as_json: bool) -> int:
    """Show when the certificates in the configuration expire, if they are on this machine."""
    settings = load(config, os.environ)
    if settings.peer_tls is None:
        raise CertificateError(
            f"{settings.source}: no section `peer_tls`, so no member has a certificate; add `peer_tls`"
        )
    _print_certs(settings, {each: settings.peer_tls.files(each) for each in settings.members}, None, as_json)
    return OK


def _print_certs(
    settings: Settings, files: Mapping[ProxyId, PeerTlsFiles], made_in: Path | None, as_json: bool
) -> None:
    from fleet.tls import checking, issuing

    def document(proxy_id: ProxyId, paths: PeerTlsFiles) -> CertificateDocument:
        expires = checking.file_expiry(paths.certificate)
        text = None if expires is None else f"{expires:%Y-%m-%dT%H:%M:%SZ}"
        return CertificateDocument(proxy_id, str(paths.ca), str(paths.certificate), str(paths.key), text)

    steps = () if made_in is None else issuing.next_steps(settings, tuple(files), made_in)
    members = tuple(document(proxy_id, paths) for proxy_id, paths in files.items())
    print_document(CertsDocument(settings.fleet, members, steps), CERTS, as_json, tables.print_certs)
