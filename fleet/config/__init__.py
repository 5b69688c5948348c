"""One YAML file for a whole fleet, as frozen and validated settings.

``fleet.config.file.load`` opens nothing but the file, and raises one ConfigError with every mistake in it at
once, each as ``file:line: field: value: rule; fix``.
"""

from __future__ import annotations

from fleet.config.endpoints import bootstrap_endpoints, identity_owners
from fleet.config.secrets import Secret
from fleet.config.settings import (
    CONTROL_SOCKET,
    PRIVATE_FOLDER,
    AdminSettings,
    AdminTlsSettings,
    BalanceSettings,
    EventsSettings,
    Limits,
    ListenerSettings,
    ListenerTlsSettings,
    MemberSettings,
    PeerTlsFiles,
    PeerTlsSettings,
    SaslSettings,
    Settings,
    Timing,
    TokenSettings,
    TracingSettings,
    UpstreamSettings,
    UpstreamTlsSettings,
    advice,
    is_loopback,
    is_wildcard,
    survives,
)

__all__ = [
    "CONTROL_SOCKET",
    "PRIVATE_FOLDER",
    "AdminSettings",
    "AdminTlsSettings",
    "BalanceSettings",
    "EventsSettings",
    "Limits",
    "ListenerSettings",
    "ListenerTlsSettings",
    "MemberSettings",
    "PeerTlsFiles",
    "PeerTlsSettings",
    "SaslSettings",
    "Secret",
    "Settings",
    "Timing",
    "TokenSettings",
    "TracingSettings",
    "UpstreamSettings",
    "UpstreamTlsSettings",
    "advice",
    "bootstrap_endpoints",
    "identity_owners",
    "is_loopback",
    "is_wildcard",
    "survives",
]
