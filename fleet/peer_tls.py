"""Mutual TLS between members: contexts that follow their files, and whom a certificate names.

A member's certificate has the URI ``fleet://FLEET/ID`` among its subject alternative names; no other name in
it counts. Who may issue it is said by the file ``ca``.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from fleet.config import PeerTlsFiles, Settings
from fleet.model import ProxyId

log = logging.getLogger(__name__)

_PLAINTEXT: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "BAD_RECORD_TYPE"})
"""What OpenSSL calls the first bytes of a peer that speaks something else."""

Contexts: TypeAlias = tuple[ssl.SSLContext, ssl.SSLContext]
Stamp: TypeAlias = tuple[tuple[int, int, int], ...]


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
        self._paths: tuple[Path, ...] = (files.ca, files.certificate, files.key)
        self._files = files
        self._stamp: Stamp | None = None
        self._contexts: Contexts | None = None

    def context(self, *, server: bool) -> ssl.SSLContext:
        """The context for a connection that is made now.

        Files that have changed and do not fit each other, as in the middle of a rotation, change nothing: the
        former certificates stay in use, where there are any.

        Raises: OSError: the files cannot be used, and never could
        """
        stamp = self._look()
        if stamp != self._stamp or self._contexts is None:
            self._stamp = stamp
            try:
                self._contexts = make_contexts(self._files)
            except OSError as error:
                if self._contexts is None:
                    raise ssl.SSLError(f"the certificates of this member cannot be used: {error}") from error
                log.warning("the new certificates cannot be used, the former stay: %s", error)
        return self._contexts[0 if server else 1]

    def _look(self) -> Stamp | None:
        """What changes when a file does; None where one is missing."""
        try:
            found = [path.stat() for path in self._paths]
        except OSError:
            return None
        return tuple((each.st_mtime_ns, each.st_ino, each.st_size) for each in found)


def of_member(settings: Settings, proxy_id: ProxyId) -> PeerTls | None:
    """What the links of a member are secured with; None where the configuration has no ``peer_tls``."""
    return None if settings.peer_tls is None else PeerTls(settings.peer_tls.files(proxy_id))


def make_contexts(files: PeerTlsFiles) -> Contexts:
    """Contexts for the listening and for the dialling side.

    Raises: OSError: a file cannot be read, is not PEM, or the key is not that of the certificate
    """
    for path in (files.ca, files.certificate, files.key):
        path.open("rb").close()  # its error names the file, and OpenSSL's does not
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False  # members are known by their ids, wherever they are
    server.num_tickets = 0  # every connection is verified anew
    for context in (server, client):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(files.ca)
        context.load_cert_chain(files.certificate, files.key, password="")  # never ask a terminal
    return server, client


def rehearse(files: PeerTlsFiles) -> None:
    """Have a member's certificate verified by itself, from both sides, as its peers will do it.

    Raises: OSError: a link made with these files would be refused
    """
    server_context, client_context = make_contexts(files)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server)
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
    if reason in _PLAINTEXT:
        return "it does not speak TLS"
    return f"TLS: {reason.lower().replace('_', ' ')}"
