"""With what members' admin addresses are asked: a token, and whose certificates are believed."""

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
    "copy the authority's certificate here, or write `ca: null` for those that the system believes"
)


@dataclass(frozen=True, slots=True, repr=False)
class Access:
    """What one command shows, and believes.

    Args:
        token: None to show none.
        tls: None for what the system believes.
    """

    token: str | None = None
    tls: ssl.SSLContext | None = None

    @property
    def headers(self) -> Mapping[str, str]:
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}

    def session(self) -> aiohttp.ClientSession:
        """A session whose requests have the token in them."""
        connector = aiohttp.TCPConnector(ssl=True if self.tls is None else self.tls)
        return aiohttp.ClientSession(connector=connector, headers=self.headers)


OPEN: Final = Access()


def access_to(settings: Settings | None, environ: Mapping[str, str], *, writes: bool = False) -> Access:
    """How the members of a configuration are asked from here.

    The token is that of the environment; else the configuration says where it is. To read, that to write does
    as well, where the other one is not here.

    Args:
        settings: None where members are asked that no configuration describes.
        writes: whether something is to be changed.

    Raises:
        ConfigError: there is no token although one is needed, or the file ``admin.tls.ca`` cannot be used.
    """
    token = _of_environment(environ)
    if settings is None:
        return Access(token)
    tokens = settings.admin.tokens
    if token is None and tokens is not None:
        places = (tokens.write,) if writes else (tokens.read, tokens.write)
        token = _first(places, settings.source, environ)
    return Access(token, _trust(settings))


def without_token(settings: Settings) -> Access:
    """How they are asked for what everybody may read.

    Raises:
        ConfigError: the file ``admin.tls.ca`` cannot be used.
    """
    return Access(tls=_trust(settings))


def _trust(settings: Settings) -> ssl.SSLContext | None:
    tls = settings.admin.tls
    return None if tls is None else admin_client_context(tls, settings.source)


def _of_environment(environ: Mapping[str, str]) -> str | None:
    if environ.get(TOKEN_ENV):
        return Secret(None, TOKEN_ENV, (), 0).read("environment", environ)
    if environ.get(TOKEN_FILE_ENV):
        return Secret(Path(environ[TOKEN_FILE_ENV]), None, (), 0).read(TOKEN_FILE_ENV, environ)
    return None


def _first(places: tuple[Secret, ...], source: str, environ: Mapping[str, str]) -> str:
    mistakes = []
    for place in places:
        try:
            return place.read(source, environ)
        except ConfigError as error:
            mistakes.append(str(error))
    raise ConfigError(f"{mistakes[0]}; {TOKEN_ENV} and {TOKEN_FILE_ENV} stand in for it")


def admin_client_context(tls: AdminTlsSettings, source: str) -> ssl.SSLContext:
    """How a member's certificate is verified.

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
