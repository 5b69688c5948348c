"""TLS of the listeners: contexts for clients, and contexts with which members probe each other."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from fleet.config import ListenerTlsSettings, Settings
from fleet.core.model import ProxyId
from fleet.tls.pem import load_authorities, load_pair, set_ciphers
from fleet.tls.reloading import Reloading

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_VERIFY: Final = {
    "none": ssl.CERT_NONE,
    "allowed": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


def server_context(tls: ListenerTlsSettings) -> ssl.SSLContext:
    """A context for connections of clients, from the current files.

    Raises: UnusableInput: a file cannot be read or is not PEM, the key does not match the certificate, or
            OpenSSL has no such cipher
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[tls.min_version]
    context.options |= ssl.OP_NO_RENEGOTIATION  # renegotiation lets clients waste CPU time of the server
    if tls.ciphers is not None:
        set_ciphers(context, tls.ciphers)
    load_pair(context, tls.certificate, tls.key)
    context.verify_mode = _VERIFY[tls.client_certificates]
    if tls.client_ca is not None:
        load_authorities(context, tls.client_ca, "client_ca")
    return context


def probe_context(tls: ListenerTlsSettings) -> ssl.SSLContext:
    """A context with which a member probes the listener of another member.

    A probe does not verify the server. It only checks whether clients get an answer, and sends no secrets. An
    expired certificate must not make the fleet bypass a member.

    Raises: UnusableInput: a file cannot be read or is not PEM, or the key does not match the certificate
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if tls.probe_certificate is not None and tls.probe_key is not None:
        fields = ("probe_certificate", "probe_key")
        load_pair(context, tls.probe_certificate, tls.probe_key, fields)
    return context


def servers(settings: Settings, proxy_id: ProxyId) -> Mapping[str, Reloading[ssl.SSLContext]]:
    """The contexts for clients of one member, by listener. Other listeners are plaintext."""
    return _reloading(settings, proxy_id, server_context)


def probes(settings: Settings, proxy_id: ProxyId) -> Mapping[str, Reloading[ssl.SSLContext]]:
    """The contexts with which one member probes the others, by listener."""
    return _reloading(settings, proxy_id, probe_context)


def _reloading(
    settings: Settings, proxy_id: ProxyId, make: Callable[[ListenerTlsSettings], ssl.SSLContext]
) -> Mapping[str, Reloading[ssl.SSLContext]]:
    own = {name: tls.for_member(proxy_id) for name, tls in settings.listener_tls.items()}
    return {
        name: Reloading(tls.files.values(), partial(make, tls), f"certificates of listener {name}")
        for name, tls in own.items()
    }
