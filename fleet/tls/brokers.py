"""TLS towards the brokers, and why one of them cannot be reached."""

from __future__ import annotations

import ssl
from typing import Final, TypeAlias

from fleet.config import UpstreamSettings, UpstreamTlsSettings
from fleet.tls.peers import explain
from fleet.tls.pem import load_pair, verifying_context
from fleet.tls.reloading import Reloading

BrokerTls: TypeAlias = Reloading[ssl.SSLContext]


def to_brokers(upstream: UpstreamSettings) -> BrokerTls | None:
    """What connections to brokers are secured with; None where they are in plaintext."""
    tls = upstream.tls
    if tls is None:
        return None
    return Reloading(tls.files.values(), lambda: _context(tls), "certificates for brokers")


def _context(tls: UpstreamTlsSettings) -> ssl.SSLContext:
    """Raises: OSError: a file cannot be used."""
    try:
        return broker_context(tls)
    except OSError as error:
        raise ssl.SSLError(f"the files of upstream.tls cannot be used: {error}") from error


def broker_context(tls: UpstreamTlsSettings) -> ssl.SSLContext:
    """How brokers are met, with the files as they are now.

    Raises: UnusableInput: a file cannot be read, is not PEM, or the key is not that of the certificate
    """
    context = verifying_context(tls.ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # Debian's Python leaves that to OpenSSL
    context.options |= ssl.OP_NO_RENEGOTIATION  # Kafka's brokers know none, either
    context.check_hostname = tls.check_hostname
    if tls.certificate is not None and tls.key is not None:
        load_pair(context, tls.certificate, tls.key)
    return context


NOT_REACHED: Final = (OSError, ValueError, OverflowError)
"""What dialling a broker raises; the last two where its address is none, whoever gave it."""


def explain_dial(error: Exception) -> str:
    """Why a broker cannot be reached, in words for an operator; with TLS or without."""
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, OSError) and (isinstance(error, ssl.SSLError) or not str(error)):
        return explain(error)
    return str(error)
