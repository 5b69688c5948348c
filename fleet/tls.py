"""TLS contexts that follow their files, those for connections to brokers, and why a connection failed."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Generic, TypeAlias, TypeVar

from fleet.config import UpstreamSettings, UpstreamTlsSettings

log = logging.getLogger(__name__)

_PLAINTEXT: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "BAD_RECORD_TYPE"})
"""What OpenSSL calls the first bytes of a peer that speaks something else."""

T = TypeVar("T")
Stamp: TypeAlias = tuple[tuple[int, int, int], ...]


class Followed(Generic[T]):
    """What is made of certificate files, and made anew whenever one of them has changed; for any thread.

    Args:
        paths: the files.
        make: raises OSError where they cannot be used.
    """

    def __init__(self, paths: Sequence[Path], make: Callable[[], T]) -> None:
        self._paths = paths
        self._make = make
        self._stamp: Stamp | None = None
        self._made: T | None = None

    def now(self) -> T:
        """For a connection that is made now.

        Files that have changed and do not fit each other, as in the middle of a rotation, change nothing: the
        former certificates stay in use, where there are any.

        Raises: OSError: the files cannot be used, and never could
        """
        stamp = self._look()
        if stamp != self._stamp or self._made is None:
            self._stamp = stamp
            try:
                self._made = self._make()
            except OSError as error:
                if self._made is None:
                    raise ssl.SSLError(f"the certificates of this member cannot be used: {error}") from error
                log.warning("the new certificates cannot be used, the former stay: %s", error)
        return self._made

    def _look(self) -> Stamp | None:
        """What changes when a file does; None where one is missing."""
        try:
            found = [path.stat() for path in self._paths]
        except OSError:
            return None
        return tuple((each.st_mtime_ns, each.st_ino, each.st_size) for each in found)


BrokerTls: TypeAlias = Followed[ssl.SSLContext]


def to_brokers(upstream: UpstreamSettings) -> BrokerTls | None:
    """What connections to brokers are secured with; None where they are in plaintext."""
    tls = upstream.tls
    return None if tls is None else Followed(tuple(tls.files.values()), lambda: _broker_context(tls))


def _broker_context(tls: UpstreamTlsSettings) -> ssl.SSLContext:
    for path in tls.files.values():
        path.open("rb").close()  # its error names the file, and OpenSSL's does not
    context = ssl.create_default_context(cafile=tls.ca)
    context.check_hostname = tls.check_hostname
    if tls.certificate is not None:
        context.load_cert_chain(tls.certificate, tls.key, password="")  # never ask a terminal
    return context


def explain(error: Exception) -> str:
    """What has ended a connection, in words for an operator."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if not isinstance(error, ssl.SSLError):
        # asyncio says nothing of a peer that ends the handshake.
        return f"connection lost: {error}" if str(error) else "hung up in the handshake; its log says why"
    reason = getattr(error, "reason", None)  # OpenSSL's own errors have one
    if reason is None:
        return str(error.args[0]) if error.args else "TLS failed"
    if reason in _PLAINTEXT:
        return "it does not speak TLS"
    return f"TLS: {reason.lower().replace('_', ' ')}"


def explain_dial(error: OSError) -> str:
    """Why a broker cannot be reached, in words for an operator; with TLS or without."""
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, ssl.SSLError) or not str(error):
        return explain(error)
    return str(error)
