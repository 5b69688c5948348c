"""TLS towards the brokers, and explanations of failed connections to them."""

from __future__ import annotations

import ssl
from typing import Final, TypeAlias

from fleet.config import UpstreamSettings, UpstreamTlsSettings
from fleet.tls.peers import explain
from fleet.tls.pem import load_pair, verifying_context
from fleet.tls.reloading import Reloading

BrokerTls: TypeAlias = Reloading[ssl.SSLContext]


def broker_tls(upstream: UpstreamSettings) -> BrokerTls | None:
    """The TLS context for connections to brokers, reloaded with its files; None for plaintext."""
    tls = upstream.tls
    if tls is None:
        return None
    return Reloading(tls.files.values(), lambda: _context(tls), "certificates for brokers")


def _context(tls: UpstreamTlsSettings) -> ssl.SSLContext:
    """A context from the current files; the error names the section. Raises: OSError: a file is unusable."""
    try:
        return broker_context(tls)
    except OSError as error:
        raise ssl.SSLError(f"cannot use the files of upstream.tls: {error}") from error


def broker_context(tls: UpstreamTlsSettings) -> ssl.SSLContext:
    """A context for connections to brokers, from the current files.

    Raises: UnusableInput: a file cannot be read or is not PEM, or the key does not match the certificate
    """
    context = verifying_context(tls.ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # Python of Debian leaves the minimum to OpenSSL
    context.options |= ssl.OP_NO_RENEGOTIATION  # Kafka's brokers do not renegotiate
    context.check_hostname = tls.check_hostname
    if tls.certificate is not None and tls.key is not None:
        load_pair(context, tls.certificate, tls.key)
    return context


DIAL_ERRORS: Final = (OSError, ValueError, OverflowError)
"""Errors of dialling a broker. ValueError and OverflowError: its address is not valid."""


def explain_dial(error: Exception) -> str:
    """Why a broker cannot be reached, for an operator; with TLS or without."""
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, OSError) and (isinstance(error, ssl.SSLError) or not str(error)):
        return explain(error)
    return str(error)
