"""Which connections leave together, and when."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from fleet.proxy.departures import MOST, Party, parties


@dataclass
class SessionStub:
    client_key: bytes = b"host\0app"
    drops_moved: bool = True
    fetches: bool = False
    coordinates: bool = False


@dataclass(eq=False)
class ConnectionStub:
    """What a party needs of a connection."""

    broker_id: int = 1
    session: SessionStub = field(default_factory=SessionStub)
    since_s: float = 0.0
    party: Any = None
    may_leave: bool = False
    left: bool = False

    def leave(self) -> None:
        self.left = True

    def advance(self) -> None:
        """As a connection that is alone does."""
        assert self.party is None
        if self.may_leave:
            self.leave()


def grouped(*connections: ConnectionStub) -> list[list[ConnectionStub]]:
    return parties(connections)  # type: ignore[type-var]


def party(*connections: ConnectionStub) -> Party:
    return Party(connections)  # type: ignore[arg-type]


def happens(connection: ConnectionStub) -> None:
    connection.party.advance(connection)


def test_connections_leave_when_the_last_of_them_may() -> None:
    first, second = ConnectionStub(1), ConnectionStub(2)
    party(first, second)
    first.may_leave = True
    happens(first)
    assert not first.left
    second.may_leave = True
    happens(second)
    assert first.left
    assert second.left


def test_a_moment_that_has_passed_does_not_count() -> None:
    first, second = ConnectionStub(1, may_leave=True), ConnectionStub(2)
    party(first, second)
    happens(first)
    first.may_leave, second.may_leave = False, True
    happens(second)
    assert not first.left
    assert not second.left


@pytest.mark.parametrize("what", ["fetches", "coordinates"])
def test_a_consumers_connection_leaves_alone(what: str) -> None:
    """A request for records may wait for half a second, and its client is another one."""
    first, second, third = ConnectionStub(1), ConnectionStub(2), ConnectionStub(2)
    party(first, second, third)
    setattr(second.session, what, True)
    happens(second)
    first.may_leave = third.may_leave = True
    happens(third)
    assert first.left
    assert third.left
    assert not second.left


def test_a_connection_that_has_gone_is_not_waited_for() -> None:
    first, second = ConnectionStub(1, may_leave=True), ConnectionStub(2)
    party(first, second).drop(second)  # type: ignore[arg-type]
    assert first.left
    assert not second.left
    assert second.party is None


def test_a_second_party_takes_over_from_the_first() -> None:
    first, second, third = ConnectionStub(1), ConnectionStub(2), ConnectionStub(0)
    party(first, second)
    whole = party(first, second, third)
    assert all(each.party is whole for each in (first, second, third))
    first.may_leave = second.may_leave = True
    happens(second)
    assert not first.left


def test_only_clients_that_drop_connections_leave_together() -> None:
    one, other = ConnectionStub(1), ConnectionStub(2)
    elsewhere = ConnectionStub(1, SessionStub(b"host2\0app"))
    java = [ConnectionStub(each, SessionStub(drops_moved=False)) for each in (1, 2)]
    consumer = ConnectionStub(1, SessionStub(fetches=True))
    found = grouped(one, java[0], elsewhere, other, java[1], consumer)
    assert [one, other] in found
    assert sorted(map(len, found)) == [1, 1, 1, 1, 2]


def test_each_connection_is_in_one_party_and_none_is_too_large() -> None:
    """Connections of one client are made at about the same time."""
    clients = 3 * MOST
    connections = [
        ConnectionStub(broker_id, since_s=client + broker_id / 10)
        for broker_id in (1, 2)
        for client in range(clients)
    ]
    found = grouped(*reversed(connections))
    assert sorted(map(id, connections)) == sorted(id(each) for together in found for each in together)
    assert max(map(len, found)) <= MOST
    for together in found:
        by_broker = [{int(each.since_s) for each in together if each.broker_id == b} for b in (1, 2)]
        assert by_broker[0] == by_broker[1]


def test_one_client_of_many_brokers_stays_together() -> None:
    connections = [ConnectionStub(broker_id) for broker_id in range(2 * MOST)]
    assert list(map(len, grouped(*connections))) == [2 * MOST]
