"""Identifies an unexpected protocol by the first bytes of a connection, and suggests the likely fix.

A refused connection leaves one log line. Without the protocol, the line for TLS at a plaintext port would be
"request of 369295618 bytes", and an operator would have to know the first bytes of each protocol.
"""

from __future__ import annotations

import re
import ssl
from struct import Struct
from typing import Final, Literal, TypeAlias

from fleet.core.errors import LimitExceeded, WireError

Protocol: TypeAlias = Literal[
    "TLS", "HTTP", "HTTP/2", "PROXY protocol v1", "PROXY protocol v2", "SSH", "Kafka"
]

_HTTP: Final = re.compile(rb"(?:GET|HEAD|POST|PUT|OPTIONS|DELETE|PATCH|CONNECT|TRACE) |HTTP/[0-9]")
_TLS_RECORD: Final = re.compile(rb"[\x14-\x17]\x03[\x00-\x04]")
"""Source: RFC 8446, section 5.1."""
_PROXY_2: Final = b"\r\n\r\n\x00\r\nQUIT\n"
"""Source: The PROXY protocol, section 2.2."""
_BEGINNINGS: Final[tuple[tuple[bytes, Protocol], ...]] = (
    (b"PRI * HTTP/2", "HTTP/2"),
    (b"PROXY ", "PROXY protocol v1"),
    (_PROXY_2, "PROXY protocol v2"),
    (b"SSH-", "SSH"),
)
_KAFKA: Final = Struct(">ihh")
_MAX_KAFKA_REQUEST_BYTES: Final = 1 << 27
"""Largest plausible size of a first request: above Kafka's default limit, and below text read as a size."""
_MAX_API_KEY: Final = 127
_MAX_API_VERSION: Final = 31


class NotTls(ssl.SSLError):
    """The peer opened a TLS connection with another protocol.

    Args: protocol: the protocol that the peer speaks.
    """

    def __init__(self, protocol: Protocol) -> None:
        super().__init__(f"it does not speak TLS: it speaks {protocol}")
        self.protocol: Protocol = protocol

    def __str__(self) -> str:
        return str(self.args[0])


def name_protocol(first_bytes: bytes) -> Protocol | None:
    """Identify the protocol of a connection by its first bytes; None if they are not sufficient."""
    for beginning, protocol in _BEGINNINGS:
        if first_bytes.startswith(beginning):
            return protocol
    if _HTTP.match(first_bytes):
        return "HTTP"
    if _TLS_RECORD.match(first_bytes):
        return "TLS"
    return "Kafka" if _is_kafka(first_bytes) else None


def _is_kafka(first_bytes: bytes) -> bool:
    if len(first_bytes) < _KAFKA.size:
        return False
    size: int
    api_key: int
    version: int
    size, api_key, version = _KAFKA.unpack_from(first_bytes)
    return (
        10 <= size <= _MAX_KAFKA_REQUEST_BYTES
        and 0 <= api_key <= _MAX_API_KEY
        and 0 <= version <= _MAX_API_VERSION
    )


_PROXY_FIX: Final = "switch the PROXY protocol off in the load balancer: the fleet does not read it"
_FIXES: Final[dict[Protocol, str]] = {
    "HTTP": "send health checks, browsers and scrapes to the admin address (members.ID.admin)",
    "HTTP/2": "send health checks, browsers and scrapes to the admin address (members.ID.admin)",
    "PROXY protocol v1": _PROXY_FIX,
    "PROXY protocol v2": _PROXY_FIX,
    "SSH": "correct the port that the client is given",
}


def at_listener(protocol: Protocol, listener: str, *, secured: bool) -> str | None:
    """The mistake of a client at a listener, and the fix; None if the client speaks Kafka.

    Args: secured: whether the bytes arrived within TLS.
    """
    if protocol == "Kafka":
        return None
    if protocol != "TLS":
        kind = "TLS" if secured else "plaintext"
        return f"it speaks {protocol} to the {kind} listener {listener}; {_FIXES[protocol]}"
    if secured:
        fix = "let either the load balancer or this listener speak TLS to the client, not both"
        return f"it speaks TLS within TLS to the listener {listener}; {fix}"
    return (
        f"it speaks TLS to the plaintext listener {listener}; set security.protocol=PLAINTEXT or "
        f"SASL_PLAINTEXT in the client, or give the listener certificates (listener_tls.{listener})"
    )


def explain_refusal(
    error: WireError | LimitExceeded, received: bytes, listener: str, *, secured: bool
) -> WireError | LimitExceeded:
    """Add the protocol to the error of a client whose first bytes are not Kafka."""
    protocol = name_protocol(received)
    detail = None if protocol is None else at_listener(protocol, listener, secured=secured)
    if detail is None:
        return error
    if isinstance(error, LimitExceeded):
        return LimitExceeded(error.reason, f"{error}: {detail}")
    return type(error)(error.peer, detail)


def in_place_of_tls(error: NotTls, listener: str) -> str:
    """The mistake of a client that did not start with TLS at a TLS listener, and the fix."""
    fix = _FIXES.get(error.protocol, "set security.protocol=SSL or SASL_SSL in the client")
    return f"{error.args[0]} to the TLS listener {listener}; {fix}"


def at_peer_address(protocol: Protocol) -> str:
    """The mistake of a connection to the address for members, and the fix."""
    if protocol == "TLS":
        return "it speaks TLS, and this member has no peer_tls"
    if protocol == "Kafka":
        return "it speaks Kafka to the address for members; point clients at a listener"
    return f"it speaks {protocol} to the address for members; {_FIXES[protocol]}"


def of_dialled_peer(protocol: Protocol, proxy_id: str) -> str:
    """The protocol with which the configured address of a peer answered, and the fix."""
    if protocol == "TLS":
        return at_peer_address(protocol)
    return f"the address answers with {protocol}; correct members.{proxy_id}.peer"


def at_admin_address(protocol: Protocol) -> str | None:
    """The mistake of a client at an admin address without TLS, and the fix; None if it speaks HTTP."""
    if protocol == "HTTP":
        return None
    if protocol == "TLS":
        return "it speaks TLS, and there is no admin.tls; use http, or add `admin: {tls: {}}`"
    if protocol == "Kafka":
        return "it speaks Kafka; point clients at a listener"
    fix = "use HTTP/1.1" if protocol == "HTTP/2" else _FIXES[protocol]
    return f"it speaks {protocol}; {fix}"
