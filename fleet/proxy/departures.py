"""Connections of one client that leave a member together.

librdkafka drops a connection, whatever is in flight on it, when Metadata has another address for its broker;
and it asks for Metadata when the first of its connections ends. So where several of its brokers move, none of
its connections may end before all of them may. Other clients keep what they have (ADR 40).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol, TypeVar

from fleet.model import BrokerId
from fleet.proxy.session import Session

MOST: Final = 32
"""How many leave together: they all reconnect at once. Above it, clients that have host and id in common are
taken apart by the order in which they came, which may take apart the connections of one of them."""


class Leaver(Protocol):
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


L = TypeVar("L", bound=Leaver)


class Party:
    """Some connections that are all to leave at a moment when each of them may.

    A connection that turns out to be a consumer's leaves by itself: its client is another one with the same
    host and id, and a request for records may wait for half a second.

    Args: connections: none of them has left.
    """

    __slots__ = ("_connections",)

    def __init__(self, connections: Iterable[Leaver]) -> None:
        self._connections = list(connections)
        for each in self._connections:
            if each.party is not None:
                each.party.drop(each)
            each.party = self

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
        if connection in self._connections:
            self._connections.remove(connection)
            connection.party = None
            self._look()

    def _look(self) -> None:
        if all(each.may_leave for each in self._connections):
            connections, self._connections = self._connections, []
            for each in connections:
                each.party = None
                each.leave()


def parties(connections: Iterable[L]) -> list[list[L]]:
    """Which of some connections are to leave together."""
    alone: list[list[L]] = []
    together: dict[bytes, dict[BrokerId | None, list[L]]] = {}
    for each in connections:
        session = each.session
        if not session.drops_moved or session.fetches or session.coordinates:
            alone.append([each])
        else:
            by_broker = together.setdefault(session.client_key, {})
            by_broker.setdefault(each.broker_id, []).append(each)
    for by_broker in together.values():
        alone += _cut(list(by_broker.values()))
    return alone


def _cut(by_broker: list[list[L]]) -> list[list[L]]:
    """Connections with one host and id, by broker: so that of each client they stay together, if possible."""
    clients = max(map(len, by_broker))
    count = min(clients, -(-sum(map(len, by_broker)) // MOST))
    found: list[list[L]] = [[] for _ in range(count)]
    for connections in by_broker:
        connections.sort(key=lambda each: each.since_s)
        for place, each in enumerate(connections):
            found[place * count // clients].append(each)
    return [each for each in found if each]
