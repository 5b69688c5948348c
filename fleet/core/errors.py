"""Every error that the fleet raises on purpose, as one tree.

FleetError
├── ConfigError             the configuration file is wrong; has line, field, value, rule and fix
├── CertificateError        certificates cannot be created or found
├── StartError              a member cannot start: a port in use, a data directory that cannot be written
├── WireError               a connection carried bytes that are not the Kafka protocol
│   ├── TruncatedFrame      a frame ends inside a field
│   ├── OversizeFrame       a frame, or the part of a frame that must be read whole, is above its limit
│   ├── MalformedFrame      a length, count or varint has an impossible value
│   ├── UnknownResponse     a response answers no request in flight
│   ├── UnsupportedVersion  an API key or version that the fleet does not offer
│   ├── UnidentifiedBroker  a request on a port of all brokers before its broker is known
│   └── HandshakeFailed     the TLS handshake of a client failed
├── LimitExceeded           a client's connection exceeds a limit
├── RaftError               the replicated log cannot be used
│   ├── NoQuorum            no majority of the voters is reachable
│   ├── CommandTimeout      the outcome of a command is not known in time
│   └── JournalError        the journal on disk is corrupt, or cannot be written
│       └── JournalForgot   the journal lacks promises that other voters remember
├── SpoolError              a spool file of events cannot be used
├── NoMetadata              no server of the cluster lists the brokers
├── StaleGeneration         a command was computed from an outdated ownership
├── UnknownMember           no configured member has the id
├── UnknownBroker           no broker of the fleet has the id
├── AdminError              a member's admin address did not answer, or answered with an error
├── CommandTemplateError    an operator's command template is not a command line
├── CommandFailed           an operator's command failed
├── RestartFailed           a rolling restart stopped early because the fleet is not well
├── PipelineError           a job of the data pipeline cannot read its input or write its output
├── GameDayError            a game day did not start, or was stopped early
│   └── FaultNotObserved    no observation shows that the injected fault is effective
└── DemoError               Kafka, a client or a tool that the demo needs did not start
"""

from __future__ import annotations

from typing import Literal

Peer = Literal["client", "broker"]
TimeLimit = Literal["first_request_timeout_s", "request_timeout_s", "idle_timeout_s"]
MemoryLimit = Literal["max_patched_response_bytes", "write_buffer_bytes"]
ConnectionLimit = Literal[
    "max_connections", "max_connections_per_source", "vanished_timeout_s", TimeLimit, MemoryLimit
]
"""The configured limits that close a connection."""


class FleetError(Exception):
    """Base class of every error that the fleet raises on purpose."""


class ConfigError(FleetError):
    """The configuration is wrong. The message has one line for each mistake."""


class CertificateError(FleetError):
    """Certificates cannot be created or found."""


class StartError(FleetError):
    """A member cannot start as configured on this machine."""


class WireError(FleetError):
    """A connection carried bytes that are not the Kafka protocol as the fleet offers it.

    Args:
        peer: the side at fault.
        detail: the mistake, with the offending numbers.
    """

    reason = "wire"

    def __init__(self, peer: Peer, detail: str) -> None:
        super().__init__(f"{peer}: {detail}")
        self.peer = peer
        self.detail = detail


class TruncatedFrame(WireError):
    """A frame ends inside a field."""

    reason = "truncated"


class OversizeFrame(WireError):
    """A frame, or the part of a frame that must be read whole, is above its limit."""

    reason = "oversize"


class MalformedFrame(WireError):
    """A length, count or varint has an impossible value."""

    reason = "malformed"


class UnknownResponse(WireError):
    """The correlation id of a response does not match the oldest request in flight."""

    reason = "unknown_response"


class UnsupportedVersion(WireError):
    """A client used an API key or version that the fleet does not offer."""

    reason = "unsupported_version"


class UnidentifiedBroker(WireError):
    """A client did something on a port of all brokers that only works once its broker is known."""

    reason = "unidentified_broker"


class HandshakeFailed(WireError):
    """The TLS handshake of a client failed, before its first request."""

    reason = "handshake"


class LimitExceeded(FleetError):
    """A client's connection exceeds a limit and is closed, whatever it carried.

    Args:
        limit: the field of ``limits`` in the configuration.
        detail: the excess, with numbers.
    """

    def __init__(self, limit: ConnectionLimit, detail: str) -> None:
        super().__init__(detail)
        self.reason = limit


class RaftError(FleetError):
    """The replicated log cannot be used."""


class NoQuorum(RaftError):
    """No majority of the voters is reachable, so no command can be committed."""


class CommandTimeout(RaftError):
    """The outcome of a command is not known in time; the command may still be committed."""


class JournalError(RaftError):
    """The journal on disk is corrupt, or cannot be written."""


class JournalForgot(JournalError):
    """The journal lacks promises that other voters remember: it is a copy, or it is new."""


class SpoolError(FleetError):
    """A spool file, which holds events that wait for Kafka, cannot be used."""


class NoMetadata(FleetError):
    """No server of the cluster lists the brokers. The message has the reason of each server.

    Args: refused: whether a server answered, but refuses Metadata to clients without credentials.
    """

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class StaleGeneration(FleetError):
    """A command was computed from an outdated ownership."""


class UnknownMember(FleetError):
    """No configured member has the id."""


class UnknownBroker(FleetError):
    """No broker of that id is known to the fleet."""


class AdminError(FleetError):
    """A member's admin address did not answer, or answered with an error."""


class CommandTemplateError(FleetError):
    """An operator's command template, with placeholders, is not a command line."""


class CommandFailed(FleetError):
    """An operator's command could not be started, or failed."""


class RestartFailed(FleetError):
    """A rolling restart stopped before the next member, because the fleet is not well enough."""


class PipelineError(FleetError):
    """A job of the data pipeline cannot read its input or write its output."""


class GameDayError(FleetError):
    """A game day did not start, or was stopped early: it proves nothing about the fleet's promises."""


class FaultNotObserved(GameDayError):
    """No observation from outside shows that the injected fault is effective."""


class DemoError(FleetError):
    """Kafka, a client or a tool that the demo needs did not start."""
