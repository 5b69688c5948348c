"""Shared by the two sides of a connection: its state, and the interface of their worker."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Protocol

from fleet.core.errors import LimitExceeded, WireError

if TYPE_CHECKING:
    from fleet.proxy.broker_connection import BrokerConnection
    from fleet.proxy.budget import Backlogs, MemoryBudget
    from fleet.proxy.connection import ClientConnection
    from fleet.proxy.deadlines import Deadlines
    from fleet.proxy.quota import Quota
    from fleet.proxy.splice import Pipe
    from fleet.proxy.traffic import Sampling
    from fleet.proxy.turns import TurnQueue


BODY_PASSES: Final = 1
"""Reason to pause reading from a client: the kernel passes a body. A bit next to those of ``connection``."""


class Host(Protocol):
    """The part of a worker that its connections need."""

    write_buffer_bytes: int
    backlogs: Backlogs[ClientConnection]
    responses: MemoryBudget[ClientConnection]
    """Responses that are held because they must be complete before patching."""
    requests: MemoryBudget[ClientConnection]
    """Requests in flight, of clients that have many."""
    turns: TurnQueue
    linger_s: float
    """How long an orderly end may take before the connection is cut."""
    leaving: Deadlines[BrokerConnection]
    """Broker connections whose client has left, until their orderly end is complete."""
    sampling: Sampling
    pipe: Pipe | None
    """For large bodies; None if they are copied."""

    def opened(self, connection: ClientConnection) -> None: ...

    def closed(self, connection: ClientConnection) -> None: ...

    def dial(self, connection: ClientConnection) -> None:
        """Connect a broker and call ``attach_broker``, or call ``broker_unreachable`` or ``refuse``."""

    def broker_closed(self, connection: ClientConnection) -> None:
        """The broker ended the connection first."""

    def refused(self, connection: ClientConnection, error: WireError | LimitExceeded) -> None: ...

    def overdrawn(self, connection: ClientConnection, quota: Quota) -> None:
        """A quota of the connection may be used up.

        If it is, call ``hold_for_quota``, and ``release_for_quota`` once the quota has credit again.
        """

    def cut(self, connection: ClientConnection) -> None:
        """The connection leaves before its client has all responses."""

    def client_returned(self, connection: ClientConnection) -> None:
        """A connection that ``has_returned`` sent its first request; call `withhold_produce` if needed."""

    def sampled(self, connection: ClientConnection) -> None:
        """A read from the connection was sampled: schedule the next sample of ``sampling``."""


class State(Enum):
    IDLE = auto()
    DIALING = auto()
    JOINED = auto()
    LEAVING = auto()
    CLOSED = auto()


LEAVING: Final = State.LEAVING
"""A look-up in the enumeration costs Python 3.11 as much as counting ten frames."""
