"""``fleet node`` and ``fleet check``: run one member, or check the configuration file."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Final

import click

from fleet.admin.documents import CHECK, NODE, CheckedMember, ConfigDocument, NodeDocument
from fleet.cli.options import config_option, json_option, node_option
from fleet.cli.output import OK, print_document
from fleet.cli.render import tables
from fleet.config import MemberSettings, Settings, UpstreamSettings, advice, describe_tolerance
from fleet.config.document import Problem
from fleet.config.file import load
from fleet.core.errors import ConfigError
from fleet.core.model import ProxyId
from fleet.runtime import data_dir
from fleet.runtime.ephemeral_ports import PortTrouble, port_trouble, read_ephemeral_ports
from fleet.tls.tokens import check_tokens

TRACING_PACKAGES: Final = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


@click.command(
    short_help="Run one member.", epilog="\b\nExample:\n  fleet node --config /etc/fleet.yaml --node p1"
)
@config_option
@node_option
@json_option
def node(config: str, node: str, as_json: bool) -> int:
    """Run one member until SIGTERM, which drains it. A second SIGTERM stops it at once.

    Log lines go to standard error. With --json, the object at the end has the exit code.
    """
    settings = load(config, os.environ)
    settings.member(node)
    if _names_files(settings):
        from fleet.tls import checking  # takes 15 MB; a supervisor without certificates does not need it

        checking.check_member(settings, node)
        checking.check_upstream(settings, must_be_there=True)
    check_tokens(settings, must_be_there=True)
    _check_tracing(settings, must_be_there=True)
    importlib.import_module("fleet.runtime.stderr_log").log_to_stderr(node)
    code: int = importlib.import_module("fleet.runtime.supervisor").run(settings, node)
    if as_json:
        click.echo(NODE.encode(NodeDocument(node, code)))
    return code


@click.command(
    short_help="Check the configuration file.",
    epilog="\b\nExamples:\n  fleet check --config fleet.yaml\n  fleet check --config fleet.yaml --node p1",
)
@config_option
@click.option(
    "--node",
    envvar="FLEET_NODE",
    show_envvar=True,
    metavar="ID",
    help="Member of this machine. Its certificates and tokens must be here.",
)
@json_option
def check(config: str, node: str | None, as_json: bool) -> int:
    """Check the configuration file: print every mistake, or which failures such a fleet tolerates.

    Also checks the certificates, tokens and data directories that are on this machine. With --node, only
    those of that member are checked, and missing certificates and tokens are errors.
    """
    settings = load(config, os.environ)
    unverified: tuple[ProxyId, ...] = ()
    elsewhere: tuple[str, ...] = ()
    here = list(settings.members.values()) if node is None else [settings.member(node)]
    for member in here:
        data_dir.check(member)
    if _names_files(settings):
        from fleet.tls import checking

        if node is not None:
            checking.check_member(settings, node)
        else:
            unverified = checking.check_present(settings)
        elsewhere = checking.check_upstream(settings, must_be_there=node is not None)
    elsewhere += check_tokens(settings, must_be_there=node is not None)
    elsewhere += _check_tracing(settings, must_be_there=node is not None)
    document = config_document(settings, unverified, elsewhere, warn_of_ports(settings, here))
    print_document(document, CHECK, as_json, tables.print_config)
    return OK


def _names_files(settings: Settings) -> bool:
    """Whether the configuration names files that ``fleet.tls.checking`` checks."""
    secured = settings.peer_tls is not None or settings.admin.tls is not None or bool(settings.listener_tls)
    return secured or settings.upstream != UpstreamSettings()


def _check_tracing(settings: Settings, *, must_be_there: bool) -> tuple[str, ...]:
    """Check that this machine has what a configuration with ``tracing`` needs: packages and secret headers.

    Returns: what is not on this machine
    Raises:  ConfigError: ``must_be_there``, and a package or a header is not on this machine
    """
    tracing = settings.tracing
    if tracing is None:
        return ()
    missing = [each for each in TRACING_PACKAGES if not _is_installed(each)]
    if must_be_there and missing:
        rule = f"needs packages that are not installed ({', '.join(missing)})"
        problem = Problem(tracing.line, ("tracing",), "", rule, "pip install 'kafka-proxy-fleet[otel]'")
        raise ConfigError(problem.text(settings.source))
    elsewhere = [f"packages of tracing ({each})" for each in missing]
    for name, secret in tracing.headers.items():
        if must_be_there or secret.is_available():
            secret.read(settings.source)
        else:
            elsewhere.append(f"tracing.headers.{name}")
    return tuple(elsewhere)


def warn_of_ports(settings: Settings, members: Iterable[MemberSettings]) -> tuple[str, ...]:
    """A warning for each set of ports that this machine's kernel may give to an outgoing connection."""
    from fleet.runtime.sockets import listening_ports

    kernel = read_ephemeral_ports()
    members_by_trouble: dict[PortTrouble, list[ProxyId]] = {}
    for member in members:
        trouble = port_trouble(listening_ports(settings, member), kernel)
        if trouble is not None:
            members_by_trouble.setdefault(trouble, []).append(member.proxy_id)
    return tuple(
        f"members.{', members.'.join(names)}: on this machine, {trouble.detail}; {trouble.fix}"
        for trouble, names in members_by_trouble.items()
    )


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False


def config_document(
    settings: Settings,
    unverified: tuple[ProxyId, ...] = (),
    elsewhere: tuple[str, ...] = (),
    port_warnings: tuple[str, ...] = (),
) -> ConfigDocument:
    """The document for a configuration file without mistakes.

    Args:
        unverified: members whose certificates are not all on this machine.
        elsewhere: other files that are not on this machine, by their names in the configuration.
        port_warnings: warnings about ports that this machine's kernel may give away.
    """
    warnings = advice(settings) + port_warnings
    if unverified:
        names = ", ".join(unverified)
        warnings += (f"the certificates of {names} are not all on this machine, so they were not verified",)
    if elsewhere:
        warnings += (f"{', '.join(elsewhere)}: not on this machine, so not verified",)
    return ConfigDocument(
        source=settings.source,
        fleet=settings.fleet,
        members=tuple(
            CheckedMember(
                member.proxy_id,
                member.rack,
                member.voter,
                member.witness,
                member.to_member(settings).listeners,
            )
            for member in settings.members.values()
        ),
        voters=settings.voters,
        tolerates=describe_tolerance(settings),
        warnings=warnings,
    )
