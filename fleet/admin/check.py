"""What is wrong with the files and variables that ``admin:`` names, found before anything is bound."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fleet.admin.access import believing
from fleet.admin.tls import make_context
from fleet.admin.tokens import read_tokens
from fleet.config import AdminTlsSettings, Settings, TokenSettings, is_wildcard
from fleet.config.document import Problem
from fleet.config.secrets import Secret
from fleet.errors import ConfigError
from fleet.model import Endpoint, ProxyId
from fleet.peer_tls import explain, rehearse


def check_member(settings: Settings, proxy_id: ProxyId, environ: Mapping[str, str] = os.environ) -> None:
    """Read the tokens and certificates of one member, and verify the latter as the commands do.

    Raises: ConfigError: every mistake, one line each, without the tokens
    """
    admin, source = settings.admin, settings.source
    mistakes: list[str] = []
    if admin.tls is not None:
        mistakes += _wrong_files(admin.tls.of(proxy_id), settings.member(proxy_id).admin, source)
    if admin.tokens is not None:
        mistakes += _wrong_tokens(admin.tokens, source, environ)
    _raise(mistakes)


def check_present(settings: Settings, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The same for all members, as far as their files and variables are on this machine.

    Returns: what is not all here
    Raises:  ConfigError: every mistake, one line each, without the tokens
    """
    admin, source = settings.admin, settings.source
    mistakes: list[str] = []
    elsewhere = []
    if admin.tls is not None:
        for proxy_id, member in settings.members.items():
            files = admin.tls.of(proxy_id)
            if all(os.access(path, os.R_OK) for path in (files.certificate, files.key)):
                mistakes += _wrong_files(files, member.admin, source)
            else:
                elsewhere.append(f"admin.tls of {proxy_id}")
    if admin.tokens is not None:
        if _is_here(admin.tokens.read, environ) and _is_here(admin.tokens.write, environ):
            mistakes += _wrong_tokens(admin.tokens, source, environ)
        else:
            elsewhere.append("admin.tokens")
    _raise(mistakes)
    return tuple(elsewhere)


def _raise(mistakes: Sequence[str]) -> None:
    if mistakes:
        raise ConfigError("\n".join(dict.fromkeys(mistakes)))


def _is_here(secret: Secret, environ: Mapping[str, str]) -> bool:
    return secret.env in environ if secret.file is None else os.access(secret.file, os.R_OK)


def _wrong_tokens(tokens: TokenSettings, source: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    try:
        read_tokens(tokens, source, environ)
    except ConfigError as error:
        return (str(error),)
    return ()


def _wrong_files(files: AdminTlsSettings, admin: Endpoint, source: str) -> tuple[str, ...]:
    def problem(shown: str, rule: str, fix: str) -> tuple[str, ...]:
        path = ("admin", "tls", "certificate")
        return (Problem(files.lines["certificate"], path, shown, rule, fix).text(source),)

    shown = str(files.certificate)
    try:
        server = make_context(files)
    except OSError as error:
        reason = explain(error) if isinstance(error, ssl.SSLError) else str(error.strerror).lower()
        fix = "name a PEM certificate and its key, without a passphrase"
        return problem(str(error.filename or shown), f"cannot be used ({reason})", fix)
    # Where the authority is not here, the certificate is taken for its own: dates and names are verified.
    there = files.ca is not None and os.access(files.ca, os.R_OK)
    try:
        client = believing(files if there else replace(files, ca=files.certificate), source)
    except ConfigError as error:
        return (str(error),)
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.check_hostname = not is_wildcard(admin.host)
    try:
        rehearse(server, client, admin.host)
    except OSError as error:
        fix = f"have it issued for {admin.host}, for servers, by an authority in admin.tls.ca, and valid now"
        return problem(shown, f"commands would refuse it: {explain(error)}", fix)
    return ()
