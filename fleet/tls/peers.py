"""Mutual TLS between members: their contexts, and whom a certificate names.

A member's certificate has the URI ``fleet://FLEET/ID`` among its subject alternative names; no other name in
it counts. Who may issue it is said by the file ``ca``.
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
"""What OpenSSL calls the first bytes of a peer that speaks something else."""

NOT_TLS: Final = "it does not speak TLS"

Contexts: TypeAlias = tuple[ssl.SSLContext, ssl.SSLContext]


def member_uri(fleet: str, proxy_id: ProxyId) -> str:
    """The name of a member in its certificate; both parts are URI characters in any configuration."""
    return f"fleet://{fleet}/{proxy_id}"


def certificate_uris(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """The URIs in a verified certificate, as ``SSLSocket.getpeercert`` describes it."""
    names = (certificate or {}).get("subjectAltName", ())
    return frozenset(name for kind, name in names if kind == "URI")


class PeerTls:
    """The TLS contexts of one member's links, made anew whenever one of its files has changed."""

    def __init__(self, files: PeerTlsFiles) -> None:
        paths = (files.ca, files.certificate, files.key)
        self._contexts = Reloading(paths, lambda: make_contexts(files), "certificates of this member's links")

    def context(self, *, server: bool) -> ssl.SSLContext:
        """The context for a connection that is made now.

        Raises: OSError: the files cannot be used, and never could
        """
        try:
            return self._contexts.get()[0 if server else 1]
        except OSError as error:
            raise ssl.SSLError(f"the certificates of this member cannot be used: {error}") from error


def of_member(settings: Settings, proxy_id: ProxyId) -> PeerTls | None:
    """What the links of a member are secured with; None where the configuration has no ``peer_tls``."""
    return None if settings.peer_tls is None else PeerTls(settings.peer_tls.files(proxy_id))


def make_contexts(files: PeerTlsFiles) -> Contexts:
    """Contexts for the listening and for the dialling side.

    Raises: UnusableInput: a file cannot be read, is not PEM, or the key is not that of the certificate
    """
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False  # members are known by their ids, wherever they are
    server.num_tickets = 0  # every connection is verified anew
    for context in (server, client):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        load_authorities(context, files.ca, "ca")
        load_pair(context, files.certificate, files.key)
    return server, client


def check_handshake(
    server_context: ssl.SSLContext, client_context: ssl.SSLContext, host: str | None = None
) -> None:
    """Have the two sides of a connection meet in memory.

    Args:   host: whom the client asks for
    Raises: OSError: one of them would refuse the other
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname=host)
    waiting = [client, server_context.wrap_bio(to_server, to_client, server_side=True)]
    while waiting:
        for side in list(waiting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(side)


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
        return NOT_TLS
    return f"TLS: {reason.lower().replace('_', ' ')}"
