"""Connections that leave a member, one after the other; those of one librdkafka client leave together.

When Metadata has a new address for a broker, librdkafka drops the connection to the broker, with all requests
in flight. And librdkafka requests Metadata when the first of its connections ends. So when several of its
brokers move, none of its connections may end before all of them may. Other clients keep their connections
(ADR 40).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import Final, Generic, Protocol, TypeVar

from fleet.core.model import BrokerId
from fleet.proxy.session import Session

MAX_PARTY_CONNECTIONS: Final = 32
"""How many connections with one host and client id leave together: all of them reconnect at once.

If there are more, several clients share the id. Then one connection to each broker leaves at a time, the
oldest first, because a client opens its connections at about the same time."""


class Leaver(Hashable, Protocol):
    """The part of a connection that ``Departures`` and ``Party`` need."""

    session: Session
    broker_id: BrokerId | None
    since_s: float
    party: Party | None

    @property
    def can_leave(self) -> bool:
        """Whether the connection can leave now without cutting off a request; True after it has left."""

    def leave(self) -> None:
        """Leave now; does nothing the second time."""

    def advance(self) -> None:
        """Leave if the connection may leave now."""


LeaverT = TypeVar("LeaverT", bound=Leaver)


class Departures(Generic[LeaverT]):
    """Connections that wait for their turn to leave. Clients take turns in order of arrival."""

    def __init__(self) -> None:
        # In a plain dictionary, finding the first key gets slower with each deleted key before it.
        self._clients: OrderedDict[Hashable, dict[BrokerId | None, OrderedDict[LeaverT, None]]] = (
            OrderedDict()
        )
        """Client (or the connection itself, if it leaves alone) → broker → connections, the oldest first."""

    def __len__(self) -> int:
        """Number of clients that wait, a lower bound of the number of turns."""
        return len(self._clients)

    def add(self, connections: Iterable[LeaverT]) -> None:
        """Add connections that have to leave; a client that waits already keeps its turn for all of them."""
        for each in sorted(connections, key=_since_s):
            session = each.session
            alone = not session.drops_moved or session.is_group_member
            client: Hashable = each if alone else session.client_key
            by_broker = self._clients.setdefault(client, {})
            by_broker.setdefault(each.broker_id, OrderedDict())[each] = None

    def take(self) -> list[LeaverT]:
        """Return the connections whose turn it is, which leave together; empty when none waits."""
        if not self._clients:
            return []
        client, by_broker = self._clients.popitem(last=False)
        if len(by_broker) > 1 and sum(map(len, by_broker.values())) <= MAX_PARTY_CONNECTIONS:
            return [each for connections in by_broker.values() for each in connections]
        together = [connections.popitem(last=False)[0] for connections in by_broker.values()]
        left = {broker_id: connections for broker_id, connections in by_broker.items() if connections}
        if left:
            self._clients[client] = left
        return together


def _since_s(connection: Leaver) -> float:
    return connection.since_s


class Party:
    """Connections that leave together, at a moment when each of them may leave.

    A connection that proves to be a consumer's leaves by itself. It belongs to another client with the same
    host and id, and a request for records may wait for half a second.

    Args: connections: none of them has left, and none is in a party.
    """

    __slots__ = ("_connections",)

    def __init__(self, connections: Iterable[Leaver]) -> None:
        self._connections: list[Leaver] = []
        for each in connections:
            self.add(each)

    def add(self, connection: Leaver) -> None:
        """Add a connection to the party."""
        self._connections.append(connection)
        connection.party = self

    def advance(self, connection: Leaver) -> None:
        """Leave if all connections may; called when the state of one of them has changed."""
        session = connection.session
        if session.has_fetched or session.is_group_member:
            self.drop(connection)
            connection.advance()
        elif connection.can_leave:
            self._leave_if_ready()

    def drop(self, connection: Leaver) -> None:
        """Remove a connection from the party; the others no longer wait for it."""
        if connection.party is self:
            self._connections.remove(connection)
            connection.party = None
            self._leave_if_ready()

    def end(self) -> None:
        """Dissolve the party: each connection leaves by itself, so that none waits long for a slow one."""
        connections, self._connections = self._connections, []
        for each in connections:
            each.party = None
            each.advance()

    def _leave_if_ready(self) -> None:
        connections = self._connections
        for place, each in enumerate(connections):
            if not each.can_leave:  # check this connection first the next time: it is likely the last again
                connections[0], connections[place] = each, connections[0]
                return
        self._connections = []
        for each in connections:
            each.party = None
            each.leave()
