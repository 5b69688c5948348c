"""Mutual TLS between members: contexts, and the member that a certificate names.

The certificate of a member has the URI ``fleet://FLEET/ID`` among its subject alternative names. No other
name in the certificate counts. The file ``ca`` lists the authorities that may issue it.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from fleet.config import PeerTlsFiles, Settings
from fleet.core.model import ProxyId
from fleet.tls.pem import load_authorities, load_pair
from fleet.tls.reloading import Reloading

_PLAINTEXT: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "BAD_RECORD_TYPE"})
"""OpenSSL's reasons for the first bytes of a peer that does not speak TLS."""

NOT_TLS: Final = "it does not speak TLS"

Contexts: TypeAlias = tuple[ssl.SSLContext, ssl.SSLContext]


def member_uri(fleet: str, proxy_id: ProxyId) -> str:
    """The name of a member in its certificate. Any configured fleet and id consist of URI characters."""
    return f"fleet://{fleet}/{proxy_id}"


def certificate_uris(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """The URIs in a verified certificate, as returned by ``SSLSocket.getpeercert``."""
    names = (certificate or {}).get("subjectAltName", ())
    return frozenset(name for kind, name in names if kind == "URI")


class PeerTls:
    """The TLS contexts of one member's links, reloaded whenever one of the files changes."""

    def __init__(self, files: PeerTlsFiles) -> None:
        paths = (files.ca, files.certificate, files.key)
        self._contexts = Reloading(paths, lambda: make_contexts(files), "certificates of this member's links")

    def context(self, *, server: bool) -> ssl.SSLContext:
        """The context for a new connection.

        Raises: OSError: the files could never be loaded
        """
        try:
            return self._contexts.get()[0 if server else 1]
        except OSError as error:
            raise ssl.SSLError(f"cannot use the certificates of this member: {error}") from error


def member_tls(settings: Settings, proxy_id: ProxyId) -> PeerTls | None:
    """TLS for the links of a member; None if the configuration has no ``peer_tls``."""
    return None if settings.peer_tls is None else PeerTls(settings.peer_tls.files(proxy_id))


def make_contexts(files: PeerTlsFiles) -> Contexts:
    """Contexts for the listening and for the dialling side.

    Raises: UnusableInput: a file cannot be read or is not PEM, or the key does not match the certificate
    """
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False  # members are identified by their ids, not by their hosts
    server.num_tickets = 0  # every connection is verified again
    for context in (server, client):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        load_authorities(context, files.ca, "ca")
        load_pair(context, files.certificate, files.key)
    return server, client


def check_handshake(
    server_context: ssl.SSLContext, client_context: ssl.SSLContext, host: str | None = None
) -> None:
    """Perform a handshake between two contexts in memory.

    Args:   host: the server name that the client sends and verifies
    Raises: OSError: one side refuses the other
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname=host)
    unfinished = [client, server_context.wrap_bio(to_server, to_client, server_side=True)]
    while unfinished:
        for side in list(unfinished):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            unfinished.remove(side)


def explain(error: Exception) -> str:
    """Why a connection ended, for an operator."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if not isinstance(error, ssl.SSLError):
        # asyncio raises an error without a text if the peer ends the handshake.
        return (
            f"connection lost: {error}" if str(error) else "closed during the handshake; see the peer's log"
        )
    reason = getattr(error, "reason", None)  # OpenSSL's own errors have one
    if reason is None:
        return str(error.args[0]) if error.args else "TLS failed"
    if reason == "CALLBACK_FAILED":  # only the server name callback can fail so
        return "its server name does not belong to this listener"
    if reason in _PLAINTEXT:
        return NOT_TLS
    return f"TLS: {reason.lower().replace('_', ' ')}"
