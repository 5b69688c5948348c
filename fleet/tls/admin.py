"""TLS of a member's admin address."""

from __future__ import annotations

import logging
import ssl

from fleet.config import AdminTlsSettings
from fleet.tls.pem import load_pair
from fleet.tls.reloading import Reloading

log = logging.getLogger(__name__)


def make_context(files: AdminTlsSettings) -> ssl.SSLContext:
    """How a member answers with one certificate and its key.

    Raises: UnusableInput: a file cannot be read, is not PEM, or the key is not that of the certificate
    """
    context = _context()
    load_pair(context, files.certificate, files.key)
    return context


def following(files: AdminTlsSettings) -> ssl.SSLContext:
    """A context whose every handshake uses the files as they are then; connections that are up stay up.

    A handshake fails where the files cannot be used, and never could.
    """
    paths = (files.certificate, files.key)
    followed = Reloading(paths, lambda: make_context(files), "certificate of the admin address")
    try:
        followed.get()
    except OSError as error:
        log.error("nobody gets an answer until the certificate of the admin address can be used: %s", error)

    def choose(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> int | None:
        try:
            connection.context = followed.get()
        except OSError:
            return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR
        return None

    context = _context()
    context.sni_callback = choose  # called for clients that name no server, too
    return context


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
