"""Certificates and keys from files, with errors that name the file, as OpenSSL's do not."""

from __future__ import annotations

import ssl
from pathlib import Path


def need(*paths: Path) -> None:
    """Raises: OSError: one of these files cannot be read."""
    for path in paths:
        path.open("rb").close()


def load_pair(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Have a side of a connection show a certificate.

    Raises: OSError: a file cannot be read, is not PEM, or the key is not that of the certificate
    """
    need(certificate, key)
    context.load_cert_chain(certificate, key, password="")  # never ask a terminal
