"""Connections that leave a member, one after the other, and those of one librdkafka client together.

librdkafka drops a connection, whatever is in flight on it, when Metadata has another address for its broker;
and it asks for Metadata when the first of its connections ends. So where several of its brokers move, none of
its connections may end before all of them may. Other clients keep what they have (ADR 40).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import Final, Generic, Protocol, TypeVar

from fleet.core.model import BrokerId
from fleet.proxy.session import Session

MOST: Final = 32
"""How many connections with one host and client id leave together: they all reconnect at once. Where there
are more they are several clients, and one connection to each broker leaves at a time, the oldest ones first:
a client makes its connections at about the same time."""


class Leaver(Hashable, Protocol):
    """A connection."""

    session: Session
    broker_id: BrokerId | None
    since_s: float
    party: Party | None

    @property
    def may_leave(self) -> bool:
        """Whether nothing is cut off where it leaves now; also where it has left."""

    def leave(self) -> None:
        """Leave now, once."""

    def advance(self) -> None:
        """Leave where this is the moment."""


LeaverT = TypeVar("LeaverT", bound=Leaver)


class Departures(Generic[LeaverT]):
    """Connections that wait for their turn to leave. Clients take turns in the order in which they came."""

    def __init__(self) -> None:
        # Of a plain dictionary the first key is found ever more slowly, the more before it are deleted.
        self._clients: OrderedDict[Hashable, dict[BrokerId | None, OrderedDict[LeaverT, None]]] = (
            OrderedDict()
        )
        """By client, or by itself where a connection leaves alone; then by broker, the oldest one first."""

    def __len__(self) -> int:
        """How many turns wait, at least."""
        return len(self._clients)

    def add(self, connections: Iterable[LeaverT]) -> None:
        """Have connections leave; those that wait keep their turn, and theirs is that of their client."""
        for each in sorted(connections, key=_since_s):
            session = each.session
            alone = not session.drops_moved or session.coordinates
            client: Hashable = each if alone else session.client_key
            by_broker = self._clients.setdefault(client, {})
            by_broker.setdefault(each.broker_id, OrderedDict())[each] = None

    def take(self) -> list[LeaverT]:
        """Whose turn it is: connections that are to leave together. None where nobody waits."""
        if not self._clients:
            return []
        client, by_broker = self._clients.popitem(last=False)
        if len(by_broker) > 1 and sum(map(len, by_broker.values())) <= MOST:
            return [each for connections in by_broker.values() for each in connections]
        together = [connections.popitem(last=False)[0] for connections in by_broker.values()]
        left = {broker_id: connections for broker_id, connections in by_broker.items() if connections}
        if left:
            self._clients[client] = left
        return together


def _since_s(connection: Leaver) -> float:
    return connection.since_s


class Party:
    """Some connections that are all to leave at a moment when each of them may.

    A connection that turns out to be a consumer's leaves by itself: its client is another one with the same
    host and id, and a request for records may wait for half a second.

    Args: connections: none of them has left, and none is in a party.
    """

    __slots__ = ("_connections",)

    def __init__(self, connections: Iterable[Leaver]) -> None:
        self._connections: list[Leaver] = []
        for each in connections:
            self.add(each)

    def add(self, connection: Leaver) -> None:
        """Have one more leave with them."""
        self._connections.append(connection)
        connection.party = self

    def advance(self, connection: Leaver) -> None:
        """Something has happened to one of them."""
        session = connection.session
        if session.fetches or session.coordinates:
            self.drop(connection)
            connection.advance()
        elif connection.may_leave:
            self._look()

    def drop(self, connection: Leaver) -> None:
        """Wait for one of them no longer."""
        if connection.party is self:
            self._connections.remove(connection)
            connection.party = None
            self._look()

    def end(self) -> None:
        """Let each of them leave by itself: those that are ready must not wait for a slow one for long."""
        connections, self._connections = self._connections, []
        for each in connections:
            each.party = None
            each.advance()

    def _look(self) -> None:
        connections = self._connections
        for place, each in enumerate(connections):
            if not each.may_leave:  # it may be the same again the next time
                connections[0], connections[place] = each, connections[0]
                return
        self._connections = []
        for each in connections:
            each.party = None
            each.leave()
