"""The configuration of a whole fleet: one YAML file, read into frozen and validated settings.

``fleet.config.file.load`` opens only that file. It raises one ConfigError that lists every mistake in the
file, each as ``file:line: field: value: rule; fix``.
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
    describe_tolerance,
    is_loopback,
    is_wildcard,
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
    "describe_tolerance",
    "identity_owners",
    "is_loopback",
    "is_wildcard",
]
