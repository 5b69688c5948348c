"""TLS of the admin address of a member."""

from __future__ import annotations

import logging
import ssl

from fleet.config import AdminTlsSettings
from fleet.tls.pem import load_pair
from fleet.tls.reloading import Reloading

log = logging.getLogger(__name__)


def make_context(files: AdminTlsSettings) -> ssl.SSLContext:
    """A server context with one certificate and its key.

    Raises: UnusableInput: a file cannot be read or is not PEM, or the key does not match the certificate
    """
    context = _context()
    load_pair(context, files.certificate, files.key)
    return context


def reloading_context(files: AdminTlsSettings) -> ssl.SSLContext:
    """A context that uses the current files for each handshake. Established connections are unaffected.

    Handshakes fail as long as the files could never be loaded.
    """
    paths = (files.certificate, files.key)
    current = Reloading(paths, lambda: make_context(files), "certificate of the admin address")
    try:
        current.get()
    except OSError as error:
        log.error("admin address is closed: cannot load its certificate: %s", error)

    def choose(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> int | None:
        try:
            connection.context = current.get()
        except OSError:
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        return None

    context = _context()
    context.sni_callback = choose  # OpenSSL also calls it for clients that send no server name
    return context


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
