"""TLS towards the brokers, and why a connection of any kind failed, in words for an operator."""

from __future__ import annotations

import ssl
from typing import Final, TypeAlias

from fleet.config import UpstreamSettings, UpstreamTlsSettings
from fleet.followed import Followed

_PLAINTEXT: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "BAD_RECORD_TYPE"})
"""What OpenSSL calls the first bytes of a peer that speaks something else."""

BrokerTls: TypeAlias = Followed[ssl.SSLContext]


def to_brokers(upstream: UpstreamSettings) -> BrokerTls | None:
    """What connections to brokers are secured with; None where they are in plaintext."""
    tls = upstream.tls
    if tls is None:
        return None
    return Followed(
        tls.files.values(), lambda: _broker_context(tls), "certificates for the way to the brokers"
    )


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
    if reason == "CALLBACK_FAILED":  # the one callback that there is says so
        return "the server name that it gives is none of this listener's"
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
