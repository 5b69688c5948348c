"""Tokens of the admin interface: one token to read, and one to write, which also allows reading."""

from __future__ import annotations

import hmac
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from fleet.config import Settings, TokenSettings
from fleet.config.document import Problem
from fleet.core.errors import ConfigError
from fleet.core.log_limit import LogLimit
from fleet.tls.reloading import Reloading

log = logging.getLogger(__name__)

MIN_TOKEN_CHARS: Final = 16
REFUSAL_LOG_INTERVAL_S: Final = 60.0
MAX_LOGGED_SOURCES: Final = 1000
"""Refusals of at most N sources are logged in each interval. Refusals of other sources are only counted."""

Refusal: TypeAlias = Literal["no_token", "wrong_token", "read_only", "unreadable"]
REFUSALS: Final[tuple[Refusal, ...]] = get_args(Refusal)
Role: TypeAlias = Literal["read", "write"]
_SCHEME: Final = "bearer"


@dataclass(frozen=True, slots=True, repr=False)
class Tokens:
    """The two tokens."""

    read: str
    write: str

    def refusal(self, authorization: str | None, writes: bool) -> Refusal | None:
        """Why a request is refused; None if the request is allowed.

        Args:
            authorization: the header ``Authorization``, ``Bearer TOKEN``.
            writes: whether the request changes something.
        """
        scheme, _, token = (authorization or "").strip().partition(" ")
        if scheme.lower() != _SCHEME or not token:
            return "no_token"
        if _equal(token, self.write):
            return None
        if not _equal(token, self.read):
            return "wrong_token"
        return "read_only" if writes else None


def _equal(presented: str, expected: str) -> bool:
    """Compare two tokens in constant time."""
    return hmac.compare_digest(presented.strip().encode(errors="surrogateescape"), expected.encode())


def read_tokens(settings: TokenSettings, source: str, environ: Mapping[str, str] = os.environ) -> Tokens:
    """The current tokens.

    Args:    source: the name of the configuration file in errors
    Raises:  ConfigError: every mistake, one line each, without the tokens
    """
    found, mistakes = [], []
    for each in (settings.read, settings.write):
        try:
            token = each.read(source, environ)
        except ConfigError as error:
            mistakes.append(str(error))
            continue
        found.append(token)
        if len(token) < MIN_TOKEN_CHARS or not token.isascii() or " " in token:
            rule = f"must be at least {MIN_TOKEN_CHARS} ASCII characters without a space"
            fix = "create one with `openssl rand -hex 32`"
            mistakes.append(Problem(each.line, each.path, "", rule, fix).text(source))
    if len(set(found)) == 1 < len(found):
        rule, fix = "must differ from the read token", "create a separate one with `openssl rand -hex 32`"
        mistakes.append(Problem(settings.write.line, settings.write.path, "", rule, fix).text(source))
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return Tokens(*found)


def check_tokens(
    settings: Settings, *, must_be_there: bool, environ: Mapping[str, str] = os.environ
) -> tuple[str, ...]:
    """Read the tokens, if the configuration has any.

    Returns: the sections with tokens that are not on this machine
    Raises:  ConfigError: every mistake, one line each; with ``must_be_there`` also a missing token
    """
    tokens = settings.admin.tokens
    if tokens is None:
        return ()
    if not must_be_there and not (tokens.read.is_available(environ) and tokens.write.is_available(environ)):
        return ("admin.tokens",)
    read_tokens(tokens, settings.source, environ)
    return ()


class Gate:
    """Checks requests against the current tokens; counts and logs the refused requests.

    Args:
        source: the name of the configuration file in errors.
    """

    def __init__(self, settings: TokenSettings, source: str, environ: Mapping[str, str] = os.environ) -> None:
        def make() -> Tokens:
            try:
                return read_tokens(settings, source, environ)
            except ConfigError as error:
                raise OSError(str(error)) from None

        files = [each.file for each in (settings.read, settings.write) if each.file is not None]
        self._tokens = Reloading(files, make, "tokens of the admin address")
        try:
            self._tokens.get()
        except OSError as error:
            log.error("admin API is closed: cannot read the tokens: %s", error)
        self._logged = LogLimit(REFUSAL_LOG_INTERVAL_S, MAX_LOGGED_SOURCES)
        self.refused: dict[Refusal, int] = dict.fromkeys(REFUSALS, 0)

    def refusal(self, authorization: str | None, writes: bool, source: str) -> Refusal | None:
        """Why a request is refused; None if the request is allowed. Refusals are counted and logged.

        Args:    source: the address of the client
        Returns: ``unreadable`` if the tokens could never be read, else as ``Tokens.refusal``
        """
        refusal: Refusal | None
        try:
            refusal = self._tokens.get().refusal(authorization, writes)
        except OSError:
            refusal = "unreadable"
        if refusal is not None:
            self.refused[refusal] += 1
            self._log_refusal(refusal, source, time.monotonic())
        return refusal

    def role(self, authorization: str | None) -> Role | None:
        """The role of a token; None if the token is not valid. Refusals are not counted."""
        try:
            tokens = self._tokens.get()
        except OSError:
            return None
        if tokens.refusal(authorization, writes=True) is None:
            return "write"
        return "read" if tokens.refusal(authorization, writes=False) is None else None

    def _log_refusal(self, refusal: Refusal, source: str, now_s: float) -> None:
        """Log at most one line a minute for each source."""
        if self._logged.is_due(now_s, source):
            log.warning("admin request refused: source=%s reason=%s", source, refusal)
