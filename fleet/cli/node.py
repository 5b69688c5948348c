"""What is done with the configuration file: one member is run, or the whole file checked."""

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
    """Run one member until SIGTERM, which drains it; a second one stops it at once.

    With --json the one object says how it ended; log lines go to standard error either way.
    """
    settings = load(config, os.environ)
    settings.member(node)
    if _names_files(settings):
        from fleet.tls import checking  # 15 MB that a supervisor without certificates does not need

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
    "--node", envvar="FLEET_NODE", show_envvar=True, metavar="ID", help="The member of this machine, if any."
)
@json_option
def check(config: str, node: str | None, as_json: bool) -> int:
    """Say every mistake in the configuration file, or what a fleet of that shape survives.

    Certificates, tokens and data directories are verified as far as they are on this machine; with --node,
    those of that member alone, and certificates and tokens must be.
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
    document = config_document(settings, unverified, elsewhere, port_warnings(settings, here))
    print_document(document, CHECK, as_json, tables.print_config)
    return OK


def _names_files(settings: Settings) -> bool:
    """Whether there is anything for ``fleet.tls.checking`` to look at."""
    secured = settings.peer_tls is not None or settings.admin.tls is not None or bool(settings.listener_tls)
    return secured or settings.upstream != UpstreamSettings()


def _check_tracing(settings: Settings, *, must_be_there: bool) -> tuple[str, ...]:
    """Look whether traces can be sent, where they are to be.

    Returns: what is not on this machine
    Raises:  ConfigError: a package, or a header, is not here; with ``must_be_there`` alone
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


def port_warnings(settings: Settings, members: Iterable[MemberSettings]) -> tuple[str, ...]:
    """A sentence for each set of ports that this machine's kernel may give to an outgoing connection."""
    from fleet.runtime.sockets import listening_ports

    kernel = read_ephemeral_ports()
    found: dict[PortTrouble, list[ProxyId]] = {}
    for member in members:
        trouble = port_trouble(listening_ports(settings, member), kernel)
        if trouble is not None:
            found.setdefault(trouble, []).append(member.proxy_id)
    return tuple(
        f"members.{', members.'.join(names)}: by the settings of this machine {trouble.detail}; {trouble.fix}"
        for trouble, names in found.items()
    )


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # nor is what it would be in
        return False


def config_document(
    settings: Settings,
    unverified: tuple[ProxyId, ...] = (),
    elsewhere: tuple[str, ...] = (),
    of_ports: tuple[str, ...] = (),
) -> ConfigDocument:
    """What is said of a file that is right.

    Args:
        unverified: members whose certificates are not all here.
        elsewhere: what else is not here, in words of the configuration.
        of_ports: what is said of ports that this machine's kernel may give away.
    """
    warnings = advice(settings) + of_ports
    if unverified:
        names = ", ".join(unverified)
        warnings += (f"the certificates of {names} are not all on this machine, and were not verified",)
    if elsewhere:
        warnings += (f"{', '.join(elsewhere)}: not on this machine, and not verified",)
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
        survives=describe_tolerance(settings),
        warnings=warnings,
    )
