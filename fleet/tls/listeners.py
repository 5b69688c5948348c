"""TLS of the listeners that clients come to: how a client is met, and how another member asks."""

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
    """How clients are met, with the files as they are now.

    Raises: UnusableInput: a file cannot be read, is not PEM, the key is not that of the certificate, or
            there are no such ciphers
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[tls.min_version]
    context.options |= ssl.OP_NO_RENEGOTIATION  # a way to have a server work for nothing
    if tls.ciphers is not None:
        set_ciphers(context, tls.ciphers)
    load_pair(context, tls.certificate, tls.key)
    context.verify_mode = _VERIFY[tls.client_certificates]
    if tls.client_ca is not None:
        load_authorities(context, tls.client_ca, "client_ca")
    return context


def probe_context(tls: ListenerTlsSettings) -> ssl.SSLContext:
    """How a member asks another one's listener.

    It does not verify whom it asks: it only wants to know whether a client would be answered, it says nothing
    that is secret, and a certificate that has expired is not for the fleet to go around.

    Raises: UnusableInput: as of ``server_context``
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if tls.probe_certificate is not None and tls.probe_key is not None:
        fields = ("probe_certificate", "probe_key")
        load_pair(context, tls.probe_certificate, tls.probe_key, fields)
    return context


def servers(settings: Settings, proxy_id: ProxyId) -> Mapping[str, Reloading[ssl.SSLContext]]:
    """By listener, how one member meets clients; those that are missing are plaintext."""
    return _followed(settings, proxy_id, server_context)


def probes(settings: Settings, proxy_id: ProxyId) -> Mapping[str, Reloading[ssl.SSLContext]]:
    """By listener, how one member asks the others."""
    return _followed(settings, proxy_id, probe_context)


def _followed(
    settings: Settings, proxy_id: ProxyId, make: Callable[[ListenerTlsSettings], ssl.SSLContext]
) -> Mapping[str, Reloading[ssl.SSLContext]]:
    own = {name: tls.for_member(proxy_id) for name, tls in settings.listener_tls.items()}
    return {
        name: Reloading(tls.files.values(), partial(make, tls), f"certificates of listener {name}")
        for name, tls in own.items()
    }
