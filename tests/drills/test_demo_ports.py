from __future__ import annotations

import socket

import pytest

from fleet.core.errors import DemoError
from fleet.drills.cluster import ports
from fleet.drills.cluster.ports import free_ports


def test_ports_are_consecutive_and_can_be_bound_on_every_address() -> None:
    hosts = ("127.0.0.1", "127.77.3.3")
    found = free_ports(20, hosts)
    assert found == tuple(range(found[0], found[0] + 20))
    for host in hosts:
        for port in found:
            with socket.socket() as listener:
                listener.bind((host, port))


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(DemoError, match=r"192\.0\.2\.1 is not an address of this machine"):
        free_ports(1, ("192.0.2.1",))


def test_no_port_is_given_twice_before_its_owner_may_listen() -> None:
    """Links between members were given ports of the fleet, which did not listen yet: p3 refused to start."""
    given = [port for _ in range(50) for port in free_ports(20)]
    assert len(set(given)) == len(given)


def test_many_that_are_given_leave_a_thousand_in_a_row() -> None:
    # Found: an hour of a benchmark had been given some here and some there, and had no 1,003 in a row left.
    given = [port for _ in range(300) for port in free_ports(6)]
    given += free_ports(1_003)
    assert len(set(given)) == len(given) == 2_803


def test_one_that_somebody_listens_on_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_next_port", 25_000)
    first, second, third, fourth = free_ports(4)
    with socket.create_server(("127.0.0.1", second)):
        monkeypatch.setattr(ports, "_next_port", first)
        assert free_ports(2) == (third, fourth)


def test_behind_the_last_comes_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_next_port", 31_990)
    assert 20_000 <= min(free_ports(11)) <= 31_000


def test_more_than_there_are_is_an_error() -> None:
    with pytest.raises(DemoError, match="no 12001 consecutive ports are free between 20000 and 32000"):
        free_ports(12_001)
