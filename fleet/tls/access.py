"""Credentials for requests to admin addresses: a token, and the authorities that verify the members."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import aiohttp

from fleet.config import AdminTlsSettings, Settings
from fleet.config.document import Problem
from fleet.config.secrets import Secret
from fleet.core.errors import ConfigError
from fleet.tls.pem import UnusableInput, verifying_context

TOKEN_ENV: Final = "FLEET_TOKEN"
TOKEN_FILE_ENV: Final = "FLEET_TOKEN_FILE"
_MISSING_CA: Final = (
    "copy the certificate of the authority here, or write `ca: null` to use the authorities of the system"
)


@dataclass(frozen=True, slots=True, repr=False)
class Access:
    """The credentials of one command.

    Args:
        token: None to send no token.
        tls: None to trust the authorities of the system.
    """

    token: str | None = None
    tls: ssl.SSLContext | None = None

    @property
    def headers(self) -> Mapping[str, str]:
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}

    def session(self) -> aiohttp.ClientSession:
        """A session that sends the token with each request."""
        connector = aiohttp.TCPConnector(ssl=True if self.tls is None else self.tls)
        return aiohttp.ClientSession(connector=connector, headers=self.headers)


OPEN: Final = Access()


def access_to(settings: Settings | None, environ: Mapping[str, str], *, writes: bool = False) -> Access:
    """The credentials for requests to the members of a configuration.

    A token in the environment wins over the configuration. For reading, the write token serves if the read
    token is not available on this machine.

    Args:
        settings: None for members that no configuration describes.
        writes: whether the requests change something.

    Raises:
        ConfigError: a required token is missing, or the file ``admin.tls.ca`` cannot be used.
    """
    token = _environment_token(environ)
    if settings is None:
        return Access(token)
    tokens = settings.admin.tokens
    if token is None and tokens is not None:
        places = (tokens.write,) if writes else (tokens.read, tokens.write)
        token = _read_first(places, settings.source, environ)
    return Access(token, _trust(settings))


def without_token(settings: Settings) -> Access:
    """The credentials for pages that require no token.

    Raises:
        ConfigError: the file ``admin.tls.ca`` cannot be used.
    """
    return Access(tls=_trust(settings))


def _trust(settings: Settings) -> ssl.SSLContext | None:
    tls = settings.admin.tls
    return None if tls is None else admin_client_context(tls, settings.source)


def _environment_token(environ: Mapping[str, str]) -> str | None:
    if environ.get(TOKEN_ENV):
        return Secret(None, TOKEN_ENV, (), 0).read("environment", environ)
    if environ.get(TOKEN_FILE_ENV):
        return Secret(Path(environ[TOKEN_FILE_ENV]), None, (), 0).read(TOKEN_FILE_ENV, environ)
    return None


def _read_first(places: tuple[Secret, ...], source: str, environ: Mapping[str, str]) -> str:
    mistakes = []
    for place in places:
        try:
            return place.read(source, environ)
        except ConfigError as error:
            mistakes.append(str(error))
    raise ConfigError(f"{mistakes[0]}; or set {TOKEN_ENV} or {TOKEN_FILE_ENV}")


def admin_client_context(tls: AdminTlsSettings, source: str) -> ssl.SSLContext:
    """A context that verifies the certificates of admin addresses.

    Raises: ConfigError: the file ``admin.tls.ca`` cannot be used
    """
    try:
        context = verifying_context(tls.ca)
    except UnusableInput as error:
        is_of_file = error.field in tls.lines
        path = ("admin", "tls", error.field) if is_of_file else (error.field,)
        problem = Problem(tls.lines.get(error.field, 0), path, error.value, error.rule, error.fix)
        if tls.ca is not None and not tls.ca.exists():
            problem = replace(problem, fix=_MISSING_CA)
        raise ConfigError(problem.text(source)) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
