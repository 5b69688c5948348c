"""What the two sides of a connection share: its state, and what they need of their worker."""

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
"""Why a client is not read from: the kernel does. A bit, beside those of ``connection``."""


class Host(Protocol):
    """What a connection needs of its worker."""

    write_buffer_bytes: int
    backlogs: Backlogs[ClientConnection]
    responses: MemoryBudget[ClientConnection]
    """That are held because they have to be seen whole."""
    requests: MemoryBudget[ClientConnection]
    """In flight, of clients that have many."""
    turns: TurnQueue
    linger_s: float
    """How long a goodbye may take before the connection is cut."""
    leaving: Deadlines[BrokerConnection]
    """Those whose client is gone, for as long as their goodbye takes."""
    sampling: Sampling
    pipe: Pipe | None
    """For large bodies; None where they are copied."""

    def opened(self, connection: ClientConnection) -> None: ...

    def closed(self, connection: ClientConnection) -> None: ...

    def dial(self, connection: ClientConnection) -> None:
        """Connect ``connection.join`` to a broker, or call ``broker_unreachable`` or ``refuse`` of it."""

    def broker_gone(self, connection: ClientConnection) -> None:
        """The broker was the first to end it."""

    def refused(self, connection: ClientConnection, error: WireError | LimitExceeded) -> None: ...

    def overdrawn(self, connection: ClientConnection, quota: Quota) -> None:
        """A quota of it may be used up: call ``overdraw`` and, when it is not any more, ``repaid`` of it."""

    def cut(self, connection: ClientConnection) -> None:
        """It leaves, and its client will not get every answer."""

    def came_back(self, connection: ClientConnection) -> None:
        """It ``is_back``, and has sent its first request: have it `wait` where it was sent away."""

    def sampled(self, connection: ClientConnection) -> None:
        """A read of it was looked at: has ``sampling`` look again."""


class State(Enum):
    IDLE = auto()
    DIALLING = auto()
    JOINED = auto()
    LEAVING = auto()
    CLOSED = auto()


LEAVING: Final = State.LEAVING
"""Looking it up in the enumeration costs Python 3.11 as much as ten frames do their counting."""
