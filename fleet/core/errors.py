"""Every error the fleet raises on purpose, as one tree.

FleetError
├── ConfigError            the configuration file is wrong; says line, field, value, rule and fix
├── CertificateError       certificates cannot be made, or found, where they are asked for
├── StartError             a member cannot start: a port in use, a data directory that cannot be written
├── WireError              one connection carried bytes that are not the Kafka protocol
│   ├── TruncatedFrame     a frame ends inside a field
│   ├── OversizeFrame      a frame, or the part of it that must be read whole, is above its limit
│   ├── MalformedFrame     a length or a count that cannot be
│   ├── UnknownResponse    a response that answers no request in flight
│   └── UnsupportedVersion an API key or version that the fleet does not offer
├── LimitReached           one connection is too many, or takes too long
├── RaftError              the replicated log cannot be used as asked
│   ├── NoQuorum           no majority of voters is reachable
│   ├── CommandTimeout     the outcome of a command is not known in time
│   └── JournalError       the journal on disk is corrupt, or cannot be written
│       └── JournalForgot  the journal lacks promises that other voters remember
├── NoMetadata             no broker says which brokers there are
├── StaleGeneration        a command was computed from an ownership that is no longer the newest
├── UnknownMember          no member of that id
├── UnknownBroker          no broker of that id
├── AdminError             a member's admin address did not answer, or answered with an error
├── TemplateError          an operator's command is no command line
├── CommandFailed          an operator's command failed
├── RestartFailed          a rolling restart was given up: the fleet is not well
├── PipelineError          a job of the data pipeline cannot read, or write, what it has to
├── GameDayError           a game day was not begun, or given up
│   └── NotProved          nothing shows that what was to break is broken
└── DemoError              Kafka, a client or a tool that the demo needs did not come up
"""

from __future__ import annotations

from typing import Literal

Peer = Literal["client", "broker"]
TimeLimit = Literal["first_request_timeout_s", "request_timeout_s", "idle_timeout_s"]
MemoryLimit = Literal["max_patched_response_bytes", "write_buffer_bytes"]
ConnectionLimit = Literal[
    "max_connections", "max_connections_per_source", "vanished_timeout_s", TimeLimit, MemoryLimit
]
"""Those of the configured limits that close a connection."""


class FleetError(Exception):
    """Base of every error that the fleet raises on purpose."""


class ConfigError(FleetError):
    """The configuration is wrong. The message has one line for each mistake."""


class CertificateError(FleetError):
    """Certificates cannot be made, or found, where they are asked for."""


class StartError(FleetError):
    """A member cannot start as configured on this machine."""


class WireError(FleetError):
    """Bytes that are not the Kafka protocol as the fleet offers it.

    Args:
        peer: whose fault it is.
        detail: what was wrong, with the offending numbers.
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
    """A frame, or the part of one that must be read whole, is above its limit."""

    reason = "oversize"


class MalformedFrame(WireError):
    """A length, count or varint that cannot be."""

    reason = "malformed"


class UnknownResponse(WireError):
    """A response whose correlation id is not that of the oldest request in flight."""

    reason = "unknown_response"


class UnsupportedVersion(WireError):
    """An API key or version that the fleet does not offer was used all the same."""

    reason = "unsupported_version"


class HandshakeFailed(WireError):
    """A client has not come as far as its first request: TLS was not agreed on."""

    reason = "handshake"


class LimitExceeded(FleetError):
    """A client's connection is closed, whatever it carried.

    Args:
        limit: the field of ``limits`` in the configuration.
        detail: what there was too much of, with numbers.
    """

    def __init__(self, limit: ConnectionLimit, detail: str) -> None:
        super().__init__(detail)
        self.reason = limit


class RaftError(FleetError):
    """The replicated log cannot be used as asked."""


class NoQuorum(RaftError):
    """No majority of the voters is reachable, so nothing can be committed."""


class CommandTimeout(RaftError):
    """The outcome of a command is not known in time; it may still be committed."""


class JournalError(RaftError):
    """The journal on disk is corrupt, or cannot be written."""


class JournalForgot(JournalError):
    """The journal lacks promises that other voters remember: it is a copy, or new."""


class SpoolError(FleetError):
    """A file of events that wait for Kafka cannot be used."""


class NoMetadata(FleetError):
    """No broker says which brokers there are; the reason of each that was asked.

    Args: refused: whether one has answered, and tells nobody who has no credentials.
    """

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class StaleGeneration(FleetError):
    """A command was computed from an ownership that is no longer the newest."""


class UnknownMember(FleetError):
    """No member of that id is configured."""


class UnknownBroker(FleetError):
    """No broker of that id is known to the fleet."""


class AdminError(FleetError):
    """A member's admin address did not answer, or answered with an error."""


class CommandTemplateError(FleetError):
    """A command of the operator's, with names to put in, is no command line."""


class CommandFailed(FleetError):
    """A command of the operator's could not be started, or failed."""


class RestartFailed(FleetError):
    """A rolling restart was given up before the next member: the fleet is not well enough."""


class PipelineError(FleetError):
    """A job of the data pipeline cannot read, or write, what it has to."""


class GameDayError(FleetError):
    """A game day was not begun, or was given up: it says nothing about the fleet's promises."""


class FaultNotObserved(GameDayError):
    """Nothing shows from outside that a member is as broken as it was to be."""


class DemoError(FleetError):
    """Something that the demo needs (Kafka, a client, a tool) did not come up."""
