from __future__ import annotations

import random
import socket
from collections import deque

import pytest

from fleet.demo import ports
from fleet.demo.ports import free_ports
from fleet.errors import DemoError


def test_ports_are_consecutive_and_can_be_bound_on_every_address() -> None:
    hosts = ("127.0.0.1", "127.77.3.3")
    found = free_ports(20, hosts)
    assert found == tuple(range(found[0], found[0] + 20))
    for host in hosts:
        for port in found:
            with socket.socket() as listener:
                listener.bind((host, port))


def test_a_range_with_a_used_port_in_it_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = free_ports(1)
    monkeypatch.setattr(ports, "_GIVEN_LATELY", deque())
    offered = iter([first - 2, first + 1000])
    monkeypatch.setattr(random, "randrange", lambda *_: next(offered))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", first))
        listener.listen()
        assert free_ports(4)[0] == first + 1000


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(DemoError, match=r"192\.0\.2\.1 is not an address of this machine"):
        free_ports(1, ("192.0.2.1",))


def test_no_port_is_given_twice_before_its_owner_may_listen() -> None:
    """Links between members were given ports of the fleet, which did not listen yet: p3 refused to start."""
    given = [port for _ in range(50) for port in free_ports(20)]
    assert len(set(given)) == len(given)
