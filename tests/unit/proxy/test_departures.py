"""The connections that leave together, and the moment when they leave."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from fleet.proxy.departures import MAX_PARTY_CONNECTIONS, Departures, Party


@dataclass
class SessionStub:
    client_key: bytes = b"host\0app"
    drops_moved: bool = True
    has_fetched: bool = False
    is_group_member: bool = False


@dataclass(eq=False)
class ConnectionStub:
    """The part of a connection that a party needs."""

    broker_id: int = 1
    session: SessionStub = field(default_factory=SessionStub)
    since_s: float = 0.0
    party: Any = None
    can_leave: bool = False
    left: bool = False

    def leave(self) -> None:
        self.left = True

    def advance(self) -> None:
        """Leave like a connection without a party."""
        assert self.party is None
        if self.can_leave:
            self.leave()


def turns(*connections: ConnectionStub) -> list[list[ConnectionStub]]:
    """Return the groups of connections that leave together, in turn."""
    departures: Departures[Any] = Departures()
    departures.add(connections)
    found = []
    while together := departures.take():
        found.append(together)
    return found


def party(*connections: Any) -> Party:
    return Party(connections)


def happens(connection: ConnectionStub) -> None:
    connection.party.advance(connection)


def test_party_leaves_when_its_last_connection_may() -> None:
    first, second = ConnectionStub(1), ConnectionStub(2)
    party(first, second)
    first.can_leave = True
    happens(first)
    assert not first.left
    second.can_leave = True
    happens(second)
    assert first.left
    assert second.left


def test_past_moment_to_leave_does_not_count() -> None:
    first, second = ConnectionStub(1, can_leave=True), ConnectionStub(2)
    party(first, second)
    happens(first)
    first.can_leave, second.can_leave = False, True
    happens(second)
    assert not first.left
    assert not second.left


@pytest.mark.parametrize("what", ["has_fetched", "is_group_member"])
def test_consumers_connection_leaves_alone(what: str) -> None:
    """A request for records may wait for half a second, and belongs to another client."""
    first, second, third = ConnectionStub(1), ConnectionStub(2), ConnectionStub(2)
    party(first, second, third)
    setattr(second.session, what, True)
    happens(second)
    first.can_leave = third.can_leave = True
    happens(third)
    assert first.left
    assert third.left
    assert not second.left


def test_party_does_not_wait_for_a_closed_connection() -> None:
    first, second = ConnectionStub(1, can_leave=True), ConnectionStub(2)
    party(first, second)
    second.party.drop(second)
    assert first.left
    assert not second.left
    assert second.party is None


def test_dissolved_party_lets_ready_connections_leave() -> None:
    first, second = ConnectionStub(1, can_leave=True), ConnectionStub(2)
    party(first, second).end()
    assert first.left
    assert not second.left
    assert second.party is None


def test_party_checks_its_last_blocker_first() -> None:
    """Found: each of 4,000 moving connections checked all of them."""
    looks = 0

    class Counted(ConnectionStub):
        @property
        def can_leave(self) -> bool:
            nonlocal looks
            looks += 1
            return self.broker_id != 999

        @can_leave.setter
        def can_leave(self, value: bool) -> None: ...

    connections = [Counted(each) for each in range(1_000)]
    party(*connections)
    for each in connections:
        happens(each)
    assert looks < 4_000


def test_only_clients_that_drop_connections_leave_together() -> None:
    one, other = ConnectionStub(1), ConnectionStub(2)
    elsewhere = ConnectionStub(1, SessionStub(b"host2\0app"))
    java = [ConnectionStub(each, SessionStub(drops_moved=False)) for each in (1, 2)]
    member = ConnectionStub(1, SessionStub(is_group_member=True))
    found = turns(one, java[0], elsewhere, other, java[1], member)
    assert [one, other] in found
    assert sorted(map(len, found)) == [1, 1, 1, 1, 2]


def test_connections_to_the_same_broker_leave_one_by_one() -> None:
    """They belong to several clients, each without another moving connection."""
    assert list(map(len, turns(*(ConnectionStub(1) for _ in range(3))))) == [1, 1, 1]


def test_clients_with_the_same_id_leave_one_at_a_time() -> None:
    """Connections of one client open at about the same time."""
    clients = 3 * MAX_PARTY_CONNECTIONS
    connections = [
        ConnectionStub(broker_id, since_s=client + broker_id / 10)
        for broker_id in (1, 2)
        for client in range(clients)
    ]
    found = turns(*reversed(connections))
    assert sorted(map(id, connections)) == sorted(id(each) for together in found for each in together)
    assert len(found) > clients - MAX_PARTY_CONNECTIONS
    for together in found[: clients - MAX_PARTY_CONNECTIONS]:
        assert [each.broker_id for each in together] == [1, 2]
        assert int(together[0].since_s) == int(together[1].since_s)


def test_other_clients_leave_between_clients_of_the_same_id() -> None:
    many = [ConnectionStub(each % 2, since_s=each) for each in range(4 * MAX_PARTY_CONNECTIONS)]
    java = ConnectionStub(1, SessionStub(drops_moved=False), since_s=4 * MAX_PARTY_CONNECTIONS)
    assert turns(*many, java)[1] == [java]


def test_client_of_many_brokers_leaves_together() -> None:
    connections = [ConnectionStub(broker_id) for broker_id in range(2 * MAX_PARTY_CONNECTIONS)]
    assert list(map(len, turns(*connections))) == [2 * MAX_PARTY_CONNECTIONS]


def test_later_connection_gets_the_turn_of_its_client() -> None:
    """Found: each later move gave 10,000 connections new turns, and the last connection left after 511 s."""
    first, second, third = ConnectionStub(1), ConnectionStub(2), ConnectionStub(3)
    java = ConnectionStub(1, SessionStub(drops_moved=False))
    departures: Departures[Any] = Departures()
    departures.add([first, java])
    departures.add([first, second])
    departures.add([third])
    assert departures.take() == [first, second, third]
    assert departures.take() == [java]
    assert departures.take() == []
    assert not departures
