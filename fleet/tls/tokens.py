"""Who may ask a member's admin interface for what: one token to read, and one to write, which reads, too."""

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

LEAST_LENGTH: Final = 16
LOG_EVERY_S: Final = 60.0
MAX_SOURCES: Final = 1000
"""So many are told apart in the log; what others do meanwhile is counted alone."""

Refusal: TypeAlias = Literal["no_token", "wrong_token", "read_only", "unreadable"]
REFUSALS: Final[tuple[Refusal, ...]] = get_args(Refusal)
Role: TypeAlias = Literal["read", "write"]
_SCHEME: Final = "bearer"


@dataclass(frozen=True, slots=True, repr=False)
class Tokens:
    """The two tokens themselves."""

    read: str
    write: str

    def refusal(self, authorization: str | None, writes: bool) -> Refusal | None:
        """Why a request is refused; None where it may pass.

        Args:
            authorization: the header of that name, ``Bearer TOKEN``.
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


def _equal(given: str, wanted: str) -> bool:
    """Takes the same time wherever the two differ."""
    return hmac.compare_digest(given.strip().encode(errors="surrogateescape"), wanted.encode())


def read_tokens(settings: TokenSettings, source: str, environ: Mapping[str, str] = os.environ) -> Tokens:
    """The tokens as they are now.

    Args:    source: what errors call the configuration file
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
        if len(token) < LEAST_LENGTH or not token.isascii() or " " in token:
            rule = f"must be {LEAST_LENGTH} characters of ASCII or more, without a space"
            mistakes.append(
                Problem(each.line, each.path, "", rule, "use `openssl rand -hex 32`").text(source)
            )
    if len(set(found)) == 1 < len(found):
        rule, fix = "is the token to read, too", "make one of its own, which not everybody who reads has"
        mistakes.append(Problem(settings.write.line, settings.write.path, "", rule, fix).text(source))
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return Tokens(*found)


def check_tokens(
    settings: Settings, *, must_be_there: bool, environ: Mapping[str, str] = os.environ
) -> tuple[str, ...]:
    """Read the tokens, where there are to be any.

    Returns: what is not all on this machine
    Raises:  ConfigError: as of ``read_tokens``; with ``must_be_there`` that one is not here, too
    """
    tokens = settings.admin.tokens
    if tokens is None:
        return ()
    if not must_be_there and not (tokens.read.is_available(environ) and tokens.write.is_available(environ)):
        return ("admin.tokens",)
    read_tokens(tokens, settings.source, environ)
    return ()


class Gate:
    """Judges requests by the tokens as they are then; counts, and logs, whom it turns away.

    Args:
        source: what errors call the configuration file.
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
            log.error("nobody may ask this member until its tokens can be read: %s", error)
        self._logged = LogLimit(LOG_EVERY_S, MAX_SOURCES)
        self.refused: dict[Refusal, int] = dict.fromkeys(REFUSALS, 0)

    def refusal(self, authorization: str | None, writes: bool, source: str) -> Refusal | None:
        """As of ``Tokens``, or that there are none that can be used, and never were; counted.

        Args:    source: the address that asks
        """
        refusal: Refusal | None
        try:
            refusal = self._tokens.get().refusal(authorization, writes)
        except OSError:
            refusal = "unreadable"
        if refusal is not None:
            self.refused[refusal] += 1
            self._tell(refusal, source, time.monotonic())
        return refusal

    def role(self, authorization: str | None) -> Role | None:
        """What a token is for now; None where it is none. Not counted."""
        try:
            tokens = self._tokens.get()
        except OSError:
            return None
        if tokens.refusal(authorization, writes=True) is None:
            return "write"
        return "read" if tokens.refusal(authorization, writes=False) is None else None

    def _tell(self, refusal: Refusal, source: str, now_s: float) -> None:
        """At most one line a minute for each source."""
        if self._logged.is_due(now_s, source):
            log.warning("%s is refused: %s", source, refusal.replace("_", " "))
